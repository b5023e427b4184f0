"""The claims of the paper are judged by the rules that stand in `unskew.experiments.claims`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.benched import NOTHING, benched, copied
from unskew.core.statistics import holm
from unskew.experiments import paper_suites as paper
from unskew.experiments.claims import (
    CLAIMS,
    ClaimVerdict,
    Outcome,
    claims_table,
    judge_claims,
    outcomes_table,
    overall_verdict,
)
from unskew.experiments.report import Report
from unskew.experiments.results import BALANCED, ORDINARY, BenchResults, EvaluationSpec

DUAL, EITHER, SEQUENTIAL, STAGE, BOTH, GRU, FPMC, CLIP, RIVALS, TUNED = CLAIMS
FEW = replace(paper.MAIN, arms=paper.MAIN.arms[:3], rivals=("STAMP", "DIN"))


def found(
    folder: Path, suites: list, skill: Callable[[str, str, str], float], seeds: int = 3, **more
) -> dict[str, list[Outcome]]:
    """What was found for each claim, by its words."""
    made = benched(folder, suites, more.pop("sources", ("MIND",)), seeds, 400, skill, **more)
    return judge_claims(BenchResults.open(made))


def test_a_claim_is_confirmed_where_every_difference_is_sure(tmp_path: Path) -> None:
    outcomes = found(tmp_path, [paper.VIEWS], lambda arm, source, test: 1.5 * (arm == "DEPS"))
    assert [(one.by, one.verdict) for one in outcomes[DUAL]] == [
        (ORDINARY, "confirmed"),
        (BALANCED, "confirmed"),
    ]
    one = outcomes[DUAL][0]
    assert one.difference.low > 0
    assert one.reason == "better than each"
    assert one.pair[0] == "DEPS"
    # Both single views are no better than none, and that is no proof that they are worse.
    assert {one.verdict for one in outcomes[EITHER]} == {"undecided"}
    assert "may be chance" in outcomes[EITHER][0].reason


def test_a_claim_is_refuted_where_one_difference_is_surely_below_0(tmp_path: Path) -> None:
    def skill(arm: str, source: str, test: str) -> float:
        return {"DEPS": 0.5, "without the user view": 1.7, "without the item view": -0.7}.get(arm, 0.0)

    outcomes = found(tmp_path, [paper.VIEWS], skill)
    one = outcomes[DUAL][0]
    assert one.verdict == "refuted"
    assert one.reason == "without the user view is better than DEPS"
    assert one.pair == ("DEPS", "without the user view")  # the smallest difference
    assert one.difference.difference < one.difference.high < 0
    # One view helps and the other does harm: either view should help.
    assert outcomes[EITHER][0].verdict == "refuted"
    both = found(tmp_path / "both", [paper.VIEWS], lambda arm, *at: -1.5 * (arm == "DEPS"))[DUAL][0]
    assert both.reason == "without the user view, without the item view are better than DEPS"


def test_a_claim_is_refuted_where_an_arm_is_the_same_as_another_to_the_last_digit(tmp_path: Path) -> None:
    """Equal in every unit is not the same as equal on average, which may be chance."""
    folder = benched(tmp_path, [paper.VIEWS], seeds=3, units=400, skill=lambda arm, source, test: 0.0)
    copied(folder, "DEPS", "without the user view", exchanged=True)
    copied(folder, "DEPS", "without the item view", exchanged=True)
    chance = judge_claims(BenchResults.open(folder))[DUAL][0]
    assert chance.difference.difference == 0
    assert chance.verdict == "undecided"
    copied(folder, "DEPS", "without the item view")
    one = judge_claims(BenchResults.open(folder))[DUAL][0]
    assert one.verdict == "refuted"
    assert one.reason == "DEPS is the same as without the item view in every unit with every seed"


def test_single_seeds_are_told_and_do_not_count(tmp_path: Path) -> None:
    def skill(arm: str, source: str, test: str) -> float:
        return 1.5 * (arm == "DEPS")

    def second(source: str, arm: str, seed: int) -> bool:
        return source == "Online Retail" and seed > 0

    sources = ("MIND", "Online Retail")
    outcomes = found(tmp_path, [paper.PARTS], skill, sources=sources, missing=second)
    assert [(one.source, one.verdict, one.is_single) for one in outcomes[STAGE] if one.by == ORDINARY] == [
        ("MIND", "confirmed", False),
        ("Online Retail", "undecided", True),
    ]
    sheet = claims_table(outcomes, dict.fromkeys((claim.suite for claim in CLAIMS), ""))
    row = next(row for row in sheet.rows if row[0].text == STAGE.sentence)
    assert (row[1].text, row[1].small) == ("confirmed", "1 confirmed of 1; 1 with a single seed")


def test_tests_are_judged_on_their_own(tmp_path: Path) -> None:
    def skill(arm: str, source: str, test: str) -> float:
        return 1.5 * (arm == "without stage 1") * (1 if test == "ordinary" else -1)

    outcomes = found(tmp_path, [paper.PARTS], skill)
    assert [one.verdict for one in outcomes[STAGE]] == ["refuted", "confirmed"]


def test_p_values_are_corrected_over_all_claims_on_one_data_set_and_test(tmp_path: Path) -> None:
    def skill(arm: str, source: str, test: str) -> float:
        return 0.16 * (arm == "DEPS")

    folder = benched(tmp_path, [paper.VIEWS, paper.PARTS, paper.FREQUENCY], seeds=3, units=400, skill=skill)
    findings = BenchResults.open(folder)
    outcomes, plain = judge_claims(findings), {}
    for claim in (DUAL, EITHER, SEQUENTIAL, STAGE, BOTH):
        suite = findings.suite(claim.suite)
        for pair in claim.pairs(suite):
            plain[claim.sentence, pair] = suite.arm_results("MIND", ORDINARY).compare(*pair).p_seeds
    corrected = holm(plain)
    assert len(corrected) == 10
    for claim in (DUAL, EITHER, SEQUENTIAL, STAGE, BOTH):
        one = outcomes[claim][0]
        assert one.difference.p_seeds == pytest.approx(corrected[claim.sentence, one.pair])
    assert any(corrected[at] > 2 * p for at, p in plain.items())


def test_a_single_seed_and_a_smoke_test_decide_nothing(tmp_path: Path) -> None:
    def skill(arm: str, source: str, test: str) -> float:
        return 1.5 * (arm == "DEPS") - 1.5 * (arm == "without stage 1")

    one = found(tmp_path / "one", [paper.PARTS], skill, seeds=1)[STAGE][0]
    assert one.verdict == "undecided"
    assert "a single seed" in one.reason
    assert "it points for the claim" in one.reason
    assert one.difference.low > 0
    against = found(tmp_path / "against", [paper.PARTS], lambda *at: -skill(*at), seeds=1)[STAGE][0]
    assert "it points against the claim" in against.reason
    smoke = found(tmp_path / "smoke", [paper.PARTS], skill, about={"smoke": True})[STAGE][0]
    assert (smoke.verdict, smoke.reason) == ("undecided", "a smoke test says nothing")


def test_what_is_missing_is_not_measured_unless_another_refutes(tmp_path: Path) -> None:
    def without(name: str) -> Callable[[str, str, int], bool]:
        return lambda source, arm, seed: arm == name

    def skill(arm: str, source: str, test: str) -> float:
        return 1.5 * (arm == "DIN")

    outcomes = found(tmp_path / "a", [FEW], lambda *at: 0.0, missing=without("STAMP"))
    assert (outcomes[RIVALS][0].verdict, outcomes[RIVALS][0].reason) == ("not measured", "missing: STAMP")
    assert outcomes[RIVALS][0].difference is None
    assert outcomes[DUAL] == []  # nobody asked for that suite
    assert found(tmp_path / "b", [FEW], skill, missing=without("STAMP"))[RIVALS][0].verdict == "refuted"
    gone = found(tmp_path / "c", [FEW], skill, missing=without("DEPS"))[RIVALS][0]
    assert (gone.verdict, gone.reason) == ("not measured", "missing: DEPS")


def test_weights_that_do_nothing_are_the_reason(tmp_path: Path) -> None:
    outcomes = found(tmp_path, [paper.VIEWS, paper.PARTS], lambda *at: 0.0, health={"DEPS": NOTHING})
    assert outcomes[DUAL][0].reason.endswith("; the weights of DEPS do nothing")
    assert "do nothing" not in outcomes[EITHER][0].reason  # it does not speak of DEPS
    assert "do nothing" not in outcomes[STAGE][0].reason  # it is not about propensities


def test_rivals_that_are_tuned_are_judged_only_where_they_were_tuned(tmp_path: Path) -> None:
    assert TUNED not in found(tmp_path / "one", [FEW], lambda *at: 0.0)
    own = replace(FEW, name="tuned", file="benchmarks/tuned.py")
    outcomes = found(tmp_path / "two", [FEW, own], lambda arm, source, test: 1.5 * (arm == "DEPS"))
    assert [one.verdict for one in outcomes[TUNED]] == ["confirmed", "confirmed"]
    report = Report.of(BenchResults.open(tmp_path / "two"))
    assert report.suite_command("tuned").startswith("unskew bench --suite benchmarks/tuned.py DATA --out ")
    assert report.suite_command("main").startswith("unskew bench main DATA --out ")


def test_claims_name_the_arms_that_the_suites_have() -> None:
    for claim in CLAIMS:
        if claim is TUNED:
            continue
        suite = next(suite for suite in paper.SUITES if suite.name == claim.suite)
        names = {arm.name for arm in suite.arms}
        shown = type("Shown", (), {"first": suite.arms[0].name, "rivals": suite.rivals, "arms": suite.arms})
        pairs = list(claim.pairs(shown))
        assert pairs
        assert {name for pair in pairs for name in pair} <= names
    assert len(RIVALS.pairs(type("Shown", (), {"first": "DEPS", "rivals": paper.MAIN.rivals}))) == 12
    clips = CLIP.pairs(type("Shown", (), {"first": "M 0.05", "arms": paper.CLIP.arms}))
    assert [other for _, other in clips] == ["M 0.0005", "M 0.001", "M 0.005", "M 0.01", "M 0.2"]
    assert GRU.pairs(None) == (("DEPS (GRU4Rec+)", "GRU4Rec+"),)
    assert FPMC.pairs(None) == (("DEPS (FPMC)", "FPMC"),)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "not measured"),
        ("n", "not measured"),
        ("c", "confirmed"),
        ("cn", "confirmed"),
        ("cu", "undecided"),
        ("ccu", "confirmed"),
        ("ccr", "undecided"),
        ("rru", "refuted"),
        ("ru", "undecided"),
        ("rrc", "undecided"),
        ("uu", "undecided"),
        ("s", "undecided"),
        ("sn", "undecided"),
        ("rss", "refuted"),
        ("css", "confirmed"),
        ("rcss", "undecided"),
    ],
)
def test_over_all_data_sets(words: str, expected: str) -> None:
    verdicts = dict(zip("cruns", [*ClaimVerdict, ClaimVerdict.UNDECIDED], strict=True))
    outcomes = [
        Outcome(STAGE, str(at), ORDINARY, verdicts[word], "", is_single=word == "s")
        for at, word in enumerate(words)
    ]
    assert overall_verdict(outcomes) == expected


def test_the_papers_own_rows_are_a_third_test(tmp_path: Path) -> None:
    def tests(source: str) -> tuple[str, ...]:
        own = ("theirs, authors",) if source.startswith("paper") else ()
        return ("ordinary, full", "balanced, full", *own)

    sources = ("paper: MIND", "Online Retail")
    folder = benched(tmp_path, [paper.PARTS], sources, 2, 300, lambda *at: 1.5 * (at[0] == "DEPS"), tests)
    report = Report.of(BenchResults.open(folder))
    own = EvaluationSpec("theirs", "authors")
    assert [(one.source, one.by) for one in report.outcomes[STAGE]] == [
        ("paper: MIND", ORDINARY),
        ("paper: MIND", BALANCED),
        ("paper: MIND", own),
        ("Online Retail", ORDINARY),
        ("Online Retail", BALANCED),
    ]
    sheet = report.claims_table()
    row = next(row for row in sheet.rows if row[0].text == STAGE.sentence)
    assert [entry.text for entry in row[1:4]] == ["confirmed"] * 3
    assert [entry.small for entry in row[1:4]] == ["2 confirmed of 2", "2 confirmed of 2", "1 confirmed of 1"]
    assert row[4].text == report.suite_command("parts") == f"unskew bench parts DATA --out {tmp_path}"
    assert next(row for row in sheet.rows if row[0].text == DUAL.sentence)[1].text == "not measured"
    each = outcomes_table(report.outcomes)
    one = report.outcomes[STAGE][0].difference
    assert each.rows[0][4].text == f"{one.difference:+.4f}"
    assert each.rows[0][4].small == f"[{one.low:+.4f}, {one.high:+.4f}]"
    counted = next(line for line in report.verdict.advice if line.startswith("The paper's 9 claims"))
    assert "2 confirmed, 7 not measured by the ordinary test" in counted
