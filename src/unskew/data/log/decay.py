"""Decayed counts: how many events an entity had, each counting half as much after every half-life.

    D_h(e, t) = sum over the events of e strictly before t of 2^(-(t - time of the event) / h)

for any entity, any time and several half-lives h at once, from a view. Right after the n-th event of an
entity, its count is the one after the event before, faded by the time between the two, plus one; so one pass
over a view gives the counts after every event (a scan by doubling: each step joins runs that are twice as
long), and a count at any time is one look-up and one factor. An event that is added to the view later is one
more such step.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.core.errors import BadInput
from unskew.data.log.views import EventView, Ints

Floats = NDArray[np.float64]


class Decay:
    """The decayed counts of all entities of a view. Half-lives are in ticks of the log's clock."""

    def __init__(self, view: EventView, half_lives: tuple[float, ...]) -> None:
        if not half_lives or min(half_lives) <= 0:
            raise BadInput(f"half-lives {half_lives}: expected at least one, each above 0")
        self.view, self.half_lives = view, half_lives
        view.on_change(self._follow)

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
        if times[0] == times[-1]:
            counts = self.at(np.arange(len(self.view)), times[0])
            for _ in times:
                yield counts
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
        who, place = self.view.everything()
        order = np.argsort(self.view.times[place], kind="stable")
        return self.view.times[place[order]], who[order]

    @cached_property
    def after_each(self) -> Floats:
        """The counts right after each event of the view, at its own time, (events, half-lives)."""
        view = self.view
        who, place = view.everything()
        times = view.times[place]
        gap = np.diff(times, prepend=times[:1]).astype(np.float64)
        gap[np.diff(who, prepend=-1) > 0] = np.inf
        longest = int((view.ends - view.starts).max(initial=0))
        found = np.zeros((len(view.ids), len(self.half_lives)))
        for column, life in enumerate(self.half_lives):
            found[place, column] = _scanned(np.exp2(-gap / life), longest)
        return found

    def _follow(self, entity: int | None, first: int, moved: int | None) -> None:
        """The events of an entity are others from a position on: go on counting from there."""
        self.__dict__.pop("_in_time", None)
        if entity is None or "after_each" not in self.__dict__:
            self.__dict__.pop("after_each", None)
            return
        counts, missing = self.after_each, len(self.view.ids) - len(self.after_each)
        if missing:
            counts = np.concatenate([counts, np.zeros((missing, len(self.half_lives)))])
            self.__dict__["after_each"] = counts
        times, start = self.view.times, int(self.view.starts[entity])
        if moved is not None:
            counts[start:first] = counts[moved : moved + first - start]
        lives = np.array(self.half_lives)
        for place in range(first, int(self.view.ends[entity])):
            counts[place] = 1
            if place > start:
                counts[place] += counts[place - 1] * np.exp2(-(times[place] - times[place - 1]) / lives)


def _scanned(fading: Floats, longest: int) -> Floats:
    """s_n = fading_n * s_(n-1) + 1 for all n at once; a fading of 0 starts again. Runs are at most
    `longest`."""
    fading, count, step = fading.copy(), np.ones(len(fading)), 1
    while step < longest and fading.any():
        count[step:] += fading[step:] * count[:-step]
        fading[step:] *= fading[:-step].copy()
        fading[:step] = 0
        step *= 2
    return count
