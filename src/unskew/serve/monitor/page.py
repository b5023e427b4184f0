"""The page of `unskew monitor`: small charts of all windows, below what is crossed and what to do."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from unskew.report.charts import COLOURS, DASHES, INK, finish, svg, thousands
from unskew.report.page import Page
from unskew.report.table import Table
from unskew.report.templates import render
from unskew.serve.monitor.monitor import Monitor
from unskew.serve.monitor.window import FIGURES, HAPPENED, MADE, RANKED, SPREAD, UNBIASED, Window
from unskew.serve.store.events import in_iso

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = 5  # at most so many dates below a chart; more would touch on a phone


@dataclass(frozen=True)
class WindowChart:
    """Which values of the windows a chart shows.

    lines: the name of each line, and its field of `Window`.
    setting: the field of `Monitoring` with the threshold.
    level: where values should be.
    """

    group: str
    title: str
    lines: Mapping[str, str]
    setting: str = ""
    percent: bool = False
    level: float | None = None


CHARTS = (
    WindowChart(HAPPENED, "Events", {"events": "events", "positives": "positives"}),
    WindowChart(HAPPENED, "Newcomers", {"new users": "new_users", "new items": "new_items"}),
    WindowChart(SPREAD, "Gini index", {"shown": "gini_shown", "clicked": "gini_clicked"}, "max_gini"),
    WindowChart(
        SPREAD,
        "Coverage of the catalogue",
        {"shown": "coverage_shown", "clicked": "coverage_clicked"},
        "min_coverage",
        percent=True,
    ),
    WindowChart(SPREAD, "Popularity lift", {"shown over clicked": "lift"}, "max_lift", level=1),
    WindowChart(SPREAD, "Age of the items, in days", {"shown": "age_shown", "clicked": "age_clicked"}),
    WindowChart(MADE, "Click rate", {"click rate": "click_rate"}, "min_click_rate", percent=True),
    WindowChart(
        MADE,
        "Fallback and random",
        {"fallback": "fallback", "random": "random"},
        "max_fallback",
        percent=True,
    ),
    WindowChart(UNBIASED, "Effective sample", {"of the positives": "ess"}, "min_ess", percent=True),
    WindowChart(UNBIASED, "Calibration of propensities", {"calibration": "calibration"}, level=1),
    WindowChart(RANKED, "NDCG@10", {"before it was seen": "ndcg"}, "min_ndcg"),
)


@dataclass(frozen=True)
class WindowLines:
    """Lines over the windows. A window without a value is a gap; one that is still open is a hollow mark.
    Bands are one standard error on both sides."""

    spec: WindowChart
    monitor: Monitor

    def values(self, *fields: str) -> NDArray[np.float64]:
        """The values of fields in all windows."""
        windows = self.monitor.windows
        return np.array([getattr(window, field) for field in fields for window in windows], np.float64)

    def draw(self, axes: "Axes") -> None:
        """Draw the lines on matplotlib's axes."""
        spec, windows, scale = self.spec, self.monitor.windows, 100 if self.spec.percent else 1
        x, whole = np.arange(len(windows)), np.array([window.whole for window in windows])
        for (name, field), colour, dash in zip(spec.lines.items(), COLOURS, DASHES, strict=False):
            y = scale * self.values(field)
            known = ~np.isnan(y)
            label = name if known.any() else f"{name} (not known)"
            axes.plot(x, y, color=colour, linestyle=dash, linewidth=1.8, label=label)
            for marked, face, size in ((known & whole, colour, 4), (known & ~whole, "none", 5)):
                axes.plot(x[marked], y[marked], "o", ms=size, mfc=face, mec=colour)
            if hasattr(windows[0], f"{field}_error"):
                error = scale * self.values(f"{field}_error")
                axes.fill_between(x, y - error, y + error, color=colour, alpha=0.18, linewidth=0)
        if spec.level is not None:
            axes.axhline(spec.level, color=INK, alpha=0.35, linewidth=0.9)
        threshold = getattr(self.monitor.settings, spec.setting) if spec.setting else None
        if threshold is not None:
            dots = (0, (2, 2))
            axes.axhline(scale * threshold, color="#c8452f", linewidth=1.2, linestyle=dots, label="threshold")
        ticks = x[::-1][:: math.ceil(len(x) / TICKS)][::-1]  # the newest always has one
        axes.set_xticks(ticks, [_label(self.monitor, windows[at]) for at in ticks])
        axes.set_xlim(-0.4, max(len(x) - 0.6, 0.4))
        axes.yaxis.set_major_formatter("{x:g} %" if spec.percent else thousands)
        values = self.values(*spec.lines.values())
        counts = bool(np.all(np.isnan(values) | (values == np.round(values))))
        axes.locator_params("y", nbins=5, integer=counts and not spec.percent)
        top = axes.get_ylim()[1]
        axes.set_ylim(0, 1.05 * top if top > 0 else 1)  # marks at the top are seen whole
        finish(axes, "", "", spec.title, len(spec.lines) + (threshold is not None) > 1)


