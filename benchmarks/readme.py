"""The table of the README, from the stored runs of the suite `ship`.

python benchmarks/readme.py
"""

from pathlib import Path

from pages import replace_between

from unskew.experiments.results import BALANCED, ORDINARY, BenchResults
from unskew.report.table import Table

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- made by benchmarks/readme.py -->", "<!-- end -->"
ARMS = ("popularity", "ItemKNN", "SASRec", "LightSANs", "DEPS", "pulse-zero", "pulse")
SETS = ("MovieTweetings", "Online Retail", "Beauty", "Digital Music 2018", "MIND (sample)")


def table(results: BenchResults) -> str:
    """NDCG@10 of each model on each data set, in both tests."""
    rows, suite = [], results.suite("ship")
    assert suite is not None, "no run of the suite ship is stored"
    for source in SETS:
        arms = [suite.arm_results(source, by) for by in (ORDINARY, BALANCED)]
        means = [of.means() for of in arms if of is not None]
        rows.append([source, *(" / ".join(f"{of[arm].mean:.4f}" for of in means) for arm in ARMS)])
    named = [f"**{arm}**" if arm == "pulse" else arm for arm in ARMS]
    return Table(["NDCG@10, ordinary / balanced", *named], rows).markdown()


if __name__ == "__main__":
    made = table(BenchResults.open(ROOT / "results" / "bench"))
    replace_between(ROOT / "README.md", BEGIN, END, f"{made}\n")
