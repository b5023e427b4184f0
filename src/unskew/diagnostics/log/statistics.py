"""What a log is like, in figures: size, time, ties, lengths, popularity, drift, repeats and tests.

Pure functions of arrays. An undefined figure (the mean of nothing) is nan.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.data.log.clock import Clock
from unskew.data.log.held_out import available_tests, effective_size, held_out
from unskew.data.log.log import Log
from unskew.data.log.split import Part, Split
from unskew.data.log.views import Codes, Ints, Sequences

SLICES = 10
FEWEST_IN_SLICE = 30
TOP = 100  # "the most popular items", in a catalogue of at least ten times as many
HEAD = 0.2  # the fraction of known items that is not the long tail
DECILES = 10
CURVE_POINTS = 100
HELD: tuple[Part, Part] = ("train", "test")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Size:
    """How large the log is: Table 1 of the paper."""

    users: int
    items: int
    interactions: int
    positives: int
    sparsity: float


@dataclass(frozen=True)
class Times:
    """When the log begins and ends, how fine its times are, and how many events share their time."""

    first: str | int  # a date, or the number itself where times are only an order
    last: str | int
    days: float  # nan where times are only an order
    distinct: int
    resolution: str
    tied_rows: float  # fraction of rows that share their time with any other row
    tied_positives: float  # fraction of positives whose user has another positive at the same time


@dataclass(frozen=True)
class Bin:
    """One bar of a histogram of lengths."""

    low: int
    high: int  # inclusive
    fraction: float


@dataclass(frozen=True)
class Lengths:
    """How many events lie strictly before each positive."""

    mean: float
    median: float
    p90: float
    empty: float
    limit: int
    cut: float  # fraction longer than the limit: a model sees only their newest part
    bins: tuple[Bin, ...]


@dataclass(frozen=True)
class Popularity:
    """How unevenly the positives are spread over the items."""

    gini: float
    gini_even: float  # of as many positives drawn over equally popular items; chance alone is unequal
    top_1_percent: float  # fraction of all positives
    top_10_percent: float
    half: int  # so many items have half of all positives
    curve: tuple[tuple[int, int], ...]  # (rank, positives), at ranks evenly spaced on a log scale


@dataclass(frozen=True)
class Slice:
    """A tenth of the positives, in time."""

    start: str | int
    positives: int
    new: float  # fraction of positives on items that the log first shows in this slice
    overlap_first: float  # Jaccard of the most popular items with those of the first slice
    overlap_previous: float
    correlation: float  # Spearman, of the counts of all items that exist by now, with the previous slice


@dataclass(frozen=True)
class Drift:
    """How popularity changes in time."""

    top: int  # how many items count as the most popular
    slices: tuple[Slice, ...]
    kept: float  # fraction of the first slice's most popular items that are so in the last
    half_life: int | None  # slices until at most half of them are left; None: it never came to that
    half_life_days: float

    @property
    def is_measurable(self) -> bool:
        """Whether every slice has enough positives to compare popularity."""
        return len(self.slices) > 1 and min(part.positives for part in self.slices) >= FEWEST_IN_SLICE


@dataclass(frozen=True)
class Tested:
    """What one test of the held-out part asks for, in terms of popularity in training. All fractions and
    means are weighted."""

    test: str
    positives: int
    effective_sample_size: float
    gini: float  # of the weight that each item of the part has; 0: every item counts the same
    mean_log10_popularity: float  # training positives of the item, at least 1
    head: float  # fraction of the weight on the most popular fifth of the known items
    long_tail: float  # on the other known items
    unknown_items: float  # on items that training never saw
    deciles: tuple[float, ...]  # fraction of the weight per tenth of the known items, the most popular first


@dataclass(frozen=True)
class Repeats:
    """How often users come back to an item that they have had before."""

    positives: int
    repeated: int
    train_share: float  # of the training positives: what `repeats="auto"` decides by
    test_share: float
    kept: bool  # whether past items are candidates in this split


# Size and time


def size_of(log: Log) -> Size:
    """Count users, items, interactions and positives."""
    cells = len(log.users) * len(log.items)
    return Size(len(log.users), len(log.items), len(log), log.positives, 1 - len(log) / cells)


def times_of(time: Ints, clock: Clock, tied_positives: float) -> Times:
    """Look at the time column; `tied_positives` is handed through."""
    distinct, counts = np.unique(time, return_counts=True)
    first, last = int(distinct[0]), int(distinct[-1])
    resolution = clock.resolution(distinct)
    return Times(
        first=clock.date(first, resolution != "day"),
        last=clock.date(last, resolution != "day"),
        days=clock.days(last - first),
        distinct=len(distinct),
        resolution=resolution,
        tied_rows=float(counts[counts > 1].sum() / len(time)),
        tied_positives=tied_positives,
    )


def tied_in_sequence(user: Codes, time: Ints) -> float:
    """The fraction of events with the same user and time as another one. Both columns must be sorted by user,
    then time."""
    same = (user[1:] == user[:-1]) & (time[1:] == time[:-1])
    tied = np.zeros(len(user), np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    return _mean(tied)


# Lengths


def events_before(sequences: Sequences, entity: ArrayLike, time: ArrayLike) -> Ints:
    """How many events of each entity lie strictly before each time."""
    start, end = sequences.before(entity, time)
    return end - start


def lengths_of(lengths: Ints, limit: int) -> Lengths:
    """The distribution of lengths, and how many are above the limit."""
    median, p90 = np.quantile(lengths, [0.5, 0.9]) if len(lengths) else (math.nan, math.nan)
    return Lengths(
        mean=_mean(lengths),
        median=float(median),
        p90=float(p90),
        empty=_mean(lengths == 0),
        limit=limit,
        cut=_mean(lengths > limit),
        bins=doubling_bins(lengths),
    )


def doubling_bins(lengths: Ints) -> tuple[Bin, ...]:
    """The fractions of 0, 1, 2, 3-4, 5-8, ...; bins that double keep long tails readable."""
    longest = int(lengths.max(initial=1))
    highs = [0, *(2**power for power in range((longest - 1).bit_length() + 1))]
    lows = [0, 1, *(high + 1 for high in highs[1:-1])]
    counts = np.bincount(np.searchsorted(highs, lengths), minlength=len(highs))
    return tuple(
        Bin(low, high, _ratio(int(n), len(lengths))) for low, high, n in zip(lows, highs, counts, strict=True)
    )


# Popularity


def gini(counts: ArrayLike) -> float:
    """The Gini index: 0 where all counts are equal, (n - 1) / n where one of n has everything."""
    ordered = np.sort(np.asarray(counts, np.float64))
    size, total = len(ordered), ordered.sum()
    if not total:
        return math.nan
    return float(2 * (np.arange(1, size + 1) @ ordered) / (size * total) - (size + 1) / size)


def popularity_of(counts: Ints, seed: int) -> Popularity:
    """How unevenly the positives are spread, given the positives of each item."""
    ordered = np.sort(counts)[::-1]
    sums = np.cumsum(ordered)
    total = int(sums[-1])
    even = np.random.default_rng([seed, 2]).multinomial(total, np.full(len(counts), 1 / len(counts)))
    on_curve = np.unique(np.geomspace(1, np.count_nonzero(ordered), CURVE_POINTS).round().astype(np.int64))
    return Popularity(
        gini=gini(counts),
        gini_even=gini(even),
        top_1_percent=float(sums[math.ceil(0.01 * len(counts)) - 1] / total),
        top_10_percent=float(sums[math.ceil(0.1 * len(counts)) - 1] / total),
        half=int(np.searchsorted(sums, total / 2)) + 1,
        curve=tuple((int(rank), int(ordered[rank - 1])) for rank in on_curve),
    )


# Drift


def ranks(values: ArrayLike) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place], np.float64)


def spearman(one: ArrayLike, other: ArrayLike) -> float:
    """Spearman's correlation of the ranks; nan where one side is constant."""
    a, b = ranks(one), ranks(other)
    a, b = a - a.mean(), b - b.mean()
    norm = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / norm if norm else math.nan


