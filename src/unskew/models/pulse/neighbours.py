"""User-based neighbourhood features: the users who share most items with this user, and what they took:
when.

    own       the newest items of the user
    readers   the newest users of each of them, with what they took right afterwards
    nearest   the readers who share most with the user; an item that few people have counts more
    events    their newest events

Everything is strictly before the moment of the request, and comes from the two views alone. No id is learned,
so the walk knows users and items that no training ever saw.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.data.log.log import LogView
from unskew.data.log.views import PAD, Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NeighbourSettings:
    """How far a walk goes."""

    own: int = 20
    """The number of the user's newest items that it starts from."""
    readers: int = 100
    """The number of the newest users of each of these items."""
    neighbours: int = 300
    """The number of nearest neighbours, whose items are followed."""
    events: int = 50
    """The number of their newest events."""
    following: int = 10
    """The number of events right after a shared item that count as what came next."""
    position_decay: float = 0.8
    """What came next counts this much less for each item that the shared one is further back in the
    history."""


class Reached(NamedTuple):
    """What walks reached: of each pair of a request and an item, three values.

    recent  the similarity of every neighbour who took the item, each fading with age
    all     the same without fading
    next    how often the item came right after an item of the history, among its readers
    """

    request: Ints
    item: Ints
    values: Floats  # (pairs, 3)


class Neighbourhood:
    """Walks through one log."""

    def __init__(self, log: LogView, half_life: float, settings: NeighbourSettings | None = None) -> None:
        settings = settings or NeighbourSettings()
        self.log, self.half_life, self.settings = log, half_life, settings

    def reach(self, user: Ints, time: Ints, own: Ints) -> Reached:
        """From each request, a user at a time with a history `own` (requests, items), padded on the left."""
        log, settings = self.log, self.settings
        own = own[:, max(own.shape[1] - settings.own, 0) :]
        request, place = np.nonzero(own != PAD)
        item, back = own[request, place], own.shape[1] - 1 - place
        first, end = log.audiences.before(item, time[request])
        start, rarity = np.maximum(first, end - settings.readers), 1 / np.log(2 + end - first)
        step, event = log.audiences.flat(start, end)
        reader = log.audiences.ids[event].astype(np.int64)
        others = reader != user[request[step]]
        step, event, reader = step[others], event[others], reader[others]
        users = len(log.users)
        pair, which = _unique(request[step] * users + reader)
        asking, asked = pair // users, pair % users
        began, ended = log.histories.before(asked, time[asking])
        value = settings.position_decay ** back[step] / (end - start)[step]
        next_ = self._next(request[step], event, item[step], ended[which], value)
        shared = np.bincount(which, rarity[step], minlength=len(pair))
        likeness = shared / np.sqrt((own != PAD).sum(1)[asking] * (ended - began))
        nearest = self._nearest(asking, likeness)
        newest = np.maximum(began, ended - settings.events)[nearest], ended[nearest]
        return self._joined(next_, self._events(asking[nearest], *newest, likeness[nearest], time))

    def _nearest(self, request: Ints, likeness: Floats) -> NDArray[np.bool_]:
        """Which readers are among the nearest neighbours; of equals, the first ones. They stand together,
        request by request."""
        readers = np.bincount(request)
        many = np.flatnonzero(readers[request] > self.settings.neighbours)
        order = many[np.lexsort((-likeness[many], request[many]))]
        sizes = readers[readers > self.settings.neighbours]
        rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept = np.ones(len(request), bool)
        kept[order[rank >= self.settings.neighbours]] = False
        return kept

    def _events(
        self, request: Ints, start: Ints, end: Ints, likeness: Floats, time: Ints
    ) -> tuple[Ints, Ints, Floats, Floats]:
        """The events of neighbours in these windows of their histories: the request, the item, and the
        likeness, faded and not."""
        view = self.log.histories
        which, row = view.flat(start, end)
        age = time[request[which]] - view.times[row]
        fading = np.exp2(-age / self.half_life)
        return request[which], view.ids[row].astype(np.int64), likeness[which] * fading, likeness[which]

    def _next(
        self, request: Ints, event: Ints, item: Ints, end: Ints, value: Floats
    ) -> tuple[Ints, Ints, Floats]:
        """What readers took right after a shared item and before `end`: the request, the item, its value."""
        first = self.log.in_history(event, item) + 1
        which, row = self.log.histories.flat(first, np.minimum(first + self.settings.following, end))
        return request[which], self.log.histories.ids[row].astype(np.int64), value[which]

    def _joined(self, next_: tuple[Ints, Ints, Floats], events: tuple[Ints, Ints, Floats, Floats]) -> Reached:
        items = max(len(self.log.items), 1)
        pair, which = _unique(np.concatenate([events[0] * items + events[1], next_[0] * items + next_[1]]))
        taken, followed = np.split(which, [len(events[0])])
        values = np.zeros((len(pair), 3))
        columns = (taken, events[2]), (taken, events[3]), (followed, next_[2])
        for place, (those, column) in enumerate(columns):
            values[:, place] = np.bincount(those, column, minlength=len(pair))
        return Reached(pair // items, pair % items, values)


def _unique(keys: Ints) -> tuple[Ints, Ints]:
    """The keys in order, each once, and the place of each of the given ones among them. Small numbers are
    sorted in half of the time."""
    small = keys.max(initial=0) <= np.iinfo(np.int32).max
    found, which = np.unique(keys.astype(np.int32) if small else keys, return_inverse=True)
    return found.astype(np.int64), which
