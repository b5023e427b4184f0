"""Propensities that leave the house: the file says what the model says, of every row, with the part it
belongs to."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import random_table
from unskew.api.create import create_model
from unskew.api.model import Model
from unskew.cli import main
from unskew.data.batches.batch import batch_of_rows
from unskew.propensity import export as model_module

TINY: dict[str, dict[str, Any]] = {
    "deps": {
        "width": 8,
        "layers": 1,
        "inner": 8,
        "hidden": 8,
        "unsupervised_epochs": 1,
        "history": 5,
        "audience": 4,
    },
    "debiased-sasrec": {
        "width": 8,
        "layers": 1,
        "propensity_width": 8,
        "propensity_epochs": 1,
        "past_items": 7,
        "past_users": 6,
        "history": 9,
    },
    "debiased-popularity": {"propensity": "item-user-pro", "recency": "total"},
    "debiased-itemknn": {"propensity": "logged", "decay": 0.9},
}
SHORT = {"epochs": 1, "valid_examples": 50, "sequences": 64}


@pytest.fixture(scope="module")
def split() -> unskew.Split:
    table = random_table(rows=900, users=40, items=30)
    return unskew.split(
        unskew.read(table.append_column("propensity", [[(n % 9 + 1) / 10 for n in range(table.num_rows)]]))
    )


@pytest.fixture(scope="module", params=TINY)
def model(request: pytest.FixtureRequest, split: unskew.Split) -> Model:
    return create_model(request.param, TINY[request.param] | SHORT).fit(split)


def test_the_file_is_the_table_in_blocks(
    model: Model, split: unskew.Split, tmp_path: Path, monkeypatch
) -> None:
    whole = model.propensities(split.log)
    monkeypatch.setattr(model_module, "BLOCK", 50)
    monkeypatch.setattr(model_module, "ROW_GROUP", 200)
    counts = model.save_propensities(split.log, tmp_path / "deep" / "weights.parquet")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["weights.parquet"]
    file = pq.ParquetFile(tmp_path / "deep" / "weights.parquet")
    assert file.num_row_groups == -(-len(split.log) // 200)
    found = file.read()
    assert found.column_names == ["user", "item", "time", "label", "item_view", "user_view", "weight", "part"]
    assert found.drop_columns(list(model_module.ESTIMATES)).equals(
        whole.drop_columns(list(model_module.ESTIMATES))
    )
    for name in model_module.ESTIMATES:  # a batch of another size is summed in another order
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(whole[name]), rtol=1e-5)
    for part in ("train", "valid", "test"):
        np.testing.assert_array_equal(np.asarray(found["part"]) == part, split.mask(part))
        assert counts[part] == split.mask(part).sum() > 0


def test_every_row_has_what_the_estimator_says_of_it(model: Model, split: unskew.Split) -> None:
    """No more of the past than it was told to read, and the weight of Theorem 1."""
    found, log = model.propensities(split.log), split.log
    assert found.select(["user", "item", "time", "label"]).equals(
        log.table().select(["user", "item", "time", "label"])
    )
    rows = np.arange(0, len(log), 61)
    reads = {"deps": (5, 4), "debiased-sasrec": (7, 6)}.get(model.name, (50, 30))
    made = batch_of_rows(log, rows, *reads)
    for name, view in (
        ("item_view", model.propensity.item_view(made)),
        ("user_view", model.propensity.user_view(made)),
    ):
        if view is None:
            assert found[name].null_count == len(log)
        else:
            np.testing.assert_allclose(np.asarray(found[name])[rows], view.detach()[:, 0].numpy(), rtol=1e-4)
    views = [
        1 / np.maximum(np.asarray(found[name]), 0.05)
        for name in ("item_view", "user_view")
        if not found[name].null_count
    ]
    np.testing.assert_allclose(np.asarray(found["weight"]), np.mean(views, axis=0), rtol=1e-5)
    if model.name == "debiased-itemknn":
        np.testing.assert_allclose(np.asarray(found["item_view"]), log.propensity, rtol=1e-6)


def test_a_loaded_run_knows_its_parts(model: Model, split: unskew.Split, tmp_path: Path) -> None:
    model.save(tmp_path / "run")
    here, there = model.propensities(split.log), unskew.load(tmp_path / "run").propensities(split.log)
    assert here.equals(there)


@pytest.mark.parametrize("kind", [int, str])
def test_ids_are_the_callers(kind: type, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = {
        "user": [kind(u) for u in random.integers(100, 120, 300)],
        "item": [kind(i) for i in random.integers(500, 520, 300)],
    }
    log = unskew.read(pa.table(table | {"time": random.integers(0, 100, 300)}))
    made = unskew.Debiased("popularity", {"propensity": "item-pro"}).fit(unskew.split(log))
    made.save_propensities(log, tmp_path / "w.parquet")
    found = pq.read_table(tmp_path / "w.parquet")
    assert (found["user"].type, found["item"].type) == (log.users.ids.type, log.items.ids.type)
    assert sorted(found["user"].to_pylist()) == sorted(table["user"])


def test_no_file_is_overwritten_and_none_is_half_written(
    split: unskew.Split, tmp_path: Path, monkeypatch
) -> None:
    made = create_model("debiased-popularity", TINY["debiased-popularity"]).fit(split)
    (tmp_path / "mine.parquet").write_text("years of work")
    with pytest.raises(unskew.BadInput, match=r"mine\.parquet: exists already"):
        made.save_propensities(split.log, tmp_path / "mine.parquet")
    assert (tmp_path / "mine.parquet").read_text() == "years of work"
    with pytest.raises(unskew.BadInput, match="cannot write there"):
        made.save_propensities(split.log, tmp_path / "mine.parquet" / "below.parquet")
    monkeypatch.setattr(model_module, "ROW_GROUP", 200)
    estimates, calls = model_module._estimates, []

    def failing(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return estimates(*given)

    monkeypatch.setattr(model_module, "_estimates", failing)
    with pytest.raises(KeyboardInterrupt):
        made.save_propensities(split.log, tmp_path / "half.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.parquet"]


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("popularity", {}, "popularity has no propensities of pairs; debiased-popularity has"),
        ("debiased-popularity", {"propensity": "none"}, "was trained without propensities"),
        ("debiased-popularity", {"propensity": "dual"}, "debiased-popularity is not trained by gradients"),
    ],
)
def test_what_has_no_propensities_says_so(
    split: unskew.Split, tmp_path: Path, name: str, settings: dict[str, Any], said: str
) -> None:
    made = create_model(name, settings | SHORT).fit(split)
    with pytest.raises(unskew.BadInput, match=said):
        made.propensities(split.log)
    with pytest.raises(unskew.BadInput, match=said):
        made.save_propensities(split.log, tmp_path / "deep" / "w.parquet")
    assert not list(tmp_path.iterdir())


def cli(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_command_line(capsys, tmp_path: Path) -> None:
    log = unskew.prepare(random_table(rows=900, users=40, items=30), tmp_path / "data")
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in (TINY["debiased-sasrec"] | SHORT).items()
    ]
    assert (
        cli(
            capsys,
            "train",
            tmp_path / "data",
            "--out",
            tmp_path / "run",
            "--model",
            "debiased-sasrec",
            *flags,
        )[0]
        == 0
    )
    code, out, _ = cli(capsys, "propensity", "health", tmp_path / "run", "--json")
    assert (code, json.loads(out)["clip"]) == (0, 0.05)
    export = ("propensity", "export", tmp_path / "run", tmp_path / "data", "--out", tmp_path / "w.parquet")
    code, out, _ = cli(capsys, *export, "--json")
    said = json.loads(out)
    assert (code, said["rows"], said["model"], said["clip"]) == (0, len(log), "debiased-sasrec", 0.05)
    assert said["parts"] == {row["part"]: row["rows"] for row in unskew.split(log).summary()}
    assert pq.read_table(tmp_path / "w.parquet").equals(unskew.load(tmp_path / "run").propensities(log))
    code, out, err = cli(capsys, *export)
    assert (code, out) == (2, "")
    assert err == f"unskew: {tmp_path / 'w.parquet'}: exists already; nothing was written\n"
    unskew.prepare(random_table(rows=500, seed=3), tmp_path / "other")
    code, _, err = cli(
        capsys, "propensity", "export", tmp_path / "run", tmp_path / "other", "--out", tmp_path / "o.parquet"
    )
    assert (code, err) == (2, f"unskew: {tmp_path / 'other'}: not the data that this run was trained on\n")
    assert (
        cli(capsys, "train", tmp_path / "data", "--out", tmp_path / "plain", "--model", "popularity")[0] == 0
    )
    for verb in (
        ("health", tmp_path / "plain"),
        ("export", tmp_path / "plain", tmp_path / "data", "--out", tmp_path / "p.parquet"),
    ):
        code, out, err = cli(capsys, "propensity", *verb)
        assert (code, out) == (2, "")
        assert err == "unskew: popularity has no propensities of pairs; debiased-popularity has\n"
    assert not [path for path in tmp_path.iterdir() if path.name in ("o.parquet", "p.parquet")]


def test_the_example_with_lightgbm() -> None:
    path = Path(__file__).parents[2] / "examples" / "lightgbm_weights.py"
    spec = importlib.util.spec_from_file_location("lightgbm_weights", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(example)
    except OSError as error:  # LightGBM does not bring the OpenMP library that it needs
        pytest.skip(str(error))
    found = example.main(users=100, items=40, steps=40, epochs=2)
    assert [(row.bias, row.weights) for row in found] == [
        (bias, name) for bias in (1, 0) for name in ("none", "estimated", "true")
    ]
    none, estimated, true = found[:3]
    assert none.mean_guess > none.mean_ground_truth * 1.1  # the log shows what is liked
    assert abs(true.mean_guess - true.mean_ground_truth) < abs(none.mean_guess - none.mean_ground_truth)
    assert estimated.log_loss != none.log_loss
    assert true.effective_rows < none.effective_rows
    none, _, true = found[3:]
    assert none.log_loss == pytest.approx(true.log_loss)  # without bias, the true weights are all the same
