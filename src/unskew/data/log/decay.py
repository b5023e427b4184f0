"""Decayed counts: how many events an entity had, each counting half as much after every half-life.

    D_h(e, t) = sum over the events of e strictly before t of 2^(-(t - time of the event) / h)

for any entity, any time and several half-lives h at once, from a view. After every EACH events of an entity,
its counts are kept (a checkpoint); a count at any time is that of the checkpoint before it, faded by the time
since, plus the fewer than EACH events after the checkpoint. So an event costs 3 bytes for six half-lives.
Checkpoints of a log that never changes are computed once (a scan by doubling: each step joins runs that are
twice as long); an event that is added to a view later changes only the checkpoints after it.
"""

from collections.abc import Iterator
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.core.errors import BadInput
from unskew.data.log.arrays import CHUNK, Ints, chunks
from unskew.data.log.views import EventView, Sequences, first_at_or_after

Floats = NDArray[np.float64]

EACH = 16  # events between two checkpoints
TOGETHER = 1 << 15  # look-ups of which what is computed together stays in the cache


class Checkpoints(NamedTuple):
    """The counts after every EACH events: the one after event EACH * (n + 1) of entity e, at the time of that
    event, is `rows[offsets[e] + n]`."""

    offsets: Ints
    rows: Floats  # (checkpoints, half-lives)


