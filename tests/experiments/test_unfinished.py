"""Runs that were not trained to the end are shown and marked; no verdict, claim or lead uses them."""

import json
from pathlib import Path

import pytest

import unskew
from tests.helpers.benched import SKILLS, SMALL, benched, block, skilled
from unskew.experiments.cell_store import CellStore
from unskew.experiments.claims import NOT_MEASURED, REFUTED, judge_claims
from unskew.experiments.report import Report
from unskew.experiments.report_page import report_page
from unskew.experiments.results import ORDINARY, BenchResults, SuiteResults
from unskew.experiments.runner import is_finished
from unskew.experiments.summary import summary
from unskew.experiments.tables import metrics_table, runs_table, segment_tables, suite_table


def results_without(folder: Path, *unfinished: str, smoke: bool = False) -> BenchResults:
    """The results of a bench in which the second seed of some arms was not trained to the end."""
    benched(
        folder,
        [SMALL],
        skill=skilled,
        unfinished=lambda source, arm, seed: arm in unfinished and seed == 1,
        about={"smoke": smoke},
    )
    return BenchResults.open(folder)


def main_suite(results: BenchResults) -> SuiteResults:
    suite = results.suite("main")
    assert suite is not None
    return suite


def test_an_unfinished_arm_is_neither_first_nor_ranked_nor_compared(tmp_path: Path) -> None:
    whole = main_suite(results_without(tmp_path / "whole")).arm_results("MIND", ORDINARY)
    cut = main_suite(results_without(tmp_path / "cut", "pulse")).arm_results("MIND", ORDINARY)
    assert whole is not None
    assert cut is not None
    assert (whole.best(), cut.best()) == ("pulse", "FPMC")
    assert cut.best(["pulse"]) is None
    assert cut.compare("pulse", "DEPS") is None
    assert cut.compare("DEPS", "pulse") is None
    assert cut.means()["pulse"].versus is None
    assert cut.mean("pulse") == whole.mean("pulse")
    # Holm's correction counts the comparisons that are made.
    kept, before = cut.means()["FPMC"].versus, whole.means()["FPMC"].versus
    assert kept is not None
    assert before is not None
    assert kept.p_rows <= before.p_rows


def test_the_best_rival_is_a_finished_one(tmp_path: Path) -> None:
    arms = main_suite(results_without(tmp_path / "dir", "FPMC")).arm_results("MIND", ORDINARY)
    assert arms is not None
    best = arms.over_best_rival()
    assert best is not None
    assert best[0] == "STAMP"


def test_every_table_marks_it(tmp_path: Path) -> None:
    results = results_without(tmp_path / "dir", "pulse")
    suite = main_suite(results)
    table = suite_table(suite, ORDINARY)
    row = next(row for row in table.rows if row[0].text == "pulse")
    assert (row[1].marks, row[1].rank) == ("‡", 0)
    assert "‡ not finished" in table.caption
    for each in (metrics_table(suite, ORDINARY), *segment_tables(suite)):
        marks = {cell.text: cell.marks for cell in (line[0] for line in each.cells)}
        assert marks["pulse"] == "‡"
        assert {marks[arm] for arm in SKILLS if arm != "pulse"} == {""}
    cards = {row[0].text: row for row in runs_table(suite).cells}
    column = runs_table(suite).titles.index("finished")
    assert (cards["pulse"][column].text, cards["FPMC"][column].text) == ("1 of 2", "2 of 2")
    assert r"$^{\ddagger}$" in table.latex()
    text = summary(Report.of(results), "x")
    means = next(line for line in text.splitlines() if line.startswith("| MIND |") and " / " in line)
    assert means.count("‡") == 2  # in both tests
    values = block(report_page(Report.of(results)))["suites"]["main"]
    marks = [row[0][3] for row in values["tables"]["ordinary, full"]["ndcg@10"]["rows"]]
    assert [bool(of & 16) for of in marks] == [name == "pulse" for name in values["arms"]]


def test_no_sentence_of_the_verdict_is_about_it(tmp_path: Path) -> None:
    verdict = Report.of(results_without(tmp_path / "dir", "pulse")).verdict
    assert "FPMC is first on MIND" in verdict.finding
    lines = [line for line in verdict.advice if "pulse" in line]
    assert len(lines) == 1
    assert lines[0].startswith("Not finished: a validation metric of pulse (MIND) was still rising.")
    whole = Report.of(results_without(tmp_path / "whole")).verdict
    assert not any(line.startswith("Not finished") for line in whole.advice)
    few = next(line for line in verdict.advice if line.startswith("Popularity alone"))
    assert "2 of 3 other" in few  # DEPS and STAMP; pulse is not counted
    verdict = Report.of(results_without(tmp_path / "other", "STAMP")).verdict
    few = next(line for line in verdict.advice if line.startswith("Popularity alone"))
    assert "1 of 3 other" in few


def test_nothing_is_first_where_nothing_is_finished(tmp_path: Path) -> None:
    verdict = Report.of(results_without(tmp_path / "dir", *SKILLS)).verdict
    assert verdict.finding.startswith("No run of")
    assert not [line for line in verdict.advice if "ahead" in line or "Popularity" in line]


def test_a_claim_about_it_is_not_measured(tmp_path: Path) -> None:
    def outcomes(*unfinished: str) -> set[tuple[str, str]]:
        results = results_without(tmp_path / "-".join(unfinished), *unfinished)
        of = next(of for claim, of in judge_claims(results).items() if claim.suite == "main" and of)
        return {(outcome.verdict, outcome.reason) for outcome in of}

    assert outcomes("DEPS") == {(NOT_MEASURED, "not finished: DEPS")}
    assert outcomes("STAMP", "FPMC") == {(NOT_MEASURED, "not finished: STAMP, FPMC")}
    # A finished rival that is better refutes it all the same.
    assert outcomes("STAMP") == {(REFUTED, "FPMC is better than DEPS")}


def test_a_smoke_test_is_short_on_purpose(tmp_path: Path) -> None:
    results = results_without(tmp_path / "dir", *SKILLS, smoke=True)
    arms = main_suite(results).arm_results("MIND", ORDINARY)
    assert arms is not None
    assert arms.best() == "pulse"
    assert not main_suite(results).unfinished


def test_a_stored_cell_must_say_whether_it_is_finished(tmp_path: Path) -> None:
    path = benched(tmp_path / "dir", [SMALL]) / "cells.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    del lines[3]["finished"]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(unskew.BadInput, match=r"line 4: has no finished"):
        CellStore.open(path.parent)


@pytest.mark.parametrize(("patience", "finished"), [(4, False), (5, True)])
def test_a_run_with_little_patience_is_not_finished(
    small_split: unskew.Split, patience: int, finished: bool
) -> None:
    settings = {"width": 8, "learning_rate": 1e-9, "epochs": 9, "patience": patience}
    model = unskew.create_model("sasrec", settings).fit(small_split, show_progress=False)
    assert model.is_finished
    assert is_finished(model) == finished


def test_a_model_without_epochs_is_finished(small_split: unskew.Split) -> None:
    model = unskew.create_model("popularity", {"patience": 0}).fit(small_split, show_progress=False)
    assert is_finished(model)
