"""Segments: groups of rows by who the user is and what the item is, to see where a model is good."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.data.log.log import Log
from unskew.data.log.split import Split
from unskew.data.log.views import Ints

DECILES = 10
BY_USER = ("user", "history length")  # segments that belong to users, and not to single rows
HISTORY_LENGTHS = (1, 5, 20)  # the lengths of a history at which a new group begins


class Segment(NamedTuple):
    """A way to group the units of an evaluation: the names of the groups, and the group of each unit."""

    names: tuple[str, ...]
    of: NDArray[np.int8]


def segments_of(split: Split, rows: Ints, frozen_at: int | None = None) -> dict[str, Segment]:
    """Group some rows of the log, which must be in order of time: by whether training knew the user and the
    item, by the popularity of the item, and by the length of the user's history.

    frozen_at: the time of all lists of a frozen evaluation; by default each row has a list at its own time.
    """
    log = split.log
    user, item = log.user[rows], log.item[rows]
    time = log.time[rows] if frozen_at is None else np.full(len(rows), frozen_at)
    start, end = log.histories.before(user, time)
    lengths = [
        f"{low}-{high - 1}" if high - low > 1 else str(low)
        for low, high in zip((0, *HISTORY_LENGTHS), HISTORY_LENGTHS, strict=False)
    ]
    deciles = tuple(f"{number + 1}" for number in range(DECILES))
    known_user, known_item = user < split.known_users, item < split.known_items
    return {
        "user": Segment(("known", "new"), (~known_user).astype(np.int8)),
        "item": Segment(("known", "new"), (~known_item).astype(np.int8)),
        "user and item": Segment(("both known", "not both"), (~(known_user & known_item)).astype(np.int8)),
        "popularity decile": Segment(deciles, popularity_decile(log, item, time)),
        "history length": Segment(
            (*lengths, f"{HISTORY_LENGTHS[-1]}+"),
            np.searchsorted(HISTORY_LENGTHS, end - start, "right").astype(np.int8),
        ),
    }


def popularity_decile(log: Log, item: NDArray[np.integer], time: Ints) -> NDArray[np.int8]:
    """The decile of each item among the items that existed by then, by the number of positives strictly
    before; 0 is the most popular.

    The times must not decrease. Items with the same number share the mean of their ranks.
    """
    found = np.zeros(len(item), np.int8)
    for place, counts in enumerate(_counts_at(log, time)):
        mine = counts[item[place]] if item[place] < len(counts) else 0
        ahead = (counts > mine).sum() + ((counts == mine).sum() - 1) / 2
        found[place] = min(int(DECILES * ahead / max(len(counts), 1)), DECILES - 1)
    return found


def _counts_at(log: Log, time: Ints) -> Iterator[Ints]:
    """For each time, the number of positives of every existing item strictly before. The counts are updated
    from one time to the next."""
    if not len(time):
        return
    times = np.asarray(log.histories.times)
    order = np.argsort(times, kind="stable")
    times, items = times[order], np.asarray(log.histories.ids)[order]
    counts, done = np.zeros(len(log.items), np.int64), 0
    for existing, end in zip(log.audiences.existing(time), np.searchsorted(times, time, "left"), strict=True):
        np.add.at(counts, items[done:end], 1)
        done = end
        yield counts[:existing]
