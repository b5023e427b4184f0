"""Decayed counts: how many events an entity had, each counting half as much after every half-life.

    D_h(e, t) = sum over the events of e strictly before t of 2^(-(t - time of the event) / h)

for any entity, any time and several half-lives h at once, from a view. Right after the n-th event of an
entity, its count is the one after the event before, faded by the time between the two, plus one; so one pass
over a view gives the counts after every event (a scan by doubling: each step joins runs that are twice as
long), and a count at any time is one look-up and one factor. An event that comes later is one more such step
(`Decayed`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.data.views import Ints, Sequences
from unskew.errors import BadInput

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Decay:
    """The decayed counts of all entities of a view. Half-lives are in ticks of the log's clock."""

    view: Sequences
    half_lives: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.half_lives or min(self.half_lives) <= 0:
            raise BadInput(f"half-lives {self.half_lives}: expected at least one, each above 0")

    def at(self, entity: ArrayLike, time: ArrayLike) -> Floats:
        """The counts of each entity strictly before each time, (..., half-lives). The two are broadcast."""
        start, end = self.view.before(entity, time)
        last = np.maximum(end - 1, 0)
        if not len(self.view.ids):
            return np.zeros((*np.shape(end), len(self.half_lives)))
        age = np.asarray(time) - self.view.times[last]
        fading = np.exp2(-np.where(end > start, age, 0)[..., None] / np.array(self.half_lives))
        return np.asarray(self.after_each[last] * fading * (end > start)[..., None])

    def along(self, times: Ints) -> Iterator[Floats]:
        """The counts of all entities at one time after the other, (entities, half-lives); times must not
        decrease. What it gives is one array, which changes with the next time.

        From one time to the next, all counts fade by the same factor. Only those of entities with an event in
        between are looked up again, so the cost of a time is one product per entity.
        """
        if not len(times):
            return
        when, who = self._in_time
        # Each event between the first time and the last changes its entity at the first time after it.
        first, last = np.searchsorted(when, times[[0, -1]])
        step, entity = np.searchsorted(times, when[first:last], "right"), who[first:last]
        changes = self.at(entity, times[step])
        part = np.searchsorted(step, np.arange(len(times) + 1))
        fading = np.exp2(-np.diff(times)[:, None] / np.array(self.half_lives))
        counts = self.at(np.arange(len(self.view)), times[0])
        yield counts
        for place in range(1, len(times)):
            counts *= fading[place - 1]
            changed = slice(part[place], part[place + 1])
            counts[entity[changed]] = changes[changed]
            yield counts

    @cached_property
    def _in_time(self) -> tuple[Ints, Ints]:
        """The times of all events of the view in order, and the entities of these events."""
        order = np.argsort(self.view.times, kind="stable")
        who = np.repeat(np.arange(len(self.view)), np.diff(self.view.offsets))
        return self.view.times[order], who[order]

    @cached_property
    def after_each(self) -> Floats:
        """The counts right after each event of the view, at its own time, (events, half-lives)."""
        view = self.view
        gap = np.diff(view.times, prepend=view.times[:1]).astype(np.float64)
        first = np.zeros(len(view.ids), bool)
        first[view.offsets[:-1][np.diff(view.offsets) > 0]] = True
        longest = int(np.diff(view.offsets).max(initial=0))
        gap[first] = np.inf
        columns = [_scanned(np.exp2(-gap / life), longest) for life in self.half_lives]
        return np.stack(columns, axis=1) if columns else np.zeros((len(view.ids), 0))


def _scanned(fading: Floats, longest: int) -> Floats:
    """s_n = fading_n * s_(n-1) + 1 for all n at once; a fading of 0 begins anew. Runs are at most
    `longest`."""
    fading, count, step = fading.copy(), np.ones(len(fading)), 1
    while step < longest and fading.any():
        count[step:] += fading[step:] * count[:-step]
        fading[step:] *= fading[:-step].copy()
        fading[:step] = 0
        step *= 2
    return count


class Decayed:
    """The counts of all entities as of their newest events, brought up to date by one event at a time.

    Starts from what a view holds before a time; new entities may be added at the end.
    """

    def __init__(self, decay: Decay, time: int) -> None:
        entities = np.arange(len(decay.view))
        self.half_lives = np.array(decay.half_lives)
        self.counts, self.times = decay.at(entities, time), np.full(len(entities), time, np.int64)

    def add(self, entity: int, time: int) -> None:
        """One more event. Times must not decrease for an entity; the cost does not depend on the log."""
        if entity >= len(self.counts):
            more = entity + 1 - len(self.counts)
            self.counts = np.concatenate([self.counts, np.zeros((more, len(self.half_lives)))])
            self.times = np.concatenate([self.times, np.full(more, time, np.int64)])
        self.counts[entity] = 1 + self.counts[entity] * np.exp2(
            -(time - self.times[entity]) / self.half_lives
        )
        self.times[entity] = time

    def at(self, time: int) -> Floats:
        """The counts of all entities at a time that is not before their newest events, (entities,
        half-lives). Events at that very time count, because they were added."""
        age: Ints = time - self.times
        return np.asarray(self.counts * np.exp2(-age[:, None] / self.half_lives))
