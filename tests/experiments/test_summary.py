"""The page of results that a person reads."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.benched import alter_data, benched
from unskew.api.zero_shot import learned_on
from unskew.experiments import extra_suites as beyond
from unskew.experiments import paper_suites as paper
from unskew.experiments.bench import Bench
from unskew.experiments.cell_store import CellStore
from unskew.experiments.grid import SMOKE_WORLD, world_source
from unskew.experiments.report import Report
from unskew.experiments.results import BenchResults
from unskew.experiments.suite import Suite
from unskew.experiments.summary import summary


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    few = replace(paper.MAIN, arms=[*paper.MAIN.arms[:3], *paper.MAIN.arms[-2:]], rivals=("STAMP", "DIN"))
    known = replace(beyond.GROUND_TRUTH, arms=beyond.GROUND_TRUTH.arms[:2])
    sources = (world_source("shop", SMOKE_WORLD),)
    Bench(suites=(few, known), sources=sources, smoke=True, seeds=2).run(folder)
    return folder


def table_cells(text: str, title: str) -> dict[tuple[str, str], str]:
    """The cells of a table by arm and data set, whichever are its rows."""
    part = text.split(f"## {title}")[1].split("\n## ", maxsplit=1)[0]
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in part.splitlines()
        if line.startswith("|")
    )
    found = {(row[0], name): cell for row in rows for name, cell in zip(head[1:], row[1:], strict=True)}
    return found if head[0] == "model" else {(arm, data): cell for (data, arm), cell in found.items()}


def test_few_arms_are_columns_and_suites_with_the_same_arms_are_one_table(tmp_path: Path) -> None:
    def made(*suites: Suite) -> str:
        folder = tmp_path / str(len(suites))
        benched(folder, list(suites), ("MIND",), 1, 60, lambda *at: 0.0)
        return summary(Report.of(BenchResults.open(folder)), "x")

    other = replace(paper.VIEWS, name="other", title="Elsewhere", of="")
    text = made(paper.VIEWS, other, paper.MAIN)
    assert "\n| data | DEPS | without IPS | without the user view | without the item view |\n" in text
    assert "\n| model | MIND |\n| --- | ---: |\n| DEPS |" in text
    assert "## Elsewhere" not in text
    assert "; MIND: elsewhere, `unskew bench other DATA --out " in text
    assert text.split("## Two views")[1].split("\n## ", maxsplit=1)[0].count("\n| MIND |") == 2
    assert len(table_cells(text, "DEPS and its rivals")) == 21


def test_a_cell_has_the_means_of_both_tests_and_the_best_is_bold(bench: Path) -> None:
    text = summary(Report.of(BenchResults.open(bench)), "unskew report x")
    results = CellStore.open(bench)
    places = [place for place in results.plan.places if place.suite == "main"]
    means = {}
    for arm in ("DEPS", "STAMP", "DIN", "pulse"):
        cells = [results.cells[place.key] for place in places if place.arm == arm]
        assert len(cells) == 2
        means[arm] = [
            sum(cell.tests[f"{test}, full"].metrics["ndcg@10"] for cell in cells) / 2
            for test in ("ordinary", "balanced", "ground-truth")
        ]
    best = [max(means, key=lambda arm: means[arm][at]) for at in (0, 1, 2)]
    for arm, pair in means.items():
        shown = table_cells(text, "DEPS and its rivals")[arm, "shop"].replace("†", "").replace("*" * 3, "**")
        shown = shown.split(" / ")
        for at, (value, cell) in enumerate(zip(pair, shown, strict=True)):
            assert f"{value:.4f}" in cell
            assert cell.startswith("**") == (best[at] == arm)
    assert text.startswith("# Results\n\nMade by `unskew report x`.")
    assert "Table EXP:main" in text
    assert "2 seeds" in text
    assert len(text.splitlines()) < 90


def test_a_known_world_is_shown_by_its_ground_truth_and_claims_are_all_there(bench: Path) -> None:
    text = summary(Report.of(BenchResults.open(bench)), "unskew report x")
    known = text.split("## The simulated world")[1].split("##")[0]
    assert "by the ground truth" in known
    results = CellStore.open(bench)
    place = next(p for p in results.plan.places if (p.suite, p.source) == ("ground-truth", "bias 2"))
    keys = [
        p.key
        for p in results.plan.places
        if (p.suite, p.source, p.arm) == ("ground-truth", "bias 2", place.arm)
    ]
    mean = sum(results.cells[key].tests["ground-truth, full"].metrics["ndcg@10"] for key in keys) / 2
    assert f"{mean:.4f}" in table_cells(text, "The simulated world")[place.arm, "bias 2"]
    claims = text.split("## What the paper claims, what we find")[1]
    assert claims.count("\n| ") == 2 + 9
    assert "DEPS is better than all twelve rivals" in claims


def test_a_log_whose_times_are_only_an_order_is_named(bench: Path) -> None:
    findings = BenchResults.open(bench)
    findings.smoke = False
    assert "Order only" not in summary(Report.of(findings), "x")
    alter_data(findings.suite("main"), dated=False)
    assert "- Order only: the times of shop only give an order." in summary(Report.of(findings), "x")


def test_a_log_that_pulse_zero_was_learned_on_is_named(bench: Path) -> None:
    findings = BenchResults.open(bench)
    findings.smoke = False
    assert "No strangers" not in summary(Report.of(findings), "x")
    alter_data(findings.suite("main"), hash=learned_on()["Online Retail"])
    text = summary(Report.of(findings), "x")
    assert "- No strangers: the weights of pulse-zero were learned on the training set of shop, so" in text