@dataclass(frozen=True)
class Group:
    """A section of the page: its charts, and a table of the same values."""

    name: str
    charts: Sequence[Markup]
    table: Table
    is_ranking: bool


def monitor_page(monitor: Monitor, command: str = "", date: str = "") -> str:
    """The whole report as one HTML file.

    command: the command line that made it, for the foot of the page.
    date: when it was made; by default now.
    """
    windows = json.dumps(monitor.document()["windows"]).encode()
    names = [HAPPENED, SPREAD, MADE, UNBIASED, *([RANKED] if monitor.run else [])]
    run = f", with a run of {monitor.run}" if monitor.run else ""
    until = "" if monitor.trained_until is None else in_iso(monitor.trained_until)[:16].replace("T", " ")
    return render(
        "serve/monitor/templates/monitor.html",
        page=Page(
            title="Is the recommender healthy?",
            verdict=monitor.verdict(),
            data=hashlib.blake2b(windows, digest_size=16).hexdigest(),
            command=command,
            date=date,
            subtitle=f"{monitor.store}, every {monitor.settings.every}{run}",
            advice_head="What to do" if monitor.crossed else "What to know",
            advice_has_topics=True,
            tone=monitor.health.value,
        ),
        monitor=monitor,
        groups=[_group(monitor, name) for name in names] if monitor.windows else [],
        trained_until=until,
        seen=sum(window.seen for window in monitor.windows),
        meanings=[
            f"{figure.name[:1].upper()}{figure.name[1:]}: {figure.meaning}."
            for figure in FIGURES.values()
            if figure.group in names
        ],
    )


def _group(monitor: Monitor, name: str) -> Group:
    figures = [figure for figure in FIGURES.values() if figure.group == name]
    rows = [
        [monitor.dated(window), *(figure.of(window) for figure in figures)]
        for window in monitor.windows[::-1]
    ]
    charts = [WindowLines(spec, monitor) for spec in CHARTS if spec.group == name]
    drawings = [
        _drawing(chart) for chart in charts if not np.isnan(chart.values(*chart.spec.lines.values())).all()
    ]
    return Group(name, drawings, Table(["from", *(figure.name for figure in figures)], rows), name == RANKED)


def _drawing(chart: WindowLines) -> Markup:
    lines, window = chart.spec.lines, chart.monitor.windows[-1]
    newest = ", ".join(f"{name} {FIGURES[field].of(window)}" for name, field in lines.items())
    name = next(iter(lines.values())).replace("_", "-")
    return svg(chart, f"chart-{name}", f"{chart.spec.title}, by window; in the newest one {newest}")


def _label(monitor: Monitor, window: Window) -> str:
    """Month and day; where windows are shorter than a day, the hour."""
    text = monitor.dated(window).removesuffix(" (open)")
    return text[5:10] if len(text) == 10 else text[8:16].replace("T", " ")
