"""The health of propensities in words: the verdict with advice, sentences, and tables."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from unskew.core import formatting
from unskew.core.formatting import significant
from unskew.diagnostics.propensity.statistics import Balance, Decile, View, Weights
from unskew.diagnostics.propensity.verdicts import Finding, WeightVerdict
from unskew.report.summary import Row

BALANCED = 0.1  # standard deviations; smaller distances are usually called balanced
MANY = 0.1  # fraction of the estimates below the clip from which lowering it makes a difference
FOLLOWS = 0.3  # rank correlation with the ground truth below which the estimates hardly follow it
BOTH = "1 / weight"
LABELS = {"item view": "item view", "user view": "user view", BOTH: "both views"}
EXPLAINED = {
    "item view": "chance that the user meets this item, from the user's history",
    "user view": "chance that the item meets this user, from the item's audience",
    BOTH: "1 / weight, after clipping",
}


class Tenths(NamedTuple):
    """A table with one line per tenth of the known items, the most popular first."""

    title: str
    meaning: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def judge(
    weights: Finding,
    exposure: Finding | None,
    clip: float,
    has_ground_truth: bool,
    views: Sequence[View],
    balance: Sequence[Balance],
) -> tuple[Finding, tuple[str, ...]]:
    """What the propensities do, and what to do about it.

    A warning about the weights comes first. Where a model takes exposure out in another way, only that is
    what it does.
    """
    if exposure is not None:
        unused = "The weights below are those of `--method ips`; this model was trained without them."
        return exposure, (unused,)
    finding = weights if weights.kind.is_warning else judge_balance(balance[0])
    advice = []
    if finding.kind.is_warning:
        estimated = [view for view in views if not math.isnan(view.clipped)]
        if all(view.clipped > 0.5 for view in estimated):
            lowest = min((view.p10 for view in estimated), default=clip)
            advice.append(
                f"A good start is `--clip {lowest:.1g}`: about nine tenths of the estimates are above it and "
                "would then count."
            )
    elif finding.kind is WeightVerdict.WORSE:
        advice.append(
            "Do not use these weights; try another estimator, such as `--propensity item-pro`, which counts "
            "how often an item occurs."
        )
    elif finding.kind is WeightVerdict.HELP:
        matters = any(view.clipped > MANY for view in views)
        lower = "a lower `--clip`, with which fewer estimates are raised, or " if matters else ""
        advice.append(f"Try {lower}another estimator, such as `--propensity item-pro`.")
    if has_ground_truth and not _correlation(views[-1]) >= FOLLOWS:
        advice.append(
            "The estimates hardly follow the true propensities, which this log has recorded: "
            "`--propensity logged` uses those."
        )
    advice.append(
        "Judge weights by their results: train the same model with `--propensity none`, and compare both "
        "with `unskew evaluate RUN --test balanced`."
    )
    return finding, tuple(advice)


def judge_balance(popularity: Balance) -> Finding:
    """What weights that differ do about the popularity of the items."""
    before, after = abs(popularity.before), abs(popularity.after)
    if math.isnan(before):
        return WeightVerdict.NO_BIAS.of()
    if before < BALANCED:
        kind = WeightVerdict.LITTLE_BIAS
    elif after > before:
        kind = WeightVerdict.WORSE
    else:
        kind = WeightVerdict.WORK if after < max(BALANCED, before / 4) else WeightVerdict.HELP
    distances = f"{popularity.before:.2f} without weights, {popularity.after:.2f} with them"
    return kind.of(moved=f"(distance from an even sample: {distances})")


# Sentences


def sample(looked_at: int, events: int) -> str:
    """A sentence that only a sample was looked at; empty where everything was."""
    if looked_at == events:
        return ""
    return f"all values are of a random sample of {looked_at:,} of the {events:,} training events."


def clipping(clip: float, views: Sequence[View]) -> str:
    """How many estimates are below the clip."""
    parts = [
        f"{formatting.fraction(view.clipped)} of the events in the {view.name}"
        for view in views
        if not math.isnan(view.clipped)
    ]
    if not parts:
        return ""
    return (
        f"the estimate is below the clip of {clip:g} for {' and '.join(parts)}; these are raised to it and "
        "all weigh the same."
    )


def spread(weights: Weights) -> str:
    """What the weighted events are worth."""
    return (
        f"the {weights.rows:,} weighted events are worth {weights.effective:,.0f} unweighted ones "
        f"({formatting.fraction(weights.effective_share)})."
    )


def balancing(balance: Sequence[Balance]) -> str:
    """How far the events are from an even sample, before and after weighting."""
    parts = [
        f"{part.covariate} {part.before:.2f} → {part.after:.2f}"
        for part in balance
        if not math.isnan(part.before)
    ]
    if not parts:
        return ""
    return (
        f"distance from an even sample without → with weights, in standard deviations: {', '.join(parts)}. "
        f"Below {BALANCED} is good."
    )


def agreement(has_ground_truth: bool, views: Sequence[View]) -> str:
    """How well the estimates follow the ground truth."""
    if not has_ground_truth:
        return "the true propensities of this log are not known; judge by the balance."
    parts = [
        f"{LABELS[view.name]} {'undefined' if math.isnan(_correlation(view)) else _correlated(view)}"
        for view in views
    ]
    return f"rank correlation of the estimates with the true propensities: {', '.join(parts)}."


# Tables


def event_rows(looked_at: int, events: int, clip: float) -> list[Row]:
    """How many events were looked at, and the clip."""
    of = "of the training set, whose item some user had before"
    return [
        Row(
            "events",
            "looked at",
            f"{looked_at:,}" if looked_at == events else f"{looked_at:,} of {events:,}",
            of if looked_at == events else f"a random sample of those {of}",
        ),
        Row("events", "clip", f"{clip:g}", "lower propensities are raised to this"),
    ]


def weight_rows(weights: Weights) -> list[Row]:
    """The spread of the weights."""
    return [
        Row("weights", "mean / median", f"{significant(weights.mean)} / {significant(weights.median)}"),
        Row(
            "weights",
            "99th percentile / largest",
            f"{significant(weights.p99)} / {significant(weights.largest)}",
        ),
        Row(
            "weights",
            "effective sample size",
            formatting.fraction(weights.effective_share),
            f"worth {weights.effective:,.0f} unweighted events",
        ),
    ]


def balance_rows(balance: Sequence[Balance]) -> list[Row]:
    """How far the events are from an even sample."""
    meaning = "distance from an even sample, without → with weights"
    values = [f"{part.before:.2f} → {part.after:.2f}".replace("nan", "–") for part in balance]
    return [
        Row("balance", part.covariate, value, "" if at else meaning)
        for at, (part, value) in enumerate(zip(balance, values, strict=True))
    ]


def view_rows(view: View) -> list[Row]:
    """The estimates of one view, and how they compare with the ground truth."""
    group = LABELS[view.name]
    rows = [
        Row(group, "typical propensity (median)", significant(view.median), EXPLAINED[view.name]),
        Row(group, "smallest / largest", f"{significant(view.least)} / {significant(view.largest)}"),
    ]
    if not math.isnan(view.clipped):
        rows.append(Row(group, "below the clip", formatting.fraction(view.clipped), "all weigh the same"))
    if view.calibration is not None:
        calibration = view.calibration
        rows += [
            Row(group, "rank correlation with ground truth", _correlated(view), "1: the right order"),
            Row(
                group, "typical error", _factor(calibration.error), "factor between ground truth and estimate"
            ),
            Row(
                group,
                "typical error, rescaled",
                _factor(calibration.scaled_error),
                f"after all estimates are multiplied by {significant(calibration.scale)}",
            ),
        ]
    return rows


def tables(views: Sequence[View], deciles: Sequence[Decile]) -> tuple[Tenths, ...]:
    """Shares, weights and, where the ground truth is known, correlations by tenths of the known items."""
    clipped = [view.name for view in views if not math.isnan(view.clipped)]
    compared = [view.name for view in views if view.calibration is not None]
    fractions, weights, correlations = [], [], []
    for part in deciles:
        by_name = {view.name: view for view in part.views}
        number = str(part.number)
        fractions.append(
            (number, *map(formatting.fraction, (part.fraction, part.weighted_share, part.uniform_share)))
        )
        worth = significant(part.weights.median), formatting.fraction(part.weights.effective_share)
        weights.append((number, *worth, *(formatting.fraction(by_name[name].clipped) for name in clipped)))
        correlations.append((number, *(_correlated(by_name[name]) for name in compared)))
    tables = [
        Tenths(
            "Balance by popularity",
            "Share of the events in each tenth of the items, without and with weights. Good weights bring it "
            "near the share in an even sample.",
            ("tenth", "events", "weighted", "even"),
            tuple(fractions),
        ),
        Tenths(
            "Weights by popularity",
            "Median weight, effective sample size, and share of the estimates below the clip.",
            ("tenth", "median", "effective", *(f"clipped, {name.split()[0]}" for name in clipped)),
            tuple(weights),
        ),
    ]
    if compared:
        meaning = "Rank correlation of the estimates with the true propensities; 1 is the right order."
        heads = ("tenth", *(LABELS[name] for name in compared))
        tables.append(Tenths("Truth by popularity", meaning, heads, tuple(correlations)))
    return tuple(tables)


def _correlation(view: View) -> float:
    return math.nan if view.calibration is None else view.calibration.spearman


def _correlated(view: View) -> str:
    correlation = _correlation(view)
    return "–" if math.isnan(correlation) else f"{round(correlation, 2) + 0.0:.2f}"  # no -0.00


def _factor(decades: float) -> str:
    return "–" if math.isnan(decades) else f"x {significant(10**decades)}"
