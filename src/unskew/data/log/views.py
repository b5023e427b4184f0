"""The two views of a log: the history of each user and the audience of each item, oldest first.

Only this file decides what "before" and "exists" mean. An event is before a moment if its time is strictly
earlier, so events at the same moment are not in each other's past. An item exists from its first positive on,
or from an earlier time at which it is known to be there (`since`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.core.errors import BadInput
from unskew.data.log.arrays import Codes, Ints, distinct, expand_ranges, offsets_of
from unskew.data.log.vocabulary import PAD

__all__ = [
    "AUDIENCE",
    "HISTORY",
    "PAD",
    "Codes",
    "EventView",
    "Ints",
    "Sequences",
    "Views",
    "offsets_of",
    "views_of",
]

HISTORY, AUDIENCE = 50, 30  # how many of the newest events a model reads, as in the paper

# Called with an entity, the first position from which its events are others now, and where they began before
# if they have moved; with None, 0 and None if anything may be different.
Listener = Callable[[int | None, int, int | None], None]

_LARGEST = np.iinfo(np.int64).max
_SORTING_PAYS = 4096  # with so many look-ups, sorting them first costs less than the cache misses it saves
_CHUNK = 1 << 20


class EventView(Protocol):
    """What models read of the histories or the audiences of a log: one sequence of events per entity, in the
    order of their times. `Sequences` never change; `LiveSequences` take new events.

    In histories the entities are users and the ids are items; in audiences the entities are items and the ids
    are users. The events of `log.histories` and `log.audiences` are the positives: a pair that was shown and
    not clicked can be a training target, but it is never part of a past. Events of other types have views of
    their own, `log.context`. The events of an entity are neighbours in a flat table; positions in the table
    of a live view are valid until the next event.
    """

    @property
    def ids(self) -> Codes:
        """The ids of all events, in one flat table."""

    @property
    def times(self) -> Ints:
        """The times of the same events."""

    @property
    def starts(self) -> Ints:
        """Where the events of each entity begin."""

    @property
    def ends(self) -> Ints:
        """Where the events of each entity end."""

    @property
    def first_times(self) -> Ints:
        """The time of each entity's first event; the largest possible number for an entity without events."""

    def __len__(self) -> int:
        """The number of entities."""

    @property
    def since(self) -> Ints:
        """The time from which each entity exists: that of its first event, or an earlier one at which it is
        known to be there. The largest possible number for an entity that never exists."""

    def existing(self, time: ArrayLike) -> Ints:
        """How many entities exist at each time: those whose `since` is strictly before it."""

    def position(self, entity: Ints, time: Ints) -> Ints:
        """The position of the first event of each entity at or after each time."""

    def before(self, entity: ArrayLike, time: ArrayLike, newest: int | None = None) -> tuple[Ints, Ints]:
        """The window of events of an entity strictly before a time: they are `ids[start:end]`.

        Entities and times are broadcast, and millions of them are fast. An entity outside the table (an
        unknown id, PAD) has no events.

        Parameters
        ----------
        newest
            The largest number of events that a window holds, the newest ones; by default all of them.
        """

    def padded(self, start: Ints, end: Ints, *, right: bool = False) -> Codes:
        """The ids in the windows [start, end), one row each: padded on the left (or on the right) with PAD,
        as wide as the longest window."""

    def padded_times(self, start: Ints, end: Ints, *, right: bool = False) -> Ints:
        """The times of the same events, in the same places; PAD where there is no event."""

    def flat(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """All events of the windows [start, end), one window after the other: for each event, the number of
        its window and its position in the table."""

    def everything(self) -> tuple[Ints, Ints]:
        """All events, entity by entity: for each one, its entity and its position."""

    def on_change(self, listener: Listener) -> None:
        """Call a method whenever an event is added."""


class WindowMethods:
    """The methods of an `EventView` that both kinds of views have in common."""

    def before(
        self: EventView, entity: ArrayLike, time: ArrayLike, newest: int | None = None
    ) -> tuple[Ints, Ints]:
        """See `EventView`."""
        entities, times = np.broadcast_arrays(np.asarray(entity, np.int64), np.asarray(time, np.int64))
        if newest is not None and newest < 0:
            raise BadInput(f"newest {newest}: expected at least 0", field="newest")
        inside = (entities >= 0) & (entities < len(self))
        if inside.all():
            start, end = self.starts[entities], self.position(entities, times)
        else:
            start, end = np.zeros(entities.shape, np.int64), np.zeros(entities.shape, np.int64)
            start[inside], end[inside] = self.before(entities[inside], times[inside])
        return (start if newest is None else np.maximum(start, end - newest)), end

    def padded(self: EventView, start: Ints, end: Ints, *, right: bool = False) -> Codes:
        """See `EventView`."""
        return _padded(self.ids, start, end, right).astype(np.int32)

    def padded_times(self: EventView, start: Ints, end: Ints, *, right: bool = False) -> Ints:
        """See `EventView`."""
        return _padded(self.times, start, end, right).astype(np.int64)

    def flat(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """See `EventView`."""
        return expand_ranges(start, end)

    def everything(self: EventView) -> tuple[Ints, Ints]:
        """See `EventView`."""
        return self.flat(self.starts, self.ends)


def _padded(values: NDArray[np.integer], start: Ints, end: Ints, right: bool) -> NDArray[np.integer]:
    """The values in the windows [start, end), one row each, and PAD where there is none."""
    width = int((end - start).max(initial=0))
    position = (start[:, None] if right else end[:, None] - width) + np.arange(width)
    inside = (position >= start[:, None]) & (position < end[:, None])
    position = np.where(inside, position, 0)
    return np.where(inside, values[position] if len(values) else PAD, PAD)


@dataclass(frozen=True, eq=False)
class Sequences(WindowMethods):
    """An `EventView` that never changes, in flat arrays: the ids of entity e are
    `ids[offsets[e]:offsets[e + 1]]`.

    `listed` has a time from which each entity exists without an event, where such times are known. The
    largest possible number stands for an entity without one.
    """

    ids: Codes
    times: Ints
    offsets: Ints
    listed: Ints | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def starts(self) -> Ints:
        """Where the events of each entity begin."""
        return self.offsets[:-1]

    @property
    def ends(self) -> Ints:
        """Where the events of each entity end."""
        return self.offsets[1:]

    def on_change(self, listener: Listener) -> None:
        """Nothing ever changes here, so the method is never called."""

    @cached_property
    def first_times(self) -> Ints:
        """The time of each entity's first event; the largest possible number for an entity without events."""
        first = np.full(len(self), _LARGEST)
        some = self.ends > self.starts
        first[some] = self.times[self.starts[some]]
        return first

    @cached_property
    def since(self) -> Ints:
        """See `EventView`."""
        return self.first_times if self.listed is None else np.minimum(self.first_times, self.listed)

    def existing(self, time: ArrayLike) -> Ints:
        """How many entities exist at each time. Codes follow `since`, so these entities are the codes below
        that number."""
        return np.asarray(np.searchsorted(self.since, np.asarray(time, np.int64), "left"))

    @cached_property
    def moments(self) -> Ints:
        """For each event, the position of the first event of the same entity at the same time. The past of
        the event ends there."""
        new = np.ones(len(self.ids), bool)
        new[1:] = self.times[1:] != self.times[:-1]
        new[self.offsets[:-1][np.diff(self.offsets) > 0]] = True
        return np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))

    def shared(self, start: Ints, end: Ints, length: int) -> tuple[Ints, Ints, Ints]:
        """Merge the pasts [start, end) that overlap into fewer windows of at most `length` events, so that a
        model reads the shared events once. Returns the starts and the ends of the windows, and for each past
        the number of its window.

        A past is the part of its window before `end`. If it is longer than `length`, it loses its oldest
        events and keeps at least half of `length`: windows begin only at multiples of half of `length`, so
        that pasts which end near each other share a window.
        """
        half = max(length // 2, 1)
        first = start + half * np.maximum(-(-(end - start - length) // half), 0)
        starts, window = np.unique(first, return_inverse=True)
        ends = starts.copy()
        np.maximum.at(ends, window, end)
        return starts, ends, window

    def position(self, entity: Ints, time: Ints) -> Ints:
        """The position of the first event of `entity` at or after `time`, found by binary search in a key
        made of both. A question about now needs none."""
        if time.size and time.min() > self._index.last:
            return self.ends[entity]
        if entity.size < _SORTING_PAYS:
            return np.searchsorted(self._index.keys, self._index.keys_of(entity, time))
        # Sorted look-ups walk through the table once instead of jumping about in it. Chunks fit the cache.
        flat_entity, flat_time, position = entity.ravel(), time.ravel(), np.empty(entity.size, np.int64)
        for first in range(0, entity.size, _CHUNK):
            chunk = slice(first, first + _CHUNK)
            keys = self._index.keys_of(flat_entity[chunk], flat_time[chunk])
            order = np.argsort(keys)
            position[chunk][order] = np.searchsorted(self._index.keys, keys[order])
        return position.reshape(entity.shape)

    @cached_property
    def _index(self) -> "_Index":
        if not len(self.ids):
            return _Index(np.zeros(0, np.int64), None, 0, 1)
        first, last = int(self.times.min()), int(self.times.max())
        clock, span = None, last - first + 2  # one tick past the last event, for "everything so far"
        if span > _LARGEST // len(self):
            clock = distinct(self.times)
            span = len(clock) + 1
        keys = np.repeat(np.arange(len(self), dtype=np.int64) * span, np.diff(self.offsets))
        keys += self.times - first if clock is None else np.searchsorted(clock, self.times)
        return _Index(keys, clock, first, span)


@dataclass(frozen=True, eq=False)
class Views:
    """The same events by user and by item."""

    histories: EventView
    audiences: EventView

    def events(self) -> tuple[Ints, Ints, Ints]:
        """All events: their users, their items and their times."""
        user, place = self.histories.everything()
        return user, self.histories.ids[place].astype(np.int64), self.histories.times[place]


def views_of(user: Ints, item: Ints, time: Ints, users: int, items: int) -> Views:
    """The views of some events, in any order."""
    by_user, by_item = np.lexsort((item, time, user)), np.lexsort((user, time, item))
    return Views(
        Sequences(item[by_user].astype(np.int32), time[by_user], offsets_of(user[by_user], users)),
        Sequences(user[by_item].astype(np.int32), time[by_item], offsets_of(item[by_item], items)),
    )


@dataclass(frozen=True, eq=False)
class _Index:
    """Keys `entity * span + tick`, which increase along the flat table. Ticks are times since the first one;
    if the keys would overflow, they are ranks of times, and `clock` holds the sorted times."""

    keys: Ints
    clock: Ints | None
    first: int
    span: int

    @property
    def last(self) -> int:
        """The time of the newest event."""
        return self.first + self.span - 2 if self.clock is None else int(self.clock[-1])

    def keys_of(self, entity: Ints, time: Ints) -> Ints:
        """The keys to look for."""
        if self.clock is not None:
            return entity * self.span + np.searchsorted(self.clock, time)
        keys = np.clip(time, self.first, self.first + self.span - 1)
        keys += entity * self.span - self.first
        return keys
