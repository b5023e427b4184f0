"""A walk from a user to people alike and on to what these took: how many people like you met an item, and
when.

    own       the newest items of the user
    readers   the newest users of each of them, with what they took right afterwards
    alike     the readers who share most with the user; an item that few people have counts more
    events    their newest events

Everything is strictly before the moment of the request, and comes from the two views alone. No id is learned,
so the walk knows users and items that no training ever saw.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.data.log import Log
from unskew.data.views import PAD, Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Walking:
    """How far a walk goes."""

    own: int = 20
    """The number of the user's newest items that it starts from."""
    readers: int = 100
    """The number of the newest users of each of these items."""
    alike: int = 100
    """The number of users who are most alike and are walked on from."""
    events: int = 50
    """The number of their newest events."""
    following: int = 10
    """The number of events right after a shared item that count as what came next."""
    back: float = 0.8
    """What came next counts this much less for each item that the shared one is further back in the
    history."""


class Reached(NamedTuple):
    """What walks reached: of each pair of a request and an item, three values.

    recent  the likeness of everybody alike who took the item, each fading with age
    all     the same without fading
    next    how often the item came right after an item of the history, among its readers
    """

    request: Ints
    item: Ints
    values: Floats  # (pairs, 3)


class Walk:
    """Walks through one log."""

    def __init__(self, log: Log, half_life: float, settings: Walking | None = None) -> None:
        settings = settings or Walking()
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
        value = settings.back ** back[step] / (end - start)[step]
        next_ = self._next(request[step], time, event, item[step], value)
        alike = self._alike(request[step], reader, rarity[step], time, (own != PAD).sum(1))
        return self._joined(len(user), next_, self._events(*alike, time))

    def _alike(
        self, request: Ints, reader: Ints, rarity: Floats, time: Ints, lengths: Ints
    ) -> tuple[Ints, Ints, Floats]:
        """The readers of each request who are most alike, and how much."""
        users = len(self.log.users)
        pair, which = np.unique(request * users + reader, return_inverse=True)
        request, reader = pair // users, pair % users
        start, end = self.log.histories.before(reader, time[request])
        likeness = np.bincount(which, rarity, minlength=len(pair)) / np.sqrt(lengths[request] * (end - start))
        order = np.lexsort((reader, -likeness, request))
        first = np.searchsorted(request[order], np.arange(len(time)))
        rank = np.arange(len(order)) - first[request[order]]
        kept = order[rank < self.settings.alike]
        return request[kept], reader[kept], likeness[kept]

    def _events(
        self, request: Ints, reader: Ints, likeness: Floats, time: Ints
    ) -> tuple[Ints, Ints, Floats, Floats]:
        """The newest events of people alike: the request, the item, and the likeness, faded and not."""
        view = self.log.histories
        which, row = view.flat(*view.before(reader, time[request], self.settings.events))
        age = time[request[which]] - view.times[row]
        fading = np.exp2(-age / self.half_life)
        return request[which], view.ids[row].astype(np.int64), likeness[which] * fading, likeness[which]

    def _next(
        self, request: Ints, time: Ints, event: Ints, item: Ints, value: Floats
    ) -> tuple[Ints, Ints, Floats]:
        """What readers took right after a shared item: the request, the item, and its value."""
        view = self.log.histories
        row = self.log.in_history(event, item)
        _, end = view.before(self.log.audiences.ids[event], time[request])
        after = row[:, None] + 1 + np.arange(self.settings.following)
        which, place = np.nonzero(after < end[:, None])
        return request[which], view.ids[after[which, place]].astype(np.int64), value[which]

    def _joined(
        self, requests: int, next_: tuple[Ints, Ints, Floats], events: tuple[Ints, Ints, Floats, Floats]
    ) -> Reached:
        items = len(self.log.items)
        key = np.concatenate([events[0] * items + events[1], next_[0] * items + next_[1]])
        pair, which = np.unique(key, return_inverse=True)
        nothing = np.zeros(len(next_[0]))
        columns = (
            np.concatenate([events[2], nothing]),
            np.concatenate([events[3], nothing]),
            np.concatenate([np.zeros(len(events[0])), next_[2]]),
        )
        values = [np.bincount(which, column, minlength=len(pair)) for column in columns]
        return Reached(pair // max(items, 1), pair % max(items, 1), np.stack(values, axis=1))
