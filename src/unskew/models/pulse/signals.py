"""What a log tells about items and about requests at a moment, without knowing any of them by name: how fast
audiences grow, a user's pace, and what neighbours took. Pulse reads nothing else.

For a request of user u at time t and an item i, strictly before t:

    a(i, t)     log((D_h(i, t) + FLOOR) / (D_h(t) + FLOOR)) for each half-life h: the item's share of all that
                happened lately; and log1p(age of the item in days)
    u(u, t)     the mean of a over the user's newest items, each as of when the user took it; log1p(how many
                events); log1p(hours since the last); whether there are none
    w(u, i, t)  log1p(neighbours / scale): what neighbours took lately, ever, and next; where past items are
                candidates, also how often the user took the item, how many days ago, and whether ever
    c(u, i, t)  where items have tags, the user's taste for those of the item (`tags.py`)

D_h(i, t) is the decayed count of the item's audience and D_h(t) that of all events (`decay.py`); the
neighbourhood is that of `neighbours.py`. Shares instead of counts make logs of any size comparable. Of w,
only the items that something is known about are stored; it is zero for all others.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.core.progress import progress
from unskew.data.batches.batch import Batch, contexts
from unskew.data.log.arrays import distinct
from unskew.data.log.decay import Decay
from unskew.data.log.log import LogView
from unskew.data.log.views import PAD, Ints
from unskew.models.pulse.neighbours import Neighbourhood, NeighbourSettings
from unskew.models.pulse.tags import OF_TAGS, Tags, Tastes

HALF_LIVES = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0)  # days
FLOOR = 0.05  # added to a count, so that none is the log of zero
NEIGHBOUR_DAYS = 32.0  # the half-life with which the events of neighbours fade
SCALES = (0.02, 0.05, 0.01)  # of the three values of a neighbourhood
OWN = 3  # values of a repeated item
ITEM_FEATURES, USER_FEATURES, NEIGHBOUR_FEATURES = (
    len(HALF_LIVES) + 1,
    len(HALF_LIVES) + 1 + 3,
    len(SCALES) + OWN,
)
BLOCK = 512  # requests that are read together

Reads = Literal["all", "counts", "neighbours"]

Floats = NDArray[np.float32]


class Requests(NamedTuple):
    """What is known of some requests: when they are, the users' profiles, their near and their tastes."""

    time: Ints
    profile: Floats  # (requests, USER_FEATURES)
    keys: Ints  # request * items + item, increasing
    values: Floats  # (keys, NEIGHBOUR_FEATURES)
    items: int
    tastes: Tastes | None = None  # where tags are read

    def of_pairs(self, request: Ints, item: Ints) -> Floats:
        """The values w of some pairs, (pairs, NEIGHBOUR_FEATURES); zero where nothing is known."""
        if not len(self.keys):
            return np.zeros((len(item), NEIGHBOUR_FEATURES), np.float32)
        wanted = request * self.items + item
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        found = (self.keys[place] == wanted) & (item >= 0) & (item < self.items)
        return np.where(found[:, None], self.values[place], np.float32(0))

    def nbytes(self) -> int:
        """How much memory they take."""
        tastes = 0 if self.tastes is None else sum(part.nbytes for part in self.tastes[2:])
        return tastes + sum(part.nbytes for part in (self.time, self.profile, self.keys, self.values))

    def of_request(self, request: int) -> tuple[Ints, Floats]:
        """The items that something is known about in one request, and their values."""
        first, last = np.searchsorted(self.keys, [request * self.items, (request + 1) * self.items])
        return self.keys[first:last] - request * self.items, self.values[first:last]


