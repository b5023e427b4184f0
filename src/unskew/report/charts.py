"""Charts as data, drawn by matplotlib as SVG text that goes straight into a page or into a file of its own.

Ink is `currentColor`, so a chart in a page is as dark or light as the page's text, and a file of its own
brings the colours of both modes along. Text stays text. Ids carry the chart's name, so that many charts can
live in one page. The same chart is the same bytes.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from markupsafe import Markup

from unskew.core.errors import BadInput
from unskew.report.svg import compact
from unskew.report.templates import ROOT, inline_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# They differ for the colour-blind, and they are strong enough on white and on black.
COLOURS = ("#2f80c8", "#dd7a26", "#1f9e89", "#8a8f99")
# Lines also differ in their dashes, so that they can be distinguished in black and white.
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
INK, GROUND = "#010203", "#fdfeff"  # replaced after matplotlib has drawn; nothing else has these colours
PANEL = (4.9, 3.0)  # inches; a chart of this size is readable at the width of a phone


@dataclass(frozen=True)
class Lines:
    """Series over a common x; nan and, on log scales, 0 leave gaps."""

    x: Sequence[float]
    series: Mapping[str, Sequence[float]]
    x_label: str
    y_label: str
    title: str = ""
    logarithmic: bool = False
    x_ticks: Sequence[float] | None = None
    y_range: tuple[float, float] | None = None
    filled: bool = False
    marked: bool = False

    def draw(self, axes: "Axes") -> None:
        """Draw the lines on matplotlib's axes."""
        styles = zip(self.series.items(), cycle(COLOURS), cycle(DASHES), strict=False)
        marker = "o" if self.marked else ""
        for (name, y), colour, dash in styles:
            axes.plot(self.x, y, color=colour, ls=dash, label=name, lw=1.8, marker=marker, ms=3.5)
            if self.filled:
                axes.fill_between(self.x, y, min(y, default=0), color=colour, alpha=0.15, linewidth=0)
        if self.logarithmic:
            values = [y for series in self.series.values() for y in series if y > 0]
            axes.set_xscale("log")
            axes.set_yscale("log", subs=minor_ticks(values))
            axes.xaxis.set_major_formatter(thousands)
            axes.yaxis.set_major_formatter(thousands)
            axes.yaxis.set_minor_formatter(thousands)
            axes.tick_params(axis="x", which="minor", length=0)
        if self.x_ticks is not None:
            axes.set_xticks(self.x_ticks)
        if self.y_range is not None:
            axes.set_ylim(*self.y_range)
        finish(axes, self.x_label, self.y_label, self.title, len(self.series) > 1)


@dataclass(frozen=True)
class Bars:
    """One group of bars per label, one bar per series in it; heights are fractions."""

    labels: Sequence[str]
    series: Mapping[str, Sequence[float]]
    x_label: str
    y_label: str
    title: str = ""

    def draw(self, axes: "Axes") -> None:
        """Draw the bars on matplotlib's axes."""
        width = 0.8 / max(len(self.series), 1)
        bars = zip(self.series.items(), cycle(COLOURS), strict=False)
        for at, ((name, heights), colour) in enumerate(bars):
            left = [group - 0.4 + at * width for group in range(len(self.labels))]
            percents = [100 * height for height in heights]
            axes.bar(left, percents, width * 0.94, align="edge", color=colour, label=name)
        axes.set_xticks(range(len(self.labels)), self.labels)
        if sum(len(label) for label in self.labels) > 26:  # they would touch
            axes.tick_params("x", labelrotation=40)
            for text in axes.get_xticklabels():
                text.set(horizontalalignment="right", rotation_mode="anchor")
        axes.yaxis.set_major_formatter("{x:g} %")
        tallest = max((height for heights in self.series.values() for height in heights), default=0)
        axes.set_ylim(0, max(105 * tallest, 1))
        axes.locator_params("y", nbins=6, steps=[1, 2, 5, 10])
        finish(axes, self.x_label, self.y_label, self.title, len(self.series) > 1)


@dataclass(frozen=True)
class Marked:
    """A histogram of what chance gives, and a line where the observed value is."""

    values: Sequence[float]
    values_name: str
    mark: float
    mark_name: str
    x_label: str
    y_label: str
    title: str = ""

    def draw(self, axes: "Axes") -> None:
        """Draw the chart with its marks on matplotlib's axes."""
        low, high = min(*self.values, self.mark), max(*self.values, self.mark)
        width = high - low or 1
        # Bins as wide as a fiftieth of the axis: with a mark far off, the bars must stay visible.
        smallest, largest = min(self.values), max(self.values)
        bins = max(1, min(10, round(50 * (largest - smallest) / width)))
        margin = max(0.0, width / 50 - (largest - smallest)) / 2
        limits = smallest - margin, largest + margin
        axes.hist(self.values, bins, range=limits, color=COLOURS[0], label=self.values_name)
        axes.axvline(self.mark, color=COLOURS[1], linewidth=2.2, label=self.mark_name)
        axes.xaxis.set_major_formatter(thousands)
        axes.locator_params(axis="x", nbins=5)
        axes.locator_params(axis="y", integer=True)
        axes.set_xlim(low - 0.08 * width, high + 0.08 * width)
        finish(axes, self.x_label, self.y_label, self.title, legend=True)


