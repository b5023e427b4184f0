"""Does the order of a user's events carry information? A test that compares the log with shuffles of it."""

import math
from dataclasses import dataclass

import numpy as np

from unskew.data.log.views import Codes, Ints, Sequences

SHUFFLES, FEWEST_SHUFFLES = 20, 5
SHUFFLED_ROWS = 200_000_000  # how many rows all shuffles together may move; larger logs get fewer shuffles


@dataclass(frozen=True)
class Shuffle:
    """The result of the shuffle test.

    The statistic is the number of coinciding pairs among the transitions a -> b, a != b, between consecutive
    positives of a user at different times. Under the null hypothesis each user's items are exchangeable over
    the user's times. Trends are order, too: what is popular together at one time also counts.
    """

    transitions: int
    observed: int
    mean: float
    deviation: float
    ratio: float
    z: float
    shuffled: tuple[int, ...]


def number_of_shuffles(positives: int) -> int:
    """How many shuffles a log of this size gets."""
    return min(SHUFFLES, max(FEWEST_SHUFFLES, SHUFFLED_ROWS // max(positives, 1)))


def coincidences(before: Codes, after: Codes, items: int) -> int:
    """The number of pairs of equal transitions: n (n - 1) / 2, summed over the distinct transitions. A step
    from an item to itself does not count."""
    moved = before != after
    keys = np.sort(before[moved].astype(np.int64) * items + after[moved])
    borders = np.flatnonzero(np.diff(keys, prepend=-1, append=-1))
    n = np.diff(borders)
    return int((n * (n - 1) // 2).sum())


def shuffle_test(sequences: Sequences, items: int, shuffles: int, seed: int) -> Shuffle:
    """Compare the repeated transitions with those after shuffling each user's items over the same times."""
    draw = np.random.default_rng([seed, 3])
    ids, time = np.asarray(sequences.ids), np.asarray(sequences.times)
    user = np.repeat(np.arange(len(sequences)), np.diff(sequences.offsets))
    same_user = user[1:] == user[:-1]
    step = np.flatnonzero(same_user & (time[1:] > time[:-1]))
    # Events of equal time have no order, but are stored sorted by code. In a random order instead, the log
    # is, under the null hypothesis, a draw like any of its shuffles, so the test is exact with ties, too.
    slot = np.concatenate([[0], np.cumsum(~(same_user & (time[1:] == time[:-1])))]) if len(ids) else user
    ids = ids[_shuffled_within(slot, draw)]
    observed = coincidences(ids[step], ids[step + 1], items)
    found = []
    for _ in range(shuffles):
        order = _shuffled_within(user, draw)
        found.append(coincidences(ids[order[step]], ids[order[step + 1]], items))
    mean, deviation = float(np.mean(found)), float(np.std(found, ddof=1))
    return Shuffle(
        transitions=int(np.count_nonzero(ids[step] != ids[step + 1])),
        observed=observed,
        mean=mean,
        deviation=deviation,
        ratio=observed / mean if mean else math.nan,
        z=(observed - mean) / deviation if deviation else math.nan,
        shuffled=tuple(found),
    )


def _shuffled_within(group: Ints, draw: np.random.Generator) -> Ints:
    """A random order that permutes positions only within their group; `group` must not decrease."""
    return np.argsort(group + draw.random(len(group)))
