"""A model as an ONNX file: ONNX Runtime gives the same scores and the same lists."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

import unskew
import unskew.api.onnx
from tests.helpers.command import run
from tests.helpers.contract import HISTORY, tiny
from tests.helpers.runs import as_if_trained
from unskew.api.create import create_model
from unskew.core.errors import BadInput, UnskewError
from unskew.data.batches.batch import bare_contexts
from unskew.data.log.views import PAD
from unskew.models.base import MODELS
from unskew.models.debiased import debias
from unskew.models.sasrec import SASRec

ABLE = ["bert4rec", "gru4rec", "gsasrec", "lightsans", "sasrec", "stamp"]


def model(name: str, cut: unskew.Split, **more: Any) -> unskew.Model:
    """A small model away from its initial values, as if it had been trained."""
    torch.manual_seed(3)
    made = as_if_trained(name, tiny(MODELS[name], **more), cut)
    with torch.no_grad():
        for parameter in made.network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def session(file: Path) -> Any:
    return onnxruntime.InferenceSession(file)


def scores(session: Any, history: NDArray[Any], k: int = 1) -> list[NDArray[Any]]:
    return session.run(None, {"history": history.astype(np.int64), "k": np.array(k)})


def expected(made: unskew.Model, history: NDArray[Any]) -> NDArray[np.float32]:
    """The model's own scores of all items, one history at a time."""
    network, rows = made.network, []
    catalog = network.catalog(made.known_log, 0, 1)
    for row in history:
        ids = row[row != PAD][-HISTORY:].astype(np.int32)[None]
        nobody = np.array([len(made.known_log.users)])
        with torch.no_grad():
            rows.append(catalog.scores(bare_contexts(nobody, ids, np.array([10**6])))[0].numpy())
    return np.stack(rows)


def histories(items: int, rows: int, length: int, seed: int = 0) -> NDArray[np.int64]:
    """Random histories of all lengths, one empty, padded on the left."""
    random = np.random.default_rng(seed)
    made = random.integers(0, items, (rows, length))
    for row in range(rows):
        made[row, : length - min(row, length)] = PAD
    return made


@pytest.mark.parametrize("name", ABLE)
@pytest.mark.parametrize("min_count", [1, 15], ids=["all known", "rare ones"])
def test_the_same_scores_and_lists(name: str, min_count: int, log: unskew.Log, tmp_path: Path) -> None:
    cut = unskew.split(log, min_count=min_count)
    made = model(name, cut)
    told = unskew.api.onnx.export(made, tmp_path / "small.onnx")
    there = session(tmp_path / "small.onnx")
    items = len(log.items)
    assert told.difference < 1e-5
    assert (told.model, told.items, told.history) == (name, items, HISTORY)
    for rows, length in ((1, 1), (1, HISTORY), (5, 3), (12, HISTORY), (20, 19), (2, 0)):
        history = histories(items, rows, length)
        wanted = expected(made, history)
        for k in (1, 7, items):
            found, best, best_scores = scores(there, history, k)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
            assert best.shape == best_scores.shape == (rows, k)
            np.testing.assert_allclose(best_scores, -np.sort(-wanted)[:, :k], rtol=0, atol=1e-4)
            np.testing.assert_allclose(np.take_along_axis(wanted, best, 1), best_scores, rtol=0, atol=1e-4)
    assert wanted.std() > 0.01


@pytest.mark.parametrize("name", ABLE)
def test_padding_is_skipped_wherever_it_stands(name: str, split: unskew.Split, tmp_path: Path) -> None:
    unskew.api.onnx.export(model(name, split), tmp_path / "small.onnx")
    there = session(tmp_path / "small.onnx")
    wanted = scores(there, np.array([[4, 9, 2]]))[0]
    elsewhere = [[4, PAD, 9, 2, PAD], [PAD, PAD, 4, 9, 2], [4, 9, 2, PAD, PAD], [4, 9, -7, -2, 2]]
    for row in scores(there, np.array(elsewhere))[0]:
        np.testing.assert_allclose(row, wanted[0], rtol=0, atol=1e-5)
    assert np.abs(scores(there, np.array([[2, 9, 4]]))[0] - wanted).max() > 1e-3  # the order counts


def test_codes_that_no_item_has_are_unknown_items(split: unskew.Split, tmp_path: Path) -> None:
    made = model("sasrec", split)
    unskew.api.onnx.export(made, tmp_path / "small.onnx")
    history = np.array([[1, 10**6], [1, len(split.log.items)]])
    found = scores(session(tmp_path / "small.onnx"), history)[0]
    np.testing.assert_allclose(found, expected(made, history), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gru4rec", {"hidden": 12, "layers": 2}),
        ("lightsans", {"softmax_axis": "query", "layers": 2}),
        ("stamp", {"add_mean": False}),
        ("gsasrec", {"output": "tied"}),
        ("bert4rec", {"layers": 2}),
    ],
    ids=str,
)
def test_other_settings(name: str, more: dict[str, Any], split: unskew.Split, tmp_path: Path) -> None:
    made = model(name, split, **more)
    unskew.api.onnx.export(made, tmp_path / "small.onnx")
    history = histories(len(split.log.items), 9, 6)
    found = scores(session(tmp_path / "small.onnx"), history)[0]
    np.testing.assert_allclose(found, expected(made, history), rtol=0, atol=1e-4)


