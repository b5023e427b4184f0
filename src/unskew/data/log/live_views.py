"""Sequences and vocabularies to which events and ids can be added: what a live log is made of.

Each entity of `LiveSequences` has a block of the flat table, with some room at its end. An event is written
into that room; if there is none, the block moves to the end of the table and gets twice as much. So an event
costs the same in a log of any size. Listeners that keep something beside the table (such as decayed counts)
are notified which part of a block is new.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from unskew.core.errors import BadInput
from unskew.data.log.derived import Shelf, with_room
from unskew.data.log.views import (
    PAD,
    Codes,
    EventView,
    Ints,
    Listener,
    Sequences,
    Views,
    WindowMethods,
    offsets_of,
)
from unskew.data.log.vocabulary import (
    Feature,
    VocabularyView,
    check_is_list,
    features_as_of,
    storage_of,
    table_of,
)

NEVER = np.iinfo(np.int64).max
ROOM = 4  # events for which a new block has room
SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


class Listeners:
    """Methods that are called when something changes, as long as their objects are used elsewhere."""

    def __init__(self) -> None:
        self._methods: list[weakref.WeakMethod[Any]] = []

    def add(self, method: Callable[..., None]) -> None:
        """Call this method from now on."""
        self._methods.append(weakref.WeakMethod(method))

    def notify(self, *change: Any) -> None:
        """Call them all."""
        alive = [(reference, method) for reference in self._methods if (method := reference()) is not None]
        self._methods = [reference for reference, _ in alive]
        for _, method in alive:
            method(*change)


class LiveSequences(WindowMethods):
    """An `EventView` to which events can be added, at any time and for any entity.

    Events of an entity are in the order of their times, and at one time in the order of their ids, as
    `prepare` sorts them.

    by_id: whether events at one time are in the order of their ids; otherwise the newest is the last, which
        costs less if there are many.
    """

    def __init__(self, view: EventView, by_id: bool = True) -> None:
        self._listeners = Listeners()
        self._by_id = by_id
        self.base: Sequences | None = view if isinstance(view, Sequences) else None
        self.changed: dict[int, int] = {}
        self._listed = np.full(len(view), NEVER)
        earlier = view.since < view.first_times
        self._listed[earlier] = view.since[earlier]
        shelf = view.shelf if isinstance(view, Sequences) else Shelf()
        self._fill(view.ids, view.times, view.starts, view.ends, shelf)

    def _fill(self, ids: Codes, times: Ints, starts: Ints, ends: Ints, shelf: Shelf) -> None:
        # There is room, so that the first events do not wait until the whole table is copied.
        size = len(ids) + len(ids) // 4 + ROOM
        self._ids = shelf.own_copy("live_ids", np.int32, size, with_room(ids, PAD))
        self._times = shelf.own_copy("live_times", np.int64, size, with_room(times, 0))
        self._starts, self._ends, self._rooms = np.array(starts), np.array(ends), np.array(ends)
        self._firsts = np.full(len(starts), NEVER)
        some = ends > starts
        self._firsts[some] = times[starts[some]]
        self._size, self._used = len(starts), len(ids)
        self._listed = _longer_by(self._listed[: self._size], len(starts) - len(self._listed), NEVER)
        if self._size == 1:  # all of the room is its own
            self._rooms[0] = self._used = len(self._ids)

    def __len__(self) -> int:
        return self._size

    @property
    def ids(self) -> Codes:
        """The whole table, with the room between the blocks."""
        return self._ids

    @property
    def times(self) -> Ints:
        """The times of the same events."""
        return self._times

    @property
    def starts(self) -> Ints:
        """Where the block of each entity begins."""
        return self._starts[: self._size]

    @property
    def ends(self) -> Ints:
        """Where the events in the block of each entity end."""
        return self._ends[: self._size]

    @property
    def first_times(self) -> Ints:
        """See `EventView`."""
        return self._firsts[: self._size]

    @property
    def since(self) -> Ints:
        """See `EventView`."""
        return np.minimum(self.first_times, self._listed[: self._size])

    def existing(self, time: ArrayLike) -> Ints:
        """How many entities exist at each time. Their codes need not be a prefix."""
        return np.asarray(np.searchsorted(np.sort(self.since), np.asarray(time, np.int64), "left"))

    def list(self, entity: int, time: int) -> None:
        """From this time on, an entity exists without an event. It may be new."""
        if entity >= self._size:
            self._more_entities(entity + 1)
        self._listed[entity] = min(int(self._listed[entity]), time)

    def frozen(self, entities: int) -> Sequences:
        """The same events of so many entities in a table without room, in the order of the entities."""
        entity, position = self.everything()
        listed = _longer_by(self._listed[: self._size], entities - self._size, NEVER)
        return Sequences(
            self._ids[position],
            self._times[position],
            offsets_of(entity, entities),
            listed if (listed < NEVER).any() else None,
        )

    def position(self, entity: Ints, time: Ints) -> Ints:
        """The position of the first event of `entity` at or after `time`: a binary search in all blocks at
        once. Most look-ups are about now and need none."""
        low, high = self._starts[entity], self._ends[entity]
        if not len(self._times):
            return np.asarray(low)
        newest = self._times[np.maximum(high - 1, 0)]
        low = np.where(newest < time, high, low)  # an empty block has low = high already
        while (low < high).any():
            middle = (low + high) // 2
            earlier = (low < high) & (self._times[np.minimum(middle, len(self._times) - 1)] < time)
            low = np.where(earlier, middle + 1, low)
            high = np.where(earlier, high, middle)
        return np.asarray(low)

    def on_change(self, listener: Listener) -> None:
        """See `EventView`. The method is called as long as its object is used elsewhere."""
        self._listeners.add(listener)

    def add(self, entity: int, id: int, time: int) -> None:
        """One more event of an entity, which may be new."""
        if entity >= self._size:
            self._more_entities(entity + 1)
        start, end = int(self._starts[entity]), int(self._ends[entity])
        moved = start if end == self._rooms[entity] else None
        if moved is not None:
            start, end = self._move(entity, start, end)
        place = end
        before = (int(self._times[place - 1]), int(self._ids[place - 1])) if place > start else (time, id)
        if before[0] > time or (self._by_id and before > (time, id)):
            first, place = (
                start + int(np.searchsorted(self._times[start:end], time, side)) for side in SIDES
            )
            if self._by_id:
                place = first + int(np.searchsorted(self._ids[first:place], id, "right"))
            for table in (self._ids, self._times):
                table[place + 1 : end + 1] = table[place:end].copy()
        self._ids[place], self._times[place] = id, time
        self._ends[entity] = end + 1
        self._firsts[entity] = min(int(self._firsts[entity]), time)
        self.changed[entity] = min(self.changed.get(entity, place - start), place - start)
        self._listeners.notify(entity, place, moved)

    def has(self, entity: int, id: int, time: int | None = None) -> bool:
        """Whether an entity has an event with this id, at this time or, by default, at any."""
        if not 0 <= entity < self._size:
            return False
        start, end = int(self._starts[entity]), int(self._ends[entity])
        if time is not None:
            times = self._times[start:end]
            start, end = (start + int(np.searchsorted(times, time, side)) for side in ("left", "right"))
        return bool((self._ids[start:end] == id).any())

    def refill(self, entity: Ints, ids: Codes, times: Ints, entities: int) -> None:
        """Replace all events by these, in any order: faster than one by one where there are many."""
        order = np.lexsort((ids, times, entity))
        offsets = offsets_of(entity, entities)
        self._fill(ids[order], times[order], offsets[:-1], offsets[1:], Shelf())
        self.base, self.changed = None, {}
        self._listeners.notify(None, 0, None)

    def _more_entities(self, size: int) -> None:
        if size > len(self._starts):
            more = max(size, 2 * len(self._starts)) - len(self._starts)
            self._starts, self._ends, self._rooms = (
                _longer_by(old, more, 0) for old in (self._starts, self._ends, self._rooms)
            )
            self._firsts, self._listed = (
                _longer_by(old, more, NEVER) for old in (self._firsts, self._listed)
            )
        self._size = size

    def _move(self, entity: int, start: int, end: int) -> tuple[int, int]:
        """Move a full block to the end of the table, with room for as much again."""
        length, to = end - start, self._used
        self._used += length + max(length, ROOM)
        if self._used > len(self._ids):
            more = max(self._used - len(self._ids), len(self._ids) // 4)
            self._ids = np.concatenate([self._ids, np.full(more, PAD, np.int32)])
            self._times = np.concatenate([self._times, np.zeros(more, np.int64)])
        for table in (self._ids, self._times):
            table[to : to + length] = table[start:end]
        self._starts[entity], self._ends[entity], self._rooms[entity] = to, to + length, self._used
        return to, to + length


class LiveViews(Views):
    """The same events by user and by item, to which events can be added."""

    histories: LiveSequences
    audiences: LiveSequences


class LiveVocabulary:
    """A `VocabularyView` to which ids can be added, at its end. It finds each id by a look-up.

    text: whether ids are read as text, whatever type they had.
    """

    def __init__(self, known: VocabularyView, text: bool = False) -> None:
        ids = known.ids
        if text and not pa.types.is_string(ids.type):
            try:
                ids = storage_of(ids).cast(pa.string())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise BadInput(f"ids of type {ids.type} cannot be read as text: {error}") from None
        self._known, self._new = ids, list[Any]()
        self._codes = {value: code for code, value in enumerate(ids.to_pylist()) if value is not None}
        self._joined: pa.Array | None = ids
        self._titles, self._features = known.titles, known.features
        self._newest = features_as_of(self._features, None)

    def __len__(self) -> int:
        return len(self._known) + len(self._new)

    @property
    def ids(self) -> pa.Array:
        """The ids in the order of their codes; null for a user who was forgotten."""
        if self._joined is None:
            self._joined = pa.concat_arrays([self._known, pa.array(self._new, self._known.type)])
        return self._joined

    @property
    def titles(self) -> pa.Array | None:
        """The titles of all ids; new ones have none."""
        return None if self._titles is None else _longer(self._titles, len(self))

    @property
    def features(self) -> dict[str, Feature]:
        """The features. Of ids of which nothing is known, they may be beyond the end of each."""
        return self._features

    def features_at(self, time: int | None) -> dict[str, Feature]:
        """See `VocabularyView`."""
        return self._newest if time is None else features_as_of(self._features, time)

    def describe(self, titles: pa.Array | None, features: dict[str, Feature]) -> None:
        """From now on, the ids have these titles and features."""
        self._titles, self._features = titles, features
        self._newest = features_as_of(features, None)

    def title_of(self, code: int) -> str | None:
        """The title of a code; None where it has none."""
        if self._titles is None or not 0 <= code < len(self._titles):
            return None
        return self._titles[code].as_py()

    def of(self, codes: NDArray[np.integer]) -> pa.Array:
        """See `VocabularyView`."""
        codes = np.asarray(codes)
        only_known = self._joined is None and not (codes >= len(self._known)).any()
        return (self._known if only_known else self.ids).take(pa.array(codes, mask=codes == PAD))

    def codes(self, ids: Sequence[Any] | pa.Array) -> Codes:
        """See `VocabularyView`."""
        return np.fromiter((self._codes.get(value, PAD) for value in self.read(ids)), np.int32)

    def read(self, ids: Sequence[Any] | pa.Array) -> list[Any]:
        """Some ids as values of the type that these have."""
        check_is_list(ids)
        kind, values = self._known.type, ids.to_pylist() if isinstance(ids, pa.Array) else list(ids)
        if pa.types.is_string(kind) and all(isinstance(value, str) for value in values):
            return values
        try:
            return pa.array(values).cast(kind).to_pylist() if values else []
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise BadInput(f"ids of type {kind} expected, as in the log: {error}") from None

    def add(self, ids: Iterable[Any]) -> Ints:
        """The codes of some ids as `read` gives them; those that are new get the next ones."""
        codes = []
        for value in ids:
            code = self._codes.get(value)
            if code is None:
                code = self._codes[value] = len(self)
                self._new.append(value)
                self._joined = None
            codes.append(code)
        return np.array(codes, np.int64)

    def forget(self, codes: Ints) -> None:
        """Forget ids; their codes belong to no id from now on."""
        everything = self.ids.to_pylist()
        for code in codes.tolist():
            self._codes.pop(everything[code], None)
            everything[code] = None
        self._known, self._new = pa.array(everything, self._known.type), []
        self._joined = self._known

    def table(self) -> pa.Table:
        """See `VocabularyView`. Titles and features of new ids are null."""
        return table_of(self.ids, self.titles, self._features)


def _longer_by(values: Ints, more: int, value: int) -> Ints:
    """The same numbers, and so many times a value behind them."""
    return np.concatenate([values, np.full(max(more, 0), value, np.int64)])


def _longer(values: pa.Array, size: int) -> pa.Array:
    """The same values, and nulls behind them."""
    missing = size - len(values)
    return values if not missing else pa.concat_arrays([values, pa.nulls(missing, values.type)])
