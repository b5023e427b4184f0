"""The page of `unskew monitor`: small charts of all windows, below what is crossed and what to do."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unskew.report.charts import COLOURS, DASHES, INK, finish, svg
from unskew.report.page import Extra, Markup, Origin, Section, beside, figure, page, paragraph, points
from unskew.report.page import table as placed
from unskew.report.table import Table
from unskew.serve.monitor.findings import BY_FIELD, FIGURES, HAPPENED, MADE, RANKED, SPREAD, UNBIASED
from unskew.serve.monitor.monitor import Monitor
from unskew.serve.monitor.statistics import Window
from unskew.serve.store.events import in_iso

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = 5  # at most so many dates below a chart; more would touch on a phone
STYLE = """
details { margin-top: 0.4rem; }
summary { cursor: pointer; color: var(--soft); font-size: 0.9rem; padding: 0.3rem 0; }
details table { margin: 0.5rem 0 0; }
.bad { --mark: #c8452f; } .good { --mark: #1f9e89; } .verdict.none { --mark: #8a8f99; }
"""


@dataclass(frozen=True)
class Drawn:
    """A chart: the figures that it has as lines, and the threshold of one of them."""

    group: str
    title: str
    lines: Mapping[str, str]  # the name of each line, and the field of the windows
    setting: str = ""  # the threshold
    percent: bool = False
    level: float | None = None  # where things should be

    def fields(self) -> tuple[str, ...]:
        """The fields of the windows that it shows."""
        return tuple(self.lines.values())


CHARTS = (
    Drawn(HAPPENED, "Events", {"events": "events", "positives": "positives"}),
    Drawn(HAPPENED, "Newcomers", {"new users": "new_users", "new items": "new_items"}),
    Drawn(SPREAD, "Gini index", {"shown": "gini_shown", "clicked": "gini_clicked"}, "max_gini"),
    Drawn(
        *(SPREAD, "Coverage of the catalogue"),
        {"shown": "coverage_shown", "clicked": "coverage_clicked"},
        "min_coverage",
        percent=True,
    ),
    Drawn(SPREAD, "Popularity lift", {"shown over clicked": "lift"}, "max_lift", level=1),
    Drawn(SPREAD, "Age of the items, in days", {"shown": "age_shown", "clicked": "age_clicked"}),
    Drawn(MADE, "Click rate", {"click rate": "click_rate"}, "min_click_rate", percent=True),
    Drawn(
        MADE,
        "Fallback and random",
        {"fallback": "fallback", "random": "random"},
        "max_fallback",
        percent=True,
    ),
    Drawn(UNBIASED, "Effective sample", {"of the positives": "ess"}, "min_ess", percent=True),
    Drawn(UNBIASED, "Calibration of propensities", {"calibration": "calibration"}, level=1),
    Drawn(RANKED, "NDCG@10", {"before it was seen": "ndcg"}, "min_ndcg"),
)


@dataclass(frozen=True)
class Weeks:
    """Lines over windows. A window about which nothing is known is a gap; one that is still open is a hollow
    mark. Bands are one standard error on both sides."""

    labels: Sequence[str]
    lines: Mapping[str, Sequence[float]]
    title: str
    whole: Sequence[bool]
    errors: Mapping[str, Sequence[float]]
    threshold: float | None = None
    level: float | None = None
    percent: bool = False

    def draw(self, axes: "Axes") -> None:
        """Draw the lines on matplotlib's axes."""
        scale, places = 100 if self.percent else 1, range(len(self.labels))
        for (name, line), colour, dash in zip(self.lines.items(), COLOURS, DASHES, strict=False):
            y = [scale * value for value in line]
            axes.plot(places, y, color=colour, linestyle=dash, linewidth=1.8, label=name)
            for whole, face in ((True, colour), (False, "none")):
                marked = [at for at in places if self.whole[at] == whole and not math.isnan(y[at])]
                axes.plot(
                    *(marked, [y[at] for at in marked], "o"),
                    markersize=4 if whole else 5,
                    markerfacecolor=face,
                    markeredgecolor=colour,
                )
            if name in self.errors:
                error = [scale * value for value in self.errors[name]]
                low, high = ([a + sign * b for a, b in zip(y, error, strict=True)] for sign in (-1, 1))
                axes.fill_between(list(places), low, high, color=colour, alpha=0.18, linewidth=0)
        if self.level is not None:
            axes.axhline(self.level, color=INK, alpha=0.35, linewidth=0.9)
        if self.threshold is not None:
            axes.axhline(
                scale * self.threshold,
                color="#c8452f",
                linewidth=1.2,
                linestyle=(0, (2, 2)),
                label="threshold",
            )
        step = max(1, math.ceil(len(self.labels) / TICKS))
        ticks = list(places)[::-1][::step][::-1]  # the newest always has one
        axes.set_xticks(ticks, [self.labels[at] for at in ticks])
        axes.set_xlim(-0.4, max(len(self.labels) - 0.6, 0.4))
        if self.percent:
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        else:
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}")
        counts = all(
            value == round(value) for line in self.lines.values() for value in line if not math.isnan(value)
        )
        axes.locator_params("y", nbins=5, integer=counts and not self.percent)
        top = axes.get_ylim()[1]
        axes.set_ylim(0, 1.05 * top if top > 0 else 1)  # marks at the top are seen whole
        finish(axes, "", "", self.title, len(self.lines) + (self.threshold is not None) > 1)


