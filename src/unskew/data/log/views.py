"""The two views of a log: the history of each user and the audience of each item, oldest first.

Only this file decides what "before" and "exists" mean. An event is before a moment if its time is strictly
earlier, so events at the same moment are not in each other's past. An item exists from its first positive on,
or from an earlier time at which it is known to be there (`since`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.core.errors import BadInput
from unskew.data.log.arrays import Codes, Ints, chunks, expand_ranges, offsets_of, sort_into
from unskew.data.log.derived import Shelf, places_by_id, places_type
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
_TOGETHER = 1 << 16  # look-ups of which what is computed together stays in the cache


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

    @property
    def base(self) -> "Sequences | None":
        """The view that never changes and that this one began with, if its events are still those."""

    @property
    def changed(self) -> Mapping[int, int]:
        """Of each entity that has other events than in `base`, how many of the first ones are the same."""


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
    shelf: Shelf = field(default_factory=Shelf, init=False)  # where what is derived of the events is kept

    def kept_on(self, shelf: Shelf) -> "Sequences":
        """The same events, with a shelf for what is derived of them."""
        same = replace(self)
        object.__setattr__(same, "shelf", shelf)
        return same

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

    @property
    def base(self) -> "Sequences":
        """See `EventView`."""
        return self

    @property
    def changed(self) -> Mapping[int, int]:
        """See `EventView`."""
        return {}

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

        def fill(moments: NDArray[Any]) -> None:
            begins = np.zeros(len(moments), bool)
            begins[self.starts[self.ends > self.starts]] = True
            newest = 0
            for part in chunks(len(moments)):
                times, is_new = self.times[part], begins[part]
                is_new[1:] |= times[1:] != times[:-1]
                is_new[0] |= not part.start or times[0] != self.times[part.start - 1]
                place = np.where(is_new, np.arange(part.start, part.stop), newest)
                moments[part] = np.maximum.accumulate(place)
                newest = int(moments[part.stop - 1])

        return self.shelf.array("moments", np.int64, len(self.ids), fill)

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
        """The position of the first event of each entity at or after each time, found by binary search. A
        question about now needs none."""
        if time.size and time.min() > self._newest:
            return self.ends[entity]
        if len(self) == 1:
            return np.asarray(np.searchsorted(self.times, time))
        flat_entity, flat_time, position = entity.ravel(), time.ravel(), np.empty(entity.size, np.int64)
        for first in range(0, entity.size, _TOGETHER):
            part = slice(first, first + _TOGETHER)
            low, high = self.starts[flat_entity[part]], self.ends[flat_entity[part]]
            position[part] = first_at_or_after(self.times, low, high, flat_time[part])
        return position.reshape(entity.shape)

    @cached_property
    def _newest(self) -> int:
        """The time of the newest event; before all times if there is none."""
        some = self.ends > self.starts
        return int(self.times[self.ends[some] - 1].max()) if some.any() else -_LARGEST

    @cached_property
    def in_order_of_time(self) -> NDArray[np.integer]:
        """The positions of all events in the order of their times; those at one time are in their own
        order."""

        def fill(places: NDArray[Any]) -> None:
            kind = places.dtype
            sort_into(
                places, lambda part: np.arange(part.start, part.stop, dtype=kind), self.times.__getitem__
            )

        length = len(self.times)
        return self.shelf.array("in_order_of_time", places_type(length), length, fill)

    @cached_property
    def by_id(self) -> NDArray[np.integer]:
        """The positions of the events of each entity in the order of their ids; those with one id are in the
        order of time."""
        length = len(self.times)
        fill = places_by_id(self, self.ids)
        return self.shelf.array("by_id", places_type(length), length, fill)

    def first_with(self, entity: Ints, id: Ints) -> Ints:
        """The position of the first event of each entity with each id; PAD if there is none."""
        found = np.full(len(entity), PAD, np.int64)
        inside = (entity >= 0) & (entity < len(self))
        if not inside.all():
            found[inside] = self.first_with(entity[inside], id[inside])
            return found
        if not len(self.ids):
            return found
        for first in range(0, len(entity), _TOGETHER):
            part = slice(first, first + _TOGETHER)
            low, end = self.starts[entity[part]], self.ends[entity[part]]
            place = first_at_or_after(self.ids, low, end, id[part], self.by_id)
            event = self.by_id[np.minimum(place, len(self.ids) - 1)]
            found[part] = np.where((place < end) & (self.ids[event] == id[part]), event, PAD)
        return found


def first_at_or_after(
    values: NDArray[np.integer],
    low: Ints,
    high: Ints,
    wanted: NDArray[np.integer],
    order: NDArray[np.integer] | None = None,
) -> Ints:
    """In increasing values between two positions, the first position with at least the wanted one, or
    `high`: a binary search in many places at once.

    order: if given, `values[order]` increase there.
    """
    found, place = np.array(high, np.int64), np.flatnonzero(low < high)
    last = high[place] - 1
    newest = values[last if order is None else order[last]]
    some = np.flatnonzero(newest >= wanted[place])  # most questions are about now
    place = place[some]
    first, end, asked = low[place], last[some], wanted[place]
    while len(place):
        going = first < end
        if 2 * np.count_nonzero(going) <= len(place):  # go on with those that are not found yet
            found[place[~going]] = first[~going]
            place, first, end, asked = place[going], first[going], end[going], asked[going]
            continue
        middle = (first + end) >> 1
        is_less = np.asarray(values[middle if order is None else order[middle]] < asked)
        end = np.where(is_less, end, middle)
        is_less &= going
        first = np.where(is_less, middle + 1, first)
    return found


@dataclass(frozen=True, eq=False)
class Views:
    """The same events by user and by item."""

    histories: EventView
    audiences: EventView

    def kept_on(self, shelf: Shelf) -> "Views":
        """The same events, with a shelf for what is derived of them."""
        pairs = zip((self.histories, self.audiences), ("histories", "audiences"), strict=True)
        return Views(
            *(view.kept_on(shelf.part(name)) if isinstance(view, Sequences) else view for view, name in pairs)
        )

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
