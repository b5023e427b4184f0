"""How good estimated propensities are: calibration, clipping, weights and balance.

Pure functions of arrays. An undefined value (the mean of nothing) is nan.

calibration    rows in bins of their estimate; in each the mean estimate and the mean ground truth. A softmax
               over all ids sums to 1 whatever the number of exposures, so estimates are at best proportional
               to the ground truth: `scale` is the constant that brings them nearest, in least squares of
               logarithms, and `scaled_error` what remains
error          root mean square of log10(ground truth / estimate): 1 is a factor of ten
balance        standardised mean difference of what a pair is like, between the observed pairs and pairs drawn
               uniformly: of the same impressions and the items that exist by then. Good weights bring it to 0
sample         Kish's effective sample size, (sum w)^2 / sum w^2: so many unweighted rows have the same
               variance
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unskew.data.log.held_out import effective_size
from unskew.data.log.split import Split
from unskew.data.log.views import Codes, Ints
from unskew.diagnostics.log.statistics import DECILES, events_before, spearman

Floats = NDArray[np.float64]

BOTH = "1 / weight"  # the name of both views together
BINS = 12  # of a calibration curve
BARS = 12  # of the weight histogram


@dataclass(frozen=True)
class Point:
    """One bin of a calibration curve."""

    low: float
    high: float
    rows: int
    estimated: float
    true: float


@dataclass(frozen=True)
class Calibration:
    """One estimate against the ground truth."""

    spearman: float  # nan where the estimates are all the same
    error: float
    scale: float
    scaled_error: float
    curve: tuple[Point, ...]


@dataclass(frozen=True)
class View:
    """The estimates of one of the two views, or of both together: 1 / weight."""

    name: str
    mean: float
    p10: float  # a tenth of the estimates are below it
    median: float
    least: float
    largest: float
    clipped: float  # fraction below the clip; nan for the combination, whose parts are clipped
    calibration: Calibration | None

    @property
    def label(self) -> str:
        """What people read."""
        return "both views" if self.name == BOTH else self.name

    @property
    def correlation(self) -> float:
        """The rank correlation with the ground truth; nan where it is not known."""
        return math.nan if self.calibration is None else self.calibration.spearman


@dataclass(frozen=True)
class Balance:
    """How far the events are from uniform pairs in one respect, as a standardised mean difference."""

    covariate: str
    before: float
    after: float


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram: the fraction of the events between two weights."""

    low: float
    high: float
    fraction: float


@dataclass(frozen=True)
class Weights:
    """The spread of the weights, and how many unweighted events the weighted ones are worth."""

    rows: int
    mean: float
    median: float
    p99: float
    largest: float
    effective: float  # rows
    effective_share: float
    histogram: tuple[Bar, ...]


@dataclass(frozen=True)
class Decile:
    """A tenth of the known items by training positives, the most popular first."""

    number: int
    rows: int
    fraction: float  # of the rows
    weighted_share: float  # of the weight
    uniform_share: float  # of the uniform pairs: what the weighted fraction should be
    views: tuple[View, ...]
    weights: Weights
    balance: tuple[Balance, ...]


# What pairs are like


def covariates(split: Split, user: Codes | Ints, item: Codes | Ints, time: Ints) -> dict[str, Floats]:
    """What exposure depends on, for each pair. Counts are heavy-tailed, so these are their logarithms."""
    log = split.log
    return {
        "item popularity": np.log1p(split.item_counts[item]),
        "history length": np.log1p(events_before(log.histories, user, time)),
        "audience length": np.log1p(events_before(log.audiences, item, time)),
    }


def uniform_pairs(split: Split, size: int, seed: int) -> tuple[Ints, Ints, Ints]:
    """User, item and time of `size` pairs drawn evenly: any impression (a user at a time) of the training
    set, with any item that exists by then."""
    log, rows = split.log, split.rows("train")
    order = rows[np.lexsort((log.time[rows], log.user[rows]))]
    user, time = log.user[order].astype(np.int64), log.time[order]
    new = np.concatenate([[True], (user[1:] != user[:-1]) | (time[1:] != time[:-1])])
    user, time = user[new], time[new]
    draw = np.random.default_rng([seed, 13])
    impression = draw.integers(0, len(user), size)
    existing = log.audiences.existing(time[impression])
    # At the very first moment nothing existed, so all known items are equal.
    existing = np.where(existing > 0, existing, split.known_items)
    return user[impression], (draw.random(size) * existing).astype(np.int64), time[impression]


