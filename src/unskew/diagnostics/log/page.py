"""The bias page of `unskew inspect`: how biased a log is, what to do about it, and what else it is like."""

import math
from pathlib import Path

from unskew.diagnostics.log.inspect import Inspection
from unskew.diagnostics.log.statistics import Lengths
from unskew.report.charts import Bars, Lines, Marked, svg
from unskew.report.charts import picture as drawn
from unskew.report.page import Markup, Origin, Section, beside, facts, figure, page, paragraph, points
from unskew.report.page import table as placed
from unskew.report.summary import Row
from unskew.report.table import Table

DRAWN_TESTS = ("ordinary", "balanced", "randomised")  # more bars per tenth could not be told apart


def inspect_page(inspection: Inspection, command: str = "", date: str = "") -> str:
    """The whole report as one HTML file.

    command: the command line that made it, for the foot of the page.
    date: when it was made; by default now.
    """
    origin = Origin(inspection.fingerprint, command, date)
    sections = (
        Section("The biases", (points(inspection.biases(), topics=True),)),
        _popularity(inspection),
        _drift(inspection),
        _tests(inspection),
        _facts(inspection),
        _order(inspection),
        _lengths(inspection),
        _split(inspection),
    )
    name = _name(inspection.source)
    return page(f"How biased is {name}?", inspection.verdict(), sections, origin, inspection.source)


def picture(inspection: Inspection) -> str:
    """The bias in one picture, for a README: the popularity curve, and what the balanced test changes."""
    alt = f"Popularity curve and tests of {_name(inspection.source)}"
    return drawn(
        (_curve(inspection, "Popularity of the items"), _deciles(inspection, "What the test asks for")),
        "bias",
        alt,
    )


# Biases


def _popularity(inspection: Inspection) -> Section:
    chart = svg(_curve(inspection), "popularity", "Positives per item by rank, both on log scales")
    drawing = figure(chart, "The positives of each item, from the most to the least popular item.")
    return Section("Popularity", (beside(drawing, facts(_rows(inspection, "popularity"))),))


def _drift(inspection: Inspection) -> Section:
    title, drift = "Drift of popularity", inspection.drift
    if len(drift.slices) == 1:
        return Section(title, (paragraph("All positives have the same time, so no drift can be seen."),))
    number = list(range(1, len(drift.slices) + 1))
    x_label = f"time slice (1 to {number[-1]})"
    lines = {
        "slice before": [part.overlap_previous for part in drift.slices],
        "first slice": [part.overlap_first for part in drift.slices],
        "slice before, all items": [part.correlation for part in drift.slices],
    }
    lowest = min((y for series in lines.values() for y in series if not math.isnan(y)), default=0.0)
    similar = Lines(
        number,
        lines,
        x_label,
        "likeness to",
        x_ticks=number,
        y_range=(min(0.0, lowest - 0.05), 1.03),
        marked=True,
    )
    new = Bars(
        [str(n) for n in number[1:]],
        {"new": [part.new for part in drift.slices[1:]]},
        x_label,
        "positives on new items",
    )
    intro = (
        f"The positives are cut into {len(drift.slices)} time slices of about equal size. The first begins "
        f"at {drift.slices[0].start}, the last at {drift.slices[-1].start}."
    )
    likeness = figure(
        svg(similar, "drift", "Similarity of popularity between slices of time"),
        f"How many of the {drift.top} most popular items are the same (overlap by Jaccard; 1: all of "
        "them), "
        "and the rank correlation (Spearman) of the popularity of all items.",
    )
    newcomers = figure(
        svg(new, "new-items", "Share of positives on items that are new in each slice"),
        "Positives on items that appear in this slice for the first time.",
    )
    in_figures = facts(_rows(inspection, "drift"))
    return Section(title, (beside(paragraph(intro), in_figures), beside(likeness, newcomers)))


