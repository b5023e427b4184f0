"""Every model, killed in each phase and after each epoch and resumed, is bit for bit the same."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import unskew
import unskew.models
from tests.conftest import random_table
from tests.helpers.contract import tiny
from tests.helpers.runs import CRITERIA, Killed, card, records, train
from unskew.models.base import MODELS, Training, model_named
from unskew.training.run import CHECKPOINT, RunFolder
from unskew.training.trainer import Trainer

FEW = Training(epochs=2, batch_size=40, sequences=5, valid_examples=30, patience=9, seed=2)


@cache
def smallest() -> unskew.Split:
    return unskew.split(unskew.read(random_table(rows=300, users=20, items=15, times=100, negatives=0.0)))


def wrapped(backbone: str, **weighting: Any) -> tuple[str, Any]:
    kind = model_named(f"debiased-{backbone}")
    short = {"past_items": 5, "past_users": 4, "propensity_width": 6, "propensity_epochs": 1}
    return kind.name, kind.Config(backbone=tiny(MODELS[backbone]), **short | weighting)


RESUMED = [(kind.name, tiny(kind, copies=1, propensity_epochs=1)) for kind in MODELS.values()]
RESUMED += [wrapped("sasrec", weights="ips"), wrapped("din", weights="snips")]


def killed_everywhere(
    split: unskew.Split, name: str, config: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Train, and die in an epoch of each phase, with its last step lost, and after each epoch. Method
    often."""
    died = set()
    save = RunFolder.save

    def checkpoint(self: RunFolder, trainer: Trainer) -> None:
        at = trainer.progress
        stage = trainer.stages[at.stage]
        phase = stage.phases[at.phase].name
        step, moment = trainer.samplers[phase].step, (stage.name, phase)
        assert len(trainer.samplers[phase]) > 2
        if step == 1:
            save(self, trainer, None)
        if step == 2 and moment not in died:
            died.add(moment)
            raise Killed

    def at_the_end(self: RunFolder, trainer: Trainer, record: dict[str, Any] | None) -> None:
        save(self, trainer, record)
        if record is not None and (record.stage, record.epoch) not in died:
            died.add((record.stage, record.epoch))
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "maybe_checkpoint", checkpoint)
        patched.setattr(RunFolder, "save", at_the_end)
        for _ in range(50):
            try:
                train(split, name, config, FEW, folder, resume=True)
            except Killed:
                continue
            return len(died)
    raise AssertionError("never finished")


def left_behind(folder: Path) -> dict[str, Any]:
    """All that a run says of itself, but for how fast it was."""
    kept = [path for path in folder.glob("*.safetensors") if path.name != CHECKPOINT]
    weights = {path.name: path.read_bytes() for path in kept}
    return weights | {"records": records(folder), "card": card(folder)}


@pytest.mark.parametrize(("name", "config"), RESUMED, ids=[name for name, _ in RESUMED])
def test_a_killed_run_ends_bit_for_bit_where_it_would_have(
    name: str, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = smallest()
    _, trainer = train(split, name, config, FEW, tmp_path / "whole")
    died = killed_everywhere(split, name, config, tmp_path / "killed", monkeypatch)
    phases = {(stage.name, phase.name) for stage in trainer.stages for phase in stage.phases}
    assert died == len(phases) + sum(stage.epochs for stage in trainer.stages)
    whole, killed = (left_behind(tmp_path / run) for run in ("whole", "killed"))
    assert {f"weights-{criterion}.safetensors" for criterion in CRITERIA} < whole.keys()
    assert whole == killed
