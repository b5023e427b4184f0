"""Users who are probably no customers: bots, which do very much at a constant pace, and test accounts, which
do the same again and again.

A user is named if both hold, over all of its positives and context events:

- it has more events on a day than 95 % of the users (on the days on which it has any), and at least FEWEST
  events;
- its gaps are regular (the median distance of a gap from the median gap is below REGULAR of the median gap),
  or its items are few (exp(entropy) of its items is below FEW).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unskew.data.log.clock import DAY
from unskew.data.log.log import Log
from unskew.data.log.views import Ints

FEWEST = 50
REGULAR, FEW = 0.05, 4.0
MOST_POPULAR = 10

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Robot:
    """A user who is probably no customer, and why."""

    user: str
    events: int
    per_day: float
    items: float  # exp(entropy): how many items would give the same entropy, each as often as the others
    irregularity: float  # the median distance from the median gap, over the median gap


@dataclass(frozen=True)
class Robots:
    """All such users, and what they do to the figures of the log."""

    users: tuple[Robot, ...]
    events: float  # their fraction of all positives and context events
    positives: float  # their fraction of the positives
    replaced: int  # of the most popular items, how many are others without them


def robots_of(log: Log) -> Robots:
    """The users of a log who are probably no customers. Logs whose times only give an order have none."""
    user, item, time = _events(log)
    if log.clock.ticks is None or not len(user):
        return Robots((), 0.0, 0.0, 0)
    order = np.lexsort((time, user))
    user, item, time = user[order], item[order], time[order]
    size = len(log.users)
    events = np.bincount(user, minlength=size)
    days = _active_days(user, time // (DAY * log.clock.ticks), size)
    rates = events / np.maximum(days, 1)
    limit = float(np.quantile(rates[events > 0], 0.95))
    chosen = np.flatnonzero((events >= FEWEST) & (rates >= limit))
    starts = np.concatenate([[0], np.cumsum(events)])
    found = []
    for code in chosen.tolist():
        own = slice(starts[code], starts[code + 1])
        items, irregularity = _effective(item[own]), _irregularity(time[own])
        if items < FEW or irregularity < REGULAR:
            name = str(log.users.ids[code].as_py())
            found.append((code, Robot(name, int(events[code]), float(rates[code]), items, irregularity)))
    codes = np.array([code for code, _ in found], np.int64)
    return _effects(log, tuple(robot for _, robot in found), codes, events)


def _effects(log: Log, robots: tuple[Robot, ...], codes: Ints, events: Ints) -> Robots:
    """What some users do to the figures of the log."""
    by_robot = np.isin(log.user[: log.positives], codes)
    items = np.asarray(log.item[: log.positives], np.int64)
    with_them, without = (_most_popular(each, len(log.items)) for each in (items, items[~by_robot]))
    return Robots(
        robots,
        float(events[codes].sum() / max(events.sum(), 1)),
        float(by_robot.mean()),
        len(with_them - without),
    )


def _events(log: Log) -> tuple[Ints, Ints, Ints]:
    """All positives and context events."""
    positives = slice(0, log.positives)
    columns = [views.events() for views in log.context.values()]
    rows = log.user[positives], log.item[positives], log.time[positives]
    user, item, time = (
        np.concatenate([row, *(each[place] for each in columns)]).astype(np.int64)
        for place, row in enumerate(rows)
    )
    return user, item, time


def _active_days(user: Ints, day: Ints, size: int) -> Ints:
    """On how many days each user has an event; the events are sorted by user and time."""
    new = np.ones(len(user), bool)
    new[1:] = (user[1:] != user[:-1]) | (day[1:] != day[:-1])
    return np.bincount(user[new], minlength=size)


def _effective(item: Ints) -> float:
    fractions = np.unique(item, return_counts=True)[1] / len(item)
    return float(np.exp(-(fractions * np.log(fractions)).sum()))


def _irregularity(time: Ints) -> float:
    gaps = np.diff(time)
    median = float(np.median(gaps))
    return float(np.median(np.abs(gaps - median))) / median if median else 0.0


def _most_popular(items: Ints, size: int) -> set[int]:
    counts = np.bincount(items, minlength=size)
    return set(np.argsort(-counts, kind="stable")[:MOST_POPULAR].tolist())
