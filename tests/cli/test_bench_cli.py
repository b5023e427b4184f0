"""`unskew bench` on the command line: smoke, own suites, and what it refuses."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import unskew
from tests.helpers.command import run
from unskew.experiments import grid
from unskew.experiments.cell_store import CellStore
from unskew.experiments.grid import SMOKE_WORLD, plan_cells, world_source
from unskew.experiments.registry import suites_in
from unskew.experiments.suite import Arm, Suite
from unskew.world.simulate import simulate

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "films"
    unskew.prepare(unskew.simulate(users=50, items=20, steps=40, seed=1).log.table(), folder)
    return folder


def test_smoke_runs_every_suite(tmp_path: Path, capsys) -> None:
    code, out, err = run(capsys, "bench", "all", "--smoke", "--json", "--out", tmp_path)
    document = json.loads(out)
    assert code == 0, err
    assert document["done"] == document["cells"] > 80
    assert document["failed"] == 0
    results = CellStore.open(tmp_path)
    assert {place.suite for place in results.plan.places} == {
        *("main", "views", "parts", "frequency", "agnostic", "clip"),
        *("ground-truth", "industry", "rolling"),
    }
    assert {place.key for place in results.plan.places} == set(results.cells)
    assert results.plan.about.smoke is True
    first, *lines, last = err.splitlines()
    assert first.startswith(f"{document['cells']} runs, 0 of them done; the rest will take about")
    assert len([line for line in lines if line.startswith("[")]) == document["cells"]
    assert last == f"see it with `unskew report {tmp_path} --html FILE`"


def test_a_suite_and_a_model_of_ones_own(data: Path, tmp_path: Path, capsys) -> None:
    """The tutorial's file, as the tutorial says."""
    own = ROOT / "examples" / "own_suite.py"
    code, out, err = run(
        capsys, "bench", "--suite", own, f"films={data}", "--out", tmp_path / "out", "--smoke", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["done"] == 3
    places = CellStore.open(tmp_path / "out").plan.places
    assert {place.arm for place in places} == {"last item's successors", "popularity", "ItemKNN"}
    assert {place.source for place in places} == {"films"}
    tutorial = (ROOT / "docs" / "tutorials" / "own-model-and-table.md").read_text()
    code = tutorial.split("```python\n")[1].split("```")[0]
    assert code.strip() == own.read_text().split('"""', 2)[2].strip()
    assert "unskew bench --suite own_suite.py" in tutorial


def test_seeds_workers_and_limits(data: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from unskew.experiments.suite import Arm, Suite\n"
        "mine = Suite(name='mine', title='T', question='Q?', arms=(Arm(name='p', model='popularity'),))\n"
    )
    asked = ("bench", "mine", data, "--suite", file, "--out", tmp_path / "out", "--seeds", 2, "--json")
    limit = ("--at-most", "popularity.valid-examples=70")
    code, out, err = run(capsys, *asked, "--workers", 2, "--sample", 40, *limit)
    assert code == 0, err
    assert json.loads(out)["done"] == 2
    cells = CellStore.open(tmp_path / "out").cells.values()
    assert {cell.data.name for cell in cells} == {"films"}
    assert {cell.sample for cell in cells} == {40}
    assert {cell.training["seed"] for cell in cells} == {0, 1}
    assert {cell.training["valid_examples"] for cell in cells} == {70}


def test_some_models_alone_beside_what_is_there(data: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "mine.py"
    arms = "Arm(name='p', model='popularity'), Arm(name='k', model='itemknn')"
    file.write_text(
        "from unskew.experiments.suite import Arm, Suite\n"
        f"mine = Suite(name='mine', title='T', question='Q?', arms=({arms}), seeds=1)\n"
    )
    asked = ("bench", "mine", data, "--suite", file, "--out", tmp_path / "out", "--json", "--sample", 40)

    def stored() -> list[tuple[str, str]]:
        results = CellStore.open(tmp_path / "out")
        places = [(place.arm, results.cells[place.key].model) for place in results.plan.places]
        assert len(results.plan.suites["mine"].arms) == 2
        return places

    for model, there in (
        ("itemknn", [("k", "itemknn")]),
        ("popularity", [("k", "itemknn"), ("p", "popularity")]),
    ):
        code, out, err = run(capsys, *asked, "--models", model)
        assert code == 0, err
        assert json.loads(out)["cells"] == json.loads(out)["done"] == 1
        assert stored() == there


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench", "mian", "DATA"), "no suite 'mian'; did you mean 'main'?"),
        (("bench", "main"), "suite main: expected DATA"),
        (("bench", "main", "nowhere"), "nowhere"),
        (("bench", "main", "DATA", "DATA"), "two data sets are named 'films'"),
        (("bench", "main", "DATA", "--workers", "0"), "workers 0: expected at least 1"),
        (
            ("bench", "main", "DATA", "--models", "puls"),
            "models puls: the suite has no such model; it has bert",
        ),
        (("bench", "main", "DATA", "--suite", "no.py"), "no.py: no such file"),
        (("bench",), "expected a SUITE"),
        (("bench", "main", "DATA", "--at-most", "tables=3"), "at most tables: none of these models has"),
        (("bench", "main", "DATA", "--at-most", "deps.tables=3"), "at most deps.tables: none of these"),
        (("bench", "main", "DATA", "--at-most", "dep.epochs=3"), "at most dep.epochs: none of these models"),
        (("bench", "main", "DATA", "--at-most", "epochs=few"), "--at-most epochs=few: expected SETTING=NUM"),
    ],
)
def test_what_is_refused(data: Path, tmp_path: Path, capsys, words: tuple[str, ...], said: str) -> None:
    given = [str(data) if word == "DATA" else word for word in words]
    code, _, err = run(capsys, *given, "--out", tmp_path / "out")
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "out" / "cells.jsonl").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "defines no `Suite`"),
        ("import nothing_like_it\n", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_files_that_are_no_suites(data: Path, tmp_path: Path, capsys, text: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    code, _, err = run(capsys, "bench", "--suite", tmp_path / "mine.py", data, "--out", tmp_path / "out")
    assert code == 2
    assert said in err


def test_a_failure_is_told_and_the_exit_code_says_so(data: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "mine.py").write_text(
        "from unskew.experiments.suite import Arm, Suite\n"
        "mine = Suite(name='mine', title='T', question='Q?', arms=(Arm(name='p', model='popularity'),\n"
        "    Arm(name='q', model='debiased-sasrec',"
        " settings={'propensity': 'logged', 'method': 'logit-offset'})))\n"
    )
    code, _, err = run(
        capsys,
        "bench",
        "--suite",
        tmp_path / "mine.py",
        data,
        "--out",
        tmp_path / "out",
        "--smoke",
        "--seeds",
        1,
    )
    assert code == 1
    assert "[1/2] failed: q on films, seed 0" in err
    assert "1 of 2 runs failed; the same command tries them again" in err


def test_the_size_of_a_world_is_known_before_it_is_simulated() -> None:
    """So that the estimate does not take a large world for nothing."""
    guessed = world_source("world", SMOKE_WORLD).positives
    assert guessed == pytest.approx(simulate(**asdict(SMOKE_WORLD)).log.positives, rel=0.5)
    assert world_source("world", replace(SMOKE_WORLD, users=2 * SMOKE_WORLD.users)).positives == 2 * guessed


def test_other_weights_of_pulse_zero_are_another_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = Suite(
        name="two",
        title="Two",
        question="Which are measured again?",
        arms=(Arm(name="zero", model="pulse-zero"), Arm(name="counted", model="popularity")),
    )

    def keys() -> list[str]:
        return list(plan_cells([suite], [world_source("world", SMOKE_WORLD)], seeds=1)[0])

    before = keys()
    (tmp_path / "other").write_bytes(grid.ZERO.read_bytes() + b"more")
    monkeypatch.setattr(grid, "ZERO", tmp_path / "other")
    zero, counted = keys()
    assert zero != before[0]
    assert counted == before[1]


def test_a_suite_that_a_file_imports_is_not_its_own(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    lines = ["from dataclasses import replace", "from unskew.experiments.extra_suites import INDUSTRY"]
    file.write_text(
        "\n".join([*lines, "own = replace(INDUSTRY, name='own', arms=INDUSTRY.arms[:1], rivals=())"])
    )
    assert list(suites_in(file)) == ["own"]