def monitor_page(found: Monitor, command: str = "", date: str = "") -> str:
    """The whole report as one HTML file.

    command: the command line that made it, for the foot of the page.
    date: when it was made; by default now.
    """
    document = found.document()
    digest = hashlib.blake2b(json.dumps(document["windows"]).encode(), digest_size=16).hexdigest()
    groups = [HAPPENED, SPREAD, MADE, UNBIASED, *([RANKED] if found.run else [])]
    sections = [_section(found, group) for group in groups] if found.windows else []
    sections.append(_meanings(groups))
    subtitle = f"{found.store}, every {found.settings.every}" + (
        f", with a run of {found.run}" if found.run else ""
    )
    extra = Extra(style=STYLE, head="What to do" if found.crossed else "What to know")
    said = found.verdict()
    if not said.advice:
        extra = Extra(style=STYLE + ".verdict h3, .verdict ul { display: none; }")
    made = page("Is the recommender healthy?", said, sections, Origin(digest, command, date), subtitle, extra)
    return made.replace('<section class="verdict">', f'<section class="verdict {_look(found)}">', 1)


def _look(found: Monitor) -> str:
    return found.health.value


def _section(found: Monitor, group: str) -> Section:
    figures = [each for each in FIGURES if each.group == group]
    charts = [_chart(found, drawn) for drawn in CHARTS if drawn.group == group and _known(found, drawn)]
    rows = [[found.dated(window), *(each.of(window) for each in figures)] for window in found.windows[::-1]]
    if group == RANKED:
        charts.append(paragraph(_seen(found)))
    made = beside(*charts) if charts else paragraph("Nothing is known about this.")
    listed = placed(Table(["from", *(each.name for each in figures)], rows))
    return Section(group, (made, Markup(f"<details><summary>All windows</summary>{listed}</details>")))


def _seen(found: Monitor) -> str:
    """Which windows the run is not ranked on."""
    assert found.trained_until is not None
    until = in_iso(found.trained_until)[:16].replace("T", " ")
    seen = sum(window.seen for window in found.windows)
    return (
        f"The run was trained and chosen on what happened before {until} UTC. Windows that begin earlier are "
        f"marked as seen and are not scored: {seen} of {len(found.windows)}. In the others, each positive is "
        "ranked among the whole catalogue, with everything that the log and the store have from before it."
    )


def _known(found: Monitor, drawn: Drawn) -> bool:
    return any(not math.isnan(getattr(window, field)) for window in found.windows for field in drawn.fields())


def _chart(found: Monitor, drawn: Drawn) -> Markup:
    windows = found.windows
    lines = {}
    for name, field in drawn.lines.items():
        line = _line(windows, field)
        lines[f"{name} (not known)" if all(map(math.isnan, line)) else name] = line
    chart = Weeks(
        labels=[_label(found, window) for window in windows],
        lines=lines,
        title=drawn.title,
        whole=[window.whole for window in windows],
        errors={
            name: _line(windows, f"{field}_error")
            for name, field in drawn.lines.items()
            if hasattr(windows[0], f"{field}_error")
        },
        threshold=getattr(found.settings, drawn.setting) if drawn.setting else None,
        level=drawn.level,
        percent=drawn.percent,
    )
    name = f"chart-{drawn.fields()[0].replace('_', '-')}"
    last = {line: BY_FIELD[field].of(windows[-1]) for line, field in drawn.lines.items()}
    alt = f"{drawn.title}, by window; in the newest one " + ", ".join(f"{k} {v}" for k, v in last.items())
    return figure(svg(chart, name, alt))


def _line(windows: Sequence[Window], field: str) -> list[float]:
    return [float(getattr(window, field)) for window in windows]


def _label(found: Monitor, window: Window) -> str:
    """Month and day; where windows are shorter than a day, the hour."""
    text = found.dated(window).removesuffix(" (open)")
    return text[5:10] if len(text) == 10 else text[8:16].replace("T", " ")


def _meanings(groups: Sequence[str]) -> Section:
    said = [
        f"{each.name[:1].upper()}{each.name[1:]}: {each.meaning}." for each in FIGURES if each.group in groups
    ]
    first = (
        "A dash is what is not known. A window is open until it has ended and the store goes on to its end; "
    )
    first += "in the charts its mark is hollow. Bands are one standard error on both sides."
    return Section("What the figures mean", (paragraph(first), points(said, topics=True)))
