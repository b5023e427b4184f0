"""The verbs of data as a script sees them: exit codes, JSON on standard output and nothing else there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unskew
from tests.helpers.command import run
from unskew.cli.shared import write_file
from unskew.data.log.decay import Decay
from unskew.data.log.views import Sequences


def test_prepare(capsys, source: Path, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "prepare", source, "--out", tmp_path / "d", "--min-count", 3, "--json")
    assert code == 0
    document = json.loads(out)
    log = unskew.Log.open(tmp_path / "d")
    assert document["rows"] == len(log)
    assert unskew.split(log).min_count == 3
    code, out, _ = run(capsys, "prepare", source, "--out", tmp_path / "d")
    assert code == 0
    assert "removed: duplicates  5" in out
    assert "k core" not in out  # nothing was removed by one


def test_prepare_sets_bad_rows_aside(capsys, tmp_path: Path) -> None:
    rows = "".join(f"u{n % 7},i{n % 5},{n}\n" for n in range(70))
    (tmp_path / "a.csv").write_text("user,item,time\n" + rows + "u1,i1,soon\n")
    code, out, err = run(
        capsys, "prepare", tmp_path / "a.csv", "--out", tmp_path / "d", "--skip-bad-rows", "--json"
    )
    assert (code, json.loads(out)["removed"]["bad_rows"]) == (0, 1)
    assert "1 bad rows were set aside" in err


@pytest.mark.slow
def test_inspect(capsys, data: Path, tmp_path: Path) -> None:
    page = tmp_path / "deep" / "page.html"
    code, out, _ = run(capsys, "inspect", data, "--json", "--html", page, "--fractions", 80, 10, 10)
    assert code == 0
    document = json.loads(out)
    assert document["size"]["interactions"] == len(unskew.Log.open(data))
    assert page.read_text().startswith("<!DOCTYPE html>")
    code, out, _ = run(capsys, "inspect", data)
    assert code == 0
    assert "sparsity" in out
    assert "balanced test" in out
    assert "repeated positives" in out


def test_audit_passes_and_fails_by_exit_code(capsys, data: Path, monkeypatch) -> None:
    code, out, _ = run(capsys, "audit", data, "--json")
    assert (code, json.loads(out)["leak_free"]) == (0, True)
    checks = {finding["check"] for finding in json.loads(out)["checks"]}
    assert {"batches of pairs", "batches of histories", "empty audience"} <= checks
    assert {"own past", "look-ahead filter"} <= checks
    # Ties are read as past.
    monkeypatch.setattr(Sequences, "moments", property(lambda view: np.arange(len(view.ids))))
    code, out, err = run(capsys, "audit", data, "--json")
    assert (code, json.loads(out)["leak_free"]) == (1, False)
    assert "unskew: batches of histories: " in err


def test_the_audit_of_a_run(capsys, data: Path, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "run"
    unskew.create_model("pulse", {"start": "kept"}).fit(
        unskew.split(unskew.Log.open(data)), folder, show_progress=False
    )
    code, out, _ = run(capsys, "audit", data, "--run", folder, "--json")
    assert code == 0
    assert json.loads(out)["checks"][-1]["check"] == "scores of the cut log"
    assert json.loads(out)["checks"][-1]["checked"] > 0
    code, _, err = run(capsys, "audit", data, "--run", folder, "--fractions", 80, 10, 10)
    assert code == 2
    assert "--run audits the split of the run" in err
    # Decayed counts hold the events of the moment.
    at = Decay.at
    monkeypatch.setattr(Decay, "at", lambda decay, entity, time: at(decay, entity, np.asarray(time) + 1))
    code, out, err = run(capsys, "audit", data, "--run", folder, "--json")
    assert (code, json.loads(out)["leak_free"]) == (1, False)
    assert "unskew: scores of the cut log: the model reads rows at or after the time of a request" in err


def test_the_audit_says_what_a_k_core_implies(capsys, source: Path, tmp_path: Path) -> None:
    unskew.prepare(source, tmp_path / "core", k_core=5)
    code, out, _ = run(capsys, "audit", tmp_path / "core")
    assert code == 0
    assert "the 5-core made" in " ".join(out.split())


def test_simulate(capsys, tmp_path: Path) -> None:
    size = ("--users", 50, "--items", 40, "--steps", 20)
    code, out, _ = run(capsys, "simulate", "--out", tmp_path / "w", *size, "--json")
    assert code == 0
    log = unskew.Log.open(tmp_path / "w")
    assert json.loads(out)["rows"] == len(log) > 0
    settings = log.metadata.origin.world  # enough to make the same world, and so its ground truth, again
    assert settings["users"] == 50
    world = unskew.simulate(**settings)
    assert world.log.table().equals(log.table())


def test_a_file_in_the_place_of_a_prepared_folder(capsys, source: Path, tmp_path: Path) -> None:
    for verb in (["inspect"], ["train", "--out", str(tmp_path / "r")]):
        code, out, err = run(capsys, verb[0], source, *verb[1:])
        assert (code, out) == (2, "")
        assert f"prepare it first: `unskew prepare {source} --out DATA`" in err.replace("\n", " ")


@pytest.mark.slow
def test_square_brackets_are_only_brackets(capsys, source: Path, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "prepare", source, "--out", tmp_path / "[red]x", "--name", "[/b] log")
    assert code == 0
    assert "[/b] log" in out
    code, _, err = run(capsys, "inspect", tmp_path / "[red]x", "--html", tmp_path / "[/b].html")
    assert code == 0
    assert "[/b].html" in err


def test_long_jobs_say_where_they_are(capsys, monkeypatch, data: Path) -> None:
    """Plain lines where there is no terminal, on standard error, and only from jobs that take their time."""
    monkeypatch.setattr("unskew.core.progress.PATIENCE", 1e6)
    code, quiet, err = run(capsys, "inspect", data, "--json")
    assert (code, "inspect:" in err) == (0, False)
    monkeypatch.setattr("unskew.core.progress.PATIENCE", 0.0)
    monkeypatch.setattr("unskew.core.progress.PAUSE", 0.0)
    code, out, err = run(capsys, "inspect", data, "--json")
    assert code == 0
    assert json.loads(out) == json.loads(quiet)
    assert "inspect: 1 of 7 times" in err
    assert "inspect: done in" in err


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch) -> None:
    page = tmp_path / "page.html"
    page.write_text("the old one")

    def full(path: Path, *_: Any, **__: Any) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(unskew.UnskewError, match="No space left on device"):
        write_file(page, "the new one", "the page")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert page.read_text() == "the old one"


def test_a_page_in_a_folder_that_is_none(tmp_path: Path) -> None:
    """One that is missing is made; a file in its place is named."""
    write_file(tmp_path / "new" / "deep" / "page.html", "a page", "the page")
    assert (tmp_path / "new" / "deep" / "page.html").read_text() == "a page"
    (tmp_path / "mine").write_text("years of work")
    for file in (tmp_path / "mine" / "page.html", tmp_path / "mine" / "deep" / "page.html"):
        with pytest.raises(unskew.UnskewError) as refused:
            write_file(file, "a page", "the page")
        assert str(refused.value) == f"{file}: cannot be written ({file.parent} is not a folder)"
    assert (tmp_path / "mine").read_text() == "years of work"
