"""Splits and frozen evaluation through runs and the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

import unskew
from unskew.cli import main


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty users whose taste is one of four groups of items."""
    random, folder = np.random.default_rng(2), tmp_path_factory.mktemp("protocols")
    lines = ["user,item,timestamp"]
    for time in range(900):
        user = int(random.integers(0, 40))
        item = 12 * (user % 4) + int(12 * random.random() ** 2)
        lines.append(f"u{user},i{item},{1_500_000_000 + 3600 * time}")
    (folder / "log.csv").write_text("\n".join(lines))
    unskew.prepare(folder / "log.csv", folder / "data", ties="file-order", duplicates="pair")
    return folder / "data"


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) in (None, 0)
    return json.loads(capsys.readouterr().out)


def test_a_leave_one_out_run_is_stored_and_evaluated(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = ["--out", run, "--model", "popularity", "--split", "leave-one-out"]
    printed(capsys, "train", data, *flags)
    found = printed(capsys, "evaluate", run)
    assert (found["split"], found["reads"], found["ties"]) == ("leave-one-out", "live", "file-order")
    split = unskew.split(unskew.Log.open(data), kind="leave-one-out")
    assert found["units"] == int((split.part == 2).sum()) > 30
    assert found["metrics"]["recall@10"] == found["metrics"]["hr@10"] > 0
    assert found["metrics"] == pytest.approx(unskew.load(run).evaluate(split).metrics())


def test_a_run_of_another_kind_of_split_is_refused(data: Path) -> None:
    log = unskew.Log.open(data)
    model = unskew.create_model("popularity").fit(unskew.split(log, at="0.8"), show_progress=False)
    with pytest.raises(unskew.BadInput, match="leave-one-out split"):
        model.evaluate(unskew.split(log, kind="leave-one-out"))


def test_frozen_lists_are_saved_and_targets_are_a_flag(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, lists = tmp_path / "run", tmp_path / "lists.parquet"
    printed(capsys, "train", data, "--out", run, "--model", "popularity", "--at", "0.6,0.8")
    live = printed(capsys, "evaluate", run)
    first = printed(capsys, "evaluate", run, "--frozen", "--save", lists)
    every = printed(capsys, "evaluate", run, "--frozen", "--targets", "all")
    border = unskew.Log.open(data).clock.date(unskew.load(run).trained.split.valid_end)
    assert live["reads"] == "live"
    assert first["reads"] == every["reads"] == f"frozen at {border}"
    assert first["units"] == every["units"] < live["units"]
    assert every["metrics"]["recall@10"] < every["metrics"]["hr@10"]
    assert len(unskew.read(lists, user="user_id", item="item_id", time="time")) == first["units"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"at": "0.001"}, "leave 0|leave 1|training set has no positive|no row is before"),
        ({"at": "1.5"}, "quantile between 0 and 1"),
        ({"at": "0.9,0.8"}, "begins after the test set"),
        ({"at": "0.1,0.2,0.3"}, "one or two"),
        ({"at": "0.8", "kind": "leave-one-out"}, "no borders in time"),
    ],
)
def test_borders_that_cannot_be(data: Path, settings: dict[str, str], message: str) -> None:
    with pytest.raises(unskew.BadInput, match=message):
        unskew.split(unskew.Log.open(data), **settings)


def test_a_date_begins_the_test_set(data: Path) -> None:
    split = unskew.split(unskew.Log.open(data), at="2017-07-20,2017-08-01T12:00")
    dates = [split.log.clock.date(time) for time in (split.train_end, split.valid_end)]
    assert dates == ["2017-07-20 00:00:00", "2017-08-01 12:00:00"]


def test_frozen_needs_one_moment_and_a_test_that_has_one(data: Path) -> None:
    log = unskew.Log.open(data)
    split = unskew.split(log, kind="leave-one-out")
    model = unskew.create_model("popularity").fit(split, show_progress=False)
    with pytest.raises(unskew.BadInput, match="needs a split by time"):
        model.evaluate(split, frozen=True)
    with pytest.raises(unskew.BadInput, match="for a frozen evaluation"):
        model.evaluate(split, targets="all")


@pytest.mark.parametrize("name", ["sasrec", "deps", "itemknn", "userknn", "pulse-zero"])
def test_models_of_every_kind_are_trained_and_tuned_by_leave_one_out(data: Path, name: str) -> None:
    split = unskew.split(unskew.Log.open(data), kind="leave-one-out")
    small = {"width": 8, "epochs": 1} if name in ("sasrec", "deps") else {}
    model = unskew.create_model(name, small).fit(split, show_progress=False)
    assert 0 < model.evaluate(split).mean("ndcg@10") < 1
    without = split.without_test()
    assert not len(without.rows("test"))
    assert len(without.rows("valid")) == len(split.rows("valid"))
    assert len(without.log) == len(split.log) - len(split.rows("test"))


def test_propensities_need_a_split_by_time(data: Path) -> None:
    log = unskew.Log.open(data)
    model = unskew.Debiased("itemknn", {"propensity": "item-pro"})
    with pytest.raises(unskew.BadInput, match="split by time"):
        model.fit(unskew.split(log, kind="leave-one-out"), show_progress=False).propensities(log)
