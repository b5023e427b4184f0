"""The results on one page that a person reads: the verdict, a table for each suite, and what of the paper
holds. Everything else is in the report."""

from collections.abc import Iterator, Sequence

from unskew.experiments.cards import claim_command
from unskew.experiments.claims import overall
from unskew.experiments.document import Report
from unskew.experiments.results import (
    BALANCED,
    GROUND_TRUTH,
    ORDINARY,
    EvaluationSpec,
    Findings,
    SuiteFindings,
)
from unskew.experiments.table import NONE
from unskew.experiments.tables import marks_of, places_of
from unskew.report.table import Table

PAIR = (ORDINARY, BALANCED)
WIDEST = 16  # figures that stand beside each other
MARKS = (
    "Bold: the best. \u2020 differs from the first row, or from its twin, by the paired t-test, which "
    "ignores the chance of seeds; \\* by the bootstrap over users and seeds. Both are corrected by Holm over "
    "the table."
)


def summary(report: Report, command: str) -> str:
    """The page in Markdown.

    command: the command that makes it, which stands at its top.
    """
    findings, said = report.findings, report.verdict
    made = (
        f"Made by `{command}`. Validation chose everything, also the debiasing strength; "
        "the test set chose nothing."
    )
    parts = ["# Results", made, said.finding, "\n".join(f"- {line}" for line in said.advice)]
    parts += [_data(findings), MARKS]
    for group in _with_same_arms(findings):
        parts += _suites(findings, group)
    parts += ["## What the paper claims, what we find", _claims(report)]
    return "\n\n".join(parts) + "\n"


def _data(findings: Findings) -> str:
    """The data sets, each in a line."""
    rows: dict[str, list[str]] = {}
    for suite in findings.suites:
        for source in suite.sources:
            cell = suite.some_cell(source)
            data, tests = cell["data"], cell["tests"]
            sizes = [f"{data[name]:,}" for name in ("positives", "users", "items")]
            balanced = tests.get(BALANCED.key, {}).get("effective_sample_size")
            ranked = tests[ORDINARY.key]["size"]
            effective = NONE if balanced is None else f"{balanced:,.0f}"
            borders = [data["train_before"], data["test_from"]]
            borders = ["simulated", ""] if data["world"] is not None else borders
            rows.setdefault(source, [source, *sizes, f"{ranked:,}", effective, *borders])
    head = ["data", "positives", "users", "items", "tested rows", "effective, balanced", "trained before"]
    return Table([*head, "tested from"], list(rows.values()), text=(0, 6, 7)).markdown()


def _with_same_arms(findings: Findings) -> list[list[SuiteFindings]]:
    """The suites, together where they compare the same arms."""
    found: dict[tuple[str, ...], list[SuiteFindings]] = {}
    for suite in findings.suites:
        found.setdefault(tuple(arm.name for arm in suite.arms), []).append(suite)
    return list(found.values())


def _suites(findings: Findings, suites: Sequence[SuiteFindings]) -> Iterator[str]:
    """One table for suites with the same arms. A cell has the ordinary and the balanced test, and the ground
    truth if it is known. A few arms are columns, many are rows."""
    first = suites[0]
    tests = tuple(by for by in (*PAIR, GROUND_TRUTH) if by in first.evaluation_specs)
    of = f" ({first.of})" if first.of else ""
    yield f"## {first.title}{of}"
    what = " / ".join("by the ground truth" if by == GROUND_TRUTH else by.test for by in tests)
    seeds = sorted({len(cells) for suite in suites for cells in suite.cells.values() if cells})
    several = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    counted = "1 seed" if seeds == [1] else f"{several} seeds"
    said = f"{first.question} NDCG@10, {what}; {counted}; `{claim_command(findings, first.name)}`"
    for more in suites[1:]:
        said += f"; {', '.join(more.sources)}: {more.title.lower()}, `{claim_command(findings, more.name)}`"
    yield said
    found = [(source, _column(suite, source, tests)) for suite in suites for source in suite.sources]
    arms = [arm.name for arm in first.arms]
    if len(found) < len(arms) <= WIDEST // len(tests):
        rows = [[source, *(column.get(arm, NONE) for arm in arms)] for source, column in found]
        yield Table(["data", *arms], rows).markdown()
    else:
        rows = [[arm, *(column.get(arm, NONE) for _, column in found)] for arm in arms]
        yield Table(["model", *(source for source, _ in found)], rows).markdown()


def _column(suite: SuiteFindings, source: str, tests: tuple[EvaluationSpec, ...]) -> dict[str, str]:
    """For each arm its figures on one data set; the best of each test is bold."""
    found: dict[str, list[str]] = {}
    for by in tests:
        measured = suite.measured(source, by)
        figures = {} if measured is None else measured.figures()
        best = places_of(figures)
        for arm in (arm.name for arm in suite.arms):
            figure = figures.get(arm)
            text = NONE if figure is None else f"{figure.mean:.4f}"
            text = f"**{text}**" if best.get(arm) == 1 else text
            found.setdefault(arm, []).append(text + marks_of(figure.versus if figure else None))
    return {arm: " / ".join(of) for arm, of in found.items()}


def _claims(report: Report) -> str:
    """Each claim, its verdict by both tests, and the smallest difference on each data set."""
    rows = []
    for claim, outcomes in report.outcomes.items():
        verdicts = [overall([one for one in outcomes if one.by == by]) for by in PAIR]
        figures = [
            f"{one.source}, {one.by.test}: {one.found.difference:+.4f} "
            f"[{one.found.low:+.4f}, {one.found.high:+.4f}]"
            for one in outcomes
            if one.found is not None and one.by in PAIR
        ]
        reasons = dict.fromkeys(one.reason for one in outcomes if one.reason and one.by in PAIR)
        why = "; ".join(reasons)
        rows.append([claim.words, *verdicts, "<br>".join(figures) or NONE, why])
    head = ["the paper claims", "ordinary", "balanced", "smallest difference", "why"]
    return Table(head, rows, text=tuple(range(len(head)))).markdown()
