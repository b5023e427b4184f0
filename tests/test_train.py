"""The training loop: stages in order, early stopping, exact resumption after a kill at any moment, runs that are whole or not there."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import unskew
from tests.conftest import random_table
from unskew import run as run_module
from unskew.data.split import Split
from unskew.model import recommender
from unskew.models.deps import DEPS
from unskew.models.itemknn import DECAYS
from unskew.models.popularity import Popularity
from unskew.run import RunFolder, train
from unskew.train import Trainer, Training

TINY = DEPS.Config(width=8, layers=1, heads=2, inner=16, hidden=8, dropout=0.2, unsupervised_rounds=1, history=6, audience=4)
SHORT = Training(rounds=3, batch_size=128, sequences=16, valid_rows=50, patience=9, seed=3)


@pytest.fixture(scope="module")
def split() -> Split:
    return unskew.split(unskew.read(random_table(rows=900, users=40, items=30, negatives=0.0)))


@pytest.fixture(scope="module")
def uninterrupted(split: Split, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(split, "deps", TINY, SHORT, folder)
    return folder


class Killed(Exception):  # noqa: N818
    pass


def train_until(split: Split, folder: Path, step: int, monkeypatch, every: int) -> None:
    """Train and die at a step, with a checkpoint every few steps: what a kill leaves behind is the folder alone."""
    with monkeypatch.context() as patched:

        def checkpoint(self: RunFolder, trainer: Trainer) -> None:
            if trainer.progress.step == step:
                raise Killed
            if trainer.progress.step % every == 0:
                self.save(trainer, None)

        patched.setattr(RunFolder, "maybe_checkpoint", checkpoint)
        with pytest.raises(Killed):
            train(split, "deps", TINY, SHORT, folder, resume=True)


def records(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("rows_per_s", "peak_gb")} for line in lines]


def assert_same_run(folder: Path, other: Path) -> None:
    assert (folder / "weights.safetensors").read_bytes() == (other / "weights.safetensors").read_bytes()
    assert records(folder) == records(other)
    assert {path.name for path in folder.iterdir()} == {path.name for path in other.iterdir()}


def test_a_run_is_whole(uninterrupted: Path) -> None:
    names = {"config.json", "weights.safetensors", "memory.safetensors", "users.parquet", "items.parquet", "records.jsonl", "card.json"}
    assert {path.name for path in uninterrupted.iterdir()} == names
    stages = [record["stage"] for record in records(uninterrupted)]
    assert stages == ["unsupervised"] + ["unbiased"] * 3
    for record in records(uninterrupted):
        assert {"weight", "item_view", "item_view_clipped", "user_view"} <= record["statistics"].keys()
    card = json.loads((uninterrupted / "card.json").read_text())
    assert card["seed"] == 3
    assert card["best"]["ndcg@10"] == max(record["valid"]["ndcg@10"] for record in records(uninterrupted)[1:])


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 14, 16])
def test_killed_at_any_step_it_ends_with_the_same_weights(
    split: Split, uninterrupted: Path, tmp_path: Path, monkeypatch, step: int
) -> None:
    last = records(uninterrupted)[-1]["step"]
    assert step <= last
    train_until(split, tmp_path / "run", step, monkeypatch, every=3)
    assert not (tmp_path / "run" / "card.json").exists()
    train(split, "deps", TINY, SHORT, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", uninterrupted)


def test_killed_again_and_again(split: Split, uninterrupted: Path, tmp_path: Path, monkeypatch) -> None:
    for step in (2, 6, 9, 13):
        train_until(split, tmp_path / "run", step, monkeypatch, every=1)
    train(split, "deps", TINY, SHORT, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", uninterrupted)


def test_a_real_kill_and_the_command_line(split: Split, tmp_path: Path) -> None:
    unskew.prepare(random_table(rows=4000, users=80, items=60, negatives=0.0), tmp_path / "data")
    flags = ["--width", "8", "--layers", "1", "--inner", "16", "--unsupervised-rounds", "1", "--rounds", "4", "--batch-size", "64"]
    flags += ["--threads", "1", "--valid-rows", "50", "--dropout", "0.2"]
    code = (
        "import sys, unskew.run as r; r.CHECKPOINT_EVERY = 0.05; from unskew.cli import main; print('ready', flush=True); sys.exit(main())"
    )

    def command(out: str) -> list[str]:
        return [sys.executable, "-c", code, "train", str(tmp_path / "data"), "--out", str(tmp_path / out), "--resume", *flags]

    assert subprocess.run(command("whole"), capture_output=True, timeout=240, check=False).returncode == 0
    for wait in (0.3, 0.8, 1.3):
        started = subprocess.Popen(command("killed"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        started.stdout.readline()
        time.sleep(wait)
        started.send_signal(signal.SIGKILL)
        started.communicate(timeout=60)
        assert started.returncode == -signal.SIGKILL
    assert subprocess.run(command("killed"), capture_output=True, timeout=240, check=False).returncode == 0
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def card(folder: Path) -> dict:
    return json.loads((folder / "card.json").read_text())


def test_the_card_says_what_validation_chose(split: Split, uninterrupted: Path, tmp_path: Path) -> None:
    """Models that no gradient trains have no best round; what they have chosen stands there by its name."""
    chosen = {}
    for name, settings in (("popularity", {}), ("itemknn", {}), ("debiased-popularity", {"propensity": "item-pro"})):
        made = recommender(name, settings | {"valid_rows": 100}).fit(split, tmp_path / name)
        made.save(tmp_path / "again" / name)
        assert card(tmp_path / name)["settled"] == card(tmp_path / "again" / name)["settled"]
        chosen[name] = card(tmp_path / name)["settled"]
        assert card(tmp_path / name)["best"] is None
    network = train(split, "popularity", Popularity.Config(), replace(SHORT, valid_rows=100, seed=0))[0]
    settled = {"window_ticks": float(network.window_ticks), "half_life_ticks": float(network.half_life_ticks)}
    assert chosen["popularity"] == settled
    assert chosen["debiased-popularity"] == {f"backbone.{name}": value for name, value in settled.items()}
    assert chosen["itemknn"].keys() == {"decay"}
    assert chosen["itemknn"]["decay"] in DECAYS
    recommender("popularity", {"recency": "window", "span": 77.0}).fit(split, tmp_path / "given")
    assert card(tmp_path / "given")["settled"] == {"window_ticks": 77.0, "half_life_ticks": 0.0}
    assert card(uninterrupted)["settled"] == {}


def test_another_seed_is_another_run_and_the_same_one_repeats(split: Split, uninterrupted: Path) -> None:
    again, _ = train(split, "deps", TINY, SHORT)
    other, _ = train(split, "deps", TINY, replace(SHORT, seed=4))
    stored = load_file(uninterrupted / "weights.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in again.state_dict().items())
    assert not all(torch.equal(value, stored[name]) for name, value in other.state_dict().items())


def test_patience_ends_training_and_the_best_weights_stay(split: Split, monkeypatch) -> None:
    given = iter([0.1, 0.3, 0.2, 0.2, 0.9])
    seen: list[dict[str, torch.Tensor]] = []

    def validate(self: Trainer) -> dict[str, float]:
        seen.append({name: value.clone() for name, value in self.model.state_dict().items()})
        return {"ndcg@10": next(given)}

    monkeypatch.setattr(Trainer, "_validate", validate)
    model, trainer = train(split, "deps", TINY, replace(SHORT, rounds=10, patience=2))
    assert [record["valid"]["ndcg@10"] for record in trainer.records if "valid" in record] == [0.1, 0.3, 0.2, 0.2]
    assert all(torch.equal(value, seen[1][name]) for name, value in model.state_dict().items())


def test_runs_are_not_overwritten(split: Split, uninterrupted: Path, tmp_path: Path) -> None:
    with pytest.raises(unskew.BadInput, match="a run is there already"):
        train(split, "deps", TINY, SHORT, uninterrupted)
    with pytest.raises(unskew.BadInput, match="begun with another config"):
        train(split, "deps", replace(TINY, width=4), SHORT, uninterrupted, resume=True)
    model, _ = train(split, "deps", TINY, SHORT, uninterrupted, resume=True)  # finished: nothing is done again
    stored = load_file(uninterrupted / "weights.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(unskew.BadInput, match="exists and is not a run"):
        train(split, "deps", TINY, SHORT, tmp_path / "mine")
    with pytest.raises(unskew.BadInput, match="no model 'depz'"):
        train(split, "depz", TINY, SHORT)


def test_a_loss_that_is_not_a_number_stops_with_a_message(split: Split, monkeypatch) -> None:
    monkeypatch.setattr(DEPS, "unbiased_loss", lambda self, batch: torch.tensor(float("nan"), requires_grad=True))
    with pytest.raises(unskew.UnskewError, match="the loss of phase unbiased is nan"):
        train(split, "deps", TINY, SHORT)


def test_an_unfinished_run_says_so(split: Split, tmp_path: Path, monkeypatch) -> None:
    train_until(split, tmp_path / "run", 4, monkeypatch, every=1)
    with pytest.raises(unskew.BadInput, match="not finished"):
        unskew.load(tmp_path / "run")
    assert run_module.CHECKPOINT_EVERY > 0
