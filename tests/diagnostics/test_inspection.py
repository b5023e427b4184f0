"""What an inspection says: its tests, verdict, sentences, table and JSON."""

import io
import json
import math

import numpy as np
import pytest

from tests.helpers.inspected import DEGENERATE, NOW, cut, skewed_log
from unskew.data.log.split import Split
from unskew.diagnostics.log import statistics as look
from unskew.diagnostics.log.inspect import Inspection, inspect


@pytest.fixture(scope="module")
def skewed() -> Inspection:
    return inspect(skewed_log())


# The tests


def test_tests_by_hand():
    # Training: x 6, y 3, z 1, w 1, v 1 (the head is one of five items: x). Test positives: x x y and n, which
    # is new; nobody had it before the first time, so that one is left out, and the second counts.
    item = [*"xxxxxxyyyzwv", *"xxynn"]
    found = inspect(cut([*"abababababab", *"ababa"], item, NOW + np.arange(17), fractions=(12, 0, 5)))
    assert [tested.test for tested in found.tests] == ["ordinary", "balanced", "authors"]
    ordinary, balanced, authors = found.tests
    assert (ordinary.positives, balanced.positives) == (4, 4)
    assert (ordinary.effective_sample_size, balanced.effective_sample_size) == (
        4,
        pytest.approx(9 / 2.5),
    )  # 1/2 1/2 1 1
    assert (ordinary.head, ordinary.long_tail, ordinary.unknown_items) == (0.5, 0.25, 0.25)
    assert (balanced.head, balanced.long_tail, balanced.unknown_items) == tuple([pytest.approx(1 / 3)] * 3)
    assert (ordinary.gini, balanced.gini) == (pytest.approx(look.gini([2, 1, 1])), pytest.approx(0))
    logs = math.log10(6), math.log10(3)  # n counts as 1
    assert ordinary.mean_log10_popularity == pytest.approx((2 * logs[0] + logs[1]) / 4)
    assert balanced.mean_log10_popularity == pytest.approx(sum(logs) / 3)
    assert ordinary.deciles == (0.5, 0, 0.25, 0, 0, 0, 0, 0, 0, 0)  # five items: every other tenth
    assert balanced.deciles == pytest.approx((1 / 3, 0, 1 / 3, 0, 0, 0, 0, 0, 0, 0))
    assert authors.positives <= 2  # the most popular of the held-out part, x, always vanishes


def test_the_balanced_test_flattens_a_skewed_one(skewed):
    ordinary, balanced, _ = skewed.tests
    assert ordinary.unknown_items == balanced.unknown_items == 0
    assert balanced.positives == ordinary.positives
    assert balanced.effective_sample_size < ordinary.effective_sample_size == ordinary.positives
    assert balanced.gini == pytest.approx(0, abs=1e-9)
    assert ordinary.gini > 0.3
    assert balanced.mean_log10_popularity < ordinary.mean_log10_popularity - 0.3
    assert balanced.deciles == pytest.approx([0.1] * 10)  # 40 items, all of them in the test
    assert balanced.head + balanced.long_tail == pytest.approx(1)
    assert f"where every item counts once, {100 * balanced.head:.1f} % is" in skewed.biases()[2]


def test_unknown_items_are_told_apart_from_the_tail():
    found = inspect(cut([*"abcdef"] * 2, [*"xxxyyy", *"nnnmmm"], NOW + np.arange(12)))
    for tested in found.tests[:2]:
        assert tested.unknown_items == 1
        assert tested.head == tested.long_tail == sum(tested.deciles) == 0
    assert "Test: 0.0 % of the ordinary test is on the most popular fifth of the items" in found.biases()[2]


