"""Runs are whole or not there, are never overwritten, and end the same after a kill at any moment."""

import os
import signal
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import unskew
from tests.conftest import random_table
from tests.helpers.processes import GUARD, run_python, start_python, wait_until
from tests.helpers.runs import CRITERIA, SHORT, TINY, Killed, card, records, train
from unskew.api.create import create_model
from unskew.models.base import Training
from unskew.models.itemknn import DECAYS
from unskew.models.popularity import Popularity
from unskew.training import run as run_module
from unskew.training.epoch_record import EpochRecord
from unskew.training.run import RunFolder
from unskew.training.run_card import is_finished
from unskew.training.run_config import RunConfig, RunSettings
from unskew.training.trainer import Trainer

WEIGHTS = {f"weights-{criterion}.safetensors" for criterion in CRITERIA}
ABOUT = {"config.json", "memory.safetensors", "users.parquet", "items.parquet", "records.jsonl", "card.json"}
ABOUT |= {"checkpoint.safetensors"}


@pytest.fixture(scope="module")
def uninterrupted(small_split: unskew.Split, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(small_split, "deps", TINY, SHORT, folder)
    assert len({best["epoch"] for best in card(folder)["best"].values()}) == 2  # two sets of weights
    return folder


def train_until(split: unskew.Split, folder: Path, step: int, monkeypatch, every: int) -> None:
    """Train and die at a step, with a checkpoint every few steps. Only the folder is left behind."""
    with monkeypatch.context() as patched:

        def checkpoint(self: RunFolder, trainer: Trainer) -> None:
            if trainer.progress.step == step:
                raise Killed
            if trainer.progress.step % every == 0:
                self.save(trainer, None)

        patched.setattr(RunFolder, "maybe_checkpoint", checkpoint)
        with pytest.raises(Killed):
            train(split, "deps", TINY, SHORT, folder, resume=True)


def assert_same_run(folder: Path, other: Path) -> None:
    for name in WEIGHTS:
        assert (folder / name).read_bytes() == (other / name).read_bytes()
    assert records(folder) == records(other)
    assert {path.name for path in folder.iterdir()} == {path.name for path in other.iterdir()}


def test_a_run_is_whole(uninterrupted: Path) -> None:
    assert {path.name for path in uninterrupted.iterdir()} == ABOUT | WEIGHTS
    stages = [record["stage"] for record in records(uninterrupted)]
    assert stages == ["unsupervised"] + ["unbiased"] * 3
    for record in records(uninterrupted):
        assert {"weight", "item_view", "item_view_clipped", "user_view"} <= record["statistics"].keys()
    said = card(uninterrupted)
    assert (said["seed"], said["select_by"], said["weights"]) == (3, "balanced", [*CRITERIA])
    for criterion in CRITERIA:
        found = [record["valid"][criterion]["ndcg@10"] for record in records(uninterrupted)[1:]]
        assert said["best"][criterion] == {"epoch": int(np.argmax(found)) + 1, "ndcg@10": max(found)}


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 14, 16])
def test_killed_at_any_step_it_ends_with_the_same_weights(
    small_split: unskew.Split, uninterrupted: Path, tmp_path: Path, monkeypatch, step: int
) -> None:
    last = records(uninterrupted)[-1]["step"]
    assert step <= last
    train_until(small_split, tmp_path / "run", step, monkeypatch, every=3)
    assert not (tmp_path / "run" / "card.json").exists()
    train(small_split, "deps", TINY, SHORT, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", uninterrupted)


def test_killed_again_and_again(
    small_split: unskew.Split, uninterrupted: Path, tmp_path: Path, monkeypatch
) -> None:
    for step in (2, 6, 9, 13):
        train_until(small_split, tmp_path / "run", step, monkeypatch, every=1)
    train(small_split, "deps", TINY, SHORT, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", uninterrupted)


def test_a_real_kill_and_the_command_line(tmp_path: Path) -> None:
    """As soon as there is a checkpoint, and then at whatever the process is doing after its third one."""
    unskew.prepare(random_table(rows=4000, users=80, items=60, negatives=0.0), tmp_path / "data")
    flags = (
        "--model deps --width 8 --layers 1 --inner 16 --unsupervised-epochs 1 --epochs 4 --batch-size 64 "
        "--threads 1 --valid-examples 50 --dropout 0.2"
    )
    code = (
        "import sys, unskew.training.run as r; r.CHECKPOINT_EVERY = 0.05; from unskew.cli import main; "
        "sys.exit(main())"
    )
    assert run_module.CHECKPOINT_EVERY > 0.05  # the name that is set in there

    def command(out: str) -> list[object]:
        begun = (tmp_path / out / "config.json").exists()
        more = ["--resume", str(tmp_path / out), "--threads", "1"]
        new = [str(tmp_path / "data"), "--out", str(tmp_path / out), *flags.split()]
        return ["-c", code, "train", *(more if begun else new)]

    def saved_at() -> int:
        return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0

    assert run_python(*command("whole")).returncode == 0
    checkpoint = tmp_path / "killed" / "checkpoint.safetensors"
    for checkpoints in (1, 3):
        child = start_python(*command("killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(checkpoints):
            before = saved_at()
            wait_until(lambda before=before: saved_at() != before, child)
        child.send_signal(signal.SIGKILL)
        assert child.wait(GUARD) == -signal.SIGKILL
        assert not (tmp_path / "killed" / "card.json").exists()
    assert run_python(*command("killed")).returncode == 0
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_the_card_says_what_validation_chose(
    small_split: unskew.Split, uninterrupted: Path, tmp_path: Path
) -> None:
    """Models that no gradient trains have no best epoch; what they have chosen stands there by its name."""
    chosen = {}
    weighted = {"propensity": "item-pro"}
    for name, settings in (("popularity", {}), ("itemknn", {}), ("debiased-popularity", weighted)):
        made = create_model(name, settings | {"valid_examples": 100}).fit(small_split, tmp_path / name)
        made.save(tmp_path / "again" / name)
        said = card(tmp_path / name)
        assert said["chosen"] == card(tmp_path / "again" / name)["chosen"]
        chosen[name] = said["chosen"]
        assert {best["epoch"] for best in said["best"].values()} == {0}
    for criterion in CRITERIA:
        settings = replace(SHORT, valid_examples=100, seed=0, select_by=criterion)
        network = train(small_split, "popularity", Popularity.Config(), settings)[0]
        resolve_auto = {name: float(getattr(network, name)) for name in ("window_ticks", "half_life_ticks")}
        assert chosen["popularity"][criterion] == resolve_auto
        assert chosen["debiased-popularity"][criterion] == {
            f"backbone.{name}": value for name, value in resolve_auto.items()
        }
        assert chosen["itemknn"][criterion].keys() == {"decay"}
        assert chosen["itemknn"][criterion]["decay"] in DECAYS
    create_model("popularity", {"recency": "window", "span": 77.0}).fit(small_split, tmp_path / "given")
    assert card(tmp_path / "given")["chosen"] == {"ordinary": {"window_ticks": 77.0, "half_life_ticks": 0.0}}
    assert card(uninterrupted)["chosen"] == {criterion: {} for criterion in CRITERIA}


def test_another_seed_is_another_run_and_the_same_one_repeats(
    small_split: unskew.Split, uninterrupted: Path
) -> None:
    _, again = train(small_split, "deps", TINY, SHORT)
    _, other = train(small_split, "deps", TINY, replace(SHORT, seed=4))
    for criterion in CRITERIA:
        stored = load_file(uninterrupted / f"weights-{criterion}.safetensors")
        assert all(torch.equal(value, stored[name]) for name, value in again.best[criterion].items())
        assert not all(torch.equal(value, stored[name]) for name, value in other.best[criterion].items())


def test_runs_are_not_overwritten(small_split: unskew.Split, uninterrupted: Path, tmp_path: Path) -> None:
    with pytest.raises(unskew.BadInput, match="a run is there already"):
        train(small_split, "deps", TINY, SHORT, uninterrupted)
    with pytest.raises(unskew.BadInput, match="begun with width 8, not 4"):
        train(small_split, "deps", replace(TINY, width=4), SHORT, uninterrupted, resume=True)
    others = {"learning_rate": 0.1, "seed": 4, "batch_size": 64, "select_by": "ordinary"}
    for name, other in others.items():
        said = f"begun with training {name} {getattr(SHORT, name)}, not {other}"
        with pytest.raises(unskew.BadInput, match=said):
            train(small_split, "deps", TINY, replace(SHORT, **{name: other}), uninterrupted, resume=True)
    cut = unskew.split(small_split.log, fractions=(60, 20, 20))
    with pytest.raises(
        unskew.BadInput, match=r"begun with split fractions \[50, 20, 30\], not \[60, 20, 20\]"
    ):
        train(cut, "deps", TINY, SHORT, uninterrupted, resume=True)
    later = unskew.split(unskew.read(random_table(rows=901, users=40, items=30, negatives=0.0)))
    with pytest.raises(unskew.BadInput, match="begun on other data"):
        train(later, "deps", TINY, SHORT, uninterrupted, resume=True)
    # Finished: nothing is done again.
    model, _ = train(small_split, "deps", TINY, SHORT, uninterrupted, resume=True)
    stored = load_file(uninterrupted / "weights-balanced.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(unskew.BadInput, match="exists and is not a run"):
        train(small_split, "deps", TINY, SHORT, tmp_path / "mine")
    with pytest.raises(unskew.BadInput, match="no model 'depz'"):
        train(small_split, "depz", TINY, SHORT)


def test_a_finished_run_that_is_resumed_says_the_same_of_itself(
    small_split: unskew.Split, uninterrupted: Path, tmp_path: Path
) -> None:
    made = create_model("deps", asdict(TINY) | asdict(SHORT)).fit(small_split, uninterrupted, resume=True)
    made.save(tmp_path / "again")
    assert card(tmp_path / "again") == card(uninterrupted)
    assert_same_run(tmp_path / "again", uninterrupted)


def test_an_unfinished_run_says_so(small_split: unskew.Split, tmp_path: Path, monkeypatch) -> None:
    train_until(small_split, tmp_path / "run", 4, monkeypatch, every=1)
    with pytest.raises(unskew.BadInput, match="not finished"):
        unskew.load(tmp_path / "run")


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


def test_two_processes_do_not_train_in_one_folder(small_split: unskew.Split, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = RunConfig.of(RunSettings(model="deps", config=TINY, training=SHORT), small_split)
    store = RunFolder.begin(folder, config, resume=False)
    store.unlock()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = start_python("-c", HOLDER, folder / ".lock", **pipes)
    assert holder.stdout is not None
    assert holder.stdin is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(unskew.BadInput, match="another process is training in this folder"):
            RunFolder.begin(folder, config, resume=True)
    finally:
        holder.communicate("\n", timeout=GUARD)
    RunFolder.begin(folder, config, resume=True).unlock()  # it has ended: the folder is free


def test_the_files_of_a_run_have_the_permissions_of_the_process(
    small_split: unskew.Split, tmp_path: Path
) -> None:
    before = os.umask(0o027)
    try:
        train(small_split, "popularity", Popularity.Config(), SHORT, tmp_path / "run")
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "run").iterdir()} == {"0o640"}


def test_a_lock_alone_does_not_make_a_folder_used(small_split: unskew.Split, tmp_path: Path) -> None:
    """As a kill leaves it that comes between the two."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    train(small_split, "popularity", Popularity.Config(), SHORT, tmp_path / "run")
    assert (tmp_path / "run" / "card.json").is_file()


@pytest.mark.parametrize(
    ("ordinary", "balanced", "patience", "finished"),
    [
        ([0.1, 0.3, 0.2, 0.1], [0.3, 0.2, 0.2, 0.2], 2, True),
        ([0.1, 0.3, 0.2, 0.1], [0.3, 0.2, 0.2, 0.4], 2, False),  # the other metric was still rising
        ([0.1, 0.3, 0.2, 0.1], [0.3, 0.2, 0.2, 0.2], 3, False),  # too early to know
        ([0.1, 0.2, 0.3, 0.3], [0.1, 0.2, 0.3, 0.3], 1, True),  # a tie is no gain
        ([0.1], [0.1], 0, False),
    ],
)
def test_a_run_is_finished_when_no_metric_rises_any_more(
    ordinary: list[float], balanced: list[float], patience: int, finished: bool
) -> None:
    records = [
        EpochRecord(
            stage="train",
            epoch=number,
            losses={},
            step=number,
            valid={"ordinary": {"ndcg@10": one}, "balanced": {"ndcg@10": other}},
            rows_per_s=1.0,
            peak_gb=1.0,
        )
        for number, (one, other) in enumerate(zip(ordinary, balanced, strict=True), 1)
    ]
    assert is_finished(records, Training(patience=patience)) == finished
    assert is_finished([], Training(patience=patience))
