"""A model and a table of your own, in one file, without touching the package (docs/tutorials).

unskew bench --suite examples/own_suite.py DATA --out results
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unskew.core.config import AtLeast1
from unskew.data.batches.batch import Batch
from unskew.data.log.split import Known, Split
from unskew.data.log.views import PAD
from unskew.experiments.suite import Arm, Suite
from unskew.models.base import HistoryConfig, Recommender


class Successors(Recommender, name="successors", paper="an example of unskew; no paper"):
    """Scores an item by how often it came right after the user's last one. It counts, so it has no phases of
    training: `fit_statistics` reads the training set, and nothing else."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        """The settings of this model; each is a flag of `unskew train` as well."""

        history: AtLeast1 = 1
        """The number of past items of a user that the model reads."""
        successors: AtLeast1 = 20
        """The number of most frequent successors of each item that are kept."""

    config: Config
    knows_by = ("items",)  # it has nothing to say to people whose last item it does not know
    next_IK: Tensor
    times_IK: Tensor

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        self.register_buffer("next_IK", torch.full((known.items.size, config.successors), PAD))
        self.register_buffer("times_IK", torch.zeros(known.items.size, config.successors))

    def fit_statistics(self, split: Split) -> None:
        """Count who follows whom in the training set."""
        log, items = split.log, split.known_items
        rows = np.flatnonzero(split.mask("train")[: log.positives])  # users one after the other, in time
        same = log.user[rows[1:]] == log.user[rows[:-1]]
        before, after = log.item[rows[:-1]][same].astype(np.int64), log.item[rows[1:]][same]
        pairs, times = np.unique(before * items + after, return_counts=True)
        for item in np.unique(pairs // items):
            here = np.flatnonzero(pairs // items == item)
            best = here[np.argsort(-times[here], kind="stable")][: self.config.successors]
            self.next_IK[item, : len(best)] = torch.from_numpy(pairs[best] % items)
            self.times_IK[item, : len(best)] = torch.from_numpy(times[best]).float()

    def forward(self, batch: Batch) -> Tensor:
        last = batch.history_BL[:, -1]
        known = (last != PAD) & (last < len(self.next_IK))
        last = last.masked_fill(~known, 0)
        met_BCK = batch.candidates_BC[:, :, None] == self.next_IK[last][:, None, :]
        return (met_BCK * self.times_IK[last][:, None, :]).sum(2) * known[:, None]


mine = Suite(
    name="mine",
    title="Successors and simple rivals",
    question="Is it enough to know what usually comes next?",
    arms=(
        Arm(name="last item's successors", model="successors"),
        Arm(name="popularity", model="popularity"),
        Arm(name="ItemKNN", model="itemknn"),
    ),
)
