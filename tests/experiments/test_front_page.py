"""The cells of tables that train models, and the table of the README that is made of them."""

import importlib
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmarks.cells import ROOT, CellFile, Setup, provenance

import unskew

POPULARITY = Setup(model="popularity")


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("front")


def stored(path: Path, *lines: dict[str, Any]) -> CellFile:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return CellFile(path, ("set", "model", "seed"))


def test_a_cell_is_stored_with_its_commit_and_the_later_line_counts(tmp_path: Path) -> None:
    file = CellFile(tmp_path / "cells.jsonl", ("set", "seed"))
    assert file.lines() == {}
    for value in (1, 2):
        file.append(("Beauty", 0), {"value": value})
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 2
    line = file.lines()["Beauty", 0]
    assert line == {"set": "Beauty", "seed": 0, "value": 2} | provenance()
    assert line["commit"]


def test_a_cell_with_other_settings_is_computed_again(tmp_path: Path) -> None:
    key, line = ("Beauty", "popularity", 0), {"set": "Beauty", "model": "popularity", "seed": 0}
    assert stored(tmp_path / "new", line | {"digest": POPULARITY.digest}).has(key, POPULARITY)
    assert stored(tmp_path / "old", line).has(key, POPULARITY)  # from before lines had a digest
    assert not stored(tmp_path / "other", line | {"digest": "other"}).has(key, POPULARITY)
    assert not stored(tmp_path / "new", line).has(("Sports", "popularity", 0), POPULARITY)


def test_the_digest_changes_with_every_setting_but_the_seed() -> None:
    plain = Setup(model="sasrec")
    same = Setup(model="sasrec", settings={"width": plain.create(0).config.width})
    others = [Setup(model="sasrec", settings=of) for of in ({"width": 32}, {"epochs": 3}, {"patience": 9})]
    assert same.digest == plain.digest
    others.append(Setup(model="sasrec", preset="sampled"))
    assert len({plain.digest, *(other.digest for other in others)}) == 5
    assert plain.create(1).training.seed == 1
    assert Setup(model="sasrec", preset="sampled", settings={"valid_examples": 9}).flags == (
        "--model sasrec --preset sampled --valid-examples 9"
    )


def test_cells_of_before_a_commit_are_computed_again(tmp_path: Path) -> None:
    command = ["git", "log", "-2", "--format=%H"]
    commits = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    if len(commits) < 2:
        pytest.skip("a clone without a history")
    newer, older = commits
    key = ("Beauty", "popularity", 0)
    line = dict(zip(("set", "model", "seed"), key, strict=True)) | {"digest": POPULARITY.digest}
    file = stored(tmp_path / "cells", line | {"commit": f"{older[:9]}-dirty"})
    assert file.has(key, POPULARITY, since=older)
    assert not file.has(key, POPULARITY, since=newer)
    assert not stored(tmp_path / "none", line).has(key, POPULARITY, since=older)


def test_a_network_goes_on_in_its_folder(small_split: unskew.Split, tmp_path: Path) -> None:
    setup = Setup(model="sasrec", settings={"width": 8, "epochs": 2, "patience": 5}, in_folder=True)
    first, line = setup.train(3, small_split, tmp_path / "work", "a log", "run")
    folder = tmp_path / "work" / f"a_log-run-3-{setup.digest}"
    before = (folder / "card.json").read_text()
    again, other = setup.train(3, small_split, tmp_path / "work", "a log", "run")
    assert (folder / "card.json").read_text() == before
    assert [record.valid for record in again.records] == [record.valid for record in first.records]
    assert line | {"cpu_training": 0} == other | {"cpu_training": 0}
    assert (line["epochs"], line["finished"], line["digest"]) == (2, False, setup.digest)
    assert line["valid"]["ordinary"] == max(
        round(record.valid["ordinary"]["ndcg@10"], 6) for record in first.records
    )


def results_of(front: ModuleType, **changed: dict[str, Any]) -> Any:
    """Cells of all models on all logs with one seed, each better than the one before."""
    lines = {}
    for log in front.LOGS:
        for number, model in enumerate(front.MODELS):
            line: dict[str, Any] = {"finished": True, "epochs": 9, "best_epoch": 4, "cpu_training": 1.0}
            line["digest"] = front.MODELS[model].digest
            line |= {column.stored: {"ndcg": (number + 1) / 100} for column in front.COLUMNS}
            if changed.get(model) is not None:
                line |= changed[model]
            if line:
                lines[log, model, 0] = line
    return front.Results(lines, {})


def test_the_best_finished_model_is_bold(front: ModuleType) -> None:
    *_, second, last = front.MODELS
    columns = [(log, front.LIVE) for log in front.LOGS]
    table = results_of(front).table(columns).markdown()
    assert table.count("**") == 2 * len(front.LOGS)
    assert f"| {last} | **0.1300** |" in table
    cut = results_of(front, **{last: {"finished": False}})
    table = cut.table(columns).markdown()
    assert f"| {last} | 0.1300 ‡ |" in table
    assert f"| {second} | **0.1200** |" in table
    assert f"not finished (‡, never bold): {last}" in cut.status()


def test_nothing_is_bold_before_all_models_are_there(front: ModuleType) -> None:
    whole = results_of(front)
    lines = {key: line for key, line in whole.lines.items() if key[:2] != ("Beauty", "DEPS")}
    some = front.Results(lines, {})
    table = some.table([(log, front.LIVE) for log in front.LOGS]).markdown()
    assert table.count("**") == 2 * (len(front.LOGS) - 1)
    assert "| DEPS | **0.1300** | **0.1300** | – | **0.1300** |" in table
    assert some.status() == (
        "51 of 52 cells are computed; not run yet: DEPS (Beauty); 51 have fewer than 3 seeds."
    )


def test_cells_with_other_settings_are_named(front: ModuleType) -> None:
    status = results_of(front, DEPS={"digest": "other"}).status()
    assert status.endswith("; with settings of an older version: DEPS.")


def test_two_columns_stand_in_one(front: ModuleType) -> None:
    columns = [(log, column) for log in front.LOGS for column in (front.FROZEN, front.LIVE)]
    table = results_of(front, popularity={"frozen next": {"ndcg": 0.5}}).table(columns, pairs=True)
    assert table.head[0] == "NDCG@10, frozen / live"
    assert len(table.head) == 1 + len(front.LOGS)
    assert table.rows[0][1] == "**0.5000** / 0.0100"


def test_models_that_were_trained_again_stand_in_the_table_with_that_metric(front: ModuleType) -> None:
    once = results_of(front)
    both = front.Results(once.lines, {("Beauty", "EASE", 0): {"live": 0.4321}})
    columns = [("Beauty", front.FROZEN), ("Beauty", front.LIVE)]
    assert "| EASE | 0.0500 / 0.4321 † |" in both.table(columns, pairs=True).markdown()
    assert "0.4321" not in both.table(columns).markdown()
    assert "| EASE | – | – | 0.0500 / 0.4321 | – |" in both.trained_again().markdown()
    assert "† trained again before each tenth" in both.status()
    assert "†" not in once.status()
