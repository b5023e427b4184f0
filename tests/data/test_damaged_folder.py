"""A prepared folder whose files are damaged in any way opens as it is, or is one line; so is a run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.damage import KINDS, Damage

SEEDS = 3
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def shop() -> pa.Table:
    """A log with context events, a feature and a title."""
    table = random_table(rows=300, users=20, items=15).drop_columns("label")
    items, random = table["item"].to_pylist(), np.random.default_rng(0)
    for name, values in (
        ("type", random.choice(["buy", "view"], len(table), p=(0.6, 0.4)).tolist()),
        ("title", [f"title of {item}" for item in items]),
        ("kind", [f"kind {item[-1]}" for item in items]),
    ):
        table = table.append_column(name, [values])
    return table


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder, and a run that was trained on it."""
    folder = tmp_path_factory.mktemp("whole")
    declared = {"type": "type", "target": "buy", "context": "view", "item_features": "kind"}
    log = unskew.prepare(shop(), folder / "data", **declared)
    small = {"epochs": 1, "width": 4, "hidden": 4, "history": 5, "valid_examples": 20}
    unskew.create_model("context-gru4rec", small).fit(unskew.split(log), folder / "run", show_progress=False)
    return folder


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "damaged")
    return tmp_path / "damaged"


def use_data(folder: Path) -> None:
    log = unskew.Log.open(folder)
    unskew.split(log)
    log.table()
    log.fingerprint()


def use_run(folder: Path) -> None:
    model = unskew.load(folder)
    model.recommend(users=["u1", "u2"], k=3)
    model.recommend(histories=[["i1"]], k=2)


def refused(folder: Path, kind: Damage, use: Callable[[Path], None]) -> list[str]:
    """The messages about damage of this kind, where each file suffers it some times. Any other kind of error
    gets through."""
    said = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for seed in range(SEEDS):
            path.write_bytes(kind(content, np.random.default_rng(seed)))
            try:
                use(folder)
            except unskew.BadInput as error:
                said.append(str(error))
        path.write_bytes(content)
    use(folder)  # which is whole again
    return said


def assert_one_line_each(said: list[str], folder: Path) -> None:
    assert said
    assert all(str(folder) in line and "\n" not in line and len(line) < 1000 for line in said)


@every_kind
def test_a_damaged_folder_is_one_line(kind: Damage, damaged: Path) -> None:
    assert_one_line_each(refused(damaged / "data", kind, use_data), damaged)


@every_kind
def test_a_damaged_run_is_one_line(kind: Damage, damaged: Path) -> None:
    assert_one_line_each(refused(damaged / "run", kind, use_run), damaged)


def swap(values: np.ndarray) -> np.ndarray:
    """Two values that are not equal change places."""
    other = int(np.flatnonzero(values != values[0])[0])
    values[[0, other]] = values[[other, 0]]
    return values


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("user", lambda codes: np.where(codes == 0, 10_000, codes), "user: expected numbers from 0 to"),
        ("user", swap, "user: expected the users of the histories"),
        ("item", lambda codes: codes - 1000, "item: expected numbers from 0 to"),
        ("item", swap, "history and audience do not hold the same events"),
        ("time", lambda times: times[::-1].copy(), "history_times: expected times that do not fall"),
        ("audience_time", lambda times: times + 1, "do not hold the same events"),
        ("audience_user", lambda codes: codes + 1000, "audience_ids: expected numbers from 0 to"),
        ("time", lambda times: times.astype(np.float64), "time is no column of the type"),
        ("time", lambda times: times[:, None], "time is no column of the type"),
        ("context%3Aview%3Ahistory_ids", lambda ids: ids + 1000, "view:history_ids: expected numbers"),
        ("context%3Aview%3Ahistory_times", lambda times: times + 1, "do not hold the same events"),
        (
            "context%3Aview%3Aaudience_offsets",
            lambda ends: ends + 2**62,
            "audience_offsets: expected numbers",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    name: str, change: Callable[[np.ndarray], np.ndarray], said: str, damaged: Path
) -> None:
    """Values that a reader would take for others, or that would lead out of a table."""
    file = damaged / "data" / f"{name}.npy"
    np.save(file, change(np.load(file)))
    with pytest.raises(unskew.BadInput, match=said):
        unskew.Log.open(damaged / "data")


@pytest.mark.parametrize("folder", ["data", "run"])
def test_ids_that_are_no_text_are_refused(folder: str, damaged: Path) -> None:
    table = pq.read_table(damaged / folder / "users.parquet")
    broken = pa.array([b"\xff\xfe"] * len(table), pa.binary())
    ids = pa.Array.from_buffers(pa.string(), len(table), broken.buffers())
    pq.write_table(table.set_column(0, "id", ids), damaged / folder / "users.parquet")
    with pytest.raises(unskew.BadInput, match=r"is damaged .*UTF8"):
        (use_data if folder == "data" else use_run)(damaged / folder)
