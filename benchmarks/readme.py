"""The table of the README, from the stored runs of the suites `main` and `ship`.

python benchmarks/readme.py
"""

from pathlib import Path

from pages import replace_between

from unskew.report.table import Table
from unskew.suites.found import BALANCED, ORDINARY, Findings

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- made by benchmarks/readme.py -->", "<!-- end -->"
ARMS = ("popularity", "ItemKNN", "SASRec", "LightSANs", "DEPS", "pulse-zero", "pulse")
SETS = ("MovieTweetings", "Online Retail", "Beauty", "Digital Music 2018", "MIND (sample)")


def table(findings: Findings) -> str:
    """NDCG@10 of each model on each data set, in both tests."""
    rows = []
    for source in SETS:
        suite = next(suite for suite in findings.suites if source in suite.sources)
        found = [suite.measured(source, by) for by in (ORDINARY, BALANCED)]
        figures = [one.figures() for one in found if one is not None]
        # On the largest logs, DEPS was made smaller.
        there = [next((name for name in (arm, f"{arm}, smaller") if name in figures[0]), "") for arm in ARMS]
        told = (" / ".join(f"{of[name].mean:.4f}" for of in figures) if name else "–" for name in there)
        rows.append([source, *told])
    named = [f"**{arm}**" if arm == "pulse" else arm for arm in ARMS]
    return Table(["NDCG@10, ordinary / balanced", *named], rows).markdown()


if __name__ == "__main__":
    made = table(Findings.open(ROOT / "results" / "bench"))
    replace_between(ROOT / "README.md", BEGIN, END, f"{made}\n")
