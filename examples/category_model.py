"""A model of your own that reads a feature of the items, in one file: here their category.

An item that nobody had in training has no vector of its own, but it has a category, and the category has one.

    unskew prepare clicks.csv --out data --item-features category
    python examples/category_model.py        trains it on a made-up log with categories and prints its test

Importing this file registers the model, so `unskew.create_model("category-factors")` works.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import unskew
from unskew.core.config import AtLeast1
from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch, feature_of
from unskew.data.log.split import Known
from unskew.models.base import ModelConfig, Recommender
from unskew.nn.layers import Embeddings
from unskew.nn.losses import bpr, weighted_mean
from unskew.nn.phases import Phase


class CategoryFactors(Recommender, name="category-factors", paper="an example of unskew; no paper"):
    """Matrix factorisation in which the vector of an item is its own plus that of its category."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        width: AtLeast1 = 32
        """The width of the vectors of users, items and categories."""
        feature: str = "category"
        """The name of the item feature that is read."""

    config: Config

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        if config.feature not in known.items.categories:
            raise BadInput(
                f"this log has no categories named {config.feature!r}: prepare it with --item-features "
                f"{config.feature}"
            )
        self.users = Embeddings(known.users, config.width)
        self.items = Embeddings(known.items, config.width)
        # Categories that no known item has share one vector, as unknown items do.
        self.categories = Embeddings(known.items.categories[config.feature], config.width)
        self.bias = nn.Parameter(torch.zeros(config.width))

    def forward(self, batch: Batch) -> Tensor:
        category_BC = feature_of(batch.item_features[self.config.feature], batch.candidates_BC)
        item_BCD = self.items(batch.candidates_BC) + self.categories(category_BC)
        return torch.einsum("bd,bcd->bc", self.users(batch.user_B) + self.bias, item_BCD)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("pairwise", "positives", self.pairwise_loss, self.parameters, negatives=4),)

    def pairwise_loss(self, batch: Batch) -> Tensor:
        """Each positive, the first candidate, against the sampled negatives."""
        scores_BC = self(batch)
        weight = None if batch.weight_BC is None else batch.weight_BC[:, :1]
        return weighted_mean(bpr(scores_BC[:, :1], scores_BC[:, 1:]), weight)


def made_up(seed: int = 0) -> unskew.Log:
    """Everybody likes one of eight categories. Each has twenty items at a time, and slowly gets new ones."""
    random, rows = np.random.default_rng(seed), 12_000
    user = random.integers(0, 300, rows)
    category = np.where(random.random(rows) < 0.8, user % 8, random.integers(0, 8, rows))
    item = 8 * (random.integers(0, 20, rows) + np.arange(rows) // 600) + category
    table = {"user": user, "item": item, "time": np.arange(rows), "category": [f"c{c}" for c in category]}
    return unskew.read(table, item_features="category")


if __name__ == "__main__":
    split = unskew.split(made_up())
    for name in ("category-factors", "sasrec"):
        model = unskew.create_model(name, {"epochs": 10, "patience": 3}).fit(split)
        found = model.evaluate(split, sample=1000)
        print(name, {metric: round(value, 4) for metric, value in found.metrics().items()})
