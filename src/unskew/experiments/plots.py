"""The charts of a report, as data: training curves, trade-offs, who gains, and what else a bench measured."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from unskew.evaluation.metrics import written
from unskew.experiments.bench_cell import METRIC, BenchCell
from unskew.experiments.results import (
    BALANCED,
    GROUND_TRUTH,
    ORDINARY,
    EvaluationSpec,
    SuiteResults,
    mean_in,
)
from unskew.experiments.tables import TESTS
from unskew.report.curves import Curve, Curves, Point

UNBIASED = ("ground-truth", "randomised", "shown")  # besides the balanced test, the first that there is
MOST_GAINING = 5  # arms whose groups are drawn; the table has them all
NAMED_WINDOWS = 4  # of a time line, whose dates stand at the axis
GROUND_TRUTH_METRICS = {
    METRIC: "NDCG@10 against the ground truth",
    "beyond": "exposure that the scores repeat",
}
GROUPS = {
    "popularity decile": "tenth of the items, the most popular first",
    "history length": "items in the user's history",
}


class Plot(NamedTuple):
    """A chart, and a text instead of it for those who do not see it."""

    chart: Curves
    alt: str


def _curves(suite: SuiteResults, points: Mapping[str, Sequence[Point]]) -> dict[str, Curve]:
    """A curve for each arm that has points; its look follows from its position in the suite."""
    curves = {arm.name: Curve(number, points[arm.name]) for number, arm in enumerate(suite.arms)}
    return {name: curve for name, curve in curves.items() if curve.points}


def training_curves(suite: SuiteResults) -> Iterator[Plot]:
    """The validation metric by epoch, on each data set."""
    for source in suite.sources:
        points = {}
        for arm in suite.arms:
            runs = [_validation(cell) for cell in suite.seeds_of(source, arm.name)]
            points[arm.name] = [(float(at), fmean(of)) for at, of in enumerate(zip(*runs, strict=False), 1)]
        if series := _curves(suite, points):
            top = {name: max(y for _, y in curve.points) for name, curve in series.items()}
            best = max(top, key=top.__getitem__)
            alt = f"Validation metric by epoch on {source}, {len(series)} models; "
            alt += f"{best} reaches the most, {top[best]:.4f}"
            yield Plot(Curves(series, "epoch", f"validation {written(METRIC)}", source), alt)


def _validation(cell: BenchCell) -> list[float]:
    """The validation metric after each validated epoch: of the ordinary test, or of the first there is."""
    metrics = [record.valid for record in cell.records if record.valid]
    values = [valid.get("ordinary", next(iter(valid.values()))) for valid in metrics]
    return [value for value in values if value is not None]


def trade_offs(suite: SuiteResults) -> Iterator[Plot]:
    """The ordinary test against less biased ones on each data set: the balanced one, and the one that is
    nearest to the ground truth."""
    for source in suite.sources:
        tests = [by for by in suite.tests if by.protocol == "full" and suite.arm_results(source, by)]
        nearest = [by for name in UNBIASED for by in tests if by.test == name][:1]
        for by in (BALANCED, *nearest):
            if by in tests and (plot := trade_off(suite, source, by)) is not None:
                yield plot


def trade_off(suite: SuiteResults, source: str, by: EvaluationSpec = BALANCED) -> Plot | None:
    """The ordinary test against a less biased one; the debiasing strengths of a model are a line."""
    ordinary, other = suite.arm_results(source, ORDINARY), suite.arm_results(source, by)
    if ordinary is None or other is None:
        return None
    series: dict[str, Curve] = {}
    for number, arm in enumerate(suite.arms):
        if arm.name in ordinary.seeds and arm.name in other.seeds:
            spot = ordinary.mean(arm.name), other.mean(arm.name)
            line = _at_strengths(suite.seeds_of(source, arm.name), by)
            names = [f"debias {strength:g}" for strength in line]
            series[arm.name] = Curve(number, list(line.values()), spot, names)
    best = max(series, key=lambda name: series[name].spot or (0, 0))
    test = TESTS.get(by.test, by.test).lower()
    alt = f"Ordinary test (right) and {test} (up) on {source}, {len(series)} models; {best} is furthest right"
    labels = f"ordinary test, {written(METRIC)}", f"{test}, {written(METRIC)}"
    return Plot(Curves(series, *labels, source, labelled=True), alt)


def _at_strengths(cells: Sequence[BenchCell], by: EvaluationSpec) -> dict[float, Point]:
    """The two tests at each debiasing strength that all runs have, as means over seeds."""
    curves = [(cell.strengths.get(ORDINARY.key), cell.strengths.get(by.key)) for cell in cells]
    both = [(first, second) for first, second in curves if first and second]
    common = [at for at in both[0][0] if all(at in of for pair in both for of in pair)] if both else []
    return {
        float(at): (fmean(first[at] for first, _ in both), fmean(second[at] for _, second in both))
        for at in sorted(common, key=float)
    }


def gain_charts(suite: SuiteResults) -> Iterator[Plot]:
    """The ordinary test by groups of its positives on each data set, for the arms that matter most: the
    first, its best rival, and the best in the ordinary and in the balanced test."""
    for source in suite.sources:
        best: list[str | None] = [suite.first]
        for by in (ORDINARY, BALANCED):
            if (arms := suite.arm_results(source, by)) is not None:
                best += [arms.best(suite.rivals), arms.best()]
        names = [name for name in dict.fromkeys(best) if name is not None][:MOST_GAINING]
        for kind, label in GROUPS.items():
            groups: dict[float, str] = {}
            points: dict[str, list[Point]] = {arm.name: [] for arm in suite.arms}
            for name in names:
                for at, (group, mean) in _group_means(suite, source, name, kind).items():
                    groups[at] = group
                    points[name].append((at, mean))
            if series := _curves(suite, points):
                ordered = {name: series[name] for name in names if name in series}
                chart = Curves(ordered, label, written(METRIC), source, x_names=dict(sorted(groups.items())))
                yield Plot(chart, f"Ordinary test by {kind} on {source}: {', '.join(ordered)}")


def _group_means(suite: SuiteResults, source: str, arm: str, kind: str) -> dict[float, tuple[str, float]]:
    """The name and the mean over seeds of each group of positives in the ordinary test, by its position."""
    segments = [of for of in suite.segments(source, arm, ORDINARY) if of.get(kind)]
    groups = enumerate(segments[0][kind] if segments else ())
    means = {float(at): (group, mean_in(segments, kind, group)) for at, group in groups}
    return {at: (group, mean) for at, (group, mean) in means.items() if mean is not None}


def axis_charts(suite: SuiteResults) -> Iterator[Plot]:
    """The arms of a suite as points along its axis, a line per data set, relative to the first arm."""
    positions = {arm.name: arm.x for arm in suite.arms if arm.x is not None}
    for by in (ORDINARY, BALANCED) if suite.axis and positions else ():
        series: dict[str, Curve] = {}
        for number, source in enumerate(suite.sources):
            arms = suite.arm_results(source, by)
            base = arms.mean(suite.first) if arms is not None and suite.first in arms.seeds else 0.0
            if arms is not None and base:
                here = [(x, name) for name, x in positions.items() if name in arms.seeds]
                points = sorted((x, 100 * (arms.mean(name) / base - 1)) for x, name in here)
                series[source] = Curve(number, points)
        if series:
            title, y_label = TESTS[by.test], f"change of {written(METRIC)} to {suite.first}, %"
            is_positive = all(x > 0 for x in positions.values())
            chart = Curves(series, suite.axis, y_label, title, logarithmic=is_positive)
            alt = f"{title}: change relative to {suite.first} along {suite.axis}, {len(series)} data sets"
            yield Plot(chart, alt)


def ground_truth_charts(suite: SuiteResults) -> Iterator[Plot]:
    """The metrics against the ground truth, by the strength of the bias of the simulated worlds."""
    worlds = {source: suite.any_cell(source).data.world for source in suite.on_sources(GROUND_TRUTH)}
    biases = {source: float(world["bias"]) for source, world in worlds.items() if world is not None}
    tested = [
        (biases[source], arms) for source, arms in suite.on_sources(GROUND_TRUTH).items() if source in biases
    ]
    for metric, label in GROUND_TRUTH_METRICS.items() if len(set(biases.values())) > 1 else ():
        measured = [(bias, arms) for bias, arms in tested if metric in arms.metrics]
        points = {
            arm.name: sorted(
                (bias, of.mean(arm.name, metric)) for bias, of in measured if arm.name in of.seeds
            )
            for arm in suite.arms
        }
        if series := _curves(suite, points):
            names = {bias: f"{bias:g}" for bias in biases.values()}
            chart = Curves(series, "strength of the exposure bias", label, label, x_names=names)
            yield Plot(chart, f"{label} by the strength of the bias, {len(series)} models")


def window_charts(suite: SuiteResults) -> Iterator[Plot]:
    """The test window by window along the time line, on each data set."""
    for source in suite.sources:
        dates: list[str] = []
        points: dict[str, list[Point]] = {}
        for arm in suite.arms:
            runs = [cell.windows for cell in suite.seeds_of(source, arm.name) if cell.windows]
            dates = max(dates, [window.start for window in runs[0]] if runs else [], key=len)
            values = [[one.value for one in of if one.value is not None] for of in zip(*runs, strict=False)]
            points[arm.name] = [(float(at), fmean(of)) for at, of in enumerate(values) if of]
        if series := _curves(suite, points):
            step = -(-len(dates) // NAMED_WINDOWS)
            names = {float(at): dates[at].partition(" ")[0] for at in range(0, len(dates), step)}
            alt = f"Ordinary test window by window on {source}, {len(series)} models, {len(dates)} windows"
            yield Plot(Curves(series, "window from", written(METRIC), source, x_names=names), alt)


def cost_charts(suite: SuiteResults) -> Iterator[Plot]:
    """The ordinary test against the CPU-seconds of training, on each data set."""
    if len({arm.model for arm in suite.arms}) < 3:
        return
    numbers = {arm.name: number for number, arm in enumerate(suite.arms)}
    for source, arms in suite.on_sources(ORDINARY).items():
        spots: dict[str, Point] = {}
        for name in arms.seeds:
            seconds = fmean(cell.cost.cpu_s for cell in suite.seeds_of(source, name))
            spots[name] = max(seconds, 0.1), arms.mean(name)
        series = {name: Curve(numbers[name], spot=spot) for name, spot in spots.items()}
        cheapest, dearest = min(spots, key=spots.__getitem__), max(spots, key=spots.__getitem__)
        labels = "CPU-seconds of training", f"ordinary test, {written(METRIC)}"
        chart = Curves(series, *labels, source, logarithmic=True, labelled=True)
        yield Plot(chart, f"Accuracy against CPU-seconds on {source}: from {cheapest} to {dearest}")
