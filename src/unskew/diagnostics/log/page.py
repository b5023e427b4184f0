"""The bias page of `unskew inspect`: how biased a log is, what to do about it, and what else it is like."""

import math
from collections import defaultdict
from pathlib import Path

from markupsafe import Markup

from unskew.diagnostics.log.inspect import Inspection
from unskew.diagnostics.log.statistics import Lengths
from unskew.report import charts
from unskew.report.charts import Bars, Lines, Marked, svg
from unskew.report.page import Page
from unskew.report.summary import Row
from unskew.report.table import Table
from unskew.report.templates import render

DRAWN_TESTS = ("ordinary", "balanced", "randomised")  # more bars per tenth could not be distinguished
SPLIT_COLUMNS = {
    **{name: name for name in ("part", "rows", "positives", "users", "items")},
    "unknown_user_rows": "rows of new users",
    "unknown_item_rows": "rows on new items",
    "repeated_positives": "repeats",
    "first_appearances": "first of an item",
}


def inspect_page(inspection: Inspection, command: str = "", date: str = "") -> str:
    """The whole report as one HTML file.

    command: the command line that made it, for the foot of the page.
    date: when it was made; by default now.
    """
    title = f"How biased is {_name(inspection.source)}?"
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in inspection.rows():
        rows[row.group].append(row)
    tests = {tested.test: rows[f"{tested.test} test"] for tested in inspection.tests}
    first = next(iter(tests.values()))
    split = [
        [f"{row[name]:,}" if isinstance(row[name], int) else str(row[name]) for name in SPLIT_COLUMNS]
        for row in inspection.split
    ]
    return render(
        "diagnostics/templates/inspection.html",
        page=Page(title, inspection.verdict(), inspection.fingerprint, command, date, inspection.source),
        inspection=inspection,
        rows=rows,
        charts=_charts(inspection),
        test_meanings=[
            f"{row.name[:1].upper()}{row.name[1:]}: {row.meaning}." for row in first if row.meaning
        ],
        tests=Table(
            ["test", *(row.name for row in first)],
            [[test, *(row.value for row in group)] for test, group in tests.items()],
            caption="Each test gives every positive a weight; fractions and means are weighted.",
        ),
        split=Table(list(SPLIT_COLUMNS.values()), split),
    )


def picture(inspection: Inspection) -> str:
    """The bias in one picture, for a README: the popularity curve, and what the balanced test changes."""
    panels = _curve(inspection, "Popularity of the items"), _deciles(inspection, "What the test asks for")
    return charts.picture(panels, "bias", f"Popularity curve and tests of {_name(inspection.source)}")


def _charts(inspection: Inspection) -> dict[str, Markup]:
    """The charts of the page by name, without those for which there is nothing to draw."""
    drawings = {
        "popularity": svg(_curve(inspection), "popularity", "Positives per item by rank, both on log scales"),
        "tests": svg(
            _deciles(inspection), "tests", "Fraction of test positives per tenth of the items, per test"
        ),
        "user history": _lengths("user history", inspection.history, "items"),
        "item audience": _lengths("item audience", inspection.audience, "users"),
    }
    if len(inspection.drift.slices) > 1:
        similarity, new = _drift(inspection)
        drawings["drift"] = svg(similarity, "drift", "Similarity of popularity between slices of time")
        drawings["new_items"] = svg(
            new, "new-items", "Fraction of positives on items that are new in each slice"
        )
    shuffle = inspection.shuffle
    if shuffle.observed or shuffle.mean:
        chart = Marked(
            shuffle.shuffled, "shuffled", shuffle.observed, "this log", "repeated transitions", "shuffles"
        )
        drawings["order"] = svg(chart, "shuffle", "Repeated transitions in the log and in its shuffles")
    return drawings


def _drift(inspection: Inspection) -> tuple[Lines, Bars]:
    slices = inspection.drift.slices
    numbers = list(range(1, len(slices) + 1))
    x_label = f"time slice (1 to {numbers[-1]})"
    lines = {
        "slice before": [part.overlap_previous for part in slices],
        "first slice": [part.overlap_first for part in slices],
        "slice before, all items": [part.correlation for part in slices],
    }
    lowest = min((y for series in lines.values() for y in series if not math.isnan(y)), default=0.0)
    y_range = min(0.0, lowest - 0.05), 1.03
    similarity = Lines(
        numbers, lines, x_label, "similarity to", x_ticks=numbers, y_range=y_range, marked=True
    )
    new = {"new": [part.new for part in slices[1:]]}
    return similarity, Bars([str(number) for number in numbers[1:]], new, x_label, "positives on new items")


def _lengths(name: str, lengths: Lengths, unit: str) -> Markup:
    labels = [str(b.low) if b.low == b.high else f"{b.low}–{b.high}" for b in lengths.bins]
    fractions = {name: [b.fraction for b in lengths.bins]}
    chart = Bars(labels, fractions, f"{unit} before", "of the positives")
    return svg(chart, f"{name.replace(' ', '-')}-lengths", f"Length of the {name} at each positive")


def _curve(inspection: Inspection, title: str = "") -> Lines:
    rank, positives = zip(*inspection.popularity.curve, strict=True)
    label = f"rank of the item (Gini index {inspection.popularity.gini:.2f})"
    return Lines(rank, {"positives": positives}, label, "positives", title, logarithmic=True, filled=True)


def _deciles(inspection: Inspection, title: str = "") -> Bars:
    """Of the test positives on known items, the fraction per tenth of these items."""
    fractions = {
        f"{tested.test} test": [fraction / sum(tested.deciles) for fraction in tested.deciles]
        for tested in inspection.tests
        if tested.test in DRAWN_TESTS and sum(tested.deciles) > 0  # without positives there are no fractions
    }
    labels = [str(tenth) for tenth in range(1, len(inspection.tests[0].deciles) + 1)]
    return Bars(labels, fractions, "tenth of the items, most popular first", "of the test", title)


def _name(source: str) -> str:
    return Path(source).name or source
