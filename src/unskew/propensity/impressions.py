"""What estimators of exposure read of a log: its impressions, what happened in them and what did not, and how
popular each item was at any moment.

An impression is a user at a time, or what the log's column of impressions says. The items that it could have
shown are those that some user was shown before; where only clicks are known, those that some user clicked
before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.data.log.decay import Decay
from unskew.data.log.log import Log
from unskew.data.log.split import Split
from unskew.data.log.views import PAD, Ints, Sequences, offsets_of

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

ALL = 500  # up to so many existing items, an impression is compared with all of them
DRAWN = 200  # otherwise with so many, drawn evenly
PAIRS = 3_000_000  # how many pairs are looked at; where there would be more, fewer impressions are
MOMENTS = 64  # over the training set, at which all existing items are summed up
SPREAD = 8192  # of so many items, evenly spaced among those that exist


@dataclass(frozen=True, eq=False)
class Impressions:
    """The impressions of some rows of a log, in the order of time."""

    log: Log
    rows: Ints  # of the log
    of_row: Ints  # which impression each of these rows belongs to
    user: Ints
    time: Ints  # of the first of its rows: nothing in an impression is past for the rest of it
    random: Mask  # whether what it shows was drawn at random (`exposed`)
    existing: Ints  # how many items there are to choose from: the first so many of `order`
    order: Ints  # all items of the log, as they appeared

    def __len__(self) -> int:
        return len(self.user)

    def some(self, chosen: Mask) -> "Impressions":
        """Only the impressions that are wanted, with their rows."""
        number = np.cumsum(chosen) - 1
        kept = chosen[self.of_row]
        of_row, user, time = number[self.of_row[kept]], self.user[chosen], self.time[chosen]
        random, existing = self.random[chosen], self.existing[chosen]
        return Impressions(self.log, self.rows[kept], of_row, user, time, random, existing, self.order)


def training_impressions(split: Split, clicked: bool) -> Impressions:
    """The impressions of the training set: those with a click, with their clicks (`clicked`), or all of them,
    with everything that they showed."""
    log, rows = split.log, split.rows("train")
    rows = rows[log.label[rows] == 1] if clicked else rows
    together = np.asarray(log.time if log.impression_id is None else log.impression_id)[rows]
    is_shown = np.ones(len(rows), bool) if log.impression_id is None else together != PAD
    if clicked:  # a click that belongs to no impression is one by itself
        together = np.where(is_shown, together, -2 - np.arange(len(rows)))
    else:
        rows, together = rows[is_shown], together[is_shown]
    _, number = np.unique(together, return_inverse=True)
    width = int(number.max(initial=0)) + 1
    impressions, of_row = np.unique(log.user[rows].astype(np.int64) * width + number, return_inverse=True)
    time = np.full(len(impressions), np.iinfo(np.int64).max)
    np.minimum.at(time, of_row, log.time[rows])
    random = np.zeros(len(impressions), bool)
    random[of_row[drawn_at_random(log)[rows]]] = True
    order = np.argsort(time, kind="stable")
    user, time, position = impressions[order] // width, time[order], np.argsort(order)
    since = (log.audiences if clicked else impressions_of(log)).since
    items = np.argsort(since, kind="stable")
    existing = np.searchsorted(since[items], time, "left")
    return Impressions(log, rows, position[of_row], user, time, random[order], existing, items)


def drawn_at_random(log: Log) -> Mask:
    """Which rows are of impressions that were drawn at random as a whole (`exposed`). A service that explores
    mixes random items into its lists: such an impression as a whole was not. A row that belongs to no
    impression belongs to what its user was shown at its time."""
    if log.exposed is None:
        return np.zeros(len(log), bool)
    random = np.asarray(log.exposed) == 1
    together = np.unique(log.time, return_inverse=True)[1]
    if log.impression_id is not None:
        impression_id = np.asarray(log.impression_id)
        together = np.where(impression_id == PAD, -2 - together, impression_id)
    _, number = np.unique(together, return_inverse=True)
    width = int(number.max(initial=0)) + 1
    _, impression = np.unique(log.user.astype(np.int64) * width + number, return_inverse=True)
    mixed = np.bincount(impression, ~random) > 0
    return np.asarray(random & ~mixed[impression])


class Pairs(NamedTuple):
    """Impressions times items, in the order of the impressions."""

    impression_id: Ints
    item: Ints
    happened: Mask  # whether the item is among the rows of the impression
    weight: Floats  # how many pairs this one stands for


def pairs_of(
    impressions: Impressions, random: np.random.Generator, most: int = ALL, drawn: int = DRAWN
) -> Pairs:
    """All items that were met in each impression, and those that were not: all of them where at most `most`
    items exist, and otherwise an even draw, weighted so that it stands for all."""
    log, existing, size = impressions.log, impressions.existing, len(impressions.log.items)
    position = np.argsort(impressions.order)
    item = log.item[impressions.rows].astype(np.int64)
    exists = position[item] < existing[impressions.of_row]
    met = np.unique(impressions.of_row[exists] * size + item[exists])
    all_of = existing <= most
    count = np.where(all_of, existing, drawn)
    impression = np.repeat(np.arange(len(impressions)), count)
    item = np.arange(len(impression)) - np.repeat(np.cumsum(count) - count, count)
    item = np.where(
        all_of[impression], item, (random.random(len(impression)) * existing[impression]).astype(np.int64)
    )
    item = impressions.order[item]
    unmet = ~np.isin(impression * size + item, met)
    impression, item = impression[unmet], item[unmet]
    met_in, kept = (np.bincount(of, minlength=len(impressions)) for of in (met // size, impression))
    weight = ((existing - met_in) / np.maximum(kept, 1))[impression]
    happened = np.concatenate([np.ones(len(met), bool), np.zeros(len(impression), bool)])
    impression, item = np.concatenate([met // size, impression]), np.concatenate([met % size, item])
    weight = np.concatenate([np.ones(len(met)), weight])
    order = np.argsort(impression, kind="stable")
    return Pairs(impression[order], item[order], happened[order], weight[order])


def few_enough(
    impressions: Impressions, random: np.random.Generator, most: int = ALL, drawn: int = DRAWN
) -> Impressions:
    """The impressions with at least two items to choose from; an even draw of them where their pairs would be
    too many."""
    is_usable = impressions.existing > 1
    pairs = np.where(impressions.existing <= most, impressions.existing, drawn)[is_usable].sum()
    fraction = min(1.0, PAIRS / max(int(pairs), 1))
    return impressions.some(is_usable & (random.random(len(impressions)) < fraction))


def blocks(pairs: Pairs, size: int) -> Iterator[slice]:
    """Parts of about this many pairs, which never part an impression."""
    begins = np.flatnonzero(np.diff(pairs.impression_id, prepend=-1))
    cuts = begins[np.searchsorted(begins, np.arange(0, len(pairs.impression_id), size))]
    cuts = np.unique(np.append(cuts, len(pairs.impression_id)))
    for first, last in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        yield slice(first, last)


class Moments:
    """A clock that stands still between its moments, which are so many in the training set and go on at the
    same pace after it. What is summed over all items is summed at the newest moment only."""

    def __init__(self, first: int, step: int) -> None:
        self.first, self.step = first, step

    @classmethod
    def of(cls, split: Split) -> "Moments":
        """The moments of a training set."""
        first = int(split.log.time.min())
        return cls(first, max((split.train_end - first) // MOMENTS, 1))

    def of_times(self, time: ArrayLike) -> tuple[Ints, Ints]:
        """The distinct newest moments at some times, and which of them each time has."""
        newest = (np.asarray(time, np.int64) - self.first) // self.step
        moments, which = np.unique(newest, return_inverse=True)
        return self.first + moments * self.step, which.reshape(newest.shape)


def spread_items(items: Ints, otherwise: int) -> tuple[Ints, float]:
    """Some of these items, evenly spaced, and how many each stands for. Where there is none, the first item
    stands for as many as there are `otherwise`: at the first moment nothing distinguishes them."""
    if not len(items):
        return np.zeros(1, np.int64), float(otherwise)
    some = items[:: -(-len(items) // SPREAD)]
    return some, len(items) / len(some)


def normalisers(all_items: Sequence[tuple[Floats, float]], weight: Floats | float) -> tuple[Floats, Floats]:
    """At each moment the log of the sum of exp(weight . features) over all items, and its derivative, from
    the features of some items and the log of how many items each of these stands for."""
    sums, slopes = [], []
    for features, log_each in all_items:
        logit = np.dot(features, weight)
        odds = np.exp(logit - logit.max())
        sums.append(logit.max() + np.log(odds.sum()) + log_each)
        slopes.append(odds @ features / odds.sum())
    return np.array(sums), np.array(slopes)


def sigmoid(logit: Floats) -> Floats:
    """The logistic function."""
    return np.asarray(1 / (1 + np.exp(-np.clip(logit, -30, 30))))


_IMPRESSIONS: WeakKeyDictionary[Log, Sequences] = WeakKeyDictionary()


def impressions_of(log: Log) -> Sequences:
    """For each item, to whom and when it was shown: all rows, clicked or not, of which it is known that
    they were shown. Made once for a log."""
    if log not in _IMPRESSIONS:
        rows = (
            np.arange(len(log))
            if log.impression_id is None
            else np.flatnonzero(np.asarray(log.impression_id) != PAD)
        )
        rows = rows[np.lexsort((log.user[rows], log.time[rows], log.item[rows]))]
        offsets = offsets_of(log.item[rows], len(log.items))
        _IMPRESSIONS[log] = Sequences(log.user[rows], np.asarray(log.time[rows], np.int64), offsets)
    return _IMPRESSIONS[log]


def shown_before(log: Log, moment: int) -> Ints:
    """The items that were shown to any user before a moment."""
    return np.flatnonzero(impressions_of(log).first_times < moment)


class ItemPast:
    """How often each item was clicked and shown before any moment: log1p of the plain count and of the
    counts that fade with two half-lives (in ticks)."""

    NAMES = tuple(f"{of}{how}" for of in ("clicks", "impressions") for how in ("", " slow", " fast"))

    def __init__(self, log: Log, half_lives: tuple[float, float]) -> None:
        self.log = log
        self.counts = [Decay(view, half_lives) for view in (log.audiences, impressions_of(log))]

    def at(self, item: ArrayLike, time: ArrayLike) -> Floats:
        """The features of each item strictly before each time, (..., 6). The two are broadcast."""
        columns = []
        for decay in self.counts:
            start, end = decay.view.before(item, time)
            columns += [np.log1p(end - start)[..., None], np.log1p(decay.at(item, time))]
        return np.concatenate(columns, axis=-1)
