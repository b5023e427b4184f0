"""Runs that have no events of their own: they recommend as those with a copy, and say what is wrong if the
prepared folder is gone, has changed, or still has users who were erased."""

import json
from pathlib import Path

import pytest

import unskew
from unskew.core.errors import BadInput
from unskew.data.log.log import Log
from unskew.data.log.split import split
from unskew.training.run import read_config
from unskew.training.run_log import load_memory
from unskew.update.erase import erase

COPIES = {"users.parquet", "items.parquet"}


def trained(data: Path, run: Path, **more: str) -> Path:
    cut = split(Log.open(data), min_count=20)
    unskew.create_model("popularity").fit(cut, run, **more)
    return run


@pytest.fixture
def runs(data: Path, tmp_path: Path) -> tuple[Path, Path]:
    """One with a copy of the events, and one that refers to the folder."""
    return trained(data, tmp_path / "copy"), trained(data, tmp_path / "refers", events_in="folder")


def test_they_recommend_the_same(runs: tuple[Path, Path], data: Path) -> None:
    copy, refers = (unskew.load(run) for run in runs)
    users = copy.known_log.users.ids.to_pylist()
    assert copy.recommend(users=users).table.equals(refers.recommend(users=users).table)
    assert refers.known_log.folder == str(data)
    config = read_config(runs[1])
    rare = [load_memory(run, config.known, config.open_events(run))[1].users.rare for run in runs]
    assert rare[0] is not None
    assert rare[1] is not None
    assert 0 < rare[0].sum() == rare[1].sum()


def test_one_has_no_copy(runs: tuple[Path, Path]) -> None:
    copy, refers = ({path.name for path in run.iterdir()} for run in runs)
    assert copy - refers == COPIES
    sizes = [(run / "memory.safetensors").stat().st_size for run in runs]
    assert sizes[1] < sizes[0] / 5
    stored = [json.loads((run / "config.json").read_text())["events_in"] for run in runs]
    assert stored == ["run", "folder"]


def test_a_folder_that_is_gone(runs: tuple[Path, Path], data: Path) -> None:
    data.rename(data.with_name("moved"))
    unskew.load(runs[0])
    with pytest.raises(BadInput, match="gone or has moved"):
        unskew.load(runs[1])


def test_a_folder_with_other_rows(runs: tuple[Path, Path], data: Path, source: Path) -> None:
    unskew.prepare(source, data, k_core=2, positive=1)
    users = unskew.load(runs[0]).recommend(users=["u1"])
    assert len(users.table)
    (data / "data.json").write_text((data / "data.json").read_text())  # the same rows are the same log
    unskew.prepare(source, data, duplicates="keep", k_core=20)
    with pytest.raises(BadInput, match="other rows now"):
        unskew.load(runs[1])


def test_users_who_were_erased(runs: tuple[Path, Path], data: Path) -> None:
    """Erased from the run, a user is still in the folder, so the run is not opened until that is erased."""
    erase(["u1"], runs=[runs[1]])
    with pytest.raises(BadInput, match="holds rows of users who were erased"):
        unskew.load(runs[1])
    erase(["u1"], data=[data])
    with pytest.raises(BadInput, match="other rows now"):  # codes are others, which weights may belong to
        unskew.load(runs[1])


def test_a_log_in_memory_has_no_folder(small_split: unskew.Split, tmp_path: Path) -> None:
    cut = small_split
    with pytest.raises(BadInput, match="no prepared folder"):
        unskew.create_model("popularity").fit(cut, tmp_path / "run", events_in="folder")
    assert not (tmp_path / "run").exists()


def test_a_memory_of_another_run_is_damaged(runs: tuple[Path, Path], data: Path) -> None:
    config = json.loads((runs[1] / "config.json").read_text())
    config["known"]["users"]["size"] += 10**6
    (runs[1] / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match="damaged"):
        unskew.load(runs[1])
