"""The page of `unskew report`: one HTML file with the verdict, all tables and charts, and every figure.

It can be read without its script, which only makes it easier: it switches between tests, protocols and
metrics, sorts and filters tables, and tells the values of a chart's points.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from unskew.evaluation.metrics import written
from unskew.experiments import cards, tables
from unskew.experiments import plots as figures
from unskew.experiments.cell_store import Results
from unskew.experiments.claims import claims_sheet, outcomes_sheet
from unskew.experiments.document import Report, chart_block, embedded
from unskew.experiments.plots import Plot
from unskew.experiments.published import CAVEAT, published_sheets
from unskew.experiments.results import BALANCED, ORDINARY, Findings, SuiteFindings
from unskew.experiments.sentences import leading
from unskew.experiments.table import Sheet
from unskew.report.charts import drawing
from unskew.report.curves import swatch
from unskew.report.page import Extra, Markup, Origin, Section, page, paragraph, points

MANY_ROWS = 12  # of a table that is closed until the reader asks for it
HERE = Path(__file__).parent
TENTH = "tenth of the items, the most popular first"
TESTS_IN_WORDS = (
    "Ordinary: every held-out positive counts once, so that what was shown most counts most.",
    "Balanced: every item counts once. This is the test of what is rarely shown.",
    "Shown: a clicked item among those that the same impression showed.",
    "Randomised: only what was exposed at random. Weighted: by the logged propensities.",
    "GroundTruth: the order of all items against the true preferences of a simulated world.",
    "Protocols: full ranks among all items that existed; uni100 among 100 drawn at random; authors is the "
    "paper's, which ranks all positives of a user in one list. Figures of two protocols are never compared.",
    "Choices: validation makes all of them, the debiasing strength's as well; the test set is ranked at "
    "the end. All "
    "models rank the same positives.",
)


def report_page(found: Report | Results, command: str = "", date: str = "") -> str:
    """The whole report as one HTML file.

    found: what a bench stored, or what was made of that already.
    command: the command line that made it, for the foot of the page.
    date: when it was made; by default now.
    """
    report = Report.of(Findings(found)) if isinstance(found, Results) else found
    findings, made = report.findings, _Charts()
    sections = [
        *(_suite(findings, suite) for suite in findings.suites),
        *_per_suite(findings, made, "training", "Training curves", _TRAINING, _training),
        *_per_suite(findings, made, "trade-off", "Ordinary against less biased tests", _TRADE, _trade_offs),
        _gains(findings, made),
        *_health(findings),
        *_more(findings, made),
        _protocol(findings),
        _published(findings),
        _claims(report),
    ]
    data = f'<script type="application/json" id="figures">{embedded(report.block(made.block))}</script>\n'
    extra = Extra(
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        head="In detail, and what speaks against it",
        top=Markup(_contents(sections) + _toolbar(findings)),
        end=Markup(made.symbols() + data),
        script=(HERE / "page.js").read_text(encoding="utf-8"),
    )
    names = ", ".join(dict.fromkeys(name for suite in findings.suites for name in suite.sources))
    about = f"{findings.done} of {findings.planned} runs on {names}"
    origin = Origin(", ".join(findings.hashes), command, date)
    title = "What the bench found" if not findings.smoke else "A smoke test of the bench"
    return page(title, report.verdict, [part for part in sections if part is not None], origin, about, extra)


class _Charts:
    """The charts of a page: their drawings, their figures for the script, and the looks that legends show."""

    def __init__(self) -> None:
        self.block: dict[str, Any] = {}
        self._styles: set[int] = set()

    def figure(self, plot: Plot) -> Markup:
        name = f"c{len(self.block)}"
        drawn, frame = drawing(plot.chart, name, plot.alt)
        self.block[name] = chart_block(plot.chart, frame)
        below = f"<figcaption>{escape(plot.caption)}</figcaption>" if plot.caption else ""
        return Markup(f"<figure>{drawn}{below}</figure>\n")

    def group(self, plots: Iterable[Plot | None]) -> Markup:
        """Charts side by side below one legend for all of them."""
        there = [plot for plot in plots if plot is not None]
        if not there:
            return Markup("")
        looks: dict[str, int] = {}
        for plot in there:
            looks |= {name: curve.style for name, curve in plot.chart.series.items()}
        names = sorted(looks, key=looks.__getitem__)
        self._styles |= set(looks.values())
        items = "".join(
            f'<li><svg class="swatch" aria-hidden="true"><use href="#look-{looks[name]}"/></svg>'
            f"{escape(name)}</li>"
            for name in names
        )
        charts = "".join(map(self.figure, there))
        legend = f'<ul class="legend" aria-label="Legend">{items}</ul>' if len(names) > 1 else ""
        return Markup(f'<div class="block">{legend}<div class="charts">{charts}</div></div>')

    def symbols(self) -> Markup:
        """The looks of series, drawn once for all legends."""
        made = "".join(
            f'<symbol id="look-{number}" viewBox="0 0 26 10">{swatch(number)}</symbol>'
            for number in sorted(self._styles)
        )
        return Markup(f'<svg class="symbols" aria-hidden="true">{made}</svg>\n')


# The frame


def _contents(sections: Sequence[Section]) -> str:
    links = "".join(f'<li><a href="#{escape(part.name)}">{escape(part.title)}</a></li>' for part in sections)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n'


def _toolbar(findings: Findings) -> str:
    """What the script needs to switch; hidden until it runs."""

    def choice(name: str, label: str, options: Iterable[tuple[str, str]]) -> str:
        made = "".join(f'<option value="{escape(value)}">{escape(said)}</option>' for value, said in options)
        return f'<label>{label} <select name="{name}">{made}</select></label>'

    every = list(dict.fromkeys(by for suite in findings.suites for by in suite.evaluation_specs))
    tests = dict.fromkeys(by.test for by in every)
    protocols = [name for name in tables.PROTOCOLS if name in {by.protocol for by in every}]
    metrics: dict[str, None] = {}
    for suite in findings.suites:
        for by in suite.evaluation_specs:
            for source in suite.sources:
                found = suite.measured(source, by)
                metrics |= dict.fromkeys(() if found is None else found.metrics)
    parts = (
        choice("test", "Test", ((name, tables.TESTS.get(name, name)) for name in tests)),
        choice("protocol", "Protocol", ((name, tables.PROTOCOLS[name]) for name in protocols)),
        choice("metric", "Metric", ((name, written(name)) for name in metrics)),
        '<label>Models <input type="search" name="filter" placeholder="filter" autocomplete="off"></label>',
    )
    return (
        f'<form class="tools" aria-label="What tables show" hidden>{"".join(parts)}'
        '<output name="count" aria-live="polite"></output></form>\n'
    )


def _details(summary: str, body: str, open_: bool = False) -> Markup:
    return Markup(
        f"<details{' open' if open_ else ''}><summary>{escape(summary)}</summary>{body}</details>\n"
    )


# Suites


def _suite(findings: Findings, suite: SuiteFindings) -> Section:
    panels = []
    for number, by in enumerate(suite.evaluation_specs):
        table = tables.suite_sheet(suite, by).html()
        every = _details("All metrics of this test", tables.cutoffs_sheet(suite, by).html())
        panels.append(
            f'<details class="panel" data-by="{escape(by.key)}"{" open" if not number else ""}>'
            f"<summary>{escape(tables.called(by))}</summary>{table}{every}</details>\n"
        )
    absent = [one for one in findings.missing if one.suite == suite.name]
    said = [f"It repeats {suite.of} of the paper." if suite.of else "It is not in the paper."]
    if absent:
        runs = "run is" if len(absent) == 1 else "runs are"
        said.append(f"{len(absent)} {runs} missing: in the tables a dash, or a smaller number of seeds.")
    said.append(f"Made by `{cards.bench_command(findings, suite, suite.name)}`.")
    body = (
        paragraph(suite.question),
        paragraph(" ".join(said)),
        Markup(f'<div class="panels" data-suite="{escape(suite.name)}">{"".join(panels)}</div>'),
    )
    return Section(suite.title, body, f"suite-{suite.name}")


# Charts that every suite has

_TRAINING = (
    "The metric of the ordinary validation metric after each epoch, as the mean over seeds, as "
    "far as all of them went. Models that are not trained in epochs have no curve."
)
_TRADE = (
    "Right: what will be clicked in a log that goes on as it was. Up: a less biased test. A line is what the "
    "positions of a model's debias give, from none of the exposure taken out to all of it; the large mark is "
    "what validation chose."
)


def _training(suite: SuiteFindings) -> Iterator[Plot | None]:
    return (figures.training(suite, source) for source in suite.sources)


def _trade_offs(suite: SuiteFindings) -> Iterator[Plot | None]:
    for source in suite.sources:
        for by in figures.less_biased(suite, source):
            yield figures.trade_off(suite, source, by)


def _per_suite(
    findings: Findings, made: _Charts, name: str, title: str, words: str, plots: Any
) -> Iterator[Section]:
    """A section with the charts of each suite; those of the first one are open."""
    drawn = [(suite, made.group(plots(suite))) for suite in findings.suites]
    there = [(suite, charts) for suite, charts in drawn if charts]
    if not there:
        return
    body = [paragraph(words)]
    for number, (suite, charts) in enumerate(there):
        body.append(charts if len(there) == 1 else _details(suite.title, charts, open_=not number))
    yield Section(title, tuple(body), name)


def _gains(findings: Findings, made: _Charts) -> Section:
    """Who gains: charts for the suite that the verdict is about, tables for all."""
    suite = leading(findings)
    plots = [
        plot
        for source in suite.sources
        for plot in (
            figures.gains(suite, source, "popularity decile", TENTH),
            figures.gains(suite, source, "history length", "items in the user's history"),
        )
    ]
    body = [
        paragraph(
            "The figures by the popularity of the item, by how much of the user is known, and for users and "
            "items that training knew or did not. Charts show the first model, its best rivals and the best "
            "ones in the ordinary test; tables have all models."
        ),
        made.group(plots),
    ]
    for one in findings.suites:
        parts = []
        for source in one.sources:
            panels = "".join(
                f'<details class="panel" data-by="{test}, full"{" open" if test == "ordinary" else ""}>'
                f"<summary>{escape(source)}: {test} test</summary>{sheet.html()}</details>\n"
                for test in tables.GAINS_BY
                if (sheet := tables.segment_sheet(one, source, test)) is not None
            )
            parts.append(f'<div class="panels">{panels}</div>' if panels else "")
        if any(parts):
            body.append(_details(f"Tables: {one.title}", "".join(parts)))
    return Section("Who gains", tuple(body), "gains")


def _health(findings: Findings) -> Iterator[Section]:
    sheet = cards.health_sheet(findings)
    if sheet is not None:
        made = sheet.html()
        if len(sheet.rows) > MANY_ROWS:
            made = _details(f"All {len(sheet.rows)} models", made)
        yield Section("Propensity health", (paragraph(cards.idle_share(findings)), made), "health")


def _more(findings: Findings, made: _Charts) -> Iterator[Section]:
    """What only some suites have (points along an axis, simulated worlds, windows of time), and the cost."""
    curves, worlds, lines, costs = [], [], [], []
    for suite in findings.suites:
        curves.append(made.group(figures.axis_curve(suite, by) for by in (ORDINARY, BALANCED)))
        kinds = (
            ("ndcg@10", "NDCG@10 against the ground truth"),
            ("beyond", "exposure that the scores repeat"),
        )
        worlds.append(made.group(figures.known_world(suite, *kind) for kind in kinds))
        lines.append(made.group(figures.windows(suite, source) for source in suite.sources))
        costs.append((suite.title, made.group(figures.cost(suite, source) for source in suite.sources)))
    if any(curves):
        words = "How the result changes along an axis, relative to the paper's own value."
        yield Section("The curve along the clip M", (paragraph(words), *filter(None, curves)), "axis")
    if any(worlds):
        words = (
            "In simulated worlds the true preferences are known. The first chart is how near each model "
            "comes to them, the more exposure is biased; the second how much of the exposure its scores "
            "repeat beyond what is liked, where 0 is none."
        )
        yield Section(
            "The ground truth, by the strength of the bias",
            (paragraph(words), *filter(None, worlds)),
            "world",
        )
    if any(lines):
        words = "Window by window along the time line: what a model loses that is not trained again."
        yield Section("Windows along time", (paragraph(words), *filter(None, lines)), "windows")
    if any(charts for _, charts in costs):
        words = "What training costs, on one core, and what it brings in the ordinary test."
        there = [(title, charts) for title, charts in costs if charts]
        first, *rest = there
        body = [paragraph(words), first[1], *(_details(title, charts) for title, charts in rest)]
        yield Section("Cost", tuple(body), "cost")


# How it was made, and the paper


def _protocol(findings: Findings) -> Section:
    made = f"`{findings.command}`" if findings.command else "Python"
    body = [
        points(TESTS_IN_WORDS, topics=True),
        cards.data_sheet(findings).html(),
        _details("How many positives each test ranks", cards.tests_sheet(findings).html()),
        *(_details(f"Run cards: {suite.title}", cards.runs_sheet(suite).html()) for suite in findings.suites),
        paragraph(f"{cards.versions(findings)} The last command was {made}."),
    ]
    if (missing := cards.missing_sheet(findings)) is not None:
        body.append(missing.html())
    return Section("Protocol, data and runs", tuple(body), "protocol")


def _published(findings: Findings) -> Section:
    made: list[Sheet] = [sheet for suite in findings.suites for sheet in published_sheets(suite)]
    words = CAVEAT
    if not made:
        words = (
            "None of the data sets of this bench is one of the paper's own with its test rows under its "
            "protocol, so none of its published figures may stand beside ours. " + CAVEAT
        )
    return Section(
        "The paper's figures beside ours", (paragraph(words), *(sheet.html() for sheet in made)), "published"
    )


def _claims(report: Report) -> Section:
    each = outcomes_sheet(report.outcomes)
    body = [
        paragraph(
            "A claim is confirmed where the paired difference is above 0 for certain: by the bootstrap over "
            "users and seeds, p < 0.05 after Holm's correction over all comparisons of all claims on the "
            "same data set and test; and refuted by the same standard. With a single seed it stays "
            "undecided, because the interval then covers users only. Each test is judged on its own."
        ),
        claims_sheet(report.outcomes, report.commands()).html(),
    ]
    if each is not None:
        body.append(_details("On each data set, with figures and reasons", each.html()))
    return Section("What the paper claims, what we find", tuple(body), "claims")
