"""The figures of a log as sentences, and the verdict: how biased it is, and what to do about it."""

import math

from unskew.core.formatting import count, fraction, number
from unskew.data.audit.label_leakage import foreign_core_sentence
from unskew.diagnostics.log.order import Shuffle
from unskew.diagnostics.log.statistics import Drift, Popularity, Repeats, Size, Tested, Times
from unskew.report.summary import Verdict

FEWEST_IN_SLICE = 30
CLEAR = 3.0  # standard deviations from which we call a difference one
# Fractions of the way from an even spread over the items (0) to one item that has everything (1).
STRONG, MODERATE = 0.3, 0.1
MANY_NEW = 0.1  # fraction of the test on items that training never saw, from which it is worth a warning
SMALL_TEST = 1000  # positives; with fewer, a difference of a few per cent between models is chance
NOTICEABLE_TIES = 0.1
DURATIONS = (("days", 1.0), ("hours", 1 / 24), ("minutes", 1 / 1440), ("seconds", 1 / 86400))


def verdict(popularity: Popularity, drift: Drift, tests: tuple[Tested, ...]) -> Verdict:
    """How strong the popularity bias is, and what to do about it and about whatever else will hurt."""
    skew = (popularity.gini - popularity.gini_even) / (1 - popularity.gini_even)
    top = f"the most popular 10 % of the items have {fraction(popularity.top_10_percent)} of all positives"
    by_name = {tested.test: tested for tested in tests}
    ordinary = by_name["ordinary"]
    if skew < MODERATE:
        finding = (
            f"Popularity bias is weak: {top}, hardly more than if all items were equally popular. "
            "Correcting for it can change little."
        )
        advice = ["Train without weights first; the ordinary test is a fair test for this log."]
    else:
        strength = "strong" if skew >= STRONG else "moderate"
        finding = (
            f"Popularity bias is {strength}: {top}. A plain model learns what is popular, and the ordinary "
            "test rewards it for that."
        )
        advice = [
            "Train a model that can take exposure out: `unskew train DATA --out RUN` (Pulse, whose "
            "`--debias` "
            "says how far), or any other with `--model debiased-NAME`.",
            "Compare it with a plain one, such as `--model sasrec`, on the balanced test, where every item "
            "counts once: `unskew evaluate RUN --test balanced`.",
        ]
    if "randomised" in by_name:
        advice.append(
            "Some rows were shown at random: `unskew evaluate RUN --test randomised` is the test that "
            "exposure cannot bias."
        )
    if _measurable(drift) and drift.kept <= 0.5:
        spell = f" within {_duration(drift.half_life_days)}" if not math.isnan(drift.half_life_days) else ""
        advice.append(
            f"Keep training on new data: half of the most popular items were replaced{spell}, and a model "
            "that is older than that has missed it."
        )
    if ordinary.unknown_items >= MANY_NEW:
        advice.append(
            f"Train again shortly before use: {fraction(ordinary.unknown_items)} of the test falls on items "
            "that training never saw."
        )
    if ordinary.positives < SMALL_TEST:
        advice.append(
            f"Do not trust small differences: the test has only {count(ordinary.positives)} positives that "
            "can be ranked."
        )
    return Verdict(finding, tuple(advice))


# Biases


def concentration(popularity: Popularity, size: Size) -> str:
    """How few items have most of the positives."""
    return (
        f"{count(popularity.half)} of {count(size.items)} items ({fraction(popularity.half / size.items)}) "
        f"have half of all positives. The Gini index is {number(popularity.gini)}; it would be "
        f"{number(popularity.gini_even)} if all items were equally popular."
    )


def movement(drift: Drift) -> str:
    """How much of what was popular at the start is so at the end."""
    if len(drift.slices) == 1:
        return "it cannot be seen, because all positives have the same time."
    if not _measurable(drift):
        fewest = min(part.positives for part in drift.slices)
        return f"there are too few positives to judge, {count(fewest)} in one slice of time."
    gone = ""
    if drift.half_life is not None and drift.half_life < len(drift.slices) - 1:
        days = "" if math.isnan(drift.half_life_days) else f" ({_duration(drift.half_life_days)})"
        gone = f"; half were replaced after {drift.half_life} of {len(drift.slices)} time slices{days}"
    return (
        f"of the {drift.top} most popular items at the start, {fraction(drift.kept)} are still on top at the "
        f"end{gone}. In the last slice, {fraction(drift.slices[-1].new)} of the positives are on items that "
        "are new in it."
    )


def tested_skew(tests: tuple[Tested, ...]) -> str:
    """How much of the test is about the most popular items."""
    ordinary, balanced = (
        next(tested for tested in tests if tested.test == name) for name in ("ordinary", "balanced")
    )
    if not ordinary.positives:
        return "the test set has no positives that could be ranked."
    return (
        f"{fraction(ordinary.head)} of the ordinary test is on the most popular fifth of the items; in the "
        f"balanced test, where every item counts once, {fraction(balanced.head)} is."
    )


# Facts


def order(shuffle: Shuffle) -> str:
    """What the shuffle test found."""
    if not shuffle.transitions:
        return "it cannot be tested, because no user has two positives at different times."
    if not shuffle.mean and not shuffle.observed:
        return "there is too little data to judge, because no transition occurs twice."
    if not shuffle.mean:
        return (
            f"the order of events carries information: {count(shuffle.observed)} repeated transitions, and "
            "none after shuffling."
        )
    often = f"repeated transitions are {number(shuffle.ratio)} times as frequent as after shuffling"
    if not shuffle.deviation:
        return f"there is too little data to judge: {often}, but all shuffles have the same value."
    amount = "no visible " if abs(shuffle.z) < CLEAR else "little " if 0.95 < shuffle.ratio < 1.05 else ""
    return f"the order of events carries {amount}information: {often} (z = {number(shuffle.z)})."


def repetition(repeats: Repeats) -> str:
    """How many positives are repeats, and what is done with them; empty where there are none."""
    if not repeats.repeated:
        return ""
    how = (
        "items that a user has had stay candidates"
        if repeats.kept
        else "items that a user has had are hidden, and repeated targets are left out"
    )
    part = fraction(repeats.repeated / repeats.positives)
    return f"{part} of the positives are on an item that the same user had before; {how}."


def ties(clock: Times) -> str:
    """How many positives have no order among themselves; empty where they are few."""
    if not clock.tied_positives >= NOTICEABLE_TIES:
        return ""
    return (
        f"{fraction(clock.tied_positives)} of the positives share their time with another one of the same "
        f"user (resolution: {clock.resolution}); their order is unknown and never used."
    )


def foreign_filter(k: int) -> str:
    """Whether the log seems to have been filtered before it was prepared; empty if not."""
    if not k:
        return ""
    return (
        f"{foreign_core_sentence(k)}. Such a filter looks ahead: an item that is rare so far is certain to "
        "return. Prepare the unfiltered log if there is one."
    )


def _measurable(drift: Drift) -> bool:
    return len(drift.slices) > 1 and min(part.positives for part in drift.slices) >= FEWEST_IN_SLICE


def _duration(days: float) -> str:
    name, length = next(((n, d) for n, d in DURATIONS if days >= 2 * d), DURATIONS[-1])
    return f"{days / length:,.0f} {name}"