class Decay:
    """The decayed counts of all entities of a view. Half-lives are in ticks of the log's clock.

    in_time: the same events as one sequence in the order of time, whose ids are the entities. `along` needs
        it; without it, the events are sorted.
    """

    def __init__(
        self, view: EventView, half_lives: tuple[float, ...], in_time: EventView | None = None
    ) -> None:
        if not half_lives or min(half_lives) <= 0:
            raise BadInput(f"half-lives {half_lives}: expected at least one, each above 0")
        self.view, self.half_lives, self.in_time = view, half_lives, in_time
        self._lives = np.array(half_lives)
        self._changed: dict[
            int, Floats
        ] = {}  # of entities that have changed, the checkpoints from `_kept` on
        view.on_change(self._follow)

    def at(self, entity: ArrayLike, time: ArrayLike) -> Floats:
        """The counts of each entity strictly before each time, (..., half-lives). The two are broadcast."""
        entities, times = np.broadcast_arrays(np.asarray(entity, np.int64), np.asarray(time, np.int64))
        shape, entities, times = entities.shape, entities.ravel(), times.ravel()
        counts = np.zeros((len(entities), len(self.half_lives)))
        for first in range(0, len(entities) if len(self.view.ids) else 0, TOGETHER):
            part = slice(first, first + TOGETHER)
            self._add(entities[part], times[part], counts[part])
        return counts.reshape(*shape, len(self.half_lives))

    def _add(self, entity: Ints, time: Ints, counts: Floats) -> None:
        """Add the counts to zeros."""
        when = self.view.times
        start, end = self.view.before(entity, time)
        number = (end - start) // EACH
        place = start + EACH * number
        some = np.flatnonzero(number)
        if len(some):
            age = time[some] - when[place[some] - 1]
            counts[some] = self._checkpoints(entity[some], number[some] - 1) * self._fading(age)
        some = np.flatnonzero(place < end)
        while len(some):
            counts[some] += self._fading(time[some] - when[place[some]])
            place[some] += 1
            some = some[place[some] < end[some]]

    def _fading(self, age: Ints) -> Floats:
        return np.asarray(np.exp2(-age[:, None] / self._lives))

    def along(self, times: Ints) -> Iterator[Floats]:
        """The counts of all entities at one time after the other, (entities, half-lives); times must not
        decrease. What it gives is one array, which changes with the next time.

        From one time to the next, all counts fade by the same factor, and the events in between are added. So
        the cost of a time is one product per entity.
        """
        if not len(times):
            return
        counts = self.at(np.arange(len(self.view)), times[0])
        yield counts
        if times[0] == times[-1]:
            for _ in times[1:]:
                yield counts
            return
        when, who = self._between(int(times[0]), int(times[-1]))
        part = np.searchsorted(when, times)
        fading = np.exp2(-np.diff(times)[:, None] / self._lives)
        for place in range(1, len(times)):
            if times[place] > times[place - 1]:
                counts *= fading[place - 1]
                new = slice(part[place - 1], part[place])
                order = np.argsort(who[new], kind="stable")
                entity, fresh = who[new][order], self._fading(times[place] - when[new][order])
                begins = np.flatnonzero(np.diff(entity, prepend=-1))
                if len(begins):
                    counts[entity[begins]] += np.add.reduceat(fresh, begins)
            yield counts

    def _between(self, first: int, last: int) -> tuple[Ints, Ints]:
        """The times and the entities of all events from a time until before another one, in order of time."""
        view, moments = self.view, np.array([first, last])
        if self.in_time is not None:
            part = slice(*self.in_time.position(np.zeros(2, np.int64), moments))
            return np.asarray(self.in_time.times[part]), self.in_time.ids[part].astype(np.int64)
        if isinstance(view, Sequences):
            order, ends = view.in_order_of_time, np.array([len(view.ids)] * 2)
            part = slice(*first_at_or_after(view.times, np.zeros(2, np.int64), ends, moments, order))
            place = order[part]
            return view.times[place], np.searchsorted(view.offsets, place, "right") - 1
        who, place = view.everything()
        inside = (view.times[place] >= first) & (view.times[place] < last)
        who, when = who[inside], view.times[place[inside]]
        order = np.argsort(when, kind="stable")
        return when[order], who[order]

    # Checkpoints

    @cached_property
    def _base(self) -> Checkpoints:
        """The checkpoints of the events that the view began with."""
        view = self.view.base
        if view is None:
            return checkpoints(self.view.times, self.view.starts, self.view.ends, self._lives)
        offsets = _offsets(view.starts, view.ends)

        def fill(rows: NDArray[Any]) -> None:
            _fill(rows, view.times, view.starts, offsets, self._lives)

        name = blake2b(self._lives.tobytes(), digest_size=8).hexdigest()
        shape = int(offsets[-1]), len(self.half_lives)
        return Checkpoints(offsets, view.shelf.array(f"decay-{name}", np.float64, shape, fill))

    @cached_property
    def _kept(self) -> Ints:
        """How many of these checkpoints of each entity still hold."""
        kept = np.diff(self._base.offsets)
        for entity, events in self.view.changed.items():
            if entity < len(kept):
                kept[entity] = min(kept[entity], events // EACH)
        return kept

    def _checkpoints(self, entity: Ints, number: Ints) -> Floats:
        """Some checkpoints, by their entities and their numbers."""
        kept, base = self._kept, self._base
        is_kept = entity < len(kept)
        is_kept[is_kept] = number[is_kept] < kept[entity[is_kept]]
        if is_kept.all():
            return base.rows[base.offsets[entity] + number]
        found = np.empty((len(entity), len(self.half_lives)))
        found[is_kept] = base.rows[base.offsets[entity[is_kept]] + number[is_kept]]
        for place in np.flatnonzero(~is_kept).tolist():
            found[place] = self._later(int(entity[place]), int(number[place]))
        return found

    def _later(self, entity: int, number: int) -> Floats:
        """A checkpoint of an entity that has changed."""
        kept = int(self._kept[entity]) if entity < len(self._kept) else 0
        rows = self._changed.get(entity, np.zeros((0, len(self.half_lives))))
        if number - kept >= len(rows):
            start, times = int(self.view.starts[entity]), self.view.times
            numbers = np.arange(kept + len(rows), (int(self.view.ends[entity]) - start) // EACH)
            before = rows[-1] if len(rows) else np.zeros(len(self.half_lives))
            if not len(rows) and kept:
                before = self._base.rows[self._base.offsets[entity] + kept - 1]
            more = _scan(times, start + EACH * numbers, numbers > 0, before, self._lives)
            rows = self._changed[entity] = np.concatenate([rows, more])
        return np.asarray(rows[number - kept])

    def _follow(self, entity: int | None, first: int, moved: int | None) -> None:
        """The events of an entity are others from a position on: what was counted up to there still holds."""
        if entity is None:
            self._changed.clear()
            for name in ("_base", "_kept"):
                self.__dict__.pop(name, None)
            return
        if "_kept" not in self.__dict__:
            return
        holds, kept = (first - int(self.view.starts[entity])) // EACH, self._kept
        before = int(kept[entity]) if entity < len(kept) else 0
        if holds < before:
            kept[entity] = holds
        if entity in self._changed:
            self._changed[entity] = self._changed[entity][: max(holds - before, 0)]


def checkpoints(times: Ints, starts: Ints, ends: Ints, lives: Floats) -> Checkpoints:
    """The checkpoints of all entities, whose events are at `times[start:end]`."""
    offsets = _offsets(starts, ends)
    rows = np.empty((int(offsets[-1]), len(lives)))
    _fill(rows, times, starts, offsets, lives)
    return Checkpoints(offsets, rows)


def _offsets(starts: Ints, ends: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum((ends - starts) // EACH)])


def _fill(rows: NDArray[Any], times: Ints, starts: Ints, offsets: Ints, lives: Floats) -> None:
    """Fill a table with checkpoints, which may be larger than memory."""
    before = np.zeros(len(lives))
    for part in chunks(len(rows), CHUNK // EACH):
        row = np.arange(part.start, part.stop)
        entity = np.searchsorted(offsets, row, "right") - 1
        number = row - offsets[entity]
        rows[part] = _scan(times, starts[entity] + EACH * number, number > 0, before, lives)
        before = np.array(rows[part.stop - 1])


def _scan(times: Ints, first: Ints, is_later: NDArray[np.bool_], before: Floats, lives: Floats) -> Floats:
    """Consecutive checkpoints.

    first: the position of the first of the EACH events of each.
    is_later: whether there is one of the same entity before it, whose events come right before.
    before: the one before the first.
    """
    within = times[first[:, None] + np.arange(EACH)]
    age = within[:, -1:] - within
    gap = np.where(is_later, within[:, -1] - times[np.maximum(first - 1, 0)], np.inf)
    begins = np.flatnonzero(~is_later)
    longest = int(np.diff(begins, prepend=0, append=len(first)).max(initial=0))
    rows = np.empty((len(first), len(lives)))
    for column, life in enumerate(lives):
        fading = np.exp2(-gap / life)
        count = np.exp2(-age / life).sum(1)
        if len(count):
            count[0] += fading[0] * before[column]
            fading[0] = 0
        rows[:, column] = _scanned(fading, count, longest)
    return rows


def _scanned(fading: Floats, count: Floats, longest: int) -> Floats:
    """s_n = fading_n * s_(n-1) + count_n for all n at once; a fading of 0 starts again. Runs are at most
    `longest`."""
    step = 1
    while step < longest and fading.any():
        count[step:] += fading[step:] * count[:-step]
        fading[step:] *= fading[:-step].copy()
        fading[:step] = 0
        step *= 2
    return count
