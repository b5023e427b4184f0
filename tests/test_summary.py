"""The page of results that a person reads."""

from dataclasses import replace
from pathlib import Path

import pytest

from unskew.suites import beyond, paper
from unskew.suites.bench import Bench
from unskew.suites.document import Report
from unskew.suites.found import Findings
from unskew.suites.recipe import SMOKE_WORLD, world_source
from unskew.suites.store import Results
from unskew.suites.summary import summary


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    few = replace(paper.MAIN, arms=[*paper.MAIN.arms[:3], paper.MAIN.arms[-1]], rivals=("STAMP", "DIN"))
    known = replace(beyond.TRUTH, arms=beyond.TRUTH.arms[:2])
    sources = (world_source("shop", SMOKE_WORLD),)
    Bench(suites=(few, known), sources=sources, smoke=True, seeds=2).run(folder)
    return folder


def test_a_cell_has_the_means_of_both_tests_and_the_best_is_bold(bench: Path) -> None:
    text = summary(Report.of(Findings.open(bench)), "unskew report x")
    results = Results.open(bench)
    places = [place for place in results.asked["places"] if place["suite"] == "main"]
    means = {}
    for arm in ("DEPS", "STAMP", "DIN", "pulse"):
        cells = [results.cells[place["key"]] for place in places if place["arm"] == arm]
        assert len(cells) == 2
        means[arm] = [
            sum(cell["tests"][f"{test}, full"]["metrics"]["ndcg@10"] for cell in cells) / 2
            for test in ("ordinary", "balanced", "truth")
        ]
    best = [max(means, key=lambda arm: means[arm][at]) for at in (0, 1, 2)]
    for arm, pair in means.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {arm} |") and " / " in line]
        shown = line.split("|")[2].strip().replace("†", "").replace("*" * 3, "**").split(" / ")
        for at, (value, cell) in enumerate(zip(pair, shown, strict=True)):
            assert f"{value:.4f}" in cell
            assert cell.startswith("**") == (best[at] == arm)
    assert text.startswith("# Results\n\nMade by `unskew report x`.")
    assert "Table EXP:main" in text
    assert "2 seeds" in text
    assert len(text.splitlines()) < 90


def test_a_known_world_is_shown_by_its_truth_and_claims_are_all_there(bench: Path) -> None:
    text = summary(Report.of(Findings.open(bench)), "unskew report x")
    known = text.split("## The known world")[1].split("##")[0]
    assert "by the truth" in known
    results = Results.open(bench)
    place = next(p for p in results.asked["places"] if (p["suite"], p["source"]) == ("truth", "bias 2"))
    keys = [
        p["key"]
        for p in results.asked["places"]
        if (p["suite"], p["source"], p["arm"]) == ("truth", "bias 2", place["arm"])
    ]
    mean = sum(results.cells[key]["tests"]["truth, full"]["metrics"]["ndcg@10"] for key in keys) / 2
    (line,) = [line for line in known.splitlines() if line.startswith(f"| {place['arm']} |")]
    assert f"{mean:.4f}" in line
    claims = text.split("## What the paper claims, what we find")[1]
    assert claims.count("\n| ") == 2 + 9
    assert "DEPS is better than all twelve rivals" in claims


def test_a_log_whose_times_are_only_an_order_is_named(bench: Path) -> None:
    findings = Findings.open(bench)
    findings.smoke = False
    assert "Order only" not in summary(Report.of(findings), "x")
    for cell in findings.suite("main").every_cell():
        cell["data"]["dated"] = False
    assert "- Order only: the times of shop only give an order." in summary(Report.of(findings), "x")
