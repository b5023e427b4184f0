"""A model from outside: one class in another person's file, with all that ours have, from Python and from
the command line."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.plugins import run_commands, run_script
from tests.helpers.processes import run_python

TOY = '''
from dataclasses import dataclass

from torch import Tensor

from unskew.data.log.split import Known
from unskew.models.base import HistoryConfig, NextItem


class Toy(NextItem, name="toy", paper="nobody, nowhere"):
    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: int = 8
        """Width of the embeddings."""
        forgets: float = 0.5
        """A setting of its own."""

    config: Config

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)

    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        return self.items(ids_BL).cumsum(1) * self.config.forgets
'''

SCRIPT = """
import sys
import torch
torch.set_num_threads(1)
import unskew
import toy

from unskew.testing.models import check_model
check_model(toy.Toy, toy.Toy.Config(width=4, history=6))
data, folder = sys.argv[1:]
split = unskew.split(unskew.Log.open(data))
from unskew.api.create import create_model
short = dict(epochs=2, sequences=64, valid_examples=50, learning_rate=0.01)
plain = create_model("toy", dict(width=4, history=6, forgets=0.7, **short)).fit(split, folder + "/plain")
settings = dict(width=4, forgets=0.7, clip=0.01, propensity_width=4, propensity_epochs=1, **short)
paper = {"method": "ips-both", "propensity": "dual"}
weighted = unskew.Debiased("toy", settings | paper).fit(split)
weighted.save(folder + "/weighted")
for made, name in ((plain, "plain"), (weighted, "weighted")):
    again = unskew.load(f"{folder}/{name}")
    assert again.config == made.config, again.config
    assert again.evaluate(split).metrics() == made.evaluate(split).metrics()
    lists = [one.recommend(users=["u1", "u2", "nobody"], k=4).table for one in (made, again)]
    assert lists[0].equals(lists[1]) and lists[0].num_rows == 12
    assert len(made.records) >= 2
assert type(plain.network).__name__ == "Toy" and type(weighted.network.backbone).__name__ == "Toy"
assert weighted.propensities(split.log).num_rows == len(split.log)
try:
    unskew.Debiased("toy", {"forgets": "often"})
except unskew.BadInput as error:
    print(error)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    unskew.prepare(random_table(rows=900, users=40, items=30), tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "toy.py").write_text(TOY)
    return tmp_path / "elsewhere"


def python(path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    return run_python(*arguments, env=environment)


COMMANDS = """
import contextlib, io, json, sys
from unskew.cli import main

done = []
for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command)
    done.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""


def commands(path: Path, *wanted: tuple[object, ...]) -> list[tuple[int, str, str]]:
    """Several commands in one process, because torch takes seconds to import: of each the exit code and what
    it printed."""
    done = python(path, "-c", COMMANDS, json.dumps([list(map(str, command)) for command in wanted]))
    assert (done.returncode, done.stderr) == (0, "")
    return [tuple(one) for one in json.loads(done.stdout)]


def test_a_class_that_is_imported_is_a_model(capsys, data: Path, elsewhere: Path, tmp_path: Path) -> None:
    run_script(elsewhere, SCRIPT, data, tmp_path)
    assert capsys.readouterr().out == "forgets 'often': expected a finite number\n"


def install(folder: Path, name: str, points: str) -> None:
    """What pip leaves behind."""
    (folder / f"{name}-1.0.dist-info").mkdir()
    (folder / f"{name}-1.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )
    (folder / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(f"[unskew.models]\n{points}\n")


def test_an_installed_package_brings_its_models_to_the_command_line(
    data: Path, elsewhere: Path, tmp_path: Path
) -> None:
    install(elsewhere, "toymaker", "toy = toy:Toy")
    flags = ("--epochs", 1, "--sequences", 64, "--valid-examples", 50, "--forgets", 0.9)
    paper = {"toy": (), "debiased-toy": ("--preset", "paper")}
    models, *done = commands(
        elsewhere,
        ("models", "--json"),
        *(
            ("train", data, "--out", tmp_path / model, "--model", model, *flags, *paper[model])
            for model in ("toy", "debiased-toy")
        ),
        *(("evaluate", tmp_path / model, "--json") for model in ("toy", "debiased-toy")),
        *(
            ("recommend", tmp_path / model, "--history", "i1", "--k", 3, "--json")
            for model in ("toy", "debiased-toy")
        ),
    )
    listed = json.loads(models[1])["models"]["toy"]
    assert (listed["paper"], listed["config"]) == (
        "nobody, nowhere",
        {"history": 50, "width": 8, "forgets": 0.5},
    )
    assert [code for code, _, _ in done] == [0] * 6
    # A machine that is busy shows progress, too.
    said = [re.sub(r"(?m)^[\w ]+: (under way|\d+ of \d.*|done in .*)\n", "", err) for _, _, err in done]
    trained = said.pop(1)
    assert trained.startswith("The weights do nothing: 100.0 % of the events are clipped")
    assert said.pop(0).startswith("not finished: a validation metric was still rising")
    assert said == [""] * 4
    configs = [
        json.loads((tmp_path / model / "config.json").read_text())["config"]
        for model in ("toy", "debiased-toy")
    ]
    assert configs[0]["forgets"] == configs[1]["backbone"]["forgets"] == 0.9
    assert all(json.loads(out)["metrics"]["ndcg@10"] > 0 for _, out, _ in done[2:4])
    assert all(len(json.loads(out)["recommendations"]) == 3 for _, out, _ in done[4:])
    # Where it is not installed, nobody knows it.
    (tmp_path / "nothing").mkdir()
    models, (code, _, err) = run_commands(
        tmp_path / "nothing", ("models", "--json"), ("recommend", tmp_path / "toy", "--history", "i1")
    )
    assert "toy" not in json.loads(models[1])["models"]
    assert code == 2
    assert err.startswith("unskew: no model 'toy'; there are ")


def test_a_broken_package_breaks_nothing_else(elsewhere: Path) -> None:
    (elsewhere / "broken.py").write_text("import no_such_thing\n")
    install(elsewhere, "breaker", "broken = broken:Broken")
    install(elsewhere, "toymaker", "toy = toy:Toy")
    done = python(elsewhere, "-m", "unskew", "models", "--json")
    assert done.returncode == 0
    assert {"toy", "deps"} <= json.loads(done.stdout)["models"].keys()
    assert "model broken (broken:Broken) cannot be loaded: No module named 'no_such_thing'" in done.stderr
