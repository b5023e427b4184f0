"""The page of `unskew report`: one HTML file with the verdict, tables and charts.

It can be read without its script, which only makes it easier: it switches between tests, protocols and
metrics, sorts and filters tables, and shows the values of a chart's points. Charts are of the suite that the
verdict is about, and of what only some suites have; tables are of all suites.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from unskew.core.formatting import plain
from unskew.evaluation.metrics import written
from unskew.experiments import plots, tables
from unskew.experiments.claims import outcomes_table
from unskew.experiments.intervals import ArmMean, ArmResults
from unskew.experiments.plots import Plot
from unskew.experiments.published import CAVEAT
from unskew.experiments.report import Report
from unskew.experiments.results import BenchResults, SuiteResults
from unskew.report.charts import Frame, drawing
from unskew.report.curves import Curves, swatch
from unskew.report.page import Page
from unskew.report.table import Table
from unskew.report.templates import render

FORMAT = 2  # of the values in the page
DIGITS = 5  # of the points of charts
SCALE = 10_000  # of the means in tables, which are whole numbers
STARRED, DAGGERED, BEST, SECOND = 1, 2, 4, 8  # the marks of a mean in the page's values, as bits


@dataclass(frozen=True)
class ChartGroup:
    """Charts side by side below one legend for all of them.

    legend: the names of the series, each with the number of its look.
    figures: the drawings.
    """

    legend: Sequence[tuple[str, int]]
    figures: Sequence[Markup]


@dataclass(frozen=True)
class Panels:
    """Tables of which the script shows one at a time: for each the key of its test, its title, and itself.

    suite: the name by which the script finds the values of other metrics; empty if there are none.
    title: a title under which they are closed at first; empty if they are open.
    """

    tables: Sequence[tuple[str, str, Table]]
    suite: str = ""
    title: str = ""


@dataclass(frozen=True)
class Section:
    """A card of the page; its sentences stand in the template, by its name.

    tables: tables with a title each under which they are closed; an open one has none.
    """

    name: str
    title: str
    charts: ChartGroup | None = None
    panels: Sequence[Panels] = ()
    tables: Sequence[tuple[str, Table]] = ()
    suite: SuiteResults | None = None


@dataclass
class _Charts:
    """The charts of a page: their values for the script, and the looks that legends show."""

    values: dict[str, Any] = field(default_factory=dict)
    styles: set[int] = field(default_factory=set)

    def group(self, drawn: Iterable[Plot]) -> ChartGroup | None:
        """Draw charts side by side; None if there are none."""
        looks: dict[str, int] = {}
        figures = []
        for plot in drawn:
            looks |= {name: curve.style for name, curve in plot.chart.series.items()}
            name = f"c{len(self.values)}"
            svg, frame = drawing(plot.chart, name, plot.alt)
            self.values[name] = _chart_values(plot.chart, frame)
            figures.append(svg)
        self.styles |= set(looks.values())
        return ChartGroup(sorted(looks.items(), key=lambda look: look[1]), figures) if figures else None


def report_page(report: Report, command: str = "", date: str = "") -> str:
    """The whole report as one HTML file.

    command: the command line that made it, for the foot of the page.
    date: when it was made; by default now.
    """
    results, charts = report.results, _Charts()
    sections = [*_suite_sections(results), *_chart_sections(results, charts), *_closing_sections(report)]
    names = ", ".join(dict.fromkeys(name for suite in results.suites for name in suite.sources))
    page = Page(
        title="A smoke test of the bench" if results.smoke else "What the bench found",
        verdict=report.verdict,
        data=", ".join(dict.fromkeys(cell.data.hash for cell in results.cells)),
        command=command,
        date=date,
        subtitle=f"{results.done} of {results.planned} runs on {names}",
        advice_head="In detail, and what speaks against it",
        advice_has_topics=True,
    )
    healths = {
        (cell.data.name, cell.settings_key): cell.health.is_idle for cell in results.cells if cell.health
    }
    versions = dict.fromkeys(f"{name} {of}" for cell in results.cells for name, of in cell.versions.items())
    values: dict[str, Any] = {"format": FORMAT, "tests": tables.TESTS, "protocols": tables.PROTOCOLS}
    values["suites"] = {suite.name: _suite_values(suite) for suite in results.suites}
    return render(
        "experiments/templates/report.html",
        page=page,
        sections=sections,
        results=results,
        command_of=report.suite_command,
        idle=(sum(healths.values()), len(healths)),
        caveat=CAVEAT,
        versions=sorted(versions),
        choices=_choices(results),
        swatches=[(number, swatch(number)) for number in sorted(charts.styles)],
        values=embedded_json(values | {"charts": charts.values}),
    )


def _suite_sections(results: BenchResults) -> Iterator[Section]:
    for suite in results.suites:
        panels = [(by.key, tables.title_of(by), tables.suite_table(suite, by)) for by in suite.tests]
        yield Section(f"suite-{suite.name}", suite.title, panels=[Panels(panels, suite.name)], suite=suite)


def _chart_sections(results: BenchResults, charts: _Charts) -> Iterator[Section]:
    leading = results.leading
    for name, title, draw, suites in (
        ("training", "Training curves", plots.training_curves, [leading]),
        ("trade-off", "Ordinary against less biased tests", plots.trade_offs, [leading]),
        ("gains", "Who gains", plots.gain_charts, [leading]),
        ("axis", "The curve along the clip M", plots.axis_charts, results.suites),
        ("world", "The ground truth, by the strength of the bias", plots.ground_truth_charts, results.suites),
        ("windows", "Windows along time", plots.window_charts, results.suites),
        ("cost", "Cost", plots.cost_charts, [leading]),
    ):
        group = charts.group(plot for suite in suites for plot in draw(suite))
        panels = _gain_panels(leading) if name == "gains" else ()
        if group is not None or panels:
            yield Section(name, title, group, panels)


def _gain_panels(suite: SuiteResults) -> list[Panels]:
    """The tables of who gains, a closed part for each data set."""
    by_source: dict[str, list[tuple[str, str, Table]]] = {}
    for table in tables.segment_tables(suite):
        _, source, test = table.name.split("|")
        by_source.setdefault(source, []).append((f"{test}, full", f"{source}: {test} test", table))
    return [Panels(panels, title=f"Tables: {source}") for source, panels in by_source.items()]


def _closing_sections(report: Report) -> Iterator[Section]:
    """Health, data and runs, and the paper."""
    results = report.results
    health = tables.health_table(results)
    if health.rows:
        yield Section("health", "Propensity health", tables=[(f"All {len(health.rows)} models", health)])
    protocol = [("", tables.data_table(results))]
    protocol.append(("How many positives each test ranks", tables.tests_table(results)))
    protocol += [(f"Run cards: {suite.title}", tables.runs_table(suite)) for suite in results.suites]
    missing = tables.missing_table(results)
    protocol += [("", missing)] if missing.rows else []
    yield Section("protocol", "Protocol, data and runs", tables=protocol)
    published = [("", table) for suite in results.suites for table in tables.published_tables(suite)]
    yield Section("published", "The paper's metrics beside ours", tables=published)
    claims = [("", report.claims_table())]
    outcomes = outcomes_table(report.outcomes)
    claims += [("On each data set, with differences and reasons", outcomes)] if outcomes.rows else []
    yield Section("claims", "What the paper claims, what we find", tables=claims)


# What the script needs


def _choices(results: BenchResults) -> dict[str, dict[str, str]]:
    """The tests, protocols and metrics that the script can switch to, with their titles."""
    specs = list(dict.fromkeys(by for suite in results.suites for by in suite.tests))
    protocols = {by.protocol for by in specs}
    metrics = {
        metric: written(metric)
        for suite in results.suites
        for by in suite.tests
        for arms in suite.on_sources(by).values()
        for metric in arms.metrics
    }
    return {
        "test": {by.test: tables.TESTS.get(by.test, by.test) for by in specs},
        "protocol": {name: title for name, title in tables.PROTOCOLS.items() if name in protocols},
        "metric": metrics,
    }


def _suite_values(suite: SuiteResults) -> dict[str, Any]:
    """The tables of a suite by test and metric: a row per arm and a column per data set of
    [mean, low, high, marks] in units of 0.0001, with the number of seeds where it is unusual; 0 where there
    is nothing. Below them the gains."""
    by_test: dict[str, Any] = {}
    for by in suite.tests:
        tested = suite.on_sources(by)
        metrics = dict.fromkeys(metric for arms in tested.values() for metric in arms.metrics)
        by_test[by.key] = {metric: _metric_values(suite, tested, metric) for metric in metrics}
    return {"arms": [arm.name for arm in suite.arms], "sources": suite.sources, "tables": by_test}


def _metric_values(suite: SuiteResults, tested: Mapping[str, ArmResults], metric: str) -> dict[str, Any]:
    tested = {source: arms for source, arms in tested.items() if metric in arms.metrics}
    is_ranked = metric not in tables.LESS_IS_BETTER
    columns = {source: arms.means(metric) for source, arms in tested.items()}
    ranks = {source: tables.ranks_of(means) if is_ranked else {} for source, means in columns.items()}
    usual = tables.usual_seeds(columns.values())
    rows = [
        [
            _mean_values(columns.get(source, {}).get(arm.name), ranks.get(source, {}).get(arm.name, 0), usual)
            for source in suite.sources
        ]
        for arm in suite.arms
    ]
    gains = [
        [0 if gain is None else list(tables.gain_cell(*gain))[:3] for gain in row]
        for _, row in (tables.gains_of(suite, tested, metric) if is_ranked else ())
    ]
    return {"rows": rows, "gains": gains}


def _mean_values(mean: ArmMean | None, rank: int, usual: int) -> list[int] | int:
    if mean is None:
        return 0
    marks = (0, BEST, SECOND)[rank]
    if mean.versus is not None:
        marks |= STARRED * mean.versus.starred | DAGGERED * mean.versus.daggered
    seeds = [] if mean.seeds == usual else [mean.seeds]
    return [*(round(value * SCALE) for value in (mean.mean, mean.low, mean.high)), marks, *seeds]


def _chart_values(chart: Curves, frame: Frame) -> dict[str, Any]:
    """A chart for the script: its axes, and of every series the points of its line, with their names if they
    have any, and the point that stands out."""
    return {
        "axes": [chart.x_label, chart.y_label],
        "log": int(chart.logarithmic),
        "values": [_short(value) for value in frame.values],
        "places": [round(float(place), 1) for place in frame.places],
        "names": {f"{at:g}": name for at, name in (chart.x_names or {}).items()},
        "series": [
            {
                "name": name,
                "points": [
                    [*map(_short, point), *curve.names[at : at + 1]] for at, point in enumerate(curve.points)
                ],
                "spot": None if curve.spot is None else [_short(part) for part in curve.spot],
            }
            for name, curve in chart.series.items()
        ],
    }


def embedded_json(values: Mapping[str, Any]) -> Markup:
    """Values as JSON that cannot end the script element in which they stand."""
    text = json.dumps(plain(dict(values)), separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = round(float(value), DIGITS)
    return int(short) if short == int(short) else short
