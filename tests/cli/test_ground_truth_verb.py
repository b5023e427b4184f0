"""`unskew simulate --kind` and `unskew ground-truth`, end to end on a tiny world."""

import json

import numpy as np
import pytest

import unskew
from tests.helpers.command import run
from unskew.cli.shared import output
from unskew.world.ground_truth import evaluate_against_ground_truth, world_of
from unskew.world.kinds import kind_named

SMALL = ("--users", 150, "--items", 50, "--steps", 40, "--impressions", 0.2, "--shown", 5)


@pytest.fixture
def data(tmp_path, capsys):
    code, _, err = run(
        capsys, "simulate", "--out", tmp_path / "world", "--kind", "trends", *SMALL, "--seed", 4
    )
    assert code == 0, err
    return tmp_path / "world"


@pytest.fixture
def runs(data, tmp_path, capsys):
    for name, *flags in (("popularity",), ("sasrec", "--epochs", 2, "--width", 8, "--layers", 1)):
        code, _, err = run(capsys, "train", data, "--model", name, "--out", tmp_path / name, *flags)
        assert code == 0, err
    return tmp_path / "popularity", tmp_path / "sasrec"


def test_a_kind_gives_the_defaults_and_flags_change_them(data, capsys):
    world = world_of(unskew.Log.open(data)).settings
    kind = kind_named("trends")
    assert (world.trend, world.season, world.recency) == (kind.trend, kind.season, kind.recency)
    assert (world.users, world.items, world.steps, world.seed) == (150, 50, 40, 4)
    code, _, err = run(capsys, "simulate", "--out", data.parent / "other", "--kind", "trend")
    assert (code, err.count("\n")) == (2, 1)
    assert "no world 'trend'; did you mean 'trends'?" in err
    assert not (data.parent / "other").exists()


def test_ground_truth_of_runs_and_their_paired_differences(data, runs, capsys):
    code, out, err = run(capsys, "ground-truth", *runs, "--sample", 80, "--json")
    assert code == 0, err
    said = json.loads(out)
    assert said["impressions"] == 80
    assert said["impressions_of_the_test_set"] > 80
    assert said["world"]["trend"] == kind_named("trends").trend
    log = unskew.Log.open(data)
    world, split = world_of(log), unskew.split(log)
    found = [evaluate_against_ground_truth(unskew.load(folder), world, split, 80) for folder in runs]
    for line, each, name in zip(said["runs"], found, ("popularity", "sasrec"), strict=True):
        assert line["model"] == name
        assert line["metrics"] == pytest.approx(each.metrics())
        low, high = line["intervals"]["ndcg@10"]
        assert low < line["metrics"]["ndcg@10"] < high
    (difference,) = said["differences"]
    paired = (found[1].values["ndcg@10"] - found[0].values["ndcg@10"]).mean()
    assert difference["metrics"]["ndcg@10"]["difference"] == pytest.approx(paired)
    assert (difference["run"], difference["to"]) == (str(runs[1]), str(runs[0]))
    assert said["true_exposure"]["exposure"] == pytest.approx(1)


def test_people_get_tables(runs, capsys, monkeypatch):
    monkeypatch.setattr(output, "_width", 300)  # a long path would fold the lines
    code, out, err = run(capsys, "ground-truth", *runs, "--sample", 40)
    assert code == 0
    out = " ".join(out.split())
    for words in (
        "40 impressions of the test set",
        "the true exposure",
        "the true preference",
        "the same impressions",
    ):
        assert words in out, out
    assert "rank correlation" in err
    code, out, _ = run(capsys, "ground-truth", runs[0], "--sample", 40)
    assert code == 0
    assert "minus" not in out


def test_a_run_on_other_data_is_one_clear_error(tmp_path, capsys):
    random = np.random.default_rng(0)
    table = {
        name: random.integers(0, most, 600) for name, most in (("user", 30), ("item", 20), ("time", 500))
    }
    unskew.prepare(table, tmp_path / "data")
    assert run(capsys, "train", tmp_path / "data", "--model", "popularity", "--out", tmp_path / "run")[0] == 0
    code, out, err = run(capsys, "ground-truth", tmp_path / "run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "not a log of a simulated world that `unskew simulate` made" in err


def test_runs_of_two_worlds_are_not_compared(runs, tmp_path, capsys):
    assert run(capsys, "simulate", "--out", tmp_path / "two", *SMALL, "--seed", 5)[0] == 0
    assert run(capsys, "train", tmp_path / "two", "--model", "popularity", "--out", tmp_path / "r")[0] == 0
    code, _, err = run(capsys, "ground-truth", runs[0], tmp_path / "r")
    assert (code, err.count("\n")) == (2, 1)
    assert "not trained on the same log" in err
    code, _, err = run(capsys, "ground-truth")
    assert code == 2
    assert "RUN" in err
