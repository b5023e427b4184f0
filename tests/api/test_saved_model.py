"""A model in its folder: loaded it is the same, damaged it is bad input; its propensities of a log."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import load_file, save_file

import unskew
from tests.conftest import READS, SMALL_DEPS, random_table
from unskew.api.create import DEPS, load
from unskew.api.model import Model
from unskew.data.batches.batch import batch
from unskew.models.base import Recommender


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


def test_a_loaded_model_recommends_the_same(model: Model, saved: Path, model_split: unskew.Split) -> None:
    other = load(saved)
    everyone = [*model_split.log.users.ids.to_pylist(), "nobody"]
    assert dataclasses.asdict(other.config) == dataclasses.asdict(model.config)
    assert other.training == model.training
    state = other.network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.network.state_dict().items())
    for seen in (True, False):
        here, there = (one.recommend(users=everyone, k=30, include_seen=seen) for one in (model, other))
        assert here.table.drop_columns("score").equals(there.table.drop_columns("score"))
        np.testing.assert_allclose(here.table["score"], there.table["score"], atol=1e-6)
        assert here.unknown_users == there.unknown_users == 1
    histories = [["i1", "i2", "what"], []]
    assert model.recommend(histories=histories).table.equals(other.recommend(histories=histories).table)


def test_a_loaded_model_evaluates_the_same(model: Model, saved: Path, model_split: unskew.Split) -> None:
    assert load(saved).evaluate(model_split).metrics() == model.evaluate(model_split).metrics()


def test_a_loaded_model_can_be_saved_again(saved: Path, tmp_path: Path) -> None:
    load(saved).save(tmp_path / "again")
    here, there = load(saved), load(tmp_path / "again")
    assert here.recommend(users=["u1", "u2"]).table.equals(there.recommend(users=["u1", "u2"]).table)


def test_what_is_saved_is_plain_json(saved: Path) -> None:
    def no(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for name in ("config.json", "card.json"):
        json.loads((saved / name).read_text(), parse_constant=no)
    for line in (saved / "records.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=no)
    assert not list(saved.glob("*.pkl"))


def test_saving_over_something_is_refused(model: Model, saved: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(unskew.BadInput, match="exists already"):
        model.save(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]  # no scratch left


def test_what_is_not_a_run(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text("{}")
    for folder in (tmp_path / "nowhere", tmp_path / "empty", tmp_path / "foreign", saved / "card.json"):
        with pytest.raises(unskew.BadInput, match=r"not a run|not the description|no such folder"):
            load(folder)


FILES = (
    "config.json",
    "card.json",
    "weights-ordinary.safetensors",
    "weights-balanced.safetensors",
    "memory.safetensors",
    "users.parquet",
    "items.parquet",
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "noise"])
def test_a_damaged_run_is_bad_input(run: Path, name: str, damage: str) -> None:
    path, content, expected = run / name, (run / name).read_bytes(), load(run).recommend(users=["u1"]).table
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"empty": b"", "half": content[: len(content) // 2], "noise": b"\x00\xff" * 40}[damage]
        )
    if name == "card.json" and damage == "missing":  # it is as if it had been stopped in the last moment
        assert load(run).recommend(users=["u1"]).table.equals(expected)
        return
    with pytest.raises(unskew.BadInput, match=r"the run is damaged \(|not a run \(no config.json\)"):
        load(run)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config | {"format": 99},
        lambda config: config | {"format": 1},
        lambda config: config | {"model": "nobody"},
        lambda config: {key: value for key, value in config.items() if key != "model"},
        lambda config: {key: value for key, value in config.items() if key != "known"},
        lambda config: config | {"config": config["config"] | {"no_such_setting": 1}},
        lambda config: config | {"config": config["config"] | {"width": 16}},
        lambda config: config | {"known": config["known"] | {"items": {"size": 3, "categories": {}}}},
        lambda config: [config],
    ],
    ids=["format", "old format", "model", "no model", "no size", "setting", "width", "size", "list"],
)
def test_a_run_whose_parts_do_not_fit_is_bad_input(
    run: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    path = run / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(unskew.BadInput, match=r"the run is damaged|a run of format \d+;|no model 'nobody'"):
        load(run)


def test_the_weights_of_another_run_are_bad_input(run: Path, tmp_path: Path) -> None:
    others = unskew.split(unskew.read(random_table(rows=300, users=50, items=12)))
    DEPS(**SMALL_DEPS | {"epochs": 1}).fit(others).save(tmp_path / "other")
    for name in ("weights-balanced.safetensors", "memory.safetensors"):
        shutil.copy(run / name, tmp_path / "kept")
        shutil.copy(tmp_path / "other" / name, run / name)
        with pytest.raises(unskew.BadInput, match=r"its parts do not fit|are not of the same run"):
            load(run)
        shutil.copy(tmp_path / "kept", run / name)
    assert isinstance(load(run).network, Recommender)  # whole again


# Propensities, with the caller's ids


def test_propensities_of_a_log(model: Model, model_split: unskew.Split) -> None:
    log = model_split.log
    found = model.propensities(log)
    assert found.num_rows == len(log)
    names = ["user", "item", "time", "label"]
    assert found.select(names).equals(log.table().select(names))
    item, user, weight = (found[name].to_numpy() for name in ("item_view", "user_view", "weight"))
    np.testing.assert_allclose(weight, 0.5 / np.maximum(item, 0.05) + 0.5 / np.maximum(user, 0.05), rtol=1e-5)
    rows = np.arange(0, len(log), 97)
    made = batch(log, log.user[rows], log.time[rows], log.item[rows, None], None, *READS)
    with torch.no_grad():
        for found, view in ((item, "item_view"), (user, "user_view")):
            expected = getattr(model.network.propensity, view)(made)[:, 0].numpy()
            np.testing.assert_allclose(found[rows], expected, rtol=1e-4)


def test_a_log_with_other_codes_is_refused(model: Model, model_split: unskew.Split) -> None:
    """Codes follow first appearance, so another log gives the same id another code."""
    table = random_table(rows=900, users=40, items=30)
    backwards = table.set_column(2, "time", pa.array(600 - table["time"].to_numpy()))
    other = unskew.read(backwards)
    assert not other.items.ids.equals(model_split.log.items.ids)
    for ask in (lambda: model.propensities(other), lambda: model.evaluate(unskew.split(other))):
        with pytest.raises(unskew.BadInput, match="this one numbers its users and items differently"):
            ask()


def of_memory(folder: Path, name: str, value: np.ndarray) -> None:
    memory = load_file(folder / "memory.safetensors")
    save_file(memory | {name: value}, folder / "memory.safetensors")


@pytest.mark.parametrize("name", ["history_offsets", "audience_offsets"])
@pytest.mark.parametrize("damage", ["huge", "falling", "late", "fractions"])
def test_offsets_that_cut_nothing_are_bad_input(run: Path, name: str, damage: str) -> None:
    offsets = load_file(run / "memory.safetensors")[name].copy()
    if damage == "huge":
        offsets[1:-1] = 2**62
    elif damage == "falling":
        offsets[1] = offsets[-1]
    elif damage == "late":
        offsets[0] = 1
    of_memory(run, name, offsets.astype(np.float64) if damage == "fractions" else offsets)
    with pytest.raises(unskew.BadInput, match=rf"the run is damaged \({name}"):
        load(run)


@pytest.mark.parametrize("name", ["history_ids", "audience_ids"])
def test_codes_of_nobody_are_bad_input(run: Path, name: str) -> None:
    ids = load_file(run / "memory.safetensors")[name].copy()
    ids[0] = 2**31 - 1
    of_memory(run, name, ids)
    with pytest.raises(unskew.BadInput, match=rf"the run is damaged \({name}"):
        load(run)


@pytest.mark.parametrize("name", ["config.json", "card.json", "records.jsonl"])
def test_documents_that_are_nested_too_deeply_are_bad_input(run: Path, name: str) -> None:
    (run / name).write_text('{"model": ' + "[" * 200_000)
    with pytest.raises(unskew.BadInput, match=r"the run is damaged .*nested too deeply"):
        load(run)


@pytest.mark.parametrize("size", [10**12, 10**30, -1])
def test_a_size_that_is_none_is_bad_input(run: Path, size: int) -> None:
    config = json.loads((run / "config.json").read_text())
    config["known"]["users"]["size"] = size
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(unskew.BadInput, match="the run is damaged"):
        load(run)