class Signals:
    """Reads one log, in which `day` ticks of the clock are a day. If past items are candidates (`repeats`), w
    says what is known of them; the tags of items are read if `tagged`. `reads` is `counts` to leave the
    neighbourhood at zero, `neighbours` to leave everything else."""

    def __init__(
        self,
        log: LogView,
        day: float,
        repeats: bool,
        tagged: bool = False,
        neighbour_settings: NeighbourSettings | None = None,
        reads: Reads = "all",
    ) -> None:
        self.log, self.day, self.repeats = log, day, repeats
        self.reads = reads
        self.tags = Tags(log) if tagged and reads != "neighbours" else None
        half_lives = tuple(day * life for life in HALF_LIVES)
        self.decay = Decay(log.audiences, half_lives)
        self.neighbourhood = Neighbourhood(log, day * NEIGHBOUR_DAYS, neighbour_settings)
        self.total = Decay(log.timeline, half_lives)

    @property
    def born(self) -> Ints:
        """From when each item exists; never is the largest number."""
        return self.log.audiences.since

    def of_items(self, item: Ints, time: Ints) -> Floats:
        """The vector a of each item at each time, (..., ITEM_FEATURES). The two are broadcast."""
        all_times, which = np.unique(time, return_inverse=True)
        totals = np.log(self.total.at(0, all_times) + FLOOR)[which.reshape(np.shape(time))]
        item, time = np.broadcast_arrays(item, time)
        known = (item >= 0) & (item < len(self.born))
        born = np.where(known, self.born[np.where(known, item, 0)], time) if len(self.born) else time
        return self._vectors(self.decay.at(item, time), totals, time - np.minimum(born, time))

    def of_everything(self, times: Ints) -> Iterator[Floats]:
        """The vectors a of all items at one time after the other; times must not decrease."""
        totals = np.log(self.total.at(0, times) + FLOOR)
        for time, total, counts in zip(times, totals, self.decay.along(times), strict=True):
            yield self._vectors(counts, total, time - np.minimum(self.born, time))

    def _vectors(self, counts: NDArray[np.float64], totals: NDArray[np.float64], age: Ints) -> Floats:
        if self.reads == "neighbours":
            return np.zeros((*counts.shape[:-1], ITEM_FEATURES), np.float32)
        found = np.empty((*counts.shape[:-1], ITEM_FEATURES), np.float32)
        np.subtract(np.log(counts + FLOOR), totals, out=found[..., :-1], casting="same_kind")
        found[..., -1] = np.log1p(age / self.day)
        return found

    def of_requests(self, batch: Batch) -> Requests:
        """What is known of the contexts of a batch."""
        user, time = batch.user_B.numpy(), batch.times_B.numpy()
        own, when = batch.history_BL.numpy(), batch.history_times_BL.numpy()
        own = np.where(own < len(self.log.items), own, PAD)  # of what the log does not have, nothing is known
        items, keys, values = max(len(self.log.items), 1), [np.zeros(0, np.int64)], []
        for first in range(0, len(time) if self.reads != "counts" else 0, BLOCK):
            part = slice(first, first + BLOCK)
            reached = self.neighbourhood.reach(user[part], time[part], own[part])
            keys.append((first + reached.request) * items + reached.item)
            values.append(np.log1p(reached.values / np.array(SCALES)))
        reached_keys = np.concatenate([*values, np.zeros((0, len(SCALES)))])
        found = _widened(np.concatenate(keys), reached_keys, *self._taken(user, time, own, when, items))
        tastes = None if self.tags is None else self.tags.tastes(time, own)
        return Requests(time, self._profile(user, time, own, when), *found, items, tastes)

    def tags_of(self, read: Requests, row: int, items: Ints) -> list[tuple[tuple[str, ...], Floats]]:
        """The names of the tags of some items, and the tastes for each of them in one request."""
        if self.tags is None or read.tastes is None:
            return [((), np.zeros((0, OF_TAGS), np.float32))] * len(items)
        return [self.tags.explained(read.tastes, row, item) for item in items.tolist()]

    def of_contexts(
        self, user: Ints, time: Ints, candidates: Ints, history: int
    ) -> tuple[Floats, Floats, Floats | None]:
        """The values u of users at some times, and w and c of their candidates (contexts, candidates). A few
        at a time, because a neighbourhood reaches far more than the candidates."""
        profiles, near, tastes = [], [], []
        with progress("read", len(user)) as job:
            for first in range(0, len(user), BLOCK):
                part = slice(first, first + BLOCK)
                among = candidates[part]
                read = self.of_requests(contexts(self.log, user[part], time[part], history))
                which = np.repeat(np.arange(len(among)), among.shape[1])
                profiles.append(read.profile)
                near.append(read.of_pairs(which, among.ravel()).reshape(*among.shape, -1))
                if read.tastes is not None:
                    tastes.append(read.tastes.of_pairs(which, among.ravel()).reshape(*among.shape, -1))
                job.advance(len(among))
        return np.concatenate(profiles), np.concatenate(near), np.concatenate(tastes) if tastes else None

    def _taken(self, user: Ints, time: Ints, own: Ints, when: Ints, items: int) -> tuple[Ints, Floats]:
        """Of each item that a user took before: how often, how many days ago, and a one."""
        if not self.repeats or self.reads == "neighbours":
            return np.zeros(0, np.int64), np.zeros((0, OWN), np.float32)
        row, place = np.nonzero(own != PAD)
        key, which, count = np.unique(row * items + own[row, place], return_inverse=True, return_counts=True)
        last = np.full(len(key), np.iinfo(np.int64).min)
        np.maximum.at(last, which, when[row, place])
        days = np.maximum(time[key // items] - last, 0) / self.day
        return key, np.stack([np.log1p(count), np.log1p(days), np.ones(len(key))], axis=1, dtype=np.float32)

    def _profile(self, user: Ints, time: Ints, own: Ints, when: Ints) -> Floats:
        """The vector u of each request."""
        if self.reads == "neighbours":
            return np.zeros((len(time), USER_FEATURES), np.float32)
        given = (own != PAD).sum(1)
        own, when = (
            rows[:, max(rows.shape[1] - self.neighbourhood.settings.own, 0) :] for rows in (own, when)
        )
        real = own != PAD
        taken = self.of_items(own, np.where(real, when, 0)) * real[..., None]
        count = real.sum(1)
        mean = taken.sum(1, dtype=np.float64) / np.maximum(count, 1)[:, None]
        start, end = self.log.histories.before(user, time)
        last = np.where(real, when, np.iinfo(np.int64).min).max(axis=1, initial=np.iinfo(np.int64).min)
        hours = np.where(count > 0, 24 * (time - np.where(count > 0, last, time)) / self.day, 0)
        events = np.maximum(end - start, given)  # whom the log does not know has what is given
        rest = np.stack([np.log1p(events), np.log1p(np.maximum(hours, 0)), count == 0], axis=1)
        return np.concatenate([mean, rest], axis=1, dtype=np.float32)


def _widened(
    reached_keys: Ints, values: NDArray[np.float64], taken: Ints, own: Floats
) -> tuple[Ints, Floats]:
    """The values of near and of repeated items side by side, by the keys of both."""
    keys = distinct(np.concatenate([reached_keys, taken])) if len(taken) else reached_keys
    found = np.zeros((len(keys), NEIGHBOUR_FEATURES), np.float32)
    found[np.searchsorted(keys, reached_keys), : len(SCALES)] = values
    found[np.searchsorted(keys, taken), len(SCALES) :] = own
    return keys, found
