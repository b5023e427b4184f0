"""The figures of a report are those of `unskew.evaluation.significance`, and its words follow from them."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.benched import SKILLS, SMALL, alter_data, benched, evaluation_of, skilled, small_bench
from unskew.core.statistics import holm
from unskew.evaluation.significance import compare, interval
from unskew.experiments.cell_store import CellStore
from unskew.experiments.intervals import DRAWS
from unskew.experiments.report import Report
from unskew.experiments.report_page import report_page
from unskew.experiments.results import BALANCED, GROUND_TRUTH, ORDINARY, BenchResults
from unskew.experiments.tables import segment_tables, suite_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bench(tmp_path_factory.mktemp("bench") / "dir")


@pytest.fixture(scope="module")
def findings(folder: Path) -> BenchResults:
    return BenchResults.open(folder)


def test_a_figure_has_the_interval_and_the_comparison_that_significance_gives(folder: Path) -> None:
    suite, results = BenchResults.open(folder).suites[0], CellStore.open(folder)
    for by, metric in ((ORDINARY, "ndcg@10"), (BALANCED, "hr@5")):
        groups = {
            arm: [evaluation_of(results, f"MIND|{arm}|{arm.lower()}|{seed}", by.key) for seed in range(2)]
            for arm in ("DEPS", "FPMC")
        }
        found = suite.arm_results("MIND", by)
        assert found is not None
        mean = found.means(metric)["DEPS"]
        assert (mean.low, mean.high) == pytest.approx(interval(groups["DEPS"], metric, DRAWS), abs=1e-5)
        expected = compare(groups["FPMC"], groups["DEPS"], metric, DRAWS)
        versus = found.compare("FPMC", "DEPS", metric)
        assert versus is not None
        assert versus.difference == pytest.approx(expected.difference, abs=1e-6)
        assert versus.p_rows == pytest.approx(expected.p_rows, rel=1e-4)
        assert (versus.low, versus.high) == pytest.approx((expected.low, expected.high), abs=1e-5)
        assert versus.p_seeds == pytest.approx(expected.p_seeds, rel=1e-3)


def test_p_values_are_corrected_over_the_suite_on_one_data_set_and_test(findings: BenchResults) -> None:
    found = findings.suites[0].arm_results("MIND", ORDINARY)
    assert found is not None
    plain = {arm: found.compare(arm, "DEPS") for arm in SKILLS if arm != "DEPS"}
    for part in ("p_rows", "p_seeds"):
        corrected = holm({arm: getattr(one, part) for arm, one in plain.items()})
        for arm, one in plain.items():
            versus = found.means()[arm].versus
            assert getattr(versus, part) == pytest.approx(corrected[arm])
            assert corrected[arm] >= getattr(one, part)
    assert max(corrected[arm] / plain[arm].p_seeds for arm in plain) > 2
    versus = found.means()["pulse"].versus
    assert versus.starred
    assert versus.daggered
    assert not replace(versus, p_seeds=0.06).starred
    assert not replace(versus, p_seeds=None).starred


def test_an_arm_with_a_twin_is_compared_with_it(findings: BenchResults) -> None:
    suite = findings.suites[1]
    found = suite.arm_results("MIND", ORDINARY)
    figures = found.means()
    assert figures["DEPS (STAMP)"].versus.to == "STAMP"
    assert figures["STAMP"].versus.to == "FPMC"
    assert figures["FPMC"].versus is None
    sheet = suite_table(suite, ORDINARY)
    assert [row[0].text for row in sheet.rows[-sheet.foot :]] == ["DEPS (STAMP) over STAMP"]
    fraction = 100 * figures["DEPS (STAMP)"].versus.relative.value
    assert sheet.rows[-1][1].text == f"{fraction:+.1f} %"


def test_the_first_arm_is_compared_with_its_best_rival(findings: BenchResults) -> None:
    found = findings.suites[0].arm_results("MIND", ORDINARY)
    rival, gain = found.over_best_rival()
    assert rival == "FPMC"  # pulse and popularity are better or worse, but no rivals
    assert gain.difference == pytest.approx(found.mean("DEPS") - found.mean("FPMC"), abs=1e-5)
    assert gain.relative.value == pytest.approx(found.mean("DEPS") / found.mean("FPMC") - 1, abs=1e-3)
    assert gain.relative.low < gain.relative.value < gain.relative.high < 0
    assert (
        gain.p_rows == found.means()["FPMC"].versus.p_rows
    )  # corrected: the best was found on the same rows


def test_the_best_is_bold_and_the_second_underlined(findings: BenchResults) -> None:
    sheet = suite_table(findings.suites[0], ORDINARY)
    places = {row[0].text: row[1].rank for row in sheet.rows}
    assert (places["pulse"], places["FPMC"], places["DEPS"]) == (1, 2, 0)
    html = sheet.html(sheet=True)
    mean = findings.suites[0].arm_results("MIND", ORDINARY).mean
    assert f"<b>{mean('pulse'):.4f}</b><sup>*†</sup><small>[" in html
    assert f"<u>{mean('FPMC'):.4f}</u>" in html
    assert f"**{mean('pulse'):.4f}**\\*† [" in sheet.markdown()
    assert f"<u>{mean('FPMC'):.4f}</u>" in sheet.markdown()
    assert rf"\textbf{{{mean('pulse'):.4f}}}$^{{*}}$$^{{\dagger}}$ [" in sheet.latex()
    assert rf"\underline{{{mean('FPMC'):.4f}}}" in sheet.latex()


def test_a_world_is_another_one_for_each_seed(tmp_path: Path) -> None:
    folder = benched(
        tmp_path / "dir",
        [replace(SMALL, name="ground-truth")],
        ("bias 0", "bias 2"),
        seeds=3,
        skill=skilled,
        tests=lambda source: ("ordinary, full", "balanced, full", "ground-truth, full"),
        worlds={"bias 0": 0.0, "bias 2": 2.0},
    )
    suite, results = BenchResults.open(folder).suites[0], CellStore.open(folder)
    for by in (ORDINARY, GROUND_TRUTH):
        found = suite.arm_results("bias 2", by)
        each = [
            compare(*(evaluation_of(results, f"bias 2|{arm}|{arm.lower()}|{seed}", by.key) for arm in pair))
            for seed in range(3)
            for pair in [("pulse", "DEPS")]
        ]
        versus = found.compare("pulse", "DEPS")
        assert versus.difference == pytest.approx(np.mean([one.difference for one in each]), abs=2e-4)
        assert versus.seeds == 3
        assert versus.p_seeds is not None
        assert versus.low < min(one.difference for one in each) or versus.low > 0
        assert versus.low < versus.difference < versus.high
        widths = [one.high - one.low for one in each]
        assert min(widths) / 4 < versus.high - versus.low < 2 * max(widths)
    assert suite_table(suite, GROUND_TRUTH, "beyond").foot == 0  # less of it is better, so nobody gains
    assert not any(entry.rank for row in suite_table(suite, GROUND_TRUTH, "beyond").rows for entry in row)
    assert 'id="world"' in report_page(Report.of(BenchResults(results)))


def test_a_single_seed_is_called_so(tmp_path: Path) -> None:
    folder = benched(tmp_path / "dir", [SMALL], seeds=1, skill=skilled)
    report = Report.of(BenchResults.open(folder))
    assert any(line.startswith("Seeds: a single seed") for line in report.verdict.advice)
    sheet = suite_table(report.results.suites[0], ORDINARY)
    assert "users only (a single seed)" in sheet.caption
    assert not any("*" in entry.marks for row in sheet.rows for entry in row)
    assert any("†" in entry.marks for row in sheet.rows for entry in row)


def test_groups_have_their_units_and_means_over_seeds(findings: BenchResults) -> None:
    sheet = next(segment_tables(findings.suites[0]))
    assert sheet.name == "main|MIND|ordinary"
    assert [name for name, _ in sheet.groups] == [
        "",
        *["item's popularity, tenth", "length of the history", "user", "item"],
    ]
    cells = findings.suites[0].cells["MIND", "pulse"].values()
    values = [cell.tests[ORDINARY.key].segments["popularity decile"]["1"][1] for cell in cells]
    row = next(row for row in sheet.cells if row[0].text == "pulse")
    assert row[1].text == f"{np.mean(values):.4f}"
    assert [entry.text for entry in sheet.cells[-1][:2]] == ["positives ranked", "30"]


# Words


def test_the_verdict_says_who_is_first_and_what_speaks_against_it(findings: BenchResults) -> None:
    verdict = Report.of(findings).verdict
    assert verdict.finding.startswith("In the ordinary test pulse is first on 2 of 2 data sets, ")
    assert "In the balanced test " in verdict.finding
    assert re.search(r"(pulse|FPMC) is first on 1 of 2 data sets.*; (pulse|FPMC) on 1\.", verdict.finding)
    said = dict(line.split(": ", 1) for line in verdict.advice)
    found = findings.suites[0].arm_results("MIND", ORDINARY)
    lead = found.compare("pulse", "FPMC")
    low, high = 100 * lead.relative.low, 100 * lead.relative.high
    expected = f"MIND {100 * lead.relative.value:+.1f} % [{low:+.1f}, {high:+.1f}] over FPMC"
    assert expected in said["pulse, ordinary test"]
    assert said["pulse, ordinary test"].startswith("ahead of all others on 2 of 2")
    assert "behind on 1 of 2 (Beauty " in said["pulse, balanced test"]
    assert said["DEPS, ordinary test"].startswith("behind on 2 of 2 (MIND ")
    assert said["DEPS among its 2 rivals"].startswith(
        "better than the best of them on 0 of 2 in the ordinary"
    )
    assert "the weights of DEPS do nothing on 2 of 2 data sets" in said["Propensities"]
    assert said["Popularity alone"].startswith("popularity is better than ")
    assert said["Seeds"].startswith("2 for each model")
    assert "Missing" not in said


def test_who_is_first_is_not_asked_of_an_order(tmp_path: Path) -> None:
    """Where times only give an order, recency measures how the rows of the file were sorted."""
    sources = ("MIND", "Beauty", "rebuilt")
    folder = benched(tmp_path, [SMALL], sources, skill=lambda arm, source, test: 2.0 * (arm == "pulse"))
    findings = BenchResults.open(folder)
    assert "pulse is first on 3 of 3 data sets, " in Report.of(findings).verdict.finding
    for cell in findings.suite("main").every_cell():
        object.__setattr__(cell.data, "dated", cell.data.name != "rebuilt")
    assert "pulse is first on 2 of 2 data sets with real times, " in Report.of(findings).verdict.finding
    alter_data(findings.suite("main"), dated=False)
    assert "pulse is first on 3 of 3 data sets, " in Report.of(findings).verdict.finding


def test_the_verdict_names_who_is_first_in_a_suite_of_what_is_shipped(tmp_path: Path) -> None:
    """And in no other one. Its lead is told over the next, and over the best that is not shipped."""
    others = [arm for arm in SMALL.arms if arm.model != "pulse"]
    pulse = next(arm for arm in SMALL.arms if arm.model == "pulse")
    zero = replace(pulse, name="zero", model="pulse-zero")
    ship, other = (
        replace(SMALL, name=name, title=name, arms=tuple(arms))
        for name, arms in (("ship", [pulse, zero, *others]), ("other", [*others, pulse]))
    )
    folder = benched(
        tmp_path,
        [SMALL, ship, other],
        ("MIND", "Beauty"),
        skill=lambda arm, source, test: {"pulse": 2.0, "zero": 1.0}.get(arm, 0.0),
    )
    said = [line for line in Report.of(BenchResults.open(folder)).verdict.advice if line.startswith("Suite ")]
    assert [line.partition(":")[0] for line in said] == [
        "Suite ship, 2 seeds",
        *(
            f"Suite ship, {test} test, pulse against the best model other than pulse-zero"
            for test in ("ordinary", "balanced")
        ),
    ]
    names = {arm.name for arm in others}
    for test, line in zip(("ordinary", "balanced"), said[1:], strict=True):
        assert f"In the {test} test pulse is first on 2 of 2 data sets, " in said[0]
        for told, source in zip(
            line.partition(": ")[2].rstrip(".").split("; "), ("MIND", "Beauty"), strict=True
        ):
            lead, _, other = told.partition(" over ")
            assert lead.startswith(f"{source} +")
            assert other in names


def test_the_verdict_says_where_training_was_cut_short(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, copy := tmp_path / "dir")
    asked = json.loads((copy / "suites.json").read_text())
    for place in asked["places"]:
        place["at_most"] = {"epochs": 8.0, "deps.audience": 100.0} if place["source"] == "MIND" else {}
    (copy / "suites.json").write_text(json.dumps(asked))
    assert [
        line for line in Report.of(BenchResults.open(copy)).verdict.advice if line.startswith("Made smaller")
    ] == ["Made smaller to fit the budget: no model has more than epochs 8, deps audience 100 on MIND."]
    said = Report.of(BenchResults.open(folder)).verdict.advice
    assert not [line for line in said if line.startswith("Made smaller")]


def test_the_verdict_says_where_there_is_a_single_seed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, copy := tmp_path / "dir")
    asked = json.loads((copy / "suites.json").read_text())
    asked["places"] = [at for at in asked["places"] if at["source"] == "MIND" or at["seed"] == 0]
    (copy / "suites.json").write_text(json.dumps(asked))
    said = dict(line.split(": ", 1) for line in Report.of(BenchResults.open(copy)).verdict.advice)
    assert said["Seeds"].startswith("a single seed for each model (but 2 on MIND). Its intervals cover ")


def test_a_smoke_test_says_nothing_and_says_so(tmp_path: Path) -> None:
    folder = benched(tmp_path / "dir", [SMALL], skill=skilled, about={"smoke": True})
    report = Report.of(BenchResults.open(folder))
    assert "smoke test" in report.verdict.finding
    assert "say nothing" in report.verdict.finding
    assert "<h1>A smoke test of the bench</h1>" in report_page(report)
