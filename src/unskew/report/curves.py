"""Charts of many series that share one legend, which the page has: training curves, trade-offs, costs.

A series has the same look in every chart of a page. A script of the page finds the values of a point by its
place (`Frame`), and a series by its `data-series`.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from unskew.report.charts import COLOURS, DASHES, INK, finish, minor_ticks, thousands
from unskew.report.templates import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Mid-tones, readable on white and on black.
MANY = (*COLOURS[:3], "#c2559d", "#8c6bd1", "#b08a00", "#d1495b", COLOURS[3])
SHAPED = 4  # points of a curve that have its shape, at most
SHAPES = "osD^vP*X<>"


class Style(NamedTuple):
    """How one of many series looks, in every chart of a page."""

    colour: str
    dash: Any
    shape: str
    hollow: bool


def style_of(number: int) -> Style:
    """The look of a series by its number. The first twenty differ in colour, and also without colours."""
    colour = MANY[number % len(MANY)]
    dash = DASHES[(number + number // len(MANY)) % len(DASHES)]
    return Style(colour, dash, SHAPES[number % len(SHAPES)], number // len(SHAPES) % 2 == 1)


Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One series: its look by number, the points of its line, a point that stands out, if it has one, and
    what the points of the line are called, if they have names."""

    style: int
    points: Sequence[Point] = ()
    spot: Point | None = None
    names: Sequence[str] = ()

    def every(self) -> list[Point]:
        """All points, the one that stands out last."""
        return [*self.points, *([] if self.spot is None else [self.spot])]


@dataclass(frozen=True)
class Curves:
    """Many series, each with points of its own, explained by a legend that the page has.

    labelled: write the name of a series beside the point that stands out, where there is room.
    x_names: words for some places on the axis, instead of numbers.
    """

    series: Mapping[str, Curve]
    x_label: str
    y_label: str
    title: str = ""
    logarithmic: bool = False  # the x axis
    labelled: bool = False
    x_names: Mapping[float, str] | None = None

    def draw(self, axes: "Axes") -> None:
        """Draw the series on matplotlib's axes."""
        for number, curve in enumerate(self.series.values()):
            style = style_of(curve.style)
            face = "none" if style.hollow else style.colour
            looks: dict[str, Any] = {"color": style.colour, "mfc": face, "gid": f"series-{number}"}
            looks |= {"ls": style.dash, "lw": 1.4, "clip_on": False}
            if curve.points and curve.spot is not None:
                axes.plot(*zip(*curve.points, strict=True), marker="o", ms=2.2, **looks)
            elif curve.points:
                # Of many points only some have the shape of their series: shapes must not become a band.
                every = -(-len(curve.points) // SHAPED)
                axes.plot(
                    *zip(*curve.points, strict=True), marker=style.shape, ms=4.5, markevery=every, **looks
                )
            if curve.spot is not None:
                axes.plot(*curve.spot, marker=style.shape, ms=6.5, zorder=3, **looks)
        if self.logarithmic:
            axes.set_xscale(
                "log", subs=minor_ticks([x for curve in self.series.values() for x, _ in curve.every()])
            )
            axes.xaxis.set_major_formatter(thousands)
            axes.xaxis.set_minor_formatter(thousands)
        elif self.x_names is not None:
            axes.set_xticks(list(self.x_names), list(self.x_names.values()))
        else:
            axes.locator_params("x", nbins=6, integer=not self.labelled)
        axes.locator_params("y", nbins=6)
        finish(axes, self.x_label, self.y_label, self.title, legend=False, pad=8)

    def label(self, axes: "Axes") -> None:
        """Write names beside points that stand out, each at the first position around its point where it
        covers nothing. A name for which there is no room is left to the legend."""
        if not self.labelled:
            return
        spots = {number: curve.spot for number, curve in enumerate(self.series.values()) if curve.spot}
        points = 72 / axes.figure.dpi
        left, bottom, right, top = (edge * points for edge in axes.get_window_extent().extents)
        centres = axes.transData.transform(list(spots.values())) * points
        taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in centres]
        for (number, spot), (x, y) in zip(spots.items(), centres, strict=True):
            name = list(self.series)[number]
            width, height = 4.4 * len(name), 8.0
            for dx, dy in _positions(width, height):
                box = x + dx, y + dy, x + dx + width, y + dy + height
                inside = left <= box[0] and box[2] <= right + 4 and bottom <= box[1] and box[3] <= top
                if inside and not any(_overlap(box, other) for other in taken):
                    taken.append(box)
                    text = axes.annotate(name, spot, (dx, dy), textcoords="offset points", fontsize=8)
                    text.set(gid=f"series-{number}", in_layout=False, color=INK)
                    break


def _positions(width: float, height: float) -> Iterator[tuple[float, float]]:
    """Where a label may stand, as the distance of its lower left corner from the point: right, left, above
    and below, then at the corners; first near the point and then farther away."""
    for gap in (6.0, 11.0):
        right, left, above, below = gap, -gap - width, gap, -gap - height
        yield from ((right, -height / 2), (left, -height / 2), (-width / 2, above), (-width / 2, below))
        yield from itertools.product((right, left), (above - 4, below + 4))


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def swatch(number: int) -> Markup:
    """The look of a series as the content of a small SVG, 26 wide and 10 high."""
    from matplotlib.markers import MarkerStyle

    style = style_of(number)
    marker = MarkerStyle(style.shape)
    corners: Any = marker.get_path().transformed(marker.get_transform()).vertices
    return Markup(
        render(
            "report/templates/swatch.svg",
            style=style,
            dashes=() if style.dash == "-" else style.dash[1],
            corners=() if style.shape == "o" else [(13 + 6 * x, 5 - 6 * y) for x, y in corners],
        )
    )
