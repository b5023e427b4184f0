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

Where the log has events of context types, such as views and carts, each type adds to a(i, t) the same shares
of its own decayed counts (over those of all positives), and to w(u, i, t) what was taken by users with the
same context events, and how often, how many days ago, and whether the user had such events on the item. Where
past items are candidates, w also says whether they are due again (`repeats.py`).

D_h(i, t) is the decayed count of the item's audience and D_h(t) that of all events (`decay.py`); the
neighbourhood is that of `neighbours.py`. Shares instead of counts make logs of any size comparable. Of w,
only the items that something is known about are stored; it is zero for all others.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.core.progress import progress
from unskew.data.batches.batch import Batch, contexts
from unskew.data.log.arrays import distinct
from unskew.data.log.decay import Decay
from unskew.data.log.log import LogView
from unskew.data.log.views import PAD, Ints, views_of
from unskew.models.pulse.neighbours import Neighbourhood, NeighbourSettings
from unskew.models.pulse.repeats import Intervals
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
BLOCK = 128  # requests that are read together
WALKS = 32  # neighbourhoods that are walked together: few enough to stay in the cache

OF_TYPE = len(SCALES) + OWN  # values of w for each context type
OWN_CONTEXT = 50  # of a user's newest events of a context type, those that are read

Reads = Literal["all", "types", "repeats", "targets", "counts", "neighbours"]

Floats = NDArray[np.float32]
Counts = NDArray[np.float64]
LARGEST = np.iinfo(np.int64).max


class Requests(NamedTuple):
    """What is known of some requests: when they are, the users' profiles, their near and their tastes."""

    time: Ints
    profile: Floats  # (requests, USER_FEATURES)
    keys: Ints  # request * items + item, increasing
    values: Floats  # (keys, NEIGHBOUR_FEATURES, and more where types or intervals are read)
    items: int
    tastes: Tastes | None = None  # where tags are read

    def of_pairs(self, request: Ints, item: Ints) -> Floats:
        """The values w of some pairs, (pairs, width of `values`); zero where nothing is known."""
        if not len(self.keys):
            return np.zeros((len(item), self.values.shape[1]), np.float32)
        wanted = request * self.items + item
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        found = (self.keys[place] == wanted) & (item >= 0) & (item < self.items)
        return np.where(found[:, None], self.values[place], np.float32(0))

    def nbytes(self) -> int:
        """How much memory they take."""
        tastes = 0 if self.tastes is None else sum(part.nbytes for part in self.tastes[2:])
        return tastes + sum(part.nbytes for part in (self.time, self.profile, self.keys, self.values))

    def pack(self) -> list[NDArray[Any]]:
        """The arrays of which `unpack` makes the same, without tastes. Of most pairs, only what neighbours
        took is known."""
        near, more = np.split(self.values, [len(SCALES)], axis=1)
        some = np.flatnonzero((more != 0).any(axis=1)).astype(np.int32)
        keys = self.keys.astype(np.int32) if self.keys.max(initial=0) < 1 << 31 else self.keys
        shape = np.array([self.items, more.shape[1]])
        return [self.time, self.profile, keys, near, some, more[some], shape]

    @classmethod
    def unpack(cls, arrays: Sequence[NDArray[Any]]) -> "Requests":
        """The same requests again."""
        time, profile, keys, near, some, rest, (items, width) = arrays
        values = np.zeros((len(keys), near.shape[1] + int(width)), np.float32)
        values[:, : near.shape[1]] = near
        values[some, near.shape[1] :] = rest
        return cls(time, profile, keys.astype(np.int64), values, int(items))

    def of_request(self, request: int) -> tuple[Ints, Floats]:
        """The items that something is known about in one request, and their values."""
        first, last = np.searchsorted(self.keys, [request * self.items, (request + 1) * self.items])
        return self.keys[first:last] - request * self.items, self.values[first:last]