def tenths(split: Split, item: Codes | Ints) -> Ints:
    """Which tenth of the known items each item is in, from 0: the tenth that is most popular in training.

    An item that was shown in training and never clicked is not known; it counts to the last tenth.
    """
    items = split.known_items
    rank = np.empty(items, np.int64)
    rank[np.argsort(-split.item_counts[:items], kind="stable")] = np.arange(items)
    return np.where(item < items, rank[np.minimum(item, items - 1)] * DECILES // items, DECILES - 1)


# Figures


def views_of(columns: dict[str, Floats], clip: float) -> tuple[View, ...]:
    """The views that the estimator has, then both combined. A view that it does not have is all nan."""
    views = []
    for name, estimate in (("item view", columns["item_view"]), ("user view", columns["user_view"])):
        if not np.isnan(estimate).all() or not len(estimate):
            views.append(view_of(name, estimate, columns["ground-truth"], clip))
    return (*views, view_of(BOTH, 1 / columns["weight"], columns["ground-truth"], None))


def view_of(name: str, estimate: Floats, ground_truth: Floats, clip: float | None) -> View:
    """The spread of one view's estimates, the fraction below the clip, and how they compare with the ground
    truth."""
    some = len(estimate) > 0
    spread = np.quantile(estimate, [0, 0.1, 0.5, 1]) if some else [math.nan] * 4
    least, p10, median, largest = map(float, spread)
    return View(
        name=name,
        mean=float(estimate.mean()) if some else math.nan,
        p10=p10,
        median=median,
        least=least,
        largest=largest,
        clipped=float((estimate < clip).mean()) if some and clip is not None else math.nan,
        calibration=calibration_of(estimate, ground_truth),
    )


def calibration_of(estimate: Floats, ground_truth: Floats) -> Calibration | None:
    """The estimates against the ground truth; None where no ground truth is known."""
    here = np.isfinite(ground_truth) & (ground_truth > 0) & (estimate > 0)
    if not here.any():
        return None
    estimate, ground_truth = estimate[here], ground_truth[here]
    off = np.log10(ground_truth / estimate)
    return Calibration(
        spearman=spearman(estimate, ground_truth),
        error=float(np.sqrt((off**2).mean())),
        scale=float(10 ** off.mean()),
        scaled_error=float(off.std()),
        curve=curve_of(estimate, ground_truth),
    )


def curve_of(estimate: Floats, ground_truth: Floats) -> tuple[Point, ...]:
    """The calibration curve, in bins of equal width on a log scale; empty bins are left out."""
    edges = np.geomspace(estimate.min(), estimate.max(), BINS + 1)
    bins = np.searchsorted(edges[1:-1], estimate, "right")
    points = []
    for at in np.unique(bins):
        here = bins == at
        point = Point(
            float(edges[at]),
            float(edges[at + 1]),
            int(here.sum()),
            float(estimate[here].mean()),
            float(ground_truth[here].mean()),
        )
        points.append(point)
    return tuple(points)


def weights_of(weight: Floats) -> Weights:
    """The spread of the weights."""
    if not len(weight):
        return Weights(0, *(math.nan,) * 6, ())
    median, p99 = np.quantile(weight, [0.5, 0.99])
    effective = effective_size(weight)
    return Weights(
        rows=len(weight),
        mean=float(weight.mean()),
        median=float(median),
        p99=float(p99),
        largest=float(weight.max()),
        effective=effective,
        effective_share=effective / len(weight),
        histogram=histogram_of(weight),
    )


def histogram_of(weight: Floats) -> tuple[Bar, ...]:
    """Fractions of the events, in bins of equal width on a log scale; one bin if all weights are the same."""
    least, largest = float(weight.min()), float(weight.max())
    if largest <= least * (1 + 1e-6):
        return (Bar(least, largest, 1.0),)
    edges = np.geomspace(least, largest, BARS + 1)
    counts = np.bincount(np.searchsorted(edges[1:-1], weight, "right"), minlength=BARS)
    return tuple(
        Bar(*pair, int(n) / len(weight))
        for pair, n in zip(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True), counts, strict=True)
    )


def balance_of(
    observed: dict[str, Floats], uniform: dict[str, Floats], weight: Floats
) -> tuple[Balance, ...]:
    """How far the observed events are from uniform pairs, before and after weighting.

    Both differences of means are divided by the spread of the unweighted events, so that only the means can
    change.
    """
    balance = []
    for name, values in observed.items():
        even = uniform[name]
        if not len(values) or not len(even):
            balance.append(Balance(name, math.nan, math.nan))
            continue
        spread = math.sqrt((float(values.var()) + float(even.var())) / 2)
        differences = (
            float(values.mean() - even.mean()),
            float(np.average(values, weights=weight) - even.mean()),
        )
        balance.append(
            Balance(name, *(difference / spread if spread else math.nan for difference in differences))
        )
    return tuple(balance)
