"""One global time line, cut into train, valid and test; and three tests of the held-out part: ordinary, resampled, randomised."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unskew.config import configured
from unskew.data.log import Log
from unskew.data.views import Ints
from unskew.errors import BadInput

Part = Literal["train", "valid", "test"]
Test = Literal["ordinary", "resampled", "randomised"]
Protocol = Literal[
    "full", "uni100", "authors"
]  # how a test is ranked: evaluate.py. Here, because it is a flag, and no flag waits for torch
Mask = NDArray[np.bool_]

AUTHORS_EXPONENT = 0.005


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """How a log is cut in time and how its held-out part is resampled."""

    shares: tuple[float, float, float] = (50, 20, 30)
    """Shares of the rows, in time: train, valid, test."""
    resample: Literal["inverse", "authors"] = "inverse"
    """`inverse` undoes the popularity of the training part; `authors` is what the paper's code does, seeded."""
    strength: float = 1.0
    """How far popularity is undone: 0 not at all, 1 fully."""
    resample_seed: int = 0
    """Of the resampling."""


@dataclass(frozen=True, eq=False)
class Split:
    """A log with its two borders, and the statistics a model may read: all of them of training rows only.

    Rows of equal time are always on the same side of a border. Users and items that training never saw are kept: their
    codes are simply not below `known_users` and `known_items`.
    """

    log: Log
    settings: Splitting
    train_end: int  # train is what happened before this time
    valid_end: int  # valid is the rest before this one
    known_users: int
    known_items: int
    user_counts: Ints  # positives of each user in the training part
    item_counts: Ints
    acceptance: NDArray[np.float64]  # of each item, the probability that a held-out row survives the resampling

    def mask(self, part: Part, test: Test = "ordinary") -> Mask:
        """The rows of a part. `test` says which of its three versions; the training part has only the ordinary one."""
        time = self.log.time
        if part == "train":
            if test != "ordinary":
                raise BadInput(f"the training part is never {test}")
            return np.asarray(time < self.train_end)
        if part not in ("valid", "test") or test not in ("ordinary", "resampled", "randomised"):
            raise BadInput(f"no part {part!r} with test {test!r}; parts are train, valid, test; tests are ordinary, resampled, randomised")
        inside = (time >= self.train_end) & (time < self.valid_end) if part == "valid" else time >= self.valid_end
        if test == "resampled":
            inside &= self.survives
        if test == "randomised":
            if self.log.exposed is None:
                raise BadInput("this log does not say which rows were exposed at random: no randomised test (--exposed names the column)")
            inside &= self.log.exposed == 1
        return np.asarray(inside)

    def rows(self, part: Part, test: Test = "ordinary") -> Ints:
        return np.flatnonzero(self.mask(part, test))

    @cached_property
    def newborn(self) -> Mask:
        """Rows at the first moment of their item. They are no targets, of training or of a test: nothing could be known of
        the item yet, and of all items that exist by then it alone has nobody before it, which would tell that it is the one."""
        return np.asarray(self.log.births[1][self.log.item] == self.log.time)

    @cached_property
    def survives(self) -> Mask:
        """One seeded draw per row, so that valid and test never depend on each other."""
        draws = np.random.default_rng([self.settings.resample_seed, 7]).random(len(self.log))
        return np.asarray(draws < self.acceptance[self.log.item])

    def tests(self) -> tuple[Test, ...]:
        return ("ordinary", "resampled") if self.log.exposed is None else ("ordinary", "resampled", "randomised")

    def __repr__(self) -> str:
        return f"Split({self.log!r}, train before {self.train_end}, valid before {self.valid_end})"

    def summary(self) -> list[dict[str, Any]]:
        """Per part and test: rows, positives, and how many have a user or an item that training never saw."""
        held_out: tuple[Part, ...] = ("valid", "test")
        parts: list[tuple[Part, Test]] = [("train", "ordinary"), *((part, test) for part in held_out for test in self.tests())]
        found = []
        for part, test in parts:
            rows = self.rows(part, test)
            user, item = self.log.user[rows], self.log.item[rows]
            counts = {"rows": len(rows), "positives": int(self.log.label[rows].sum())}
            counts |= {"users": len(np.unique(user)), "items": len(np.unique(item))}
            counts |= {"unknown_user_rows": int((user >= self.known_users).sum())}
            counts |= {"unknown_item_rows": int((item >= self.known_items).sum()), "newborn_item_rows": int(self.newborn[rows].sum())}
            found.append({"part": part, "test": test, **counts})
        return found


@configured(Splitting)
def split(log: Log, settings: Splitting) -> Split:
    """Cut a log in time. What training may know is counted here, once, on training rows."""
    shares = np.asarray(settings.shares, float)
    if len(shares) != 3 or (shares < 0).any() or not shares.sum() > 0 or shares[0] == 0:
        raise BadInput(f"shares {settings.shares}: expected three of at least 0, the first above 0")
    if settings.strength < 0 or settings.resample_seed < 0:
        raise BadInput(f"strength {settings.strength}, resample_seed {settings.resample_seed}: expected at least 0")
    train_end, valid_end = borders(log.time, shares / shares.sum())
    train = np.asarray(log.time < train_end)
    positive = train & (log.label == 1)
    if not positive.any():
        raise BadInput(f"the training part has no positive: shares {settings.shares} of {len(log)} rows, before time {train_end}")
    user_counts = np.bincount(log.user[positive], minlength=len(log.users))
    item_counts = np.bincount(log.item[positive], minlength=len(log.items))
    known = int(log.user[train].max()) + 1, int(log.item[train].max()) + 1
    held_out = np.bincount(log.item[~train & (log.label == 1)], minlength=len(log.items))
    acceptance = inverse_popularity(item_counts, settings.strength) if settings.resample == "inverse" else authors_popularity(held_out)
    return Split(log, settings, train_end, valid_end, *known, user_counts, item_counts, acceptance)


def borders(time: Ints, shares: NDArray[np.float64]) -> tuple[int, int]:
    """The two times that cut nearest to the shares without parting rows of equal time."""
    ordered = np.sort(time)

    def nearest(share: float) -> int:
        wanted = share * len(ordered)
        if wanted >= len(ordered):
            return int(ordered[-1]) + 1
        at = ordered[int(wanted)]
        first, last = np.searchsorted(ordered, at, "left"), np.searchsorted(ordered, at, "right")
        if 0 < first and wanted - first <= last - wanted:  # a border before the first row would leave nothing to train on
            return int(at)
        return int(ordered[last]) if last < len(ordered) else int(at) + 1

    train_end = nearest(float(shares[0]))
    return train_end, max(train_end, nearest(float(shares[0] + shares[1])))


def inverse_popularity(counts: Ints, strength: float) -> NDArray[np.float64]:
    """(min m / m_i)^strength, with m counted on training rows and at least 1: an item that training never saw always survives."""
    floored = np.maximum(counts, 1)
    return np.asarray((floored.min() / floored) ** strength, np.float64)


def authors_popularity(counts: Ints) -> NDArray[np.float64]:
    """What the paper's code does: minmax of (max f / f_i)^0.005 over the held-out part itself. The most popular item always vanishes."""
    present = counts > 0
    weight = np.zeros(len(counts))
    weight[present] = (counts.max(initial=1) / counts[present]) ** AUTHORS_EXPONENT
    low, high = weight[present].min(initial=1.0), weight[present].max(initial=1.0)
    return np.where(present, (weight - low) / (high - low), 0.0) if high > low else present.astype(np.float64)
