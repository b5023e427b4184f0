"""The verbs of runs as a script sees them: train, evaluate, compare, recommend, propensities."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.command import run
from unskew.cli import main

FLAGS = [
    "--model",
    "deps",
    "--width",
    "8",
    "--layers",
    "1",
    "--inner",
    "16",
    "--hidden",
    "8",
    "--unsupervised-epochs",
    "1",
    "--epochs",
    "1",
    "--valid-examples",
    "50",
]


def items(done: tuple[int, str, str]) -> set[str]:
    """What a call of `recommend` has printed."""
    code, out, _ = done
    assert code == 0
    return {row["item_id"] for row in json.loads(out)["recommendations"]}


def test_train_evaluate_recommend_and_health(capsys, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, out, _ = run(capsys, "train", data, "--out", folder, "--json", *FLAGS)
    assert code == 0
    assert json.loads(out)["seed"] == 0
    code, out, err = run(capsys, "train", data, "--out", folder, *FLAGS)
    assert (code, out) == (2, "")
    assert "a run is there already" in err
    code, out, err = run(capsys, "evaluate", folder, "--test", "resampled")
    assert (code, out) == (2, "")
    assert "use 'balanced'" in err
    for protocol, test in (("full", "balanced"), ("uni100", "ordinary"), ("authors", "authors")):
        named = ["--test", test] if protocol != "authors" else []
        code, out, _ = run(capsys, "evaluate", folder, "--protocol", protocol, "--json", *named)
        found = json.loads(out)
        assert (code, found["protocol"], found["test"]) == (0, protocol, test)
        assert {"ndcg@10", "hr@10", "mrr@10"} <= found["metrics"].keys() == found["intervals"].keys()
        assert found["repeats"] == "kept as candidates"
    code, out, _ = run(capsys, "evaluate", folder, "--test", "balanced", "--sample", 50)
    assert code == 0
    assert "50 (a sample of " in out
    for words in ("effective sample size", "kept as candidates", "popularity decile", "balanced"):
        assert words in out
    history = ["--history", "i1", "--history", "i2"]
    code, out, _ = run(capsys, "recommend", folder, *history, "--history", "nothing", "--k", 3, "--json")
    found = json.loads(out)
    assert code == 0
    assert [row["rank"] for row in found["recommendations"]] == [1, 2, 3]
    assert found["skipped_items"] == 1
    everything = items(run(capsys, "recommend", folder, *history, "--k", 99, "--json"))
    # Repeats are part of this log's task, so the run recommends them, as it was evaluated.
    assert {"i1", "i2"} <= everything
    new = items(run(capsys, "recommend", folder, *history, "--k", 99, "--include-seen", "False", "--json"))
    assert new == everything - {"i1", "i2"}
    code, out, _ = run(capsys, "recommend", folder, "--user", "u1", "--k", 2)
    assert (code, len(out.strip().splitlines())) == (0, 3)
    code, out, _ = run(capsys, "propensity", "health", folder, "--json", "--html", tmp_path / "h.html")
    assert code == 0
    assert json.loads(out)
    assert (tmp_path / "h.html").is_file()
    code, out, err = run(capsys, "recommend", folder, "--user", "u1", "--history", "i1")
    assert (code, "expected one of --user ID" in err) == (2, True)
    code, out, err = run(capsys, "recommend", folder, "--user", "stranger")
    assert (code, "user 'stranger' is not in the log" in err) == (0, True)
    code, out, err = run(capsys, "recommend", folder, "--history", "i1", "--history", "nothing")
    assert (code, "skipped, not in the log of this run: 'nothing'" in err) == (0, True)
    shutil.move(data, tmp_path / "moved")
    code, out, err = run(capsys, "evaluate", folder, "--sample", 5)
    assert (code, "say where it is now (--data DATA" in err) == (2, True)
    code, out, err = run(capsys, "evaluate", folder, "--sample", 5, "--data", tmp_path / "moved")
    assert code == 0
    unskew.prepare(random_table(rows=1000, seed=5), tmp_path / "other")
    code, out, err = run(capsys, "evaluate", folder, "--data", tmp_path / "other")
    assert code == 2
    assert "not the data that this run was trained on" in err


@pytest.fixture(scope="module")
def world_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Impressions, propensities, random exposure and a named test: every test there is."""
    folder = tmp_path_factory.mktemp("world")
    table = unskew.simulate(users=60, items=40, steps=60, impressions=0.3).log.table()
    table = table.append_column("odd", pa.array([number % 2 for number in range(len(table))]))
    unskew.prepare(table, folder / "data", duplicates="keep", tests="odd")
    flags = ["--model", "sasrec", "--epochs", "2", "--width", "8"]
    assert main(["train", str(folder / "data"), "--out", str(folder / "run"), *flags]) == 0
    return folder / "data", folder / "run"


TESTS = ("ordinary", "balanced", "shown", "randomised", "weighted", "authors", "odd")


