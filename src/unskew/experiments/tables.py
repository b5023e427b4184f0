"""The tables of a suite: a row per arm and a column per data set, by one test, protocol and metric; all
cut-offs; and the groups of users and items among which an arm is good."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from unskew.evaluation.metrics import written
from unskew.experiments.intervals import METRIC, Figure, Measured, Versus
from unskew.experiments.results import EvaluationSpec, SuiteFindings
from unskew.experiments.table import DAGGER, NONE, STAR, Entry, Sheet

# What each test asks, in the words of a heading.
TESTS = {
    "ordinary": "Ordinary test",
    "balanced": "Balanced test",
    "shown": "Among what was shown",
    "randomised": "Randomised exposure",
    "weighted": "Weighted by logged propensities",
    "ground-truth": "True preference",
}
PROTOCOLS = {
    "full": "all items ranked",
    "uni100": "among 100 sampled items",
    "authors": "the authors' protocol",
}
SEGMENTS = {
    "popularity decile": "item's popularity, tenth",
    "history length": "length of the history",
    "user": "user",
    "item": "item",
}
LESS_IS_BETTER = ("beyond",)  # what of the exposure the scores repeat beyond what is liked
GAINS_BY = ("ordinary", "balanced")  # the tests whose groups are shown


def called(by: EvaluationSpec) -> str:
    """A test and its protocol in the words of a heading."""
    test = TESTS.get(by.test, f"Test {by.test}")
    return (
        test if by.test in ("ground-truth", "shown") else f"{test}, {PROTOCOLS.get(by.protocol, by.protocol)}"
    )


def suite_sheet(suite: SuiteFindings, by: EvaluationSpec, metric: str = METRIC) -> Sheet:
    """The table of a suite in one test by one metric, with what the first arm gains over its best rival, or
    each arm over its twin, below it."""
    found = {source: suite.measured(source, by) for source in suite.sources}
    there = {source: one for source, one in found.items() if one is not None and metric in one.metrics}
    figures = {source: one.figures(metric) for source, one in there.items()}
    ranked = metric not in LESS_IS_BETTER
    places = {source: places_of(of) if ranked else {} for source, of in figures.items()}
    usual = usual_seeds(figures.values())
    rows = [
        [
            Entry(arm.name),
            *(
                entry_of(figures[source].get(arm.name), places[source].get(arm.name, 0), usual)
                if source in there
                else Entry(NONE)
                for source in suite.sources
            ),
        ]
        for arm in suite.arms
    ]
    gains = [
        [Entry(name), *(gain_entry(*gain) if gain else Entry(NONE) for gain in of)]
        for name, of in (gains_of(suite, there, metric) if ranked else ())
    ]
    caption = f"{written(metric)}. {called(by)}. {_explained(suite, usual)}"
    return Sheet(
        ("model", *suite.sources), [*rows, *gains], caption, foot=len(gains), name=f"{suite.name}|{by.key}"
    )


def entry_of(figure: Figure | None, place: int, usual: int) -> Entry:
    """A figure with its interval and its marks; how many seeds it has only where that is unusual."""
    if figure is None:
        return Entry(NONE)
    seeds = "" if figure.seeds == usual else f", {figure.seeds} seed{'s' if figure.seeds > 1 else ''}"
    small = f"[{figure.low:.4f}, {figure.high:.4f}]{seeds}"
    return Entry(f"{figure.mean:.4f}", small, marks_of(figure.versus), place)


def marks_of(versus: Versus | None) -> str:
    """A star where the bootstrap tells two arms apart, and a dagger where the paired t-test does."""
    if versus is None:
        return ""
    return STAR * versus.starred + DAGGER * versus.daggered


def places_of(figures: dict[str, Figure]) -> dict[str, int]:
    """The best arm (1) and the second (2), as far as they can be told apart in print; equal ones share a
    place."""
    values = sorted({f"{figure.mean:.4f}" for figure in figures.values()}, reverse=True)[:2]
    said = {name: f"{figure.mean:.4f}" for name, figure in figures.items()}
    return {name: values.index(value) + 1 for name, value in said.items() if value in values}


def gains_of(
    suite: SuiteFindings, there: dict[str, Measured], metric: str
) -> Iterator[tuple[str, list[tuple[Versus, str] | None]]]:
    """What is gained: the name of each row, and for each data set how much and over whom."""
    if suite.rivals:
        found = {source: one.over_best_rival(metric) for source, one in there.items()}
        if any(found.values()):
            of = (found.get(source) for source in suite.sources)
            others = "the best other" if len(suite.rivals) == len(suite.arms) - 1 else "its best rival"
            yield f"{suite.first} over {others}", [one and (one[1], one[0]) for one in of]
    for name, twin in suite.twins.items():
        row: list[tuple[Versus, str] | None] = []
        for source in suite.sources:
            figure = there[source].figures(metric).get(name) if source in there else None
            row.append((figure.versus, "") if figure is not None and figure.versus is not None else None)
        if any(row):
            yield f"{name} over {twin}", row


def gain_entry(gain: Versus, over: str) -> Entry:
    """A gain in per cent with its interval, and the name of the rival."""
    if math.isnan(gain.fraction):
        return Entry(NONE, over)
    low, high = (
        NONE if math.isnan(one) else f"{100 * one:+.1f}" for one in (gain.share_low, gain.share_high)
    )
    return Entry(f"{100 * gain.fraction:+.1f} %", f"[{low}, {high}] {over}".strip(), marks_of(gain))


def usual_seeds(figures: Any) -> int:
    """How many seeds most figures have."""
    counts = [figure.seeds for of in figures for figure in of.values()]
    return max(set(counts), key=lambda count: (counts.count(count), count), default=1)


def _explained(suite: SuiteFindings, seeds: int) -> str:
    to = "its twin" if set(suite.twins) == {arm.name for arm in suite.arms[1:]} else suite.first
    if suite.twins and to != "its twin":
        to = f"{suite.first} (or from its twin, where it has one)"
    over = f"users and {seeds} seeds" if seeds > 1 else "users only (a single seed)"
    stars = f"{STAR} differs from {to} by the paired bootstrap, {DAGGER} by the paired t-test"
    if seeds == 1:
        stars = f"{DAGGER} differs from {to} by the paired t-test, which ignores the seed"
    return (
        f"Below each figure its 95 % interval over {over}. Bold: the best, underlined: the second. {stars}: "
        "p < 0.05 after Holm's correction over the column."
    )


def cutoffs_sheet(suite: SuiteFindings, by: EvaluationSpec) -> Sheet:
    """All metrics of a test, a row per data set and arm."""
    found = {source: one for source in suite.sources if (one := suite.measured(source, by)) is not None}
    metrics = list(dict.fromkeys(metric for one in found.values() for metric in one.metrics))
    rows = [
        [
            Entry(arm),
            Entry(source),
            *(Entry(f"{one.mean(arm, name):.4f}" if name in one.metrics else NONE) for name in metrics),
        ]
        for source, one in found.items()
        for arm in one.seeds
    ]
    head = ("model", "data", *map(written, metrics))
    return Sheet(head, rows, f"All metrics. {called(by)}. {suite.title}.", text=(0, 1))


def segment_sheet(suite: SuiteFindings, source: str, test: str) -> Sheet | None:
    """How good each arm is in each group of positives, as the mean over its seeds; None if no arm was
    tested in groups."""
    key = EvaluationSpec(test, "full").key
    of_arms = {
        arm.name: [
            part["segments"]
            for cell in suite.cells.get((source, arm.name), {}).values()
            if (part := cell["tests"].get(key)) is not None and part["segments"]
        ]
        for arm in suite.arms
    }
    some = next((each[0] for each in of_arms.values() if each), None)
    if some is None:
        return None
    columns = [
        (kind, group)
        for kind in SEGMENTS
        if kind in some
        for group, (units, _) in some[kind].items()
        if units
    ]
    rows = [
        [Entry("positives ranked"), *(Entry(f"{some[kind][group][0]:,}") for kind, group in columns)],
    ]
    for name, each in of_arms.items():
        if each:
            rows.append([Entry(name), *(Entry(_mean(each, *column)) for column in columns)])
    over = [("", 1)]
    for kind, words in SEGMENTS.items():
        if span := sum(kind == of for of, _ in columns):
            over.append((words, span))
    return Sheet(
        ("model", *(group for _, group in columns)),
        [*rows[1:], rows[0]],
        f"{source}. {written(METRIC)} by group. {called(EvaluationSpec(test, 'full'))}. The first tenth of "
        "the items is the most popular.",
        foot=1,
        over=over,
        name=f"{suite.name}|{source}|{test}",
    )


def _mean(each: Sequence[Any], kind: str, group: str) -> str:
    values = [one[kind][group][1] for one in each if one.get(kind, {}).get(group, (0, None))[1] is not None]
    return f"{fmean(values):.4f}" if values else NONE