def _tests(inspection: Inspection) -> Section:
    drawing = figure(
        svg(_deciles(inspection), "tests", "Share of test positives per tenth of the items, per test"),
        "The items that training knows, in tenths. Positives on items that are new since training are left "
        "out of the chart; the table has their fraction.",
    )
    groups = [_rows(inspection, f"{tested.test} test") for tested in inspection.tests]
    head = ["test", *(row.name for row in groups[0])]
    rows = [
        [tested.test, *(row.value for row in group)]
        for tested, group in zip(inspection.tests, groups, strict=True)
    ]
    caption = "Each test gives every positive a weight; fractions and means are weighted."
    explained = [f"{row.name[:1].upper() + row.name[1:]}: {row.meaning}." for row in groups[0] if row.meaning]
    return Section(
        "What the tests ask for",
        (beside(drawing, points(explained, topics=True)), placed(Table(head, rows, caption=caption))),
    )


# Facts


def _facts(inspection: Inspection) -> Section:
    intro = paragraph(
        "These are properties of the log and not biases. They say what a model can use, and what it cannot."
    )
    names = ("size", "time", "ties", "repeats")
    return Section(
        "Facts about this log",
        (
            intro,
            points(inspection.facts(), topics=True),
            beside(*(_named(inspection, name) for name in names)),
        ),
    )


def _order(inspection: Inspection) -> Section:
    shuffle = inspection.shuffle
    title, found = "Fact: does the order of events matter?", facts(_rows(inspection, "order"))
    why = paragraph(
        "If the order meant nothing, each user's items could change places without harm. Counted are pairs "
        "of equal steps from one item to the next, in the log and after shuffling. Trends are order, too."
    )
    if not shuffle.observed and not shuffle.mean:
        return Section(title, (why, found))
    chart = Marked(
        shuffle.shuffled, "shuffled", shuffle.observed, "this log", "repeated transitions", "shuffles"
    )
    drawing = figure(svg(chart, "shuffle", "Repeated transitions in the log and in its shuffles"))
    return Section(title, (why, beside(drawing, found)))


def _lengths(inspection: Inspection) -> Section:
    def part(name: str, lengths: Lengths, what: str) -> Markup:
        labels = [str(b.low) if b.low == b.high else f"{b.low}–{b.high}" for b in lengths.bins]
        chart = Bars(labels, {name: [b.fraction for b in lengths.bins]}, f"{what} before", "of the positives")
        drawing = svg(chart, f"{name.replace(' ', '-')}-lengths", f"Length of the {name} at each positive")
        return Markup(figure(drawing) + _named(inspection, name))

    both = beside(
        part("user history", inspection.history, "items"), part("item audience", inspection.audience, "users")
    )
    what = "What a model can read at each positive: the user's items and the item's users strictly before it."
    return Section("Fact: how much past there is", (paragraph(what), both))


def _split(inspection: Inspection) -> Section:
    names = {name: name for name in ("part", "rows", "positives", "users", "items")}
    names |= {
        "unknown_user_rows": "rows of new users",
        "unknown_item_rows": "rows on new items",
        "repeated_positives": "repeats",
        "first_appearances": "first of an item",
    }
    rows = [
        [f"{row[name]:,}" if isinstance(row[name], int) else str(row[name]) for name in names]
        for row in inspection.split
    ]
    what = "The log is cut at two moments: everything in a later part happened later, for all users."
    return Section("Fact: the split", (paragraph(what), placed(Table(list(names.values()), rows))))


# Charts and tables that are used twice


def _curve(inspection: Inspection, title: str = "") -> Lines:
    rank, positives = zip(*inspection.popularity.curve, strict=True)
    label = f"rank of the item (Gini index {inspection.popularity.gini:.2f})"
    return Lines(rank, {"positives": positives}, label, "positives", title, logarithmic=True, filled=True)


def _deciles(inspection: Inspection, title: str = "") -> Bars:
    """Of the test positives on known items, the fraction per tenth of these items."""
    fractions = {}
    for tested in inspection.tests:
        known = sum(tested.deciles)
        if tested.test in DRAWN_TESTS and known > 0:  # a test without positives has no fractions to draw
            fractions[f"{tested.test} test"] = [fraction / known for fraction in tested.deciles]
    labels = [str(tenth) for tenth in range(1, len(inspection.tests[0].deciles) + 1)]
    return Bars(labels, fractions, "tenth of the items, most popular first", "of the test", title)


def _named(inspection: Inspection, group: str) -> Markup:
    return facts(_rows(inspection, group), group.capitalize())


def _rows(inspection: Inspection, group: str) -> list[Row]:
    return [row for row in inspection.rows() if row.group == group]


def _name(source: str) -> str:
    return Path(source).name or source
