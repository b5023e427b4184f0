"""What the tests of training share: a small model, short settings, a kill, and what a run leaves behind."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from unskew.api.model import Model
from unskew.data.log.split import Split
from unskew.models.base import ModelConfig, Recommender, Training, build, model_named
from unskew.models.deps import DEPS
from unskew.training import run
from unskew.training.run_card import SplitSummary
from unskew.training.run_config import RunSettings
from unskew.training.trainer import OnRecord, Trainer

TINY = DEPS.Config(
    width=8,
    layers=1,
    heads=2,
    inner=16,
    hidden=8,
    dropout=0.2,
    hidden_ids=0.1,
    unsupervised_epochs=1,
    history=6,
    audience=4,
)
SHORT = Training(epochs=3, batch_size=128, sequences=16, valid_examples=50, patience=9, seed=3)
CRITERIA = ("ordinary", "balanced")


class Killed(Exception):  # noqa: N818
    pass


def card(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "card.json").read_text())


def records(folder: Path) -> list[dict[str, Any]]:
    """Of each epoch what it says of itself, but for how fast it was."""
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in ("rows_per_s", "peak_gb")} for line in lines
    ]


def finite(trainer: Trainer) -> None:
    """Of a trained model every weight, every loss and every figure is a number."""
    for state in (trainer.model.state_dict(), *trainer.best.values()):
        assert all(bool(value.isfinite().all()) for value in state.values() if value.is_floating_point())
    numbers = [
        number
        for record in trainer.records
        for number in [*record.losses.values(), *record.statistics.values()]
    ]
    assert np.isfinite(numbers).all()


def as_if_trained(name: str, config: ModelConfig, split: Split) -> Model:
    """A model with its first weights, which may be used as if it had been trained."""
    network = build(model_named(name), split, config).eval()
    trained = run.Trained(
        settings=RunSettings(model=name, config=config, training=Training()),
        network=network,
        log=split.log,
        split=SplitSummary.of(split),
        weights={"ordinary": network.state_dict()},
        select_by="ordinary",
        records=(),
    )
    return Model(name, config, Training(), trained)


def train(
    split: Split,
    name: str,
    config: Any,
    training: Training,
    folder: Path | None = None,
    resume: bool = False,
    on_record: OnRecord | None = None,
) -> tuple[Recommender, Trainer]:
    """Train a model with nothing but its name and settings."""
    settings = RunSettings(model=name, config=config, training=training)
    trainer = run.train(split, settings, folder, resume, on_record)
    return trainer.model, trainer