def most_popular(counts: Ints, size: int) -> Ints:
    """The items with the highest counts, of those that occur at all. Of equal counts, the older item comes
    first."""
    order = np.argsort(-counts, kind="stable")[:size]
    return order[counts[order] > 0]


def jaccard(one: Ints, other: Ints) -> float:
    """The size of the intersection over the size of the union."""
    both = len(np.intersect1d(one, other))
    return _ratio(both, len(one) + len(other) - both)


def slice_edges(time: Ints, slices: int) -> Ints:
    """Where each slice but the first begins. Equal times stay together, so there may be fewer slices; none is
    empty."""
    ordered = np.sort(time)
    edges = np.unique(ordered[len(ordered) * np.arange(1, slices) // slices])
    return np.asarray(edges[edges > ordered[0]])


def drift_of(item: Codes, time: Ints, born: Ints, clock: Clock) -> Drift:
    """Cut the positives into slices of time and compare the popularity of items between them.

    born: the time from which each item exists.
    """
    edges = slice_edges(time, SLICES)
    starts = [int(time.min()), *(int(edge) for edge in edges)]
    of = np.searchsorted(edges, time, "right")
    # An item that never exists is born in no slice.
    born_in = np.where(born > time.max(), len(starts), np.searchsorted(edges, born, "right"))
    counts = np.bincount(of * len(born) + item, minlength=len(starts) * len(born)).reshape(
        len(starts), len(born)
    )
    top = min(TOP, max(1, len(born) // 10))
    tops = [most_popular(row, top) for row in counts]
    found = []
    for place, (start, row) in enumerate(zip(starts, counts, strict=True)):
        here = born_in <= place
        found.append(
            Slice(
                start=clock.date(start),
                positives=int(row.sum()),
                new=_ratio(int(row[born_in == place].sum()), int(row.sum())) if place else math.nan,
                overlap_first=jaccard(tops[0], tops[place]),
                overlap_previous=jaccard(tops[place - 1], tops[place]) if place else math.nan,
                correlation=spearman(counts[place - 1][here], row[here]) if place else math.nan,
            )
        )
    kept = [_ratio(len(np.intersect1d(tops[0], now)), len(tops[0])) for now in tops]
    half_life = next((place for place, fraction in enumerate(kept) if fraction <= 0.5), None)
    days = math.nan if half_life is None else clock.days(starts[half_life] - starts[0])
    return Drift(top, tuple(found), kept[-1], half_life, days)


# Tests


def tested_of(split: Split, seed: int) -> tuple[Tested, ...]:
    """What each test asks for, in terms of training popularity."""
    known = split.known_items
    trained = np.asarray(split.item_counts)
    place = np.empty(known, np.int64)
    place[np.argsort(-trained[:known], kind="stable")] = np.arange(known)
    found = []
    for test in available_tests(split):
        tested = held_out(split, "test", test, seed=seed)
        item, weight = split.log.item[tested.rows], tested.weights
        total, of_known = float(weight.sum()), item < known
        per_item = np.bincount(item, weight, minlength=len(split.log.items))
        places = place[item[of_known]]
        deciles = np.bincount(places * DECILES // known, weight[of_known], minlength=DECILES)
        in_head = float(weight[of_known][places < math.ceil(HEAD * known)].sum())
        found.append(
            Tested(
                test=test,
                positives=len(item),
                effective_sample_size=effective_size(weight),
                gini=gini(per_item[per_item > 0]),
                mean_log10_popularity=_ratio(
                    float((weight * np.log10(np.maximum(trained[item], 1))).sum()), total
                ),
                head=_ratio(in_head, total),
                long_tail=_ratio(float(weight[of_known].sum()) - in_head, total),
                unknown_items=_ratio(float(weight[~of_known].sum()), total),
                deciles=tuple(_ratio(float(fraction), total) for fraction in deciles),
            )
        )
    return tuple(found)


def repeats_of(split: Split) -> Repeats:
    """Positives whose user had a positive on the same item strictly before."""
    log = split.log
    positive = log.label == 1
    train, test = (log.repeated[split.mask(part) & positive] for part in HELD)
    return Repeats(
        log.positives, int((log.repeated & positive).sum()), _mean(train), _mean(test), split.repeats
    )


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
