"""How regularly items are taken again, without knowing any of them by name.

For a request of user u at time t and an item i that the user took before:

    due     log1p(days since u took i) - the usual interval of i, in the two ways of the columns

The usual interval of an item is the mean of log1p(days) between one positive of a user and the next one of
the same user, over the newest intervals that ended strictly before t. The second column has the user's own
mean interval on the item instead, where there are two positives or more. Above zero, the item is overdue. The
third column is one where the item has a usual interval.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unskew.data.log.derived import entity_chunks
from unskew.data.log.log import LogView
from unskew.data.log.views import PAD, EventView, Ints, Sequences, offsets_of

DUE = 3
NEWEST = 50  # of the intervals of an item
FINE = 1000  # intervals are kept as whole numbers of thousandths

Floats = NDArray[np.float64]


class Intervals:
    """The intervals between repeated positives of one log, in which `day` ticks are a day."""

    def __init__(self, log: LogView, day: float) -> None:
        self.log, self.day = log, day
        log.on_event(self._follow)

    @cached_property
    def ended(self) -> EventView:
        """For each item, when intervals ended, and as ids how long they were."""
        nothing = (np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))
        found = [nothing, *(self._of_users(users) for users in entity_chunks(self.log.histories))]
        length, item, time = map(np.concatenate, zip(*found, strict=True))
        order = np.lexsort((length, time, item))
        offsets = offsets_of(item[order], len(self.log.items))
        return self.log.following(Sequences(length[order], time[order], offsets))

    def _of_users(self, users: slice) -> tuple[NDArray[np.int32], Ints, Ints]:
        """The lengths, the items and the ends of the intervals of some users."""
        view = self.log.histories
        user, place = view.flat(view.starts[users], view.ends[users])
        item, time = view.ids[place], view.times[place]
        order = np.lexsort((time, item, user))
        user, item, time = user[order], item[order], time[order]
        again = np.flatnonzero((user[1:] == user[:-1]) & (item[1:] == item[:-1])) + 1
        length = self._length(time[again] - time[again - 1])
        return length, item[again].astype(np.int64), time[again]

    def _length(self, ticks: Ints) -> NDArray[np.int32]:
        return np.round(FINE * np.log1p(ticks / self.day)).astype(np.int32)

    def _follow(self, user: int, item: int, time: int) -> None:
        """A positive was added to the log."""
        if "ended" not in self.__dict__:
            return
        view = self.log.histories
        start, end = (0, 0) if item == PAD else (int(view.starts[user]), int(view.ends[user]))
        own = np.sort(view.times[start:end][view.ids[start:end] == item])
        if item == PAD or own[-1] > time:  # an event that comes late changes two intervals
            del self.__dict__["ended"]
        elif len(own) > 1:
            self.__dict__["ended"].add(item, int(self._length(own[-1:] - own[-2])[0]), time)

    def due(self, item: Ints, time: Ints, first: Ints, last: Ints, count: Ints) -> NDArray[np.float32]:
        """The columns of pairs of a request and an item that the user took `count` times from `first` to
        `last`."""
        start, end = self.ended.before(item, time, NEWEST)
        which, place = self.ended.flat(start, end)
        total = np.bincount(which, self.ended.ids[place], minlength=len(item))
        usual = total / FINE / np.maximum(end - start, 1)
        own = np.log1p((last - first) / np.maximum(count - 1, 1) / self.day)
        days, has_usual = np.log1p(np.maximum(time - last, 0) / self.day), end > start
        columns = (days - usual) * has_usual, (days - own) * (count > 1), has_usual
        return np.stack(columns, axis=1).astype(np.float32)