def test_every_test_is_there_where_the_log_knows_it():
    draw = np.random.default_rng(0)
    exposed = np.arange(400) % 4 == 0
    user, item, label = np.repeat(np.arange(40), 10), draw.integers(0, 9, 400), draw.integers(0, 2, 400)
    time = NOW + np.arange(400) // 5  # five at a time
    found = inspect(
        cut(user, item, time, label, exposed.astype(int), propensity=draw.choice([0.25, 0.5], 400))
    )
    assert [tested.test for tested in found.tests] == [
        "ordinary",
        "balanced",
        "shown",
        "randomised",
        "weighted",
        "authors",
    ]
    by_name = {tested.test: tested for tested in found.tests}
    assert (
        by_name["randomised"].positives == (exposed & (label == 1))[280:].sum()
    )  # every item is there by then
    assert by_name["weighted"].positives == by_name["ordinary"].positives == label[280:].sum()
    assert by_name["weighted"].effective_sample_size < by_name["ordinary"].effective_sample_size
    assert {row.group for row in found.rows()} >= {"randomised test", "shown test", "weighted test"}
    assert [row["part"] for row in found.split] == ["train", "valid", "test"]
    assert any("--test randomised" in advice for advice in found.verdict().advice)


def test_repeats_by_hand():
    # Training (10 positives): a has x twice, b has y twice. Test: x and z of a again, z of b. Then a is shown
    # x, which is no positive.
    label = [1] * 13 + [0]
    found = inspect(
        cut(
            [*"aabbabzzzz", *"abaa"],
            [*"xxyyzwxywv", *"xzzx"],
            NOW + np.arange(14),
            label,
            fractions=(10, 0, 4),
        )
    )
    assert (found.repeats.positives, found.repeats.repeated, found.repeats.kept) == (13, 4, True)
    assert (found.repeats.train_share, found.repeats.test_share) == (pytest.approx(0.2), pytest.approx(2 / 3))
    said = (
        "Repeats: 30.8 % of the positives are on an item that the same user had before; items that a user "
        "has had stay candidates."
    )
    assert said in found.facts()
    rows = {row.name: row.value for row in found.rows() if row.group == "repeats"}
    assert rows == {
        "repeated positives": "4",
        "in training / test": "20.0 % / 66.7 %",
        "items a user has had": "candidates",
    }
    never = inspect(cut([*"aabbccddee"], [*"xyxyxyxyxy"], NOW + np.arange(10)))
    assert (never.repeats.repeated, never.repeats.kept) == (0, False)
    assert not [sentence for sentence in never.sentences() if sentence.startswith("Repeats")]


# What is handed on


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_logs_have_figures(name):
    found = inspect(DEGENERATE[name]())
    written = json.dumps(found.as_dict(), allow_nan=False)
    assert json.loads(written) == found.as_dict()
    assert not any("nan" in f"{row.value} {row.meaning}" for row in found.rows())
    assert not any("nan" in sentence for sentence in (*found.sentences(), found.verdict().finding))


def test_undefined_is_null():
    found = inspect(DEGENERATE["no positives in the test"]()).as_dict()
    assert found["tests"][0]["positives"] == 0
    assert found["tests"][0]["gini"] is None
    assert found["clock"]["days"] is None
    assert found["drift"]["slices"][0]["new"] is None


def test_sentences_of_logs_that_say_little():
    together = inspect(DEGENERATE["one time"]()).sentences()
    assert "Drift: it cannot be seen, because all positives have the same time." in together
    assert "Order: it cannot be tested, because no user has two positives at different times." in together
    assert any(sentence.startswith("Ties: 100.0 % of the positives") for sentence in together)
    assert (
        "Order: there is too little data to judge, because no transition occurs twice."
        in inspect(DEGENERATE["three rows"]()).sentences()
    )
    nothing = "Test: the test set has no positives that could be ranked."
    assert nothing in inspect(DEGENERATE["no positives in the test"]()).sentences()
    recurring = next(
        row for row in inspect(DEGENERATE["more rows than pairs"]()).rows() if row.name == "sparsity"
    )
    assert recurring.value == "-400.00 %"
    assert "the same pairs occur again and again" in recurring.meaning


def test_rows_are_formatted_for_people(skewed):
    rows = {(row.group, row.name): row for row in skewed.rows()}
    assert rows["size", "interactions"].value == "6,000"
    assert rows["size", "sparsity"].value == f"{100 * (1 - 6000 / 200 / 40):.2f} %"
    assert rows["time", "first interaction"].value == "2020-09-13 12:26:40"
    assert rows["order", "... after shuffling"].meaning == "20 shuffles of each user's items"
    assert rows["ordinary test", "positives ranked"].value == "1,800"
    assert rows["ordinary test", "effective sample size"].value == "1,800"


