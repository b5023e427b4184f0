"""The report of `unskew inspect`: what a log is like and what is biased in it, on one page."""

import math
from collections.abc import Iterable
from pathlib import Path

from unskew.describe.figures import Lengths
from unskew.describe.log import Inspection, Row
from unskew.report.charts import Bars, Lines, Marked, svg
from unskew.report.charts import picture as drawn
from unskew.report.page import Markup, Section, beside, figure, page, paragraph, points, table


def inspect_page(inspection: Inspection) -> str:
    """The whole report as one HTML file."""
    sections = (
        Section("What is biased here?", (points(inspection.sentences()),)),
        _size(inspection),
        _popularity(inspection),
        _drift(inspection),
        _lengths(inspection),
        _order(inspection),
        _tests(inspection),
        _split(inspection),
    )
    return page(f"Inspection of {_name(inspection.source)}", sections, inspection.source)


def picture(inspection: Inspection) -> str:
    """The bias in one picture, for a README: the popularity curve, and what the balanced test changes."""
    alt = f"Popularity curve and tests of {_name(inspection.source)}"
    return drawn(
        (_curve(inspection, "Popularity of the items"), _deciles(inspection, "What the test asks for")),
        "bias",
        alt,
    )


def _size(inspection: Inspection) -> Section:
    size, time = _rows(inspection, "size"), _rows(inspection, "time")
    return Section("Size and time", (beside(_facts(size, "The paper's Table 1"), _facts(time, "Time")),))


def _popularity(inspection: Inspection) -> Section:
    chart = svg(_curve(inspection), "popularity", "Positives per item by rank, both on log scales")
    drawing = figure(chart, "Each item's positives, the most popular first.")
    return Section("Popularity", (beside(drawing, _facts(_rows(inspection, "popularity"))),))


def _drift(inspection: Inspection) -> Section:
    drift = inspection.drift
    if len(drift.slices) == 1:
        return Section("Drift", (paragraph("All positives have the same time: no drift to see."),))
    number = list(range(1, len(drift.slices) + 1))
    x_label = f"slice of the positives, in time (1 to {number[-1]})"
    lines = {
        "slice before": [part.overlap_previous for part in drift.slices],
        "first slice": [part.overlap_first for part in drift.slices],
        "slice before, by rank": [part.correlation for part in drift.slices],
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
    first, last = drift.slices[0].start, drift.slices[-1].start
    return Section(
        "Drift of popularity",
        (
            paragraph(
                f"The positives are cut into {len(drift.slices)} slices of about equal size, in time; the "
                f"first begins at {first},"
                f" the last at {last}."
            ),
            beside(
                figure(
                    svg(similar, "drift", "Similarity of popularity between slices of time"),
                    f"Overlap (Jaccard) of the {drift.top} most popular items with those of the slice "
                    "before and of the first one;"
                    " Spearman correlation of the counts of all items with the slice before.",
                ),
                figure(
                    svg(new, "new-items", "Share of positives on items that are new in each slice"),
                    "Share of each slice's positives on items that the log shows for the first time in it.",
                ),
            ),
        ),
    )


def _lengths(inspection: Inspection) -> Section:
    def part(name: str, lengths: Lengths, what: str) -> Markup:
        labels = [str(b.low) if b.low == b.high else f"{b.low}–{b.high}" for b in lengths.bins]
        chart = Bars(
            labels, {name: [b.share for b in lengths.bins]}, f"{what} strictly before", "of the positives"
        )
        rows = "; ".join(f"{row.name} = {row.value}" for row in _rows(inspection, name))
        return figure(
            svg(chart, f"{name}-lengths", f"Lengths of the {name} at each positive"),
            f"{name.capitalize()}: {rows}.",
        )

    both = beside(
        part("history", inspection.history, "items"), part("audience", inspection.audience, "users")
    )
    return Section(
        "Histories and audiences",
        (paragraph("What a model can read at each positive: events strictly before it."), both),
    )


def _order(inspection: Inspection) -> Section:
    shuffle = inspection.shuffle
    why = paragraph(
        "If order means nothing, each user's items may change places without harm. Counted: pairs of equal "
        "steps from one item"
        " to the next, in the log and after shuffling. Trends count as order, too."
    )
    if not shuffle.observed and not shuffle.mean:
        return Section("Does the order carry information?", (why, _facts(_rows(inspection, "order"))))
    chart = Marked(
        shuffle.shuffled, "shuffled", shuffle.observed, "this log", "repeated transitions", "shuffles"
    )
    drawing = figure(svg(chart, "shuffle", "Repeated transitions in the log and in its shuffles"))
    return Section(
        "Does the order carry information?", (why, beside(drawing, _facts(_rows(inspection, "order"))))
    )


def _tests(inspection: Inspection) -> Section:
    drawing = figure(
        svg(_deciles(inspection), "tests", "Share of test positives per tenth of the items, per test"),
        "Known items in tenths, the most popular in training first; “new”: share of all test positives on "
        "items that training never saw.",
    )
    groups = [_rows(inspection, f"{tested.test} test") for tested in inspection.tests]
    names = [tested.test for tested in inspection.tests]
    rows = [[same[0].name, *(row.value for row in same)] for same in zip(*groups, strict=True)]
    figures = table(
        ["", *names], rows, caption="Each test is a weight per positive; shares and means are weighted."
    )
    return Section(
        "What the tests ask for", (beside(drawing, figures), _facts(_rows(inspection, "repeats"), "Repeats"))
    )


def _split(inspection: Inspection) -> Section:
    names = {name: name for name in ("part", "rows", "positives", "users", "items")}
    names |= {
        "unknown_user_rows": "of new users",
        "unknown_item_rows": "on new items",
        "repeated_positives": "repeats",
    }
    names |= {"first_appearances": "first of an item"}
    rows = [
        [f"{row[name]:,}" if isinstance(row[name], int) else str(row[name]) for name in names]
        for row in inspection.split
    ]
    return Section(
        "Split",
        (
            paragraph("One global time line: everything in a later part happened later."),
            table(list(names.values()), rows, text=(0,)),
        ),
    )


def _curve(inspection: Inspection, title: str = "") -> Lines:
    rank, positives = zip(*inspection.popularity.curve, strict=True)
    label = f"rank of the item (Gini {inspection.popularity.gini:.2f})"
    return Lines(rank, {"positives": positives}, label, "positives", title, logarithmic=True, filled=True)


def _deciles(inspection: Inspection, title: str = "") -> Bars:
    """Of the positives on known items, the share per tenth of them; the new items would dwarf the rest and
    stand in the legend."""
    shares = {}
    for tested in inspection.tests:
        known = sum(tested.deciles)
        if known > 0:  # a test without positives on known items (nan or 0) has no shares to draw
            shares[f"{tested.test} (+ {100 * tested.unknown_items:.0f} % new)"] = [
                share / known for share in tested.deciles
            ]
    labels = [str(tenth) for tenth in range(1, len(inspection.tests[0].deciles) + 1)]
    return Bars(
        labels, shares, "tenth of the known items, most popular first", "test positives on known items", title
    )


def _facts(rows: Iterable[Row], caption: str = "") -> Markup:
    return table(
        ("", "", ""), [(row.name, row.value, row.meaning) for row in rows], remarks=(2,), caption=caption
    )


def _rows(inspection: Inspection, group: str) -> list[Row]:
    return [row for row in inspection.rows() if row.group == group]


def _name(source: str) -> str:
    return Path(source).name or source
