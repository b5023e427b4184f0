"""A model of your own that reads when things happened, in one file.

It recommends what goes with the items of a user's history, and the longer ago one of them was, the less it
counts: after one half-life, half. The half-life is learned.

    python examples/time_model.py            trains it on a simulated log and prints its test

Importing this file registers the model: `unskew.create_model("fading-mean")` and `debiased-fading-mean` work.
To have it on the command line, install it as a package with an entry point in the group `unskew.models`
(docs/conventions.md).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import unskew
from unskew.core.config import AtLeast1, Positive
from unskew.data.batches.batch import Batch
from unskew.data.log.split import Known
from unskew.models.base import DotProduct, HistoryConfig
from unskew.nn.layers import Embeddings, is_real
from unskew.nn.losses import bpr, weighted_mean
from unskew.nn.phases import Phase

SECONDS_OF_A_DAY = 86400


class FadingMean(DotProduct, name="fading-mean", paper="an example of unskew; no paper"):
    """Scores are dot products of a weighted mean of the history with the candidates."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: AtLeast1 = 32
        """The width of the item vectors."""
        days: Positive = 30.0
        """The half-life, in days, from which learning starts."""

    config: Config

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        self.items = Embeddings(known.items, config.width)
        self.read = Embeddings(known.items, config.width)  # the vector of an item that is in the history
        self.start = nn.Parameter(torch.zeros(config.width))  # what a user without a history gets
        # Where times only give an order, a tick counts as a second.
        self.ticks_of_a_day = SECONDS_OF_A_DAY * (known.clock.ticks or 1)
        self.log2_days = nn.Parameter(torch.tensor(config.days).log2())

    def context(self, batch: Batch) -> Tensor:
        age_BL = (batch.times_B[:, None] - batch.history_times_BL) / self.ticks_of_a_day  # in days
        weight_BL = torch.exp2(-age_BL / self.log2_days.exp2()) * is_real(batch.history_BL)
        sum_BD = torch.einsum("bl,bld->bd", weight_BL, self.read(batch.history_BL))
        return self.start + sum_BD / (1 + weight_BL.sum(1, keepdim=True))

    def vectors(self, item: Tensor) -> Tensor:
        return self.items(item)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("pairwise", "positives", self.pairwise_loss, self.parameters, negatives=4),)

    def pairwise_loss(self, batch: Batch) -> Tensor:
        """Each positive, the first candidate, against the sampled negatives."""
        scores_BC = self(batch)
        weight = None if batch.weight_BC is None else batch.weight_BC[:, :1]
        return weighted_mean(bpr(scores_BC[:, :1], scores_BC[:, 1:]), weight)


if __name__ == "__main__":
    split = unskew.split(unskew.simulate(users=300, items=200, steps=60, seed=1).log)
    for name in ("fading-mean", "popularity"):
        model = unskew.create_model(name, {"epochs": 10}).fit(split)
        print(name, {metric: round(value, 4) for metric, value in model.evaluate(split).metrics().items()})