class Signals:
    """Reads one log, in which `day` ticks of the clock are a day. If past items are candidates (`repeats`), w
    says what is known of them; the tags of items are read if `tagged`. `reads` is `counts` to leave the
    neighbourhood at zero, `neighbours` to leave everything else. `types` are the context types that are
    read; `intervals` between repeats are, too, if that is said."""

    def __init__(
        self,
        log: LogView,
        day: float,
        repeats: bool,
        tagged: bool = False,
        neighbour_settings: NeighbourSettings | None = None,
        reads: Reads = "all",
        types: tuple[str, ...] = (),
        intervals: bool = False,
    ) -> None:
        self.log, self.day, self.repeats = log, day, repeats
        self.reads = reads
        self.tags = Tags(log) if tagged and reads != "neighbours" else None
        half_lives = tuple(day * life for life in HALF_LIVES)
        self.decay = Decay(log.audiences, half_lives, log.timeline)
        self.neighbourhood = Neighbourhood(log, day * NEIGHBOUR_DAYS, neighbour_settings)
        nothing = views_of(*(np.zeros(0, np.int64),) * 3, len(log.users), len(log.items))
        self.types = types
        self.context = [log.context.get(kind, nothing) for kind in types]
        self.context_decays = [Decay(views.audiences, half_lives) for views in self.context]
        self.context_walks = [
            Neighbourhood(log, day * NEIGHBOUR_DAYS, neighbour_settings, views) for views in self.context
        ]
        self.intervals = Intervals(log, day) if repeats and intervals else None
        self.total = Decay(log.timeline, half_lives)

    def reads_as(self, day: float, repeats: bool, neighbour_settings: NeighbourSettings) -> bool:
        """Whether it reads its log in this way."""
        return (self.day, self.repeats, self.neighbourhood.settings) == (day, repeats, neighbour_settings)

    @property
    def born(self) -> Ints:
        """From when each item exists; never is the largest number."""
        return self.log.audiences.since

    def of_items(self, item: Ints, time: Ints) -> Floats:
        """The vector a of each item at each time, (..., ITEM_FEATURES and those of the types). The two are
        broadcast."""
        return self._of_targets(item, time, [decay.at(item, time) for decay in self.context_decays])

    def _of_targets(self, item: Ints, time: Ints, context: Sequence[Counts] = ()) -> Floats:
        """The vectors with what is read of target types, and of these counts of context types."""
        all_times, which = np.unique(time, return_inverse=True)
        totals = np.log(self.total.at(0, all_times) + FLOOR)[which.reshape(np.shape(time))]
        item, time = np.broadcast_arrays(item, time)
        known = (item >= 0) & (item < len(self.born))
        born = np.where(known, self.born[np.where(known, item, 0)], time) if len(self.born) else time
        return self._vectors(self.decay.at(item, time), totals, time - np.minimum(born, time), context)

    def of_everything(self, times: Ints) -> Iterator[Floats]:
        """The vectors a of all items at one time after the other; times must not decrease."""
        totals = np.log(self.total.at(0, times) + FLOOR)
        along = [decay.along(times) for decay in self.context_decays]
        for time, total, counts in zip(times, totals, self.decay.along(times), strict=True):
            context = [_longer(next(of_type), len(counts)) for of_type in along]
            yield self._vectors(counts, total, time - np.minimum(self.born, time), context)

    def _vectors(self, counts: Counts, totals: Counts, age: Ints, context: Sequence[Counts] = ()) -> Floats:
        width = ITEM_FEATURES + len(context) * len(HALF_LIVES)
        if self.reads == "neighbours":
            return np.zeros((*counts.shape[:-1], width), np.float32)
        found = np.empty((*counts.shape[:-1], width), np.float32)
        last = ITEM_FEATURES - 1
        np.subtract(np.log(counts + FLOOR), totals, out=found[..., :last], casting="same_kind")
        found[..., last] = np.log1p(age / self.day)
        for place, of_type in enumerate(context):
            begin = ITEM_FEATURES + place * len(HALF_LIVES)
            part = found[..., begin : begin + len(HALF_LIVES)]
            np.subtract(np.log(of_type + FLOOR), totals, out=part, casting="same_kind")
        return found

    def of_requests(self, batch: Batch) -> Requests:
        """What is known of the contexts of a batch."""
        user, time = batch.user_B.cpu().numpy(), batch.times_B.cpu().numpy()
        own, when = batch.history_BL.cpu().numpy(), batch.history_times_BL.cpu().numpy()
        own = np.where(own < len(self.log.items), own, PAD)  # of what the log does not have, nothing is known
        items = max(len(self.log.items), 1)
        parts = [self._reached(self.neighbourhood, user, time, own)]
        is_read = self.repeats and self.reads != "neighbours"
        parts += [self._taken(time, own, when, items) if is_read else _nothing(OWN)]
        for walk, views in zip(self.context_walks, self.context, strict=True):
            window = views.histories.before(user, time, OWN_CONTEXT)
            touched = views.histories.padded(*window).astype(np.int64)
            parts += [self._reached(walk, user, time, touched)]
            parts += [self._taken(time, touched, views.histories.padded_times(*window), items)]
        if self.intervals is not None:
            parts += [self._due(self.intervals, time, own, when, items)]
        tastes = None if self.tags is None else self.tags.tastes(time, own)
        return Requests(time, self._profile(user, time, own, when), *_side_by_side(parts), items, tastes)

    def _reached(self, walk: Neighbourhood, user: Ints, time: Ints, own: Ints) -> "Pairs":
        """What neighbours of each request took."""
        items, keys, values = max(len(self.log.items), 1), [np.zeros(0, np.int64)], []
        for first in range(0, len(time) if self.reads != "counts" else 0, WALKS):
            part = slice(first, first + WALKS)
            reached = walk.reach(user[part], time[part], own[part])
            keys.append((first + reached.request) * items + reached.item)
            values.append(np.log1p(reached.values / np.array(SCALES)).astype(np.float32))
        nothing = np.zeros((0, len(SCALES)), np.float32)
        return np.concatenate(keys), np.concatenate([*values, nothing])

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

    def _due(self, intervals: Intervals, time: Ints, own: Ints, when: Ints, items: int) -> "Pairs":
        """Of each item that a user took before, whether it is due again."""
        row, place = np.nonzero(own != PAD)
        key, which, count = np.unique(row * items + own[row, place], return_inverse=True, return_counts=True)
        first, last = (np.full(len(key), end) for end in (LARGEST, -LARGEST))
        np.minimum.at(first, which, when[row, place])
        np.maximum.at(last, which, when[row, place])
        return key, intervals.due(key % items, time[key // items], first, last, count)

    def _taken(self, time: Ints, own: Ints, when: Ints, items: int) -> "Pairs":
        """Of each item that a user took before: how often, how many days ago, and a one."""
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
        taken = self._of_targets(own, np.where(real, when, 0)) * real[..., None]
        count = real.sum(1)
        mean = taken.sum(1, dtype=np.float64) / np.maximum(count, 1)[:, None]
        start, end = self.log.histories.before(user, time)
        last = np.where(real, when, np.iinfo(np.int64).min).max(axis=1, initial=np.iinfo(np.int64).min)
        hours = np.where(count > 0, 24 * (time - np.where(count > 0, last, time)) / self.day, 0)
        events = np.maximum(end - start, given)  # whom the log does not know has what is given
        rest = np.stack([np.log1p(events), np.log1p(np.maximum(hours, 0)), count == 0], axis=1)
        return np.concatenate([mean, rest], axis=1, dtype=np.float32)


Pairs = tuple[Ints, NDArray[Any]]  # keys, request * items + item, in increasing order, and their values


def _nothing(width: int) -> Pairs:
    return np.zeros(0, np.int64), np.zeros((0, width), np.float32)


def _longer(counts: Counts, items: int) -> Counts:
    """The counts of all items: those behind the last one that the view knows are zero."""
    return np.concatenate([counts, np.zeros((items - len(counts), counts.shape[1]))])


def _side_by_side(parts: Sequence[Pairs]) -> tuple[Ints, Floats]:
    """All values in one table, by the keys of all."""
    some = [keys for keys, _ in parts if len(keys)]
    keys = distinct(np.concatenate(some)) if len(some) > 1 else np.concatenate([np.zeros(0, np.int64), *some])
    widths = [values.shape[1] for _, values in parts]
    found = np.zeros((len(keys), sum(widths)), np.float32)
    for (part_keys, values), begin, width in zip(parts, np.cumsum([0, *widths]), widths, strict=False):
        found[np.searchsorted(keys, part_keys), begin : begin + width] = values
    return keys, found
