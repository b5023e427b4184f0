"""Several ranks under torchrun do what one process does. `make test-cluster`."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import unskew
from tests.conftest import random_table
from tests.helpers.processes import run_python
from tests.helpers.ranked import SAME_LOSSES, numbers, trained

pytestmark = pytest.mark.cluster
HELPERS = Path(__file__).parents[1] / "helpers"
ROOT = HELPERS.parents[1]


def torchrun(size: int, *arguments: object, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a module or a file in so many ranks of this machine."""
    import os

    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | more
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", size)
    return run_python(*launcher, *arguments, env=environment)


def shards(folder: Path) -> dict[str, bytes]:
    """The part files by their names; each was written once."""
    names = [path.name.rsplit("-", 1)[0] for path in folder.iterdir()]
    assert len(set(names)) == len(names)
    return {path.name.rsplit("-", 1)[0]: path.read_bytes() for path in folder.iterdir()}


def test_pulse_reads_the_same_shards_and_learns_the_same(tmp_path: Path) -> None:
    """In one rank, in two, and in two of which one is killed after every second shard."""
    unskew.prepare(random_table(rows=1500), tmp_path / "data")
    common = ("-m", "unskew", "train", tmp_path / "data", "--import", HELPERS / "small_shards.py")
    common += ("--sample", 300, "--epochs", 1, "--valid-examples", 50, "--threads", 1)
    runs = {"one": (1, {}), "two": (2, {}), "killed": (2, {"KILL": "1"})}
    for name, (size, more) in runs.items():
        (tmp_path / f"kept-{name}").mkdir()
        restarts = ("--max-restarts", 3 if more else 0)
        kept = {"KEPT": str(tmp_path / f"kept-{name}")} | more
        done = torchrun(size, *restarts, *common, "--out", tmp_path / name, **kept)
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / name / "shards").exists()
        assert not list((tmp_path / name).glob(".l*"))
    expected = shards(tmp_path / "kept-one")
    assert len(expected) == 10
    assert shards(tmp_path / "kept-two") == shards(tmp_path / "kept-killed") == expected
    one, two, killed = (load_file(tmp_path / name / "weights-ordinary.safetensors") for name in runs)
    for name, value in one.items():
        np.testing.assert_array_equal(killed[name], two[name])
        np.testing.assert_allclose(two[name], value, atol=1e-3)
    first, second = (
        json.loads((tmp_path / name / "records.jsonl").read_text().splitlines()[-1])
        for name in ("one", "two")
    )
    assert second["losses"]["clicks"] == pytest.approx(first["losses"]["clicks"], abs=1e-5)


def test_two_ranks_train_evaluate_and_resume_as_one_process_does(tmp_path: Path) -> None:
    done = torchrun(2, HELPERS / "ranked.py", tmp_path)
    assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "found")
    assert found["rows"][:, 0].tolist() == [0.5, 1.0, 0.0, 0.0, 0.0, 1.5]
    for model in SAME_LOSSES:
        for part, value in numbers(trained(model)).items():
            if part == "losses":
                np.testing.assert_allclose(found[f"{model}: {part}"], value, rtol=1e-5)
            if part == "rows":  # every row once, in the same order
                np.testing.assert_array_equal(found[f"{model}: {part}"], value)
    whole, resumed = (
        load_file(tmp_path / name / "weights-ordinary.safetensors") for name in ("whole", "stopped")
    )
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value)


def test_an_evaluation_in_two_ranks_is_that_of_one_process(tmp_path: Path) -> None:
    unskew.prepare(random_table(rows=900, users=40, items=30), tmp_path / "data")
    evaluated = ("-m", "unskew", "evaluate", tmp_path / "run", "--save")
    unskew.create_model("gru4rec", {"epochs": 1}).fit(
        unskew.split(unskew.Log.open(tmp_path / "data")), tmp_path / "run"
    )
    done = torchrun(2, *evaluated, tmp_path / "two.parquet")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("effective sample size") == 1
    two = unskew.Evaluation.load(tmp_path / "two.parquet")
    one = unskew.load(tmp_path / "run").evaluate(unskew.split(unskew.Log.open(tmp_path / "data")))
    np.testing.assert_array_equal(two.rows, one.rows)
    for name, value in one.values.items():
        np.testing.assert_array_equal(two.values[name], value)


def test_ten_kills_in_a_row_are_survived(tmp_path: Path) -> None:
    done = torchrun(2, "--max-restarts", 10, HELPERS / "dying.py", tmp_path / "attempts")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "attempts").read_text() == "10"
    shutil.rmtree(tmp_path)
