"""The health of propensities in words: the verdict, sentences, and tables for people."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from unskew.core import formatting
from unskew.diagnostics.propensity.statistics import Balance, Decile, View, Weights
from unskew.report.summary import Row, Verdict

BALANCED = 0.1  # standard deviations; smaller distances are usually called balanced
MANY = 0.1  # fraction of the estimates below the clip from which lowering it makes a difference
EQUAL_EXPOSURE = 1.1  # factor between tenths of the items below which they are exposed equally
EXTREME = 1000.0  # the same, from which rare items may come out on top
FOLLOWS = 0.3  # rank correlation with the ground truth below which the estimates hardly follow it
BOTH = "1 / weight"
LABELS = {"item view": "item view", "user view": "user view", BOTH: "both views"}
EXPLAINED = {
    "item view": "chance that the user meets this item, from the user's history",
    "user view": "chance that the item meets this user, from the item's audience",
    BOTH: "1 / weight, after clipping",
}

UNWEIGHTED = (
    "Nothing is weighted: a loss that reads what was shown and not clicked learns what is liked of what is "
    "shown, and weights did harm where the ground truth is known (docs/ground-truth.md); `--strength 0.5` "
    "weights anyway."
)


class Tenths(NamedTuple):
    """A table with one line per tenth of the known items, the most popular first."""

    title: str
    meaning: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def held_back(log_exposure: ArrayLike, strength: float) -> float:
    """The factor by which the most exposed tenth of the items is held back against the least exposed tenth,
    where `power` of the exposure is taken out: the ratio of their geometric means."""
    taken = strength * np.sort(np.asarray(log_exposure, np.float64))
    tenth = max(len(taken) // 10, 1)
    return float(np.exp(taken[-tenth:].mean() - taken[:tenth].mean())) if len(taken) else 1.0


def exposure_verdict(log_exposure: ArrayLike, strength: float, method: str = "logit-offset") -> str:
    """Say in one sentence how much exposure a model takes out by `logit-offset` or `weighted-negatives`, and
    what to do.

    log_exposure: of each item that exists, at the end of training; a constant among all is of no matter.
    """
    factor = held_back(log_exposure, strength)
    where = "the logits" if method == "logit-offset" else "what is learned, by the weights of drawn negatives"
    if strength == 0:
        return "Nothing happens: no exposure is taken out with a `--strength` of 0; train again with 1."
    if factor < EQUAL_EXPOSURE:
        return (
            "Nothing happens: by this propensity all items are exposed nearly equally, so the model "
            "learns as "
            "if it had none; if popular items were shown more often in this log, train again with "
            "`--propensity item-pro`, which takes popularity for exposure."
        )
    said = (
        f"Takes exposure out of {where}: the most exposed tenth of the items is held back by a factor of "
        f"{_number(factor)} against the least exposed tenth"
    )
    if factor > EXTREME:
        return f"{said}, so that items with hardly any clicks may come out on top; try half the `--strength`."
    return f"{said}; judge it with `unskew evaluate RUN --test balanced`, and turn it back with `--debias`."


def verdict(
    warning: str,
    clip: float,
    known: bool,
    views: Sequence[View],
    balance: Sequence[Balance],
    exposure: str = "",
) -> Verdict:
    """What the weights do, and what to do about it. A warning of `weights_verdict` comes first; where a model
    takes exposure out in another way, only `exposure` is what it does."""
    if exposure:
        unused = "The weights below are those of `--method ips`; this model was trained without them."
        return Verdict(exposure, (unused,))
    popularity = balance[0]
    moved = (
        f"(distance from an even sample: {popularity.before:.2f} without weights, "
        f"{popularity.after:.2f} with them)"
    )
    before, after = abs(popularity.before), abs(popularity.after)
    advice = []
    if warning:
        finding = warning
        estimated = [view for view in views if not math.isnan(view.clipped)]
        if all(view.clipped > 0.5 for view in estimated):
            lowest = min((view.p10 for view in estimated), default=clip)
            advice.append(
                f"A good start is `--clip {lowest:.1g}`: about nine tenths of the estimates are above it and "
                "would then count."
            )
    elif math.isnan(before):
        finding = "The items of this log are all equally popular, so there is no popularity bias to correct."
    elif before < BALANCED:
        finding = f"There is little to correct: popular items are hardly over-represented {moved}."
    elif after > before:
        finding = f"The weights make it worse: popular items weigh even more than without them {moved}."
        advice.append(
            "Do not use these weights; try another estimator, such as `--propensity item-pro`, which counts "
            "how often an item occurs."
        )
    elif after < max(BALANCED, before / 4):
        finding = f"The weights work: they take away most of the head start of popular items {moved}."
    else:
        finding = f"The weights help in part: popular items keep some of their head start {moved}."
        bites = any(view.clipped > MANY for view in views)
        lower = "a lower `--clip`, with which fewer estimates are raised, or " if bites else ""
        advice.append(f"Try {lower}another estimator, such as `--propensity item-pro`.")
    if known and not _correlation(views[-1]) >= FOLLOWS:
        advice.append(
            "The estimates hardly follow the true propensities, which this log has recorded: "
            "`--propensity logged` uses those."
        )
    advice.append(
        "Judge weights by their results: train the same model with `--propensity none`, and compare both "
        "with `unskew evaluate RUN --test balanced`."
    )
    return Verdict(finding, tuple(advice))


# Sentences


def sample(looked_at: int, events: int) -> str:
    """Says that a sample was looked at; empty where everything was."""
    if looked_at == events:
        return ""
    return f"all figures are of a random sample of {looked_at:,} of the {events:,} training events."


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


def likeness(known: bool, views: Sequence[View]) -> str:
    """How well the estimates follow the ground truth."""
    if not known:
        return "the true propensities of this log are not known; judge by the balance."
    parts = [
        f"{LABELS[view.name]} {'undefined' if math.isnan(_correlation(view)) else _correlated(view)}"
        for view in views
    ]
    return f"rank correlation of the estimates with the true propensities: {', '.join(parts)}."


# Tables


def event_rows(looked_at: int, events: int, clip: float) -> list[Row]:
    """How many events were looked at, and the clip."""
    of = "of the training set, whose item somebody had before"
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
        Row("weights", "mean / median", f"{_number(weights.mean)} / {_number(weights.median)}"),
        Row("weights", "99th percentile / largest", f"{_number(weights.p99)} / {_number(weights.largest)}"),
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
        Row(group, "typical propensity (median)", _number(view.median), EXPLAINED[view.name]),
        Row(group, "smallest / largest", f"{_number(view.least)} / {_number(view.largest)}"),
    ]
    if not math.isnan(view.clipped):
        rows.append(Row(group, "below the clip", formatting.fraction(view.clipped), "all weigh the same"))
    if view.calibration is not None:
        found = view.calibration
        rows += [
            Row(group, "rank correlation with ground truth", _correlated(view), "1: the right order"),
            Row(group, "typical error", _factor(found.error), "factor between ground truth and estimate"),
            Row(
                group,
                "typical error, rescaled",
                _factor(found.scaled_error),
                f"after all estimates are multiplied by {_number(found.scale)}",
            ),
        ]
    return rows


def tables(views: Sequence[View], deciles: Sequence[Decile]) -> tuple[Tenths, ...]:
    """Shares, weights and, where the ground truth is known, correlations by tenths of the known items."""
    clipped = [view.name for view in views if not math.isnan(view.clipped)]
    known = [view.name for view in views if view.calibration is not None]
    fractions, weights, correlations = [], [], []
    for part in deciles:
        by_name = {view.name: view for view in part.views}
        number = str(part.number)
        fractions.append(
            (number, *map(formatting.fraction, (part.fraction, part.weighted_share, part.uniform_share)))
        )
        worth = _number(part.weights.median), formatting.fraction(part.weights.effective_share)
        weights.append((number, *worth, *(formatting.fraction(by_name[name].clipped) for name in clipped)))
        correlations.append((number, *(_correlated(by_name[name]) for name in known)))
    found = [
        Tenths(
            "Balance by popularity",
            "Share of the events in each tenth of the items, without and with weights. Good weights bring it "
            "near the fraction in an even sample.",
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
    if known:
        meaning = "Rank correlation of the estimates with the true propensities; 1 is the right order."
        heads = ("tenth", *(LABELS[name] for name in known))
        found.append(Tenths("Truth by popularity", meaning, heads, tuple(correlations)))
    return tuple(found)


def _correlation(view: View) -> float:
    return math.nan if view.calibration is None else view.calibration.spearman


def _correlated(view: View) -> str:
    correlation = _correlation(view)
    return "–" if math.isnan(correlation) else f"{round(correlation, 2) + 0.0:.2f}"  # no -0.00


def _factor(decades: float) -> str:
    return "–" if math.isnan(decades) else f"x {_number(10**decades)}"


def _number(number: float) -> str:
    """Three significant digits, because propensities may be tiny."""
    return "–" if math.isnan(number) else f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