def test_the_split_is_passed_on():
    log = skewed_log()
    assert list(inspect(log).split) == log.summary()


def test_the_typical_popularity_is_a_number_of_positives(skewed):
    ordinary = skewed.tests[0]
    (row,) = [
        row
        for row in skewed.rows()
        if row.group == "ordinary test" and row.name == "training positives, typical item"
    ]
    assert row.value == str(round(10**ordinary.mean_log10_popularity))


# The verdict


def even_log() -> Split:
    """Ten items, each taken as often as any other, all the time."""
    return cut(np.arange(4000) % 100, np.arange(4000) * 7 % 10, NOW + np.arange(4000))


def test_the_verdict_tells_a_skewed_log_from_an_even_one(skewed):
    assert skewed.verdict().finding.startswith(
        "Popularity bias is strong: the most popular 10 % of the items"
    )
    assert any("--test balanced" in advice for advice in skewed.verdict().advice)
    even = inspect(even_log()).verdict()
    assert even.finding.startswith("Popularity bias is weak")
    assert even.advice == ("Train without weights first; the ordinary test is a fair test for this log.",)


def test_the_verdict_warns_of_drift_of_new_items_and_of_small_tests(skewed):
    changing = inspect(
        cut(np.tile(np.arange(8), 50), np.repeat(np.arange(10), 40), NOW + 86400 * np.arange(400))
    )
    said = " ".join(changing.verdict().advice)
    assert "half of the most popular items were replaced within 40 days" in said
    assert "of the test falls on items that training never saw" in said
    assert f"only {changing.tests[0].positives} positives" in said
    quiet = " ".join(skewed.verdict().advice)
    assert "replaced" not in quiet
    assert "never saw" not in quiet
    assert "Do not trust" not in quiet


def test_ties_order_and_repeats_are_facts_and_not_biases():
    found = inspect(DEGENERATE["one time"]())
    assert [said.split(":")[0] for said in found.biases()] == ["Popularity", "Drift", "Test"]
    assert [said.split(":")[0] for said in found.facts()] == ["Order", "Ties"]
    assert found.sentences() == found.biases() + found.facts()


def test_the_document_has_the_verdict_and_the_hash_of_the_data():
    log = skewed_log()
    document = inspect(log).as_dict()
    assert document["fingerprint"] == log.log.fingerprint()
    assert document["verdict"]["finding"].startswith("Popularity bias is strong")
    assert document["verdict"]["advice"]


@pytest.mark.parametrize("width", [80, 100])
def test_no_word_is_torn_on_a_narrow_terminal(skewed, width, monkeypatch):
    from rich.console import Console

    from unskew.cli import shared

    narrow = Console(width=width, file=io.StringIO(), highlight=False, markup=False)
    monkeypatch.setattr(shared, "output", narrow)
    verdict, values = shared.inspection_tables(skewed)
    narrow.print(values)
    assert len(narrow.file.getvalue().splitlines()) == len(skewed.rows())  # no row is folded
    narrow.print(verdict)
    printed = narrow.file.getvalue()
    assert max(map(len, printed.splitlines())) <= width
    words = {word for row in skewed.rows() for word in f"{row.group} {row.name} {row.value}".split()}
    words |= {word for said in (skewed.verdict().finding, *skewed.verdict().advice) for word in said.split()}
    assert words <= set(printed.split())


def test_a_log_that_looks_like_a_k_core_is_pointed_out():
    users, items = np.divmod(np.arange(16).repeat(3), 4)
    found = inspect(cut([f"u{n}" for n in users], [f"i{n}" for n in items], NOW + np.arange(48)))
    assert found.as_dict()["foreign_core"] == 12
    assert found.facts()[-1].startswith(
        "Filter: this looks like a k-core filtered log: each user and each item has"
    )
    assert "at least 12 rows" in found.facts()[-1]
    rare = inspect(cut(["a", "b"] * 10, ["x", "y", *"zw" * 9], NOW + np.arange(20)))
    assert rare.foreign_core == 0
    assert not any(sentence.startswith("Filter") for sentence in rare.sentences())