def test_a_debiased_model(split: unskew.Split, tmp_path: Path) -> None:
    kind = debias(MODELS["gru4rec"])
    config = kind.Config(backbone=tiny(MODELS["gru4rec"]))
    made = as_if_trained(kind.name, config, split)
    assert unskew.api.onnx.export(made, tmp_path / "small.onnx").model == "debiased-gru4rec"
    history = histories(len(split.log.items), 9, 6)
    found = scores(session(tmp_path / "small.onnx"), history)[0]
    np.testing.assert_allclose(found, expected(made, history), rtol=0, atol=1e-4)


# The command


@pytest.mark.slow
def test_the_command(small_split: unskew.Split, tmp_path: Path, capsys) -> None:
    """From a stored run to the same lists, with the caller's ids, as the model recommends."""
    made = create_model("sasrec", {"width": 4, "epochs": 2, "valid_examples": 20, "history": 6})
    made.fit(small_split, tmp_path / "run")
    out = tmp_path / "new folder" / "films.onnx"
    code, printed, _ = run(capsys, "export", tmp_path / "run", "--to", "onnx", "--out", out, "--json")
    assert code == 0
    document = json.loads(printed)
    assert document["file"] == str(out)
    assert document["items_file"] == str(out.with_name("films.items.parquet"))
    assert (document["model"], document["history"]) == ("sasrec", 6)
    assert sorted(path.name for path in out.parent.iterdir()) == ["films.items.parquet", "films.onnx"]
    about = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert about == {
        "model": "sasrec",
        "run": "run",
        "history": "6",
        "items": "30",
        "pad": "-1",
        "unskew": unskew.__version__,
    }
    ids = pq.read_table(out.with_name("films.items.parquet"))
    assert ids["code"].to_pylist() == list(range(30))
    ids = ids["item_id"].to_pylist()
    history = ["i3", "i1", "i20"]
    _, best, best_scores = scores(session(out), np.array([[ids.index(item) for item in history]]), 8)
    table = unskew.load(tmp_path / "run").recommend(histories=[history], k=8, include_seen=True).table
    assert [ids[code] for code in best[0]] == table["item_id"].to_pylist()
    np.testing.assert_allclose(best_scores[0], table["score"], atol=1e-4)
    before = out.read_bytes()
    code, _, said = run(capsys, "export", tmp_path / "run", "--out", out)
    assert code == 2
    assert "exists already; nothing was written" in said
    assert out.read_bytes() == before


# What cannot be


@pytest.mark.parametrize("name", sorted(set(MODELS) - set(ABLE)))
def test_other_models_say_which_can(name: str, split: unskew.Split, tmp_path: Path) -> None:
    made = as_if_trained(name, tiny(MODELS[name]), split)
    with pytest.raises(BadInput) as error:
        unskew.api.onnx.export(made, tmp_path / "small.onnx")
    assert str(error.value) == (
        f"{name} cannot be written as an ONNX file: {', '.join(ABLE)} can, and debiased-NAME with any of them"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_a_missing_package(
    missing: str, split: unskew.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(BadInput, match=r"an ONNX file needs the extra: pip install '\.\[onnx\]' in a clone"):
        unskew.api.onnx.export(model("sasrec", split), tmp_path / "small.onnx")


def test_nothing_is_half_written(
    split: unskew.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, out = model("sasrec", split), tmp_path / "small.onnx"
    with pytest.raises(BadInput, match=r"expected a name that ends with \.onnx"):
        unskew.api.onnx.export(made, tmp_path / "small.bin")
    (tmp_path / "small.items.parquet").write_text("mine")
    with pytest.raises(BadInput, match=r"small\.items\.parquet: exists already; nothing was written"):
        unskew.api.onnx.export(made, out)
    assert [path.name for path in tmp_path.iterdir()] == ["small.items.parquet"]
    assert (tmp_path / "small.items.parquet").read_text() == "mine"
    (tmp_path / "small.items.parquet").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(UnskewError, match="writing failed"):
            unskew.api.onnx.export(made, out)
    assert not list(tmp_path.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(unskew.api.onnx, "LARGEST", 10)
        with pytest.raises(BadInput, match="too many for this format"):
            unskew.api.onnx.export(made, out)
    assert not list(tmp_path.iterdir())


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_file_that_scores_differently_is_not_written(
    split: unskew.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model("sasrec", split)
    monkeypatch.setattr(SASRec, "read_histories", lambda network, ids: network.items(ids).mean(1))
    with pytest.raises(UnskewError, match="its scores differ from the model's by"):
        unskew.api.onnx.export(made, tmp_path / "small.onnx")
    assert not list(tmp_path.iterdir())
