"""Models and estimators from a Python file: `--import FILE`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.command import run
from unskew.core import imports
from unskew.models.base import MODELS
from unskew.propensity.base import ESTIMATORS

MINE = """
from unskew.models.popularity import Popularity
from unskew.propensity.estimators import ItemPro


class Mine(Popularity, name="mine", paper="a test"):
    pass


class Rarely(ItemPro, name="rarely"):
    pass
"""
RUNS = {
    "model": ("--model", "mine"),
    "estimator": ("--model", "debiased-popularity", "--propensity", "rarely", "--method", "ips"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    unskew.prepare(random_table(rows=600, users=40, items=20), tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Nothing that a test imports is there afterwards."""
    yield
    forget_imports()


def forget_imports() -> None:
    """As in a new process."""
    MODELS.pop("mine", None)
    ESTIMATORS.pop("rarely", None)
    imports._files.clear()


@pytest.mark.parametrize("kind", list(RUNS))
def test_a_run_names_the_file_that_it_needs(
    capsys: pytest.CaptureFixture[str], data: Path, file: Path, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "run"
    code, _, err = run(capsys, "train", data, "--out", folder, *RUNS[kind], "--import", file)
    assert code == 0, err
    assert json.loads((folder / "config.json").read_text())["imports"] == [str(file)]
    asked = (
        ("evaluate", folder),
        ("recommend", folder, "--user", "u1"),
        ("train", "--resume", folder),
        ("update", folder, "--store", tmp_path / "none.db", "--dry-run"),
        ("serve", folder, "--store", tmp_path / "new.db", "--port", 0),
    )
    forget_imports()
    for command in asked:
        code, _, err = run(capsys, *command)
        assert code == 2
        words = f"{folder}: {file} defines its model or its estimator, and is not imported"
        assert " ".join(words.split()) in " ".join(err.split())
        assert f"--import {file}" in err
    moved = file.rename(tmp_path / "moved.py")
    for command in asked[:3]:
        forget_imports()
        code, _, err = run(capsys, *command, "--import", moved)
        assert code == 0, err


def test_a_model_of_ones_own_is_tuned_and_listed(
    capsys: pytest.CaptureFixture[str], data: Path, file: Path, tmp_path: Path
) -> None:
    file.write_text(MINE.replace("popularity", "sasrec").replace("Popularity", "SASRec"))
    best, small = tmp_path / "best.json", ("--width", 8, "--layers", 1, "--epochs", 1)
    asked = ("tune", "mine", data, "--out", best, "--trials", 1, "--valid-examples", 20, *small)
    assert run(capsys, *asked)[0] == 2
    code, _, err = run(capsys, *asked, f"--import={file}")
    assert code == 0, err
    assert json.loads(best.read_text())["model"] == "mine"
    code, out, _ = run(capsys, "models", "--import", file, "--json")
    assert (code, "mine" in json.loads(out)["models"]) == (0, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no such file"), ("import nothing_at_all", "ModuleNotFoundError"), ("1 +", "SyntaxError")],
)
def test_files_that_cannot_be_imported(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "bad.py").write_text(text)
    code, _, err = run(capsys, "train", data, "--out", tmp_path / "run", "--import", tmp_path / "bad.py")
    assert (code, message in err) == (2, True)
    assert not (tmp_path / "run").exists()
