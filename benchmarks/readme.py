"""Write the table of the README from the stored results of the suites.

python benchmarks/readme.py
"""

from pathlib import Path

from pages import replace_between

from unskew.report.table import Table
from unskew.suites.found import BALANCED, ORDINARY, Findings, SuiteFindings

ROOT = Path(__file__).parents[1]
RESULTS, README = ROOT / "results" / "bench", ROOT / "README.md"
BEGIN, END = "<!-- made by benchmarks/readme.py -->", "<!-- end -->"
SUITES = ("main", "large")
PAPER = "paper:"  # how the sets are named whose order was rebuilt from published rows; docs/findings.md
SHOWN = ("popularity", "ItemKNN", "SASRec", "GRU4Rec+", "DEPS", "pulse-zero", "pulse")


def cell(suite: SuiteFindings, source: str, arm: str) -> str:
    """The ordinary and the balanced test of a model on a data set."""
    found = [suite.measured(source, by) for by in (ORDINARY, BALANCED)]
    values = ["–" if one is None or arm not in one.seeds else f"{one.mean(arm):.4f}" for one in found]
    best = [one is not None and one.best() == arm for one in found]
    return " / ".join(f"**{value}**" if first else value for value, first in zip(values, best, strict=True))


def main() -> None:
    findings = Findings.open(RESULTS)
    rows = [
        [source, *(cell(suite, source, arm) for arm in SHOWN)]
        for suite in findings.suites
        if suite.name in SUITES
        for source in suite.sources
        if not source.startswith(PAPER)
    ]
    head = ["NDCG@10, ordinary / balanced", *SHOWN]
    replace_between(README, BEGIN, END, Table(head, rows).markdown() + "\n")


if __name__ == "__main__":
    main()
