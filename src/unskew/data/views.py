"""The two views of a log: each user's items and each item's users, oldest first.

Only this file decides what "before" and "exists" mean: an event is before a moment if its time is strictly
earlier, so events at the same moment are no past of each other; an item exists once it has had a positive
before.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.errors import BadInput

HISTORY, AUDIENCE = 50, 30  # the newest events that a model reads, as in the paper
PAD = -1  # stands for "nobody" in a padded row; real codes start at 0

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]

_LARGEST = np.iinfo(np.int64).max
_SORTING_PAYS = 4096  # look-ups from which sorting them first is cheaper than the cache misses it saves
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class Sequences:
    """One sequence per entity, flat: entity e owns `ids[offsets[e]:offsets[e + 1]]`, in order of `times`.

    For histories the entities are users and the ids items; for audiences the entities are items and the ids
    users.
    Only positives are here: a pair that was shown and not clicked is a training target, never a past event.
    """

    ids: Codes
    times: Ints
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def before(self, entity: ArrayLike, time: ArrayLike, newest: int | None = None) -> tuple[Ints, Ints]:
        """Where the events of each entity strictly before each time are: `ids[start:end]`, at most the
        `newest` of them.

        Vectorised over millions of pairs. An entity outside the table (an unknown id, PAD) has no events.
        """
        entities, times = np.broadcast_arrays(np.asarray(entity, np.int64), np.asarray(time, np.int64))
        if newest is not None and newest < 0:
            raise BadInput(f"newest {newest}: expected at least 0")
        known = (entities >= 0) & (entities < len(self))
        if known.all():
            start, end = self.offsets[entities], self._position(entities, times)
        else:
            start, end = np.zeros(entities.shape, np.int64), np.zeros(entities.shape, np.int64)
            start[known], end[known] = self.before(entities[known], times[known])
        return (start if newest is None else np.maximum(start, end - newest)), end

    @cached_property
    def first_times(self) -> Ints:
        """The time of each entity's first event; the largest number for an entity without any."""
        first = np.full(len(self), _LARGEST)
        some = np.diff(self.offsets) > 0
        first[some] = self.times[self.offsets[:-1][some]]
        return first

    def existing(self, time: ArrayLike) -> Ints:
        """How many entities had an event strictly before each time. Codes follow first events, so they are
        the codes below."""
        return np.asarray(np.searchsorted(self.first_times, np.asarray(time, np.int64), "left"))

    @cached_property
    def moments(self) -> Ints:
        """Of each event, the place of the first event of the same entity at the same time. What is before it
        ends there."""
        new = np.ones(len(self.ids), bool)
        new[1:] = self.times[1:] != self.times[:-1]
        new[self.offsets[:-1][np.diff(self.offsets) > 0]] = True
        return (
            np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
            if len(new)
            else np.zeros(0, np.int64)
        )

    def padded(self, start: Ints, end: Ints, *, right: bool = False) -> Codes:
        """The windows [start, end) as rows, padded on the left (or on the right), as wide as the longest of
        them."""
        width = int((end - start).max(initial=0))
        if not len(self.ids) or not width:
            return np.full((len(start), width), PAD, np.int32)
        where = (start[:, None] if right else end[:, None] - width) + np.arange(width)
        inside = (where >= start[:, None]) & (where < end[:, None])
        return np.where(inside, self.ids[np.where(inside, where, 0)], PAD).astype(np.int32)

    def shared(self, start: Ints, end: Ints, length: int) -> tuple[Ints, Ints, Ints]:
        """Few windows of at most `length` that hold many pasts: where each window starts and ends, and which
        one is whose.

        A past [start, end) is the front part of its window, up to `end`. One that is longer than `length`
        keeps its newest events, at least half of `length`: windows begin at every half of it, so that
        neighbours share theirs.
        """
        half = max(length // 2, 1)
        first = start + half * np.maximum(-(-(end - start - length) // half), 0)
        starts, window = np.unique(first, return_inverse=True)
        ends = starts.copy()
        np.maximum.at(ends, window, end)
        return starts, ends, window

    def flat(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """The windows [start, end) one after the other: of each event in them, the number of its window and
        its place in the table."""
        lengths = end - start
        window = np.repeat(np.arange(len(start)), lengths)
        return window, np.arange(lengths.sum()) + np.repeat(start - np.cumsum(lengths) + lengths, lengths)

    def _position(self, entity: Ints, time: Ints) -> Ints:
        """The place of the first event of `entity` at or after `time`: one binary search in one composite
        key."""
        if entity.size < _SORTING_PAYS:
            return np.searchsorted(self._index.keys, self._index.wanted(entity, time))
        # In order, the searches walk through the table once instead of jumping about in it; in chunks that
        # fit the cache.
        flat_entity, flat_time, position = entity.ravel(), time.ravel(), np.empty(entity.size, np.int64)
        for first in range(0, entity.size, _CHUNK):
            chunk = slice(first, first + _CHUNK)
            wanted = self._index.wanted(flat_entity[chunk], flat_time[chunk])
            order = np.argsort(wanted)
            position[chunk][order] = np.searchsorted(self._index.keys, wanted[order])
        return position.reshape(entity.shape)

    @cached_property
    def _index(self) -> "_Index":
        if not len(self.ids):
            return _Index(np.zeros(0, np.int64), None, 0, 1)
        first, last = int(self.times.min()), int(self.times.max())
        clock, span = None, last - first + 2  # one tick past the last event, for "everything so far"
        if span > _LARGEST // len(self):
            clock = np.unique(self.times)
            span = len(clock) + 1
        keys = np.repeat(np.arange(len(self), dtype=np.int64) * span, np.diff(self.offsets))
        keys += self.times - first if clock is None else np.searchsorted(clock, self.times)
        return _Index(keys, clock, first, span)


@dataclass(frozen=True, eq=False)
class _Index:
    """Keys `entity * span + tick`, increasing along the flat table. Ticks are times, or their ranks where
    times would overflow."""

    keys: Ints
    clock: Ints | None
    first: int
    span: int

    def wanted(self, entity: Ints, time: Ints) -> Ints:
        if self.clock is not None:
            return entity * self.span + np.searchsorted(self.clock, time)
        wanted = np.clip(time, self.first, self.first + self.span - 1)
        wanted += entity * self.span - self.first
        return wanted


def offsets_of(entity: NDArray[np.integer], entities: int) -> Ints:
    """Offsets of a column that is sorted by entity."""
    counts = np.bincount(entity, minlength=entities) if len(entity) else np.zeros(entities, np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
