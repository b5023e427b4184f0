"""One global time line, cut into train, valid and test. What a model may know is counted on training rows
only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unskew.core.config import configured
from unskew.core.errors import BadInput
from unskew.data.log.clock import Clock
from unskew.data.log.log import Log
from unskew.data.log.views import Ints
from unskew.data.log.vocabulary import Vocabulary

Part = Literal["train", "valid", "test"]
Mask = NDArray[np.bool_]

# From this fraction of repeats among the training positives on, `auto` keeps past items as candidates.
PART_OF_THE_TASK = 0.01


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """How a log is cut in time, and which items can be recommended."""

    fractions: tuple[float, float, float] = (50, 20, 30)
    """The fractions of the rows that are the training, the validation and the test set, in the order of
    time."""
    repeats: Literal["auto", "keep", "hide"] = "auto"
    """Whether an item that a user has had before can be recommended to the user again. `keep`: it can, in
    training, evaluation and recommendation alike. `hide`: it cannot, and positives that repeat one are left
    out and counted. `auto`: `keep` if at least 1 % of the training positives repeat an item."""
    borders: str | None = None
    """Two named tests of the log between a comma, VALID,TEST: the validation set begins with the first row
    that VALID marks, and the test set with the first one that TEST marks, whatever the fractions are. The
    default is what `prepare` was told, or else the fractions decide."""
    min_count: int | None = None
    """Users and items with fewer positives than this in the training set are unknown to every model: they
    share one learned vector. No row is removed. The default is what `prepare` was told, or else 1."""


@dataclass(frozen=True, eq=False)
class Ids:
    """The users, or the items, that training saw: those with a code below `size`."""

    size: int
    rare: Mask | None = None  # which of them have too few positives, and are corrected as unknown
    categories: Mapping[str, int] = field(default_factory=dict)  # of a feature, how many values they have


@dataclass(frozen=True, eq=False)
class Known:
    """What the shape of a model depends on: who and what it can tell apart, and the clock of the log."""

    users: Ids
    items: Ids
    clock: Clock


@dataclass(frozen=True, eq=False)
class Split:
    """A log with its two borders, and the statistics a model may read: all of them of training rows only.

    Rows of equal time are always on the same side of a border. Users and items without a positive in training
    are kept: their codes are simply not below `known_users` and `known_items`. Of those below, the ones with
    fewer than `min_count` positives are corrected as unknown by the models.
    """

    log: Log
    settings: Splitting
    train_end: int  # train is what happened before this time
    valid_end: int  # valid is the rest before this one
    known_users: int
    known_items: int
    user_counts: Ints  # positives of each user in the training set
    item_counts: Ints
    repeats: bool  # whether a user's past items stay candidates
    min_count: int

    def mask(self, part: Part) -> Mask:
        """The rows of a part."""
        time = self.log.time
        if part == "train":
            return np.asarray(time < self.train_end)
        if part == "valid":
            return np.asarray((time >= self.train_end) & (time < self.valid_end))
        if part == "test":
            return np.asarray(time >= self.valid_end)
        raise BadInput(f"no part {part!r}; parts are train, valid, test")

    def rows(self, part: Part) -> Ints:
        """The rows of a part, as places in the log."""
        return np.flatnonzero(self.mask(part))

    @cached_property
    def first_appearance(self) -> Mask:
        """Rows whose item had no positive strictly before.

        The audience of such an item is empty, and the audiences of all other candidates are not, so that
        emptiness would tell the label. At the very first moment all audiences are empty, and it tells
        nothing.
        """
        first = self.log.audiences.first_times
        return np.asarray((first[self.log.item] >= self.log.time) & (self.log.time > first.min()))

    def targets(self, part: Part, reads_audiences: bool) -> Mask:
        """Rows of a part that may be trained on or tested.

        Left out are repeats, where past items are hidden, and first appearances, where audiences are read
        (and in every test, so that all models have the same rows). Training also leaves out rows of users and
        items
        that were shown but never clicked in it: they are unknown, so such rows would teach that whatever is
        unknown is never clicked.
        """
        wanted = self.mask(part)
        if part == "train":
            wanted &= (self.log.item < self.known_items) & (self.log.user < self.known_users)
        if not self.repeats:
            wanted &= ~self.log.repeated
        return wanted & ~self.first_appearance if reads_audiences else wanted

    @property
    def known(self) -> Known:
        """What a model is built for."""
        users = self._ids(self.user_counts[: self.known_users], self.log.users)
        return Known(users, self._ids(self.item_counts[: self.known_items], self.log.items), self.log.clock)

    def _ids(self, counts: Ints, vocabulary: Vocabulary) -> Ids:
        rare = counts < self.min_count
        # Categories are numbered by the first id that has them, so those of known ids are the first ones.
        categories = {
            name: int(feature.categories[: len(counts)].max(initial=-1)) + 1
            for name, feature in vocabulary.features.items()
            if not feature.is_number
        }
        return Ids(len(counts), rare if rare.any() else None, categories)

    def __repr__(self) -> str:
        train, valid = (self.log.clock.date(time) for time in (self.train_end, self.valid_end))
        return f"Split({self.log!r}, train before {train}, valid before {valid})"

    def summary(self) -> list[dict[str, Any]]:
        """Per part: rows, positives, repeats, and how many have a user or an item that training never saw."""
        found = []
        parts: tuple[Part, ...] = ("train", "valid", "test")
        for part in parts:
            rows = self.rows(part)
            user, item, positive = self.log.user[rows], self.log.item[rows], self.log.label[rows] == 1
            counts = {"rows": len(rows), "positives": int(positive.sum())}
            counts |= {"users": len(np.unique(user)), "items": len(np.unique(item))}
            counts |= {"unknown_user_rows": int((user >= self.known_users).sum())}
            counts |= {"unknown_item_rows": int((item >= self.known_items).sum())}
            counts |= {"repeated_positives": int((self.log.repeated[rows] & positive).sum())}
            counts |= {"first_appearances": int((self.first_appearance[rows] & positive).sum())}
            found.append({"part": part, **counts})
        return found


@configured(Splitting)
def split(log: Log, settings: Splitting) -> Split:
    """Cut a log in time. What training may know is counted here, once, on training rows."""
    fractions = np.asarray(settings.fractions, float)
    if len(fractions) != 3 or (fractions < 0).any() or not fractions.sum() > 0 or fractions[0] == 0:
        raise BadInput(f"fractions {settings.fractions}: expected three of at least 0, the first above 0")
    prepared = log.metadata.settings.borders
    wanted = prepared if settings.borders is None else settings.borders
    if wanted:
        return split_at(log, settings, *log.named_borders(wanted))
    return split_at(log, settings, *borders(log.time, fractions / fractions.sum()))


def split_at(log: Log, settings: Splitting, train_end: int, valid_end: int) -> Split:
    """A split with given borders: train is what happened before `train_end`, valid the rest before
    `valid_end`."""
    prepared = log.metadata.settings.min_count
    min_count = prepared if settings.min_count is None else settings.min_count
    if min_count < 1:
        raise BadInput(f"min_count {min_count}: expected at least 1")
    positives = log.positives
    train = np.asarray(log.time[:positives] < train_end)
    if not train.any():
        raise BadInput(
            f"the training set has no positive: fractions {settings.fractions} of {len(log)} rows, before "
            "time "
            f"{train_end}"
        )
    user_counts = np.bincount(log.user[:positives][train], minlength=len(log.users))
    item_counts = np.bincount(log.item[:positives][train], minlength=len(log.items))
    known = int(log.histories.existing(train_end)), int(log.audiences.existing(train_end))
    repeats = settings.repeats == "keep"
    if settings.repeats == "auto":
        repeats = bool(log.repeated[:positives][train].mean() >= PART_OF_THE_TASK)
    return Split(log, settings, train_end, valid_end, *known, user_counts, item_counts, repeats, min_count)


def borders(time: Ints, fractions: NDArray[np.float64]) -> tuple[int, int]:
    """The two times that cut nearest to the fractions without parting rows of equal time."""
    ordered = np.sort(time)

    def nearest(fraction: float) -> int:
        wanted = fraction * len(ordered)
        if wanted >= len(ordered):
            return int(ordered[-1]) + 1
        at = ordered[int(wanted)]
        first, last = np.searchsorted(ordered, at, "left"), np.searchsorted(ordered, at, "right")
        # A border before the first row would leave nothing to train on.
        if 0 < first and wanted - first <= last - wanted:
            return int(at)
        return int(ordered[last]) if last < len(ordered) else int(at) + 1

    train_end = nearest(float(fractions[0]))
    return train_end, max(train_end, nearest(float(fractions[0] + fractions[1])))
