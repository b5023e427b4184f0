"""Whether targets were touched shortly before: a context event, such as a view or a cart, of the same user
on the same item. Where a purchase follows its own cart by minutes, the list of what was just touched
predicts it, and a high metric says nothing about what a shop should recommend.
"""

from dataclasses import dataclass

import numpy as np

from unskew.data.log.arrays import offsets_of, position_in
from unskew.data.log.log import Log
from unskew.data.log.views import Ints, Sequences

NEVER = np.iinfo(np.int64).max
SHORTLY = "24h"  # what "shortly before" means unless a test says it


@dataclass(frozen=True)
class Touched:
    """How many targets were touched shortly before.

    Attributes
    ----------
    targets
        The number of targets.
    within
        What "shortly before" means, as a duration.
    fraction
        The fraction of them with a context event of the user on the item within this time.
    median_minutes
        The median time from the newest such event to the target; nan if there is none, or if times only give
        an order.
    """

    targets: int
    within: str
    fraction: float
    median_minutes: float


def gaps(log: Log, rows: Ints) -> Ints:
    """For each row, the ticks since its user had a context event on its item, strictly before; the largest
    possible number if there was none."""
    events = [views.events() for views in log.context.values()]
    user, item, time = (np.concatenate(column) for column in zip(*events, strict=True))
    pairs, which = np.unique(user * len(log.items) + item, return_inverse=True)
    order = np.lexsort((time, which))
    view = Sequences(np.zeros(len(time), np.int32), time[order], offsets_of(which[order], len(pairs)))
    pair = log.user[rows].astype(np.int64) * len(log.items) + log.item[rows]
    moments = np.asarray(log.time[rows])
    start, end = view.before(position_in(pairs, pair), moments)
    found = np.full(len(rows), NEVER)
    some = end > start
    found[some] = moments[some] - view.times[end[some] - 1]
    return found


def ticks_within(log: Log, within: str) -> int:
    """A duration such as 24h in ticks of the log; where times only give an order, a number of ticks. The
    default is then a single tick."""
    return 1 if log.clock.ticks is None and within == SHORTLY else log.clock.ticks_in(within)


def touched(log: Log, rows: Ints, within: str = SHORTLY) -> Touched | None:
    """How many of some rows were touched shortly before; None if the log has no context events."""
    if not log.context or not len(rows):
        return None
    ticks = gaps(log, rows)
    near = ticks[ticks <= ticks_within(log, within)]
    per_minute = np.nan if log.clock.ticks is None else log.clock.ticks * 60
    median = float(np.median(near)) / per_minute if len(near) else float("nan")
    return Touched(len(rows), within, len(near) / len(rows), median)
