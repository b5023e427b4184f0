"""Scorers with known scores, splits to rank, and candidates found by a naive loop: for the tests of
evaluation."""

import numpy as np
import torch
from torch import Tensor

import unskew
from unskew.data.batches.batch import Batch
from unskew.data.log.held_out import HeldOut, held_out

ITEMS = 60


class Scores:
    """A score for every (user, item), or for every (context, item), from a table made in advance."""

    history = 3

    def __init__(self, split: unskew.Split, rounded: int | None = None, by_time: bool = False) -> None:
        random, log = np.random.default_rng(5), split.log
        moments = int(log.time.max()) + 1 if by_time else 1
        self.table = random.standard_normal((moments, len(log.users), len(log.items))).astype(np.float32)
        if rounded is not None:
            self.table = self.table.round(rounded)  # many ties
        self.by_time = by_time

    def catalog(self, log: unskew.Log, first: int, last: int) -> "Scores":
        self.period = first, last
        return self

    def scores(self, context: Batch) -> Tensor:
        times = context.times_B.numpy()
        assert self.period[0] <= times.min() <= times.max() <= self.period[1]
        assert (np.diff(times) >= 0).all()
        assert context.history_BL.shape[1] <= self.history
        return torch.from_numpy(self.table[times if self.by_time else 0 * times, context.user_B.numpy()])


class Same(Scores):
    """One number for everything."""

    def __init__(self, split: unskew.Split, number: float) -> None:
        self.items, self.number = len(split.log.items), number

    def scores(self, context: Batch) -> Tensor:
        return torch.full((len(context.user_B), self.items), self.number)


def growing_split(repeats: str) -> unskew.Split:
    """Some sixty items, some of them new in the test set; ties in time; users who meet an item twice."""
    random = np.random.default_rng(3)
    time = random.integers(0, 200, 1500)
    item = ((20 + (ITEMS - 20) * time / 200) * random.random(1500) ** 1.5).astype(
        int
    )  # the range grows with time
    table = {
        "user": random.integers(0, 30, 1500),
        "item": item,
        "time": time,
        "label": (random.random(1500) < 0.7).astype(int),
    }
    made = unskew.split(unskew.read(table), fractions=(30, 20, 50), repeats=repeats)
    assert made.known_items < len(made.log.items)
    return made


def wide_split() -> unskew.Split:
    """So many items that nobody has more than a few of them."""
    random = np.random.default_rng(4)
    table = {
        "user": random.integers(0, 150, 6000),
        "item": random.integers(0, 400, 6000),
        "time": random.integers(0, 900, 6000),
    }
    return unskew.split(unskew.read(table), fractions=(40, 20, 40))


def candidates(split: unskew.Split, row: int) -> set[int]:
    """From the rows themselves: what some user had before and, unless repeats are kept, the user had not."""
    log, user, time = split.log, split.log.user[row], split.log.time[row]
    exists = set(log.item[(log.time < time) & (log.label == 1)].tolist())
    own = set(log.item[(log.user == user) & (log.label == 1) & (log.time < time)].tolist())
    return exists if split.repeats else exists - own


def whole_test(split: unskew.Split, test: str = "ordinary") -> HeldOut:
    return held_out(split, "test", test)