@pytest.mark.parametrize(
    ("protocol", "test"),
    [*(("full", test) for test in TESTS), ("uni100", "balanced"), ("authors", "authors")],
)
def test_the_command_line_is_python_to_the_last_digit(
    capsys, world_run: tuple[Path, Path], protocol: str, test: str
) -> None:
    data, folder = world_run
    asked = ("--protocol", protocol, "--test", test, "--sample", 60)
    code, out, _ = run(capsys, "evaluate", folder, *asked, "--json")
    assert code == 0
    found = json.loads(out)
    log = unskew.Log.open(data)
    for model in (
        unskew.load(folder),
        unskew.create_model("sasrec", {"epochs": 2, "width": 8, "seed": 0}).fit(unskew.split(log)),
    ):
        evaluated = model.evaluate(unskew.split(log), protocol, test, sample=60)
        assert evaluated.metrics() == found["metrics"]
        assert len(evaluated.user) == found["units"]
    assert found["weights_chosen_by"] == (test if test in ("ordinary", "balanced", "shown") else "ordinary")


def test_saved_evaluations_are_compared(capsys, world_run: tuple[Path, Path], tmp_path: Path) -> None:
    data, folder = world_run
    for seed in (1, 2):
        made = tmp_path / f"p{seed}"
        code, _, _ = run(capsys, "train", data, "--out", made, "--model", "popularity", "--seed", seed)
        assert code == 0
        code, _, _ = run(capsys, "evaluate", made, "--save", tmp_path / f"p{seed}.parquet")
        assert code == 0
    code, _, _ = run(capsys, "evaluate", folder, "--save", tmp_path / "s.parquet")
    assert code == 0
    files = [tmp_path / name for name in ("p1.parquet", "p2.parquet", "s.parquet")]
    code, out, _ = run(capsys, "compare", *files, "--json")
    assert code == 0
    found = json.loads(out)
    (compared,) = found["comparisons"]
    assert compared["seeds"] == [1, 2]
    assert (compared["p_seeds"], compared["interval_over"]) == (None, "users only")
    means = [model["mean"] for model in found["models"].values()]
    assert compared["difference"] == pytest.approx(means[1] - means[0])
    code, out, _ = run(capsys, "compare", *files)
    assert "only where both models have several seeds" in " ".join(out.split())
    code, out, err = run(capsys, "compare", *files[:2])
    assert (code, out) == (2, "")
    assert "at least two models" in err
    run(capsys, "evaluate", folder, "--test", "balanced", "--save", tmp_path / "b.parquet")
    code, out, err = run(capsys, "compare", tmp_path / "p1.parquet", tmp_path / "b.parquet")
    assert (code, out) == (2, "")
    assert "cannot be compared" in err


def test_rolling(capsys, world_run: tuple[Path, Path]) -> None:
    data, folder = world_run
    code, out, _ = run(capsys, "evaluate", folder, "--rolling", "5h", "--json")
    assert code == 0
    found = json.loads(out)
    python = unskew.rolling(unskew.load(folder), unskew.split(unskew.Log.open(data)), "5h")
    assert [part["metrics"]["ndcg@10"] for part in found["windows"]] == python.curve()
    assert found["metrics"]["ndcg@10"] == python.mean()
    code, out, _ = run(capsys, "evaluate", folder, "--rolling", "10h", "--refresh", "each", "--sample", 30)
    assert code == 0
    assert "all windows" in out
    asked = ("--rolling", "5h", "--refresh", "10h", "--windows", 2, "--sample", 30, "--json")
    code, out, _ = run(capsys, "evaluate", folder, *asked)
    assert code == 0
    assert [part["start"] for part in json.loads(out)["windows"]] == [
        part["start"] for part in found["windows"][-2:]
    ]
    for flags in (
        ["--refresh", "each"],
        ["--windows", "2"],
        ["--rolling", "5h", "--windows", "0"],
        ["--rolling", "5h", "--refresh", "daily"],
        ["--rolling", "7 moons"],
        ["--rolling", "7"],
        ["--rolling", "5h", "--save", "x.parquet"],
    ):
        code, out, err = run(capsys, "evaluate", folder, *flags)
        assert (code, out) == (2, "")
        assert err.startswith("unskew: ")


def test_numbers_as_ids_come_back_as_numbers(capsys, tmp_path: Path) -> None:
    table = {"user": np.arange(600) % 29, "item": np.arange(600) ** 2 % 31, "time": np.arange(600)}
    unskew.prepare(pa.table(table), tmp_path / "d")
    run(capsys, "train", tmp_path / "d", "--out", tmp_path / "r", "--model", "popularity")
    code, out, _ = run(capsys, "recommend", tmp_path / "r", "--user", "5", "--json")
    assert code == 0
    rows = json.loads(out)["recommendations"]
    assert {(row["user_id"], type(row["item_id"])) for row in rows} == {(5, int)}


def test_debiased_models_without_gradients_say_so(capsys, data: Path, tmp_path: Path) -> None:
    code, _, err = run(capsys, "train", data, "--out", tmp_path / "r", "--model", "debiased-popularity")
    assert code == 0
    assert "popularity is not trained by gradients, so there is no loss to weight" in err


def test_models(capsys) -> None:
    code, out, _ = run(capsys, "models", "--json")
    assert code == 0
    assert json.loads(out)["models"]["deps"]["config"]["clip"] == 0.05
    code, out, _ = run(capsys, "train", "--help")
    assert code == 0
    assert "--drawn" in out  # of Pulse, the default
    code, out, _ = run(capsys, "train", "--model", "deps", "--help")
    assert code == 0
    assert "--clip" in out
    assert "--learning-rate" in out
