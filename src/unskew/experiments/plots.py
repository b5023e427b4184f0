"""The charts of a report, as data: training curves, trade-offs, who gains, and what else a bench measured."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from unskew.evaluation.metrics import written
from unskew.experiments.intervals import METRIC
from unskew.experiments.results import BALANCED, GROUND_TRUTH, ORDINARY, EvaluationSpec, SuiteFindings
from unskew.experiments.tables import TESTS
from unskew.report.curves import Curve, Curves, Point

UNBIASED = ("ground-truth", "randomised", "shown")  # besides the balanced test, the first that there is
MOST_GAINING = 5  # arms whose groups are drawn; the table has them all
NAMED_WINDOWS = 4  # of a time line, whose dates stand at the axis


@dataclass(frozen=True)
class Plot:
    """A chart, what is seen in it for people who do not see it, and what stands below it."""

    chart: Curves
    alt: str
    caption: str = ""


def training(suite: SuiteFindings, source: str) -> Plot | None:
    """The validation metric by epoch."""
    series: dict[str, Curve] = {}
    for number, arm in enumerate(suite.arms):
        runs = [_validated(cell) for cell in suite.cells.get((source, arm.name), {}).values()]
        epochs = min(map(len, runs), default=0)
        if epochs:
            means = [fmean([run[at] for run in runs]) for at in range(epochs)]
            series[arm.name] = Curve(number, [(at + 1.0, mean) for at, mean in enumerate(means)])
    if not series:
        return None
    best = max(series, key=lambda name: max(y for _, y in series[name].points))
    top = max(y for _, y in series[best].points)
    alt = f"Validation metric by epoch on {source}, {len(series)} models; {best} reaches the most, {top:.4f}"
    return Plot(Curves(series, "epoch", f"validation {written(METRIC)}", source), alt)


def trade_off(suite: SuiteFindings, source: str, by: EvaluationSpec = BALANCED) -> Plot | None:
    """The ordinary test against a less biased one, with what each position of a debiasing strength gives as a
    line."""
    both = [suite.measured(source, one) for one in (ORDINARY, by)]
    if both[0] is None or both[1] is None:
        return None
    series: dict[str, Curve] = {}
    for number, arm in enumerate(suite.arms):
        if arm.name in both[0].seeds and arm.name in both[1].seeds:
            spot = both[0].mean(arm.name), both[1].mean(arm.name)
            turned = _at_strengths(suite.cells[source, arm.name].values(), by)
            names = [f"debias {at:g}" for at in turned]
            series[arm.name] = Curve(number, list(turned.values()), spot, names)
    best = max(series, key=lambda name: series[name].spot or (0, 0))
    test = TESTS.get(by.test, by.test).lower()
    alt = f"Ordinary test (right) and {test} (up) on {source}, {len(series)} models; {best} is furthest right"
    labels = f"ordinary test, {written(METRIC)}", f"{test}, {written(METRIC)}"
    return Plot(Curves(series, *labels, source, labelled=True), alt)


def less_biased(suite: SuiteFindings, source: str) -> list[EvaluationSpec]:
    """What the ordinary test is compared with: the balanced one, and what is nearest to the ground truth."""
    there = [
        one
        for one in suite.evaluation_specs
        if one.protocol == "full" and suite.measured(source, one) is not None
    ]
    nearest = [one for name in UNBIASED for one in there if one.test == name][:1]
    return [one for one in (BALANCED, *nearest) if one in there]


def gains(suite: SuiteFindings, source: str, kind: str, x_label: str) -> Plot | None:
    """The ordinary test by groups of its positives, for the arms that matter most: the first, its best rival,
    and the best in the ordinary and in the balanced test."""
    chosen: list[str | None] = [suite.first]
    for by in (ORDINARY, BALANCED):
        if (found := suite.measured(source, by)) is not None:
            chosen += [found.best(suite.rivals), found.best()]
    numbers = {arm.name: number for number, arm in enumerate(suite.arms)}
    series: dict[str, Curve] = {}
    names: dict[float, str] = {}
    for name in list(dict.fromkeys(name for name in chosen if name is not None))[:MOST_GAINING]:
        parts = [
            cell["tests"][ORDINARY.key]["segments"].get(kind)
            for cell in suite.cells.get((source, name), {}).values()
            if ORDINARY.key in cell["tests"]
        ]
        groups = [part for part in parts if part]
        if not groups:
            continue
        points: list[Point] = []
        for at, group in enumerate(groups[0]):
            values = [part[group][1] for part in groups if part.get(group, (0, None))[1] is not None]
            if values:
                names[float(at)] = group
                points.append((float(at), fmean(values)))
        series[name] = Curve(numbers[name], points)
    if not series:
        return None
    alt = f"Ordinary test by {kind} on {source}: {', '.join(series)}"
    return Plot(Curves(series, x_label, written(METRIC), source, x_names=dict(sorted(names.items()))), alt)


def axis_curve(suite: SuiteFindings, by: EvaluationSpec) -> Plot | None:
    """The arms of a suite as points along its axis, a line per data set, relative to the first arm."""
    places = {arm.name: arm.x for arm in suite.arms if arm.x is not None}
    if not suite.axis or not places:
        return None
    series: dict[str, Curve] = {}
    for number, source in enumerate(suite.sources):
        found = suite.measured(source, by)
        if found is None or suite.first not in found.seeds or not found.mean(suite.first):
            continue
        base = found.mean(suite.first)
        points = sorted(
            (x, 100 * (found.mean(name) / base - 1)) for name, x in places.items() if name in found.seeds
        )
        series[source] = Curve(number, points)
    if not series:
        return None
    label = f"change of {written(METRIC)} to {suite.first}, %"
    alt = f"{TESTS[by.test]}: change relative to {suite.first} along {suite.axis}, {len(series)} data sets"
    positive = all(x > 0 for x in places.values())
    return Plot(Curves(series, suite.axis, label, TESTS[by.test], logarithmic=positive), alt)


def known_world(suite: SuiteFindings, metric: str, y_label: str) -> Plot | None:
    """How near each arm comes to the ground truth, by the strength of the bias of the worlds."""
    strengths: dict[str, float] = {}
    for source in suite.sources:
        cell = suite.some_cell(source)
        if cell["data"]["world"] is not None and GROUND_TRUTH.key in cell["tests"]:
            strengths[source] = float(cell["data"]["world"]["bias"])
    if len(set(strengths.values())) < 2:
        return None
    series: dict[str, Curve] = {}
    for number, arm in enumerate(suite.arms):
        points = sorted(
            (strength, found.mean(arm.name, metric))
            for source, strength in strengths.items()
            if (found := suite.measured(source, GROUND_TRUTH)) is not None
            if arm.name in found.seeds and metric in found.metrics
        )
        if points:
            series[arm.name] = Curve(number, points)
    if not series:
        return None
    alt = f"{y_label} by the strength of the bias, {len(series)} models"
    names = {strength: f"{strength:g}" for strength in strengths.values()}
    return Plot(Curves(series, "strength of the exposure bias", y_label, y_label, x_names=names), alt)


def windows(suite: SuiteFindings, source: str) -> Plot | None:
    """The test window by window along the time line."""
    series: dict[str, Curve] = {}
    dates: list[str] = []
    for number, arm in enumerate(suite.arms):
        runs = [
            cell["windows"] for cell in suite.cells.get((source, arm.name), {}).values() if "windows" in cell
        ]
        size = min(map(len, runs), default=0)
        points: list[Point] = []
        for at in range(size):
            values = [run[at][METRIC] for run in runs if run[at][METRIC] is not None]
            if values:
                points.append((float(at), fmean(values)))
        if points:
            series[arm.name] = Curve(number, points)
            dates = max(dates, [one["start"] for one in runs[0]], key=len)
    if not series:
        return None
    step = -(-len(dates) // NAMED_WINDOWS)
    names = {float(at): dates[at].partition(" ")[0] for at in range(0, len(dates), step)}
    alt = f"Ordinary test window by window on {source}, {len(series)} models, {len(dates)} windows"
    return Plot(Curves(series, "window from", written(METRIC), source, x_names=names), alt)


def cost(suite: SuiteFindings, source: str) -> Plot | None:
    """Accuracy in the ordinary test against the CPU-seconds of training."""
    found = suite.measured(source, ORDINARY)
    if found is None or len({arm.model for arm in suite.arms}) < 3:
        return None
    series = {
        arm.name: Curve(number, spot=(max(_cpu(suite, source, arm.name), 0.1), found.mean(arm.name)))
        for number, arm in enumerate(suite.arms)
        if arm.name in found.seeds
    }
    cheapest, dearest = (pick(series, key=lambda name: series[name].spot or (0, 0)) for pick in (min, max))
    alt = f"Accuracy against CPU-seconds on {source}: from {cheapest} to {dearest}"
    labels = "CPU-seconds of training", f"ordinary test, {written(METRIC)}"
    return Plot(Curves(series, *labels, source, logarithmic=True, labelled=True), alt)


def _validated(cell: Mapping[str, Any]) -> list[float]:
    """The validation metric after each validated epoch: of the ordinary version, or of the first there is."""
    found = [record["valid"] for record in cell["records"] if record["valid"]]
    values = [valid.get("ordinary", next(iter(valid.values()))) for valid in found]
    return [value for value in values if value is not None]


def _at_strengths(cells: Iterable[Mapping[str, Any]], by: EvaluationSpec) -> dict[float, Point]:
    """The two tests at each position of the debiasing strength, as means over seeds; nothing without a
    debiasing strength."""
    each = [cell.get("strengths", {}) for cell in cells]
    each = [strengths for strengths in each if ORDINARY.key in strengths and by.key in strengths]
    if not each:
        return {}
    both = ORDINARY.key, by.key
    means = {
        float(at): [fmean(strengths[key][at] for strengths in each) for key in both]
        for at in each[0][ORDINARY.key]
        if all(at in strengths[key] for strengths in each for key in both)
    }
    return {at: (means[at][0], means[at][1]) for at in sorted(means)}


def _cpu(suite: SuiteFindings, source: str, arm: str) -> float:
    return fmean(cell["cost"]["cpu_s"] for cell in suite.cells[source, arm].values())
