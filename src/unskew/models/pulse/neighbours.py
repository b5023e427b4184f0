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
from unskew.data.log.views import PAD, Ints, Views

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
    reads_all: bool = False
    """Whether events of other users are read at any time, and not only before the request. This is for logs
    from which the targets of all requests were taken out (leave-one-out)."""


class Reached(NamedTuple):
    """What walks reached: of each pair of a request and an item, three values.

    recent  the similarity of every neighbour who took the item, each fading with age
    all     the same without fading
    next    how often the item came right after an item of the history, among its readers
    """

    request: Ints
    item: Ints
    values: Floats  # (pairs, 3)


class Sources(NamedTuple):
    """How the three values of some items in one request are divided among the items of the user.

    own: the user's items, each once.
    shares: (items, own, 3); summed over own they are the values of `Reached`.
    """

    own: Ints
    shares: Floats


class _Walk(NamedTuple):
    """From the items of requests to their neighbours.

    item, of_request: each item of a history, and its request.
    step, event, which: of each reader of such an item, the item's place above, the event in which the reader
        took it, and the reader's place below.
    rarity, value: how much the step adds to what they share, and to what came next.
    request, began, ended: of each reader, the request and the window of its history.
    scale, likeness, nearest: what its shared items are multiplied by, the result, and whether it is among the
        nearest neighbours.
    """

    item: Ints
    of_request: Ints
    step: Ints
    event: Ints
    which: Ints
    rarity: Floats
    value: Floats
    request: Ints
    began: Ints
    ended: Ints
    scale: Floats
    likeness: Floats
    nearest: NDArray[np.bool_]


