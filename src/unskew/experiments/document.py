"""The figures of a report as documents: flat rows for whoever calculates with them, a compact block for the
script of the page, and tables as Markdown and LaTeX."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unskew.core.formatting import plain
from unskew.experiments import cards, tables
from unskew.experiments.claims import CLAIMS, Claim, Outcome, claims_sheet, judged, outcomes_sheet
from unskew.experiments.intervals import Figure, Measured, Versus
from unskew.experiments.published import CAVEAT, METRICS, PUBLISHED, beside, published_sheets
from unskew.experiments.results import Findings, SuiteFindings
from unskew.experiments.sentences import verdict
from unskew.experiments.table import Form, Sheet
from unskew.report.charts import Frame
from unskew.report.curves import Curves
from unskew.report.summary import Verdict

FORMAT = 1  # of the block in a page
DIGITS = 5
STARRED, DAGGERED, BEST, SECOND = 1, 2, 4, 8  # the marks of a figure in the compact block, as bits


@dataclass(frozen=True)
class Report:
    """What a bench found, judged: all that the page, the tables and the documents are made from."""

    findings: Findings
    outcomes: Mapping[Claim, Sequence[Outcome]]
    verdict: Verdict

    @classmethod
    def of(cls, findings: Findings) -> "Report":
        """Judge what a bench found."""
        outcomes = judged(findings)
        return cls(findings, outcomes, verdict(findings, outcomes))

    def commands(self) -> dict[str, str]:
        """The command that measures what each claim is about, by suite."""
        return {claim.suite: cards.claim_command(self.findings, claim.suite) for claim in CLAIMS}

    def written(self, form: Form) -> str:
        """Verdict and tables in a form of text."""
        title, lines = "What the bench found", [self.verdict.finding, *self.verdict.advice]
        if form == "latex":
            said = "".join(f"% {line}\n" for line in lines)
            return f"% {title}\n{said}\n" + "\n".join(sheet.table(form) for _, sheet in self.sheets())
        parts = [f"# {title}\n", self.verdict.finding, "\n".join(f"- {line}" for line in self.verdict.advice)]
        section = ""
        for name, sheet in self.sheets():
            if name != section:
                parts.append(f"## {name}\n")
                section = name
            parts.append(sheet.table(form))
        return "\n\n".join(part.strip("\n") for part in parts) + "\n"

    def sheets(self) -> Iterator[tuple[str, Sheet]]:
        """All tables in the order of the page, each with the name of its section."""
        findings = self.findings
        for suite in findings.suites:
            for by in suite.evaluation_specs:
                yield suite.title, tables.suite_sheet(suite, by)
                yield suite.title, tables.cutoffs_sheet(suite, by)
        for suite in findings.suites:
            for sheet in gain_sheets(suite):
                yield f"Who gains: {suite.title}", sheet
        if (health := cards.health_sheet(findings)) is not None:
            yield "Propensity health", health
        yield "Protocol and data", cards.data_sheet(findings)
        yield "Protocol and data", cards.tests_sheet(findings)
        for suite in findings.suites:
            yield "Run cards", cards.runs_sheet(suite)
        if (missing := cards.missing_sheet(findings)) is not None:
            yield "What is missing", missing
        for suite in findings.suites:
            for sheet in published_sheets(suite):
                yield "The paper's figures beside ours", sheet
        yield "What the paper claims, what we find", claims_sheet(self.outcomes, self.commands())
        if (each := outcomes_sheet(self.outcomes)) is not None:
            yield "What the paper claims, what we find", each

    def document(self) -> dict[str, Any]:
        """All figures of the tables, ready for JSON."""
        findings = self.findings
        said: dict[str, Any] = {"dir": str(findings.folder), "command": findings.command}
        said |= {"smoke": findings.smoke, "runs": findings.planned, "done": findings.done}
        said["missing"] = [vars(one) for one in findings.missing]
        said["verdict"] = {"finding": self.verdict.finding, "points": list(self.verdict.advice)}
        said["figures"] = [row for suite in findings.suites for row in flat_figures(suite)]
        said["segments"] = [row for suite in findings.suites for row in flat_segments(suite)]
        said["claims"] = [_flat_claim(one) for of in self.outcomes.values() for one in of]
        said["published"] = [
            {"suite": suite.name, "data": one.source, "paper": one.data, "test": one.by.test, "model": name}
            | {"published": dict(zip(METRICS, PUBLISHED[one.data][name], strict=True)), "note": CAVEAT}
            for suite in findings.suites
            for one in beside(suite)
            for name in one.found.seeds
            if name in PUBLISHED[one.data]
        ]
        found: dict[str, Any] = plain(said)
        return found

    def block(self, charts: Mapping[str, Any]) -> dict[str, Any]:
        """Every figure of the page, for its script.

        charts: what `chart_block` says of each chart.
        """
        findings = self.findings
        said: dict[str, Any] = {"format": FORMAT, "command": findings.command, "smoke": findings.smoke}
        said |= {"runs": findings.planned, "done": findings.done}
        said |= {"verdict": [self.verdict.finding, *self.verdict.advice]}
        said |= {"tests": tables.TESTS, "protocols": tables.PROTOCOLS}
        said["claims"] = [_flat_claim(one) for of in self.outcomes.values() for one in of]
        said["suites"] = {suite.name: compact(suite) for suite in findings.suites}
        found: dict[str, Any] = plain(said | {"charts": charts})
        return found


def gain_sheets(suite: SuiteFindings) -> Iterator[Sheet]:
    """The tables of who gains, by data set and test."""
    for source in suite.sources:
        for test in tables.GAINS_BY:
            if (sheet := tables.segment_sheet(suite, source, test)) is not None:
                yield sheet


def flat_figures(suite: SuiteFindings) -> Iterator[dict[str, Any]]:
    """A row for each figure of a suite's tables."""
    for by in suite.evaluation_specs:
        for source in suite.sources:
            found = suite.measured(source, by)
            for metric in () if found is None else found.metrics:
                assert found is not None
                for arm, figure in found.figures(metric).items():
                    row: dict[str, Any] = {"suite": suite.name, "data": source, "test": by.test}
                    row |= {"protocol": by.protocol, "metric": metric, "model": arm, "mean": figure.mean}
                    row |= {"low": figure.low, "high": figure.high, "seeds": figure.seeds}
                    yield row | _flat_versus(figure.versus)


