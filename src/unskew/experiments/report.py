"""The report of a bench: its verdict, its tables in Markdown and LaTeX, and every value for JSON."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from unskew.core.config import Document
from unskew.core.formatting import plain
from unskew.experiments import tables
from unskew.experiments.claims import (
    CLAIMS,
    Claim,
    Outcome,
    claims_table,
    judge_claims,
    outcomes_table,
)
from unskew.experiments.intervals import Difference
from unskew.experiments.published import CAVEAT, published_metrics, published_tests
from unskew.experiments.results import BenchResults, SuiteResults
from unskew.experiments.verdict import verdict_of
from unskew.report.summary import Verdict
from unskew.report.table import Table
from unskew.report.templates import render

Form = Literal["md", "tex"]


@dataclass(frozen=True)
class Report:
    """The results of a bench, judged: the page, the tables and the documents are made from it."""

    results: BenchResults
    outcomes: Mapping[Claim, Sequence[Outcome]]
    verdict: Verdict

    @classmethod
    def of(cls, results: BenchResults) -> "Report":
        """Judge the results of a bench."""
        outcomes = judge_claims(results)
        return cls(results, outcomes, verdict_of(results, outcomes))

    def suite_command(self, name: str) -> str:
        """The command that measures a suite. DATA are the folders of the data sets."""
        suite = self.results.suite(name)
        words = ["--suite", suite.file] if suite is not None and suite.file else [name]
        is_simulated = suite is not None and suite.any_cell(suite.sources[0]).data.world is not None
        words += [] if is_simulated else ["DATA"]
        smoke = ["--smoke"] if self.results.smoke else []
        return shlex.join(["unskew", "bench", *words, "--out", str(self.results.folder), *smoke])

    def claims_table(self) -> Table:
        """Each claim of the paper with its verdicts and its command."""
        return claims_table(self.outcomes, {claim.suite: self.suite_command(claim.suite) for claim in CLAIMS})

    def tables(self) -> Iterator[tuple[str, Table]]:
        """All tables that have rows, each with the name of its section."""
        results = self.results
        for suite in results.suites:
            for by in suite.tests:
                yield suite.title, tables.suite_table(suite, by)
                yield suite.title, tables.metrics_table(suite, by)
        for suite in results.suites:
            yield from ((f"Who gains: {suite.title}", table) for table in tables.segment_tables(suite))
        yield from _with_rows("Propensity health", tables.health_table(results))
        yield "Protocol and data", tables.data_table(results)
        yield "Protocol and data", tables.tests_table(results)
        yield from (("Run cards", tables.runs_table(suite)) for suite in results.suites)
        yield from _with_rows("What is missing", tables.missing_table(results))
        for suite in results.suites:
            published = tables.published_tables(suite)
            yield from (("The paper's metrics beside ours", table) for table in published)
        yield "What the paper claims, what we find", self.claims_table()
        yield from _with_rows("What the paper claims, what we find", outcomes_table(self.outcomes))

    def written(self, form: Form) -> str:
        """Verdict and tables as Markdown or LaTeX."""
        sections: dict[str, list[Table]] = {}
        for title, table in self.tables():
            sections.setdefault(title, []).append(table)
        return render(f"experiments/templates/tables.{form}", verdict=self.verdict, sections=sections)

    def document(self) -> Document:
        """All values of the tables, ready for JSON."""
        results = self.results
        document: Document = {"dir": str(results.folder), "command": results.command}
        document |= {"smoke": results.smoke, "runs": results.planned, "done": results.done}
        document["missing"] = [asdict(run) for run in results.missing]
        document["verdict"] = {"finding": self.verdict.finding, "points": list(self.verdict.advice)}
        document["figures"] = [row for suite in results.suites for row in _means(suite)]
        document["segments"] = [row for suite in results.suites for row in _segments(suite)]
        document["claims"] = [_claim(outcome) for of in self.outcomes.values() for outcome in of]
        document["published"] = [
            {"suite": suite.name, "data": test.source, "paper": test.data, "test": test.by.test}
            | {"model": name, "published": published_metrics()[test.data][name], "note": CAVEAT}
            for suite in results.suites
            for test in published_tests(suite)
            for name in test.results.seeds
            if name in published_metrics()[test.data]
        ]
        return dict(plain(document))


def _with_rows(title: str, table: Table) -> list[tuple[str, Table]]:
    return [(title, table)] if table.rows else []


def _means(suite: SuiteResults) -> Iterator[dict[str, Any]]:
    """A row for each mean of a suite's tables."""
    for by in suite.tests:
        for source, arms in suite.on_sources(by).items():
            for metric in arms.metrics:
                for arm, mean in arms.means(metric).items():
                    row: dict[str, Any] = {"suite": suite.name, "data": source, "test": by.test}
                    row |= {"protocol": by.protocol, "metric": metric, "model": arm, "mean": mean.mean}
                    row |= {"low": mean.low, "high": mean.high, "seeds": mean.seeds}
                    row["finished"] = mean.finished
                    yield row | _difference(mean.versus)


def _segments(suite: SuiteResults) -> Iterator[dict[str, Any]]:
    """A row for each group of positives in which an arm was tested."""
    for (source, arm), cells in suite.cells.items():
        for seed, cell in cells.items():
            for key, test in cell.tests.items():
                for kind, groups in test.segments.items():
                    for group, (units, value) in groups.items():
                        row = {"suite": suite.name, "data": source, "model": arm, "seed": seed, "test": key}
                        yield row | {"by": kind, "group": group, "units": units, "ndcg@10": value}


def _difference(difference: Difference | None) -> Document:
    if difference is None:
        return {"versus": None}
    return {
        "versus": difference.to,
        "difference": difference.difference,
        "difference_low": difference.low,
        "difference_high": difference.high,
        "relative": difference.relative.value,
        "p_seeds": difference.p_seeds,
        "p_rows": difference.p_rows,
    }


def _claim(outcome: Outcome) -> Document:
    row: dict[str, Any] = {"claim": outcome.claim.sentence, "suite": outcome.claim.suite}
    row |= {"data": outcome.source, "test": outcome.by.test, "protocol": outcome.by.protocol}
    row |= {"verdict": outcome.verdict.value, "reason": outcome.reason, "pair": outcome.pair}
    return row | (_difference(outcome.difference) if outcome.difference is not None else {})