class Chart(Protocol):
    """Whatever can be drawn."""

    def draw(self, axes: "Axes") -> None:
        """Draw on matplotlib's axes."""


@runtime_checkable
class Labelled(Protocol):
    """A chart whose labels stand where there is room for them."""

    def label(self, axes: "Axes") -> None:
        """Write the labels on axes that have their final size."""


class Frame(NamedTuple):
    """Where the axes of a drawing are: the values at its left, right, bottom and top, and the same places in
    the drawing's own units."""

    values: tuple[float, float, float, float]
    places: tuple[float, float, float, float]


def svg(chart: Chart, name: str, alt: str) -> Markup:
    """One chart for a page, in the page's colours. `name` must be unique in the page; `alt` says what is
    seen, for people who do not see it."""
    return drawing(chart, name, alt)[0]


def drawing(chart: Chart, name: str, alt: str) -> tuple[Markup, Frame]:
    """The same with the place of its axes, from which a script finds the place of any value."""
    text, frame = _rendered([chart], "none")
    return compact(text, name, alt), frame


def picture(charts: Sequence[Chart], name: str, alt: str) -> str:
    """Panels side by side as one file that stands alone: dark on white, or light on black in dark mode."""
    text, _ = _rendered(charts, GROUND)
    drawn = compact(text, name, alt, inline_file("report/templates/picture.css"))
    return str(drawn).replace(f'style="fill: {GROUND}"', 'class="ground"')


def _rendered(charts: Sequence[Chart], ground: str) -> tuple[str, Frame]:
    """Panels side by side, and where the axes of the first one are."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise BadInput("plots need matplotlib: pip install '.[report]' in a clone of unskew") from None
    # The user's own matplotlibrc must not change a report.
    with mpl.rc_context():
        mpl.rc_file(ROOT / "report/templates/charts.mplstyle")
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
        figure = Figure(figsize=(PANEL[0] * len(charts), PANEL[1]), layout=layout)
        figure.patch.set_visible(ground != "none")
        for at, chart in enumerate(charts):
            axes = figure.add_subplot(1, len(charts), at + 1)
            axes.patch.set_visible(False)
            chart.draw(axes)
        # Ticks are known only when they are drawn, and the layout needs their width.
        figure.draw_without_rendering()
        for axes, chart in zip(figure.axes, charts, strict=True):
            if isinstance(chart, Labelled):
                chart.label(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", facecolor=ground)
    return file.getvalue().replace(INK, "currentColor"), _frame(figure)


def _frame(figure: "Figure") -> Frame:
    """Where the first axes are in the drawing, whose unit is a point, counted from the top left."""
    axes, (width, height) = figure.axes[0], figure.get_size_inches() * 72
    box = axes.get_position()
    places = box.x0 * width, box.x1 * width, (1 - box.y0) * height, (1 - box.y1) * height
    return Frame((*axes.get_xlim(), *axes.get_ylim()), places)


def finish(axes: "Axes", x_label: str, y_label: str, title: str, legend: bool, pad: float = 22) -> None:
    """Labels, grid, title and legend.

    pad: the room between title and axes: by default enough for a legend, with or without one, so that the
        titles of panels align.
    """
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.7, clip_on=False)
    axes.set_axisbelow(True)
    _, names = axes.get_legend_handles_labels()
    columns = len(names) if sum(map(len, names)) < 36 else 2
    if title:
        axes.set_title(title, loc="left", pad=pad if len(names) <= columns else 36)
    if legend:
        # Above the axes: it can never cover the data.
        corner = (-0.01, 0.99)
        axes.legend(
            loc="lower left", bbox_to_anchor=corner, ncols=columns, columnspacing=1.2, borderaxespad=0.2
        )


def minor_ticks(values: Sequence[float]) -> list[int]:
    """The multiples of powers of ten that have ticks, too: powers alone would leave an axis of less than two
    decades without numbers."""
    return [2, 5] if max(values, default=1) < 100 * min(values, default=1) else []


def thousands(value: float, _: float) -> str:
    """A number at a tick of an axis."""
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"