def flat_segments(suite: SuiteFindings) -> Iterator[dict[str, Any]]:
    """A row for each group of positives in which an arm was tested."""
    for (source, arm), of in suite.cells.items():
        for seed, cell in of.items():
            for key, found in cell["tests"].items():
                for kind, groups in found["segments"].items():
                    for group, (units, value) in groups.items():
                        row = {"suite": suite.name, "data": source, "model": arm, "seed": seed, "test": key}
                        yield row | {"by": kind, "group": group, "units": units, "ndcg@10": value}


def compact(suite: SuiteFindings) -> dict[str, Any]:
    """The tables of a suite for the script: by test and metric, a row per arm and a column per data set of
    [mean, low, high, seeds, marks], 0 where there is nothing, and what is gained; and by data set and test
    the groups of positives."""
    found: dict[str, Any] = {"arms": [arm.name for arm in suite.arms], "sources": suite.sources}
    found["tables"] = {}
    for by in suite.evaluation_specs:
        there = {source: one for source in suite.sources if (one := suite.measured(source, by)) is not None}
        metrics = list(dict.fromkeys(metric for one in there.values() for metric in one.metrics))
        found["tables"][by.key] = {
            "seeds": tables.usual_seeds(one.figures() for one in there.values()),
            "metrics": {metric: _metric(suite, there, metric) for metric in metrics},
        }
    found["groups"] = {
        sheet.name.partition("|")[2]: [
            list(sheet.head[1:]),
            *([cell.text for cell in row] for row in sheet.rows),
        ]
        for sheet in gain_sheets(suite)
    }
    return found


def _metric(suite: SuiteFindings, tested: Mapping[str, Measured], metric: str) -> dict[str, Any]:
    there = {source: one for source, one in tested.items() if metric in one.metrics}
    ranked = metric not in tables.LESS_IS_BETTER
    columns = {source: one.figures(metric) for source, one in there.items()}
    places = {source: tables.places_of(of) if ranked else {} for source, of in columns.items()}
    rows = [
        [
            _compact(columns.get(source, {}).get(arm.name), places.get(source, {}).get(arm.name, 0))
            for source in suite.sources
        ]
        for arm in suite.arms
    ]
    gains = [
        [name, [0 if gain is None else list(tables.gain_entry(*gain))[:3] for gain in of]]
        for name, of in (tables.gains_of(suite, there, metric) if ranked else ())
    ]
    return {"rows": rows, "gains": gains}


def chart_block(chart: Curves, frame: Frame) -> dict[str, Any]:
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


def embedded(document: Mapping[str, Any]) -> str:
    """A document as JSON that cannot end the script element in which it stands."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _compact(figure: Figure | None, place: int) -> Any:
    if figure is None:
        return 0
    marks = {0: 0, 1: BEST, 2: SECOND}[place]
    if figure.versus is not None:
        marks |= STARRED * figure.versus.starred | DAGGERED * figure.versus.daggered
    return [_short(figure.mean), _short(figure.low), _short(figure.high), figure.seeds, marks]


def _flat_versus(versus: Versus | None) -> dict[str, Any]:
    if versus is None:
        return {"versus": None}
    row: dict[str, Any] = {"versus": versus.to, "difference": versus.difference}
    row |= {"difference_low": versus.low, "difference_high": versus.high, "relative": versus.fraction}
    return row | {"p_bootstrap": versus.p_bootstrap, "p_t": versus.p_t}


def _flat_claim(one: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {"claim": one.claim.words, "suite": one.claim.suite, "data": one.source}
    row |= {"test": one.by.test, "protocol": one.by.protocol, "verdict": one.judged, "reason": one.reason}
    return row | {"pair": one.pair} | (_flat_versus(one.found) if one.found is not None else {})


def _short(value: float) -> float | int | None:
    number = float(value)
    if not math.isfinite(number):
        return None
    short = round(number, DIGITS)
    return int(short) if short == int(short) else short