class Neighbourhood:
    """Walks through one log: from items to users by the positives, or through the events of a context type.
    What neighbours took are positives either way."""

    def __init__(
        self,
        log: LogView,
        half_life: float,
        settings: NeighbourSettings | None = None,
        through: Views | None = None,
    ) -> None:
        settings = settings or NeighbourSettings()
        self.log, self.half_life, self.settings, self.through = log, half_life, settings, through

    def reach(self, user: Ints, time: Ints, own: Ints) -> Reached:
        """From each request, a user at a time with a history `own` (requests, items), padded on the left."""
        walk = self._walk(user, time, own)
        return self._joined(self._next(walk)[1:], self._events(walk, time)[1:])

    def sources(self, user: Ints, time: Ints, own: Ints, items: Ints) -> Sources:
        """How the values of some items in one request are divided among the items of its history. The events
        of a neighbour are divided in proportion to what each shared item adds to the similarity."""
        walk = self._walk(user, time, own)
        codes, of_own = np.unique(walk.item, return_inverse=True)
        shares = np.zeros((len(items), len(codes), 3))
        order = np.argsort(items)
        step, _, item, value = self._next(walk)
        listed, place = _among(item, items[order])
        np.add.at(shares[..., 2], (order[place], of_own[walk.step[step[listed]]]), value[listed])
        # Of each neighbour, what each own item adds to the similarity.
        added = np.zeros((len(walk.request), len(codes)))
        np.add.at(added, (walk.which, of_own[walk.step]), walk.rarity)
        added = (added * walk.scale[:, None])[walk.nearest]
        neighbour, _, item, faded, _ = self._events(walk, time)
        listed, place = _among(item, items[order])
        neighbour, likeness = neighbour[listed], walk.likeness[walk.nearest]
        fading = faded[listed] / likeness[neighbour]
        np.add.at(shares[..., 0], order[place], added[neighbour] * fading[:, None])
        np.add.at(shares[..., 1], order[place], added[neighbour])
        return Sources(codes, shares)

    def _walk(self, user: Ints, time: Ints, own: Ints) -> _Walk:
        log, settings = self.log, self.settings
        audiences = log.audiences if self.through is None else self.through.audiences
        own = own[:, max(own.shape[1] - settings.own, 0) :]
        request, place = np.nonzero(own != PAD)
        item, back = own[request, place].astype(np.int64), own.shape[1] - 1 - place
        until = self._until(time)
        first, end = audiences.before(item, until[request])
        start, rarity = np.maximum(first, end - settings.readers), 1 / np.log(2 + end - first)
        step, event = audiences.flat(start, end)
        reader = audiences.ids[event].astype(np.int64)
        others = reader != user[request[step]]
        step, event, reader = step[others], event[others], reader[others]
        users = len(log.users)
        pair, which = _unique(request[step] * users + reader)
        asking, asked = pair // users, pair % users
        began, ended = log.histories.before(asked, until[asking])
        size = ended - began
        if self.through is not None:
            first, last = self.through.histories.before(asked, until[asking])
            size = last - first
        shared = np.bincount(which, rarity[step], minlength=len(pair))
        scale = 1 / np.sqrt((own != PAD).sum(1)[asking] * size)
        value = settings.position_decay ** back[step] / (end - start)[step]
        likeness = shared * scale
        nearest = self._nearest(asking, likeness)
        steps = step, event, which, rarity[step], value
        return _Walk(item, request, *steps, asking, began, ended, scale, likeness, nearest)

    def _until(self, time: Ints) -> Ints:
        """Up to when the events of other users are read for requests at some times."""
        return np.full_like(time, self.log.now) if self.settings.reads_all else time

    def _nearest(self, request: Ints, likeness: Floats) -> NDArray[np.bool_]:
        """Which readers are among the nearest neighbours; of equals, the first ones. They stand together,
        request by request."""
        most, kept = self.settings.neighbours, np.ones(len(request), bool)
        ends = np.cumsum(np.bincount(request))
        sizes = np.diff(ends, prepend=0)
        for end, size in zip(ends.tolist(), sizes.tolist(), strict=True):
            if size > most:
                mine = likeness[end - size : end]
                least = np.partition(mine, size - most)[size - most]
                nearer = mine > least
                as_near = np.flatnonzero(mine == least)[: most - np.count_nonzero(nearer)]
                nearer[as_near] = True
                kept[end - size : end] = nearer
        return kept

    def _events(self, walk: _Walk, time: Ints) -> tuple[Ints, Ints, Ints, Floats, Floats]:
        """The newest events of the nearest neighbours: the neighbour's number among them, the request, the
        item, and the likeness, faded and not."""
        view, nearest = self.log.histories, walk.nearest
        end = walk.ended[nearest]
        which, row = view.flat(np.maximum(walk.began[nearest], end - self.settings.events), end)
        request, likeness = walk.request[nearest][which], walk.likeness[nearest][which]
        fading = np.exp2(-np.maximum(time[request] - view.times[row], 0) / self.half_life)
        return which, request, view.ids[row].astype(np.int64), likeness * fading, likeness

    def _next(self, walk: _Walk) -> tuple[Ints, Ints, Ints, Floats]:
        """What readers took right after a shared item, before the request: the step, the request, the item,
        its value."""
        if self.through is None:
            first = self.log.in_history(walk.event, walk.item[walk.step]) + 1
        else:
            view = self.through.audiences
            _, first = self.log.histories.before(view.ids[walk.event], view.times[walk.event] + 1)
        last = np.minimum(first + self.settings.following, walk.ended[walk.which])
        which, row = self.log.histories.flat(first, last)
        request = walk.of_request[walk.step[which]]
        return which, request, self.log.histories.ids[row].astype(np.int64), walk.value[which]

    def _joined(self, next_: tuple[Ints, Ints, Floats], events: tuple[Ints, Ints, Floats, Floats]) -> Reached:
        items = max(len(self.log.items), 1)
        pair, which = _unique(np.concatenate([events[0] * items + events[1], next_[0] * items + next_[1]]))
        taken, followed = np.split(which, [len(events[0])])
        values = np.zeros((len(pair), 3))
        columns = (taken, events[2]), (taken, events[3]), (followed, next_[2])
        for place, (those, column) in enumerate(columns):
            values[:, place] = np.bincount(those, column, minlength=len(pair))
        return Reached(pair // items, pair % items, values)


def _among(item: Ints, ordered: Ints) -> tuple[Ints, Ints]:
    """Which of some items are among others, as positions, and where there."""
    place = np.minimum(np.searchsorted(ordered, item), max(len(ordered) - 1, 0))
    listed = np.flatnonzero(ordered[place] == item) if len(ordered) else np.zeros(0, np.int64)
    return listed, place[listed]


def _unique(keys: Ints) -> tuple[Ints, Ints]:
    """The keys in order, each once, and the place of each of the given ones among them. Small numbers are
    sorted in half of the time."""
    small = keys.max(initial=0) <= np.iinfo(np.int32).max
    found, which = np.unique(keys.astype(np.int32) if small else keys, return_inverse=True)
    return found.astype(np.int64), which
