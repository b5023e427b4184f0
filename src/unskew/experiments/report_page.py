"""The page of `unskew report`: one HTML file with the verdict, tables and charts.

It can be read without its script, which only makes it easier: it switches between tests, protocols and
metrics, sorts and filters tables, and shows the values of a chart's points. Charts are of the suite that the
verdict is about, and of what only some suites have; tables are of all suites.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from markupsafe import Markup

from unskew.core.formatting import plain
from unskew.evaluation.metrics import written
from unskew.experiments import plots, tables
from unskew.experiments.claims import outcomes_table
from unskew.experiments.intervals import ArmMean
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
STARRED, DAGGERED, BEST, SECOND, CUT = 1, 2, 4, 8, 16  # the marks of a mean in the page's values, as bits
CHARTS = (  # the sections of charts; those of all suites, or else only of the one that the verdict is about
    ("training", "Training curves", plots.training_curves, False),
    ("trade-off", "Ordinary against less biased tests", plots.trade_offs, False),
    ("gains", "Who gains", plots.gain_charts, False),
    ("axis", "The curve along the clip M", plots.axis_charts, True),
    ("world", "The ground truth, by the strength of the bias", plots.ground_truth_charts, True),
    ("windows", "Windows along time", plots.window_charts, True),
    ("cost", "Cost", plots.cost_charts, False),
)


class ChartGroup(NamedTuple):
    """Drawings side by side below one legend: the names of all series, each with the number of its look."""

    legend: Sequence[tuple[str, int]]
    figures: Sequence[Markup]


class Panels(NamedTuple):
    """Tables of which the script shows one at a time: for each the key of its test, its title, and itself.

    suite: the name by which the script finds the values of other metrics; empty if there are none.
    title: a title under which they are closed at first; empty if they are open.
    """

    tables: Sequence[tuple[str, str, Table]]
    suite: str = ""
    title: str = ""


class Section(NamedTuple):
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
        for chart, alt in drawn:
            looks |= {name: curve.style for name, curve in chart.series.items()}
            name = f"c{len(self.values)}"
            svg, frame = drawing(chart, name, alt)
            self.values[name] = _chart_values(chart, frame)
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
        (cell.data.name, cell.settings_key): cell.health.is_idle
        for cell in results.cells
        if cell.health and (cell.finished or results.smoke)
    }
    values = {
        "format": FORMAT,
        "tests": tables.TESTS,
        "protocols": tables.PROTOCOLS,
        "suites": {suite.name: _suite_values(suite) for suite in results.suites},
        "charts": charts.values,
    }
    return render(
        "experiments/templates/report.html",
        page=page,
        sections=sections,
        results=results,
        command_of=report.suite_command,
        idle=(sum(healths.values()), len(healths)),
        caveat=CAVEAT,
        versions=sorted({f"{name} {of}" for cell in results.cells for name, of in cell.versions.items()}),
        choices=_choices(results),
        swatches=[(number, swatch(number)) for number in sorted(charts.styles)],
        values=embedded_json(values),
    )


def _suite_sections(results: BenchResults) -> Iterator[Section]:
    for suite in results.suites:
        panels = [(by.key, tables.title_of(by), tables.suite_table(suite, by)) for by in suite.tests]
        yield Section(f"suite-{suite.name}", suite.title, panels=[Panels(panels, suite.name)], suite=suite)


def _chart_sections(results: BenchResults, charts: _Charts) -> Iterator[Section]:
    for name, title, draw, of_all in CHARTS:
        suites = results.suites if of_all else [results.leading]
        group = charts.group(plot for suite in suites for plot in draw(suite))
        panels = _gain_panels(results.leading) if name == "gains" else ()
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
    """Health, data and runs, and the paper. Tables without rows are left out."""
    results = report.results
    health, missing = tables.health_table(results), tables.missing_table(results)
    published = [("", table) for suite in results.suites for table in tables.published_tables(suite)]
    parts = (
        ("health", "Propensity health", [(f"All {len(health.rows)} models", health)]),
        (
            *("protocol", "Protocol, data and runs"),
            [
                ("", tables.data_table(results)),
                ("How many positives each test ranks", tables.tests_table(results)),
                *((f"Run cards: {suite.title}", tables.runs_table(suite)) for suite in results.suites),
                ("", missing),
            ],
        ),
        ("published", "The paper's metrics beside ours", published),
        (
            *("claims", "What the paper claims, what we find"),
            [
                ("", report.claims_table()),
                ("On each data set, with differences and reasons", outcomes_table(report.outcomes)),
            ],
        ),
    )
    for name, title, of in parts:
        filled = [(head, table) for head, table in of if table.rows]
        if filled or name == "published":  # the template says why there are none
            yield Section(name, title, tables=filled)


# What the script needs


def _choices(results: BenchResults) -> dict[str, dict[str, str]]:
    """The tests, protocols and metrics that the script can switch to, with their titles."""
    specs = list(dict.fromkeys(by for suite in results.suites for by in suite.tests))
    protocols = {by.protocol for by in specs}
    metrics = [metric for suite in results.suites for by in suite.tests for metric in suite.metrics(by)]
    return {
        "test": {by.test: tables.TESTS.get(by.test, by.test) for by in specs},
        "protocol": {name: title for name, title in tables.PROTOCOLS.items() if name in protocols},
        "metric": {metric: written(metric) for metric in metrics},
    }


def _suite_values(suite: SuiteResults) -> dict[str, Any]:
    """The tables of a suite by test and metric: a row per arm and a column per data set of
    [mean, low, high, marks] in units of 0.0001, with the number of seeds where it is unusual; 0 where there
    is nothing. Below them the gains."""
    by_test = {
        by.key: {metric: _grid_values(tables.mean_grid(suite, by, metric)) for metric in suite.metrics(by)}
        for by in suite.tests
    }
    return {"arms": [arm.name for arm in suite.arms], "sources": suite.sources, "tables": by_test}


def _grid_values(grid: tables.MeanGrid) -> dict[str, Any]:
    return {
        "rows": [[_mean_values(mean, grid.seeds) for mean in row] for row in grid.rows.values()],
        "gains": [[tables.gain_cell(gain)[:3] if gain else 0 for gain in row] for row in grid.gains.values()],
    }


def _mean_values(ranked: tuple[ArmMean, int] | None, usual: int) -> list[int] | int:
    if ranked is None:
        return 0
    mean, rank = ranked
    marks = (0, BEST, SECOND)[rank] | CUT * (not mean.finished)
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
                "spot": curve.spot and [_short(part) for part in curve.spot],
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
