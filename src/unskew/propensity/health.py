"""Are the estimated propensities any good? Against the truth where it is known, and by what their weights do
where it is not.

Looked at are the rows of the training part whose item somebody had before, for these are weighted. An
undefined figure is nan.

calibration    rows in bins of their estimate; in each the mean estimate and the mean truth. A softmax over
               all ids sums to 1 whatever the number of exposures, so estimates are at best proportional to
               the truth: `scale` is the constant that brings them nearest, in least squares of logarithms,
               and `scaled_error` what remains
error          root mean square of log10(truth / estimate): 1 is a factor of ten
balance        standardised mean difference of what a pair is like, between the observed pairs and pairs drawn
               uniformly: of the same visits and the items that exist by then. Good weights bring it to 0
sample         Kish's effective sample size, (sum w)^2 / sum w^2: so many unweighted rows have the same
               variance

The truth is asked on observed rows only, where a log can know it: `Log.propensity`, or `World.exposure` of
its rows. A log of clicks alone observes what was shown AND liked. There, no weights by exposure reach balance
0.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from unskew import formatting
from unskew.data.held_out import effective_size
from unskew.data.log import Log
from unskew.data.split import Split
from unskew.data.views import Codes, Ints
from unskew.describe.figures import DECILES, events_before, spearman
from unskew.describe.log import Row
from unskew.errors import BadInput

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

BINS = 12  # of a calibration curve
BARS = 12  # of the weight histogram
UNIFORM_PAIRS = 100_000  # a mean of so many is off by 0.3 % of a standard deviation


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
    """One estimate against the truth."""

    spearman: float  # nan where the estimates are all the same
    error: float
    scale: float
    scaled_error: float
    curve: tuple[Point, ...]


@dataclass(frozen=True)
class View:
    """One of the two views, or what their weight amounts to: 1 / w."""

    name: str
    mean: float
    median: float
    least: float
    largest: float
    clipped: float  # share below the clip; nan for the combination, whose parts are clipped
    calibration: Calibration | None


@dataclass(frozen=True)
class Balance:
    """Standardised mean differences to uniform pairs."""

    covariate: str
    before: float
    after: float


@dataclass(frozen=True)
class Bar:
    low: float
    high: float
    share: float


@dataclass(frozen=True)
class Weights:
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
    share: float  # of the rows
    weighted_share: float  # of the weight
    uniform_share: float  # of the uniform pairs: what the weighted share should be
    views: tuple[View, ...]
    weights: Weights
    balance: tuple[Balance, ...]


@dataclass(frozen=True)
class Health:
    source: str
    pairs: int  # observed, in the training part
    clip: float
    known: bool  # whether there is a truth to compare with
    views: tuple[View, ...]
    weights: Weights
    balance: tuple[Balance, ...]
    deciles: tuple[Decile, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; what is undefined is None."""
        found: dict[str, Any] = formatting.plain(dataclasses.asdict(self))
        return found | {"sentences": list(self.sentences())}

    def sentences(self) -> tuple[str, ...]:
        """What to make of it, in formatting."""
        found = {
            "Clip": _clipping(self),
            "Weights": _spread(self),
            "Balance": _balancing(self),
            "Truth": _likeness(self),
        }
        return tuple(f"{topic}: {sentence}" for topic, sentence in found.items() if sentence)

    def rows(self) -> tuple[Row, ...]:
        """The same as a table for people; by tenths of popularity in `decile_table`."""
        rows = [
            Row("log", "pairs", f"{self.pairs:,}", "observed in the training part"),
            Row("log", "clip", f"{self.clip:g}", "M"),
        ]
        for view in self.views:
            rows.append(
                Row(
                    view.name,
                    "median",
                    _number(view.median),
                    f"from {_number(view.least)} to {_number(view.largest)}",
                )
            )
            if not math.isnan(view.clipped):
                rows.append(
                    Row(
                        view.name,
                        "clipped",
                        formatting.share(view.clipped),
                        "raised to the clip: these pairs all weigh the same",
                    )
                )
            if view.calibration is not None:
                found = view.calibration
                rows += [
                    Row(
                        view.name,
                        "rank correlation",
                        _number(found.spearman),
                        "Spearman, with the true propensities",
                    ),
                    Row(
                        view.name, "error", _factor(found.error), "typical factor between truth and estimate"
                    ),
                    Row(
                        view.name,
                        "... rescaled",
                        _factor(found.scaled_error),
                        f"all estimates times {_number(found.scale)}",
                    ),
                ]
        weights = self.weights
        rows += [
            Row("weights", "mean / median", f"{_number(weights.mean)} / {_number(weights.median)}"),
            Row("weights", "99 % / largest", f"{_number(weights.p99)} / {_number(weights.largest)}"),
            Row(
                "weights",
                "effective sample",
                formatting.share(weights.effective_share),
                f"as good as {weights.effective:,.0f} unweighted pairs",
            ),
        ]
        for part in self.balance:
            value = f"{part.before:.2f} -> {part.after:.2f}".replace("nan", "–")
            rows.append(
                Row(
                    "balance",
                    part.covariate,
                    value,
                    "standard deviations from uniform pairs, before and after weighting",
                )
            )
        return tuple(rows)

    def decile_table(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """Head and lines: one line per tenth of the known items, the most popular first."""
        known = [view.name for view in self.views if view.calibration is not None]
        clipped = [view.name for view in self.views if not math.isnan(view.clipped)]
        head: tuple[str, ...] = ("tenth", "pairs", "weight", "uniform", "median weight", "effective")
        head += tuple(f"clipped, {name.split()[0]}" for name in clipped)
        head += tuple(f"rank, {name.removesuffix(' view')}" for name in known)
        lines = []
        for part in self.deciles:
            by_name = {view.name: view for view in part.views}
            cells = [
                str(part.number),
                formatting.share(part.share),
                formatting.share(part.weighted_share),
                formatting.share(part.uniform_share),
            ]
            cells += [_number(part.weights.median), formatting.share(part.weights.effective_share)]
            cells += [formatting.share(by_name[name].clipped) for name in clipped]
            lines.append((*cells, *(_number(_correlation(by_name[name])) for name in known)))
        return head, tuple(lines)


def health(
    split: Split, estimates: pa.Table, clip: float, truth: ArrayLike | None = None, seed: int = 0
) -> Health:
    """Look at estimates of `Model.propensities(split.log)`. `truth` has the true propensity of each row, nan
    where unknown."""
    log = split.log
    if len(estimates) != len(log):
        raise BadInput(
            f"{len(estimates):,} estimates for a log of {len(log):,} rows: expected one per row, in its order"
        )
    columns = {name: np.asarray(estimates[name], np.float64) for name in ("item_view", "user_view", "weight")}
    columns["truth"] = np.full(len(log), np.nan) if truth is None else np.array(truth, np.float64)
    if len(columns["truth"]) != len(log):
        raise BadInput(
            f"{len(columns['truth']):,} true propensities for a log of {len(log):,} rows: expected one per "
            "row"
        )
    rows = np.flatnonzero(split.mask("train") & ~split.first_appearance)
    columns = {name: column[rows] for name, column in columns.items()}
    if not (columns["weight"] > 0).all():
        raise BadInput("expected a weight above 0 for every row")
    user, item, time = uniform_pairs(split, UNIFORM_PAIRS, seed)
    observed = covariates(split, log.user[rows], log.item[rows], log.time[rows])
    uniform = covariates(split, user, item, time)
    tenth, uniform_tenth = (tenths(split, items) for items in (log.item[rows], item))
    deciles = []
    for number in range(DECILES):
        here, there = tenth == number, uniform_tenth == number
        part = {name: column[here] for name, column in columns.items()}
        deciles.append(
            Decile(
                number=number + 1,
                rows=int(here.sum()),
                share=float(here.mean()),
                weighted_share=float(part["weight"].sum() / columns["weight"].sum()),
                uniform_share=float(there.mean()),
                views=views_of(part, clip),
                weights=weights_of(part["weight"]),
                balance=balance_of(_those(observed, here), _those(uniform, there), part["weight"]),
            )
        )
    return Health(
        source=str(log.metadata.get("source", "the log")),
        pairs=len(rows),
        clip=clip,
        known=bool(np.isfinite(columns["truth"]).any()),
        views=views_of(columns, clip),
        weights=weights_of(columns["weight"]),
        balance=balance_of(observed, uniform, columns["weight"]),
        deciles=tuple(deciles),
    )


# What pairs are like


def covariates(split: Split, user: Codes | Ints, item: Codes | Ints, time: Ints) -> dict[str, Floats]:
    """Of each pair, what exposure follows. Counts are heavy-tailed, so their logarithms."""
    log = split.log
    return {
        "item popularity": np.log1p(split.item_counts[item]),
        "history length": np.log1p(events_before(log.histories, user, time)),
        "audience length": np.log1p(events_before(log.audiences, item, time)),
    }


def uniform_pairs(split: Split, size: int, seed: int) -> tuple[Ints, Ints, Ints]:
    """User, item and time of pairs drawn evenly: any visit of the training part, any item that exists by
    then."""
    log, rows = split.log, split.rows("train")
    user, time = np.unique(np.stack([log.user[rows].astype(np.int64), log.time[rows]]), axis=1)
    draw = np.random.default_rng([seed, 13])
    visit = draw.integers(0, len(user), size)
    existing = log.audiences.existing(time[visit])
    # At the very first moment nothing existed, so all known items are alike.
    existing = np.where(existing > 0, existing, split.known_items)
    return user[visit], (draw.random(size) * existing).astype(np.int64), time[visit]


def tenths(split: Split, item: Codes | Ints) -> Ints:
    """The tenth of the known items that each item is in, from 0, the most popular in training first.

    An item that was shown in training and never clicked is not known; it is in the last one.
    """
    known = split.known_items
    place = np.empty(known, np.int64)
    place[np.argsort(-split.item_counts[:known], kind="stable")] = np.arange(known)
    return np.where(item < known, place[np.minimum(item, known - 1)] * DECILES // known, DECILES - 1)


# Figures


def views_of(columns: dict[str, Floats], clip: float) -> tuple[View, ...]:
    """The views that there are, and both of them in one. A view that does not exist is all nan."""
    found = []
    for name, estimate in (("item view", columns["item_view"]), ("user view", columns["user_view"])):
        if not np.isnan(estimate).all() or not len(estimate):
            found.append(view_of(name, estimate, columns["truth"], clip))
    return (*found, view_of("1 / weight", 1 / columns["weight"], columns["truth"], None))


def view_of(name: str, estimate: Floats, truth: Floats, clip: float | None) -> View:
    some = len(estimate) > 0
    return View(
        name=name,
        mean=float(estimate.mean()) if some else math.nan,
        median=float(np.median(estimate)) if some else math.nan,
        least=float(estimate.min()) if some else math.nan,
        largest=float(estimate.max()) if some else math.nan,
        clipped=float((estimate < clip).mean()) if some and clip is not None else math.nan,
        calibration=calibration_of(estimate, truth),
    )


def calibration_of(estimate: Floats, truth: Floats) -> Calibration | None:
    """None where no truth is known."""
    here = np.isfinite(truth) & (truth > 0) & (estimate > 0)
    if not here.any():
        return None
    estimate, truth = estimate[here], truth[here]
    off = np.log10(truth / estimate)
    return Calibration(
        spearman=spearman(estimate, truth),
        error=float(np.sqrt((off**2).mean())),
        scale=float(10 ** off.mean()),
        scaled_error=float(off.std()),
        curve=curve_of(estimate, truth),
    )


def curve_of(estimate: Floats, truth: Floats) -> tuple[Point, ...]:
    """Bins of equal width on a log scale; empty ones are left out."""
    edges = np.geomspace(estimate.min(), estimate.max(), BINS + 1)
    place = np.searchsorted(edges[1:-1], estimate, "right")
    found = []
    for at in np.unique(place):
        here = place == at
        point = Point(
            float(edges[at]),
            float(edges[at + 1]),
            int(here.sum()),
            float(estimate[here].mean()),
            float(truth[here].mean()),
        )
        found.append(point)
    return tuple(found)


def weights_of(weight: Floats) -> Weights:
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
    """Shares of the rows, in bins of equal width on a log scale; one bin where all weights are the same."""
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
    """The spread in the denominator is that of the unweighted pairs, before and after: only the difference of
    means may change."""
    found = []
    for name, one in observed.items():
        other = uniform[name]
        if not len(one) or not len(other):
            found.append(Balance(name, math.nan, math.nan))
            continue
        spread = math.sqrt((float(one.var()) + float(other.var())) / 2)
        differences = (
            float(one.mean() - other.mean()),
            float(np.average(one, weights=weight) - other.mean()),
        )
        found.append(
            Balance(name, *(difference / spread if spread else math.nan for difference in differences))
        )
    return tuple(found)


def logged_truth(log: Log) -> Floats | None:
    """The probabilities that the log itself recorded, if it did."""
    return None if log.propensity is None else np.asarray(log.propensity, np.float64)


def _those(columns: dict[str, Floats], mask: Mask) -> dict[str, Floats]:
    return {name: column[mask] for name, column in columns.items()}


def _correlation(view: View) -> float:
    return math.nan if view.calibration is None else view.calibration.spearman


# Words


def _clipping(found: Health) -> str:
    parts = [
        f"{formatting.share(view.clipped)} of the pairs in the {view.name}"
        for view in found.views
        if not math.isnan(view.clipped)
    ]
    return (
        f"{found.clip:g} is more than the estimate for {' and '.join(parts)}; these all weigh the same."
        if parts
        else ""
    )


def _spread(found: Health) -> str:
    share = found.weights.effective_share
    if share > 0.99:
        return "they are nearly the same for all pairs: the weighted loss is the naive one, on another scale."
    return (
        f"the {found.pairs:,} weighted pairs are worth {found.weights.effective:,.0f} unweighted ones "
        f"({formatting.share(share)})."
    )


def _balancing(found: Health) -> str:
    parts = [
        f"{part.covariate} {part.before:.2f} -> {part.after:.2f}"
        for part in found.balance
        if not math.isnan(part.before)
    ]
    return (
        f"distance of the observed pairs from uniform ones, before and after weighting: {', '.join(parts)}."
        if parts
        else ""
    )


def _likeness(found: Health) -> str:
    if not found.known:
        return "not known for this log, so there is no calibration; balance is what can be judged."
    parts = [f"{view.name} {_number(_correlation(view))}" for view in found.views]
    return f"rank correlation with the true propensities: {', '.join(parts)}."


def _factor(decades: float) -> str:
    return "–" if math.isnan(decades) else f"x {_number(10**decades)}"


def _number(number: float) -> str:
    """Three digits that matter: propensities may be tiny."""
    return "–" if math.isnan(number) else f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
