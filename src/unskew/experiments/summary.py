"""The results on one page of Markdown: the verdict, a table for each suite, and the claims of the paper. The
report has everything else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unskew.experiments.claims import overall_verdict
from unskew.experiments.report import Report
from unskew.experiments.results import (
    BALANCED,
    GROUND_TRUTH,
    ORDINARY,
    BenchResults,
    EvaluationSpec,
    SuiteResults,
)
from unskew.experiments.tables import NONE, marks_of, ranks_of
from unskew.report.table import Table
from unskew.report.templates import render

PAIR = (ORDINARY, BALANCED)
WIDEST = 16  # values that stand beside each other


@dataclass(frozen=True)
class SuiteGroup:
    """Suites that compare the same arms, and so share a table."""

    suites: Sequence[SuiteResults]

    @property
    def tests(self) -> list[EvaluationSpec]:
        """The tests whose means stand in a cell."""
        return [by for by in (*PAIR, GROUND_TRUTH) if by in self.suites[0].tests]

    @property
    def seeds(self) -> list[int]:
        """The smallest and the largest number of seeds."""
        counts = sorted(len(cells) for suite in self.suites for cells in suite.cells.values() if cells)
        return list(dict.fromkeys((counts[0], counts[-1])))

    @property
    def table(self) -> Table:
        """The means of each arm on each data set. A few arms are columns, many are rows."""
        columns = [
            (source, _column(suite, source, self.tests)) for suite in self.suites for source in suite.sources
        ]
        arms = [arm.name for arm in self.suites[0].arms]
        if len(columns) < len(arms) <= WIDEST // len(self.tests):
            rows = [[source, *(column.get(arm, NONE) for arm in arms)] for source, column in columns]
            return Table(["data", *arms], rows)
        rows = [[arm, *(column.get(arm, NONE) for _, column in columns)] for arm in arms]
        return Table(["model", *(source for source, _ in columns)], rows)


def summary(report: Report, command: str) -> str:
    """The page in Markdown.

    command: the command that makes it, which stands at its top.
    """
    groups: dict[tuple[str, ...], list[SuiteResults]] = {}
    for suite in report.results.suites:
        groups.setdefault(tuple(arm.name for arm in suite.arms), []).append(suite)
    return render(
        "experiments/templates/summary.md",
        command=command,
        verdict=report.verdict,
        data=_data_table(report.results),
        groups=[SuiteGroup(suites) for suites in groups.values()],
        command_of=report.suite_command,
        claims=_claims_table(report),
    )


def _data_table(results: BenchResults) -> Table:
    """The data sets, each in a line."""
    rows: dict[str, list[str]] = {}
    for suite in results.suites:
        for source in suite.sources:
            data, tests = suite.any_cell(source).data, suite.any_cell(source).tests
            sizes = (data.positives, data.users, data.items, tests[ORDINARY.key].size)
            balanced = tests.get(BALANCED.key)
            effective = NONE if balanced is None else f"{balanced.effective_sample_size:,.0f}"
            borders = ["simulated", ""] if data.world is not None else [data.train_before, data.test_from]
            rows.setdefault(source, [source, *(f"{size:,}" for size in sizes), effective, *borders])
    head = ["data", "positives", "users", "items", "tested rows", "effective, balanced", "trained before"]
    return Table([*head, "tested from"], list(rows.values()), text=(0, 6, 7))


def _column(suite: SuiteResults, source: str, tests: Sequence[EvaluationSpec]) -> dict[str, str]:
    """The means of each arm on one data set; the best of each test is bold."""
    column: dict[str, list[str]] = {}
    for by in tests:
        arms = suite.arm_results(source, by)
        means = {} if arms is None else arms.means()
        ranks = ranks_of(means)
        for arm in (arm.name for arm in suite.arms):
            mean = means.get(arm)
            text = NONE if mean is None else f"{mean.mean:.4f}"
            text = f"**{text}**" if ranks.get(arm) == 1 else text
            column.setdefault(arm, []).append(text + (marks_of(mean).replace("*", r"\*") if mean else ""))
    return {arm: " / ".join(texts) for arm, texts in column.items()}


def _claims_table(report: Report) -> Table:
    """Each claim, its verdict by both tests, and the smallest difference on each data set."""

    def rows() -> Iterator[list[str]]:
        for claim, outcomes in report.outcomes.items():
            verdicts = [overall_verdict([one for one in outcomes if one.by == by]) for by in PAIR]
            both = [outcome for outcome in outcomes if outcome.by in PAIR]
            differences = [
                f"{outcome.source}, {outcome.by.test}: {outcome.difference.difference:+.4f} "
                f"[{outcome.difference.low:+.4f}, {outcome.difference.high:+.4f}]"
                for outcome in both
                if outcome.difference is not None
            ]
            reasons = dict.fromkeys(outcome.reason for outcome in both if outcome.reason)
            yield [claim.sentence, *verdicts, "<br>".join(differences) or NONE, "; ".join(reasons)]

    head = ["the paper claims", "ordinary", "balanced", "smallest difference", "why"]
    return Table(head, list(rows()), text=range(len(head)))
