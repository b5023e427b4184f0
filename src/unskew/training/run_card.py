"""The card of a run, `card.json`: its data, split, settings, seed and versions, and what the validation set
chose."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from unskew.core.config import Document, from_document
from unskew.data.log.held_out import Criterion
from unskew.data.log.split import Split, Splitting
from unskew.models.base import ModelConfig, Recommender, Training
from unskew.nn.vocabulary import softmax_in_words
from unskew.training.epoch_record import EpochRecord
from unskew.training.run_config import RunConfig
from unskew.training.trainer import METRIC, State, Trainer


@dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """How a log was split: as it was asked for, and what that came to."""

    settings: Splitting
    train_end: int  # training rows are before this time
    valid_end: int  # validation rows are before this one, and the test set begins here
    known_users: int
    known_items: int
    min_count: int  # positives from which users and items are known
    repeats: bool  # whether past items can be recommended again

    @classmethod
    def of(cls, split: Split) -> "SplitSummary":
        """The summary of a split."""
        names = ("settings", "train_end", "valid_end", "known_users", "known_items", "min_count", "repeats")
        return cls(**{name: getattr(split, name) for name in names})


@dataclass(frozen=True)
class DataSummary:
    """The log that a run was trained on."""

    folder: str
    hash: str
    rows: int
    source: str | None


@dataclass(frozen=True, kw_only=True)
class OwnLog:
    """Where the log of a run's first training is. `now` is its end where only the run's memory is left."""

    data: str
    hash: str
    now: int | None = None


@dataclass(frozen=True, kw_only=True)
class UpdateSummary:
    """Which run a run was updated from, and how the two did on the window of new positives."""

    parent: str  # relative to the folder of this run
    times: int
    base: OwnLog
    settings: dict[str, Any]
    window: dict[str, Any]
    forced: bool  # whether it was published although it was significantly worse


@dataclass(frozen=True)
class StoreSummary:
    """The store that a run learned from: up to which sequence number of each kind."""

    name: str
    learned: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class RunCard:
    """What a finished run says of itself."""

    model: str
    data: DataSummary
    split: SplitSummary
    training: Training
    select_by: Criterion  # the validation metric whose weights recommend
    weights: tuple[str, ...]  # the validation metrics that chose weights
    chosen_by: str
    chosen: dict[str, dict[str, float]]  # what was chosen and no gradient learned, by validation metric
    best: dict[str, dict[str, float]]  # the best epoch and its metric, by validation metric
    finished: bool  # whether training ended because no validation metric rose any more
    debias_curve: list[dict[str, float]] | None
    softmax: str  # of which vocabularies all ids were scored, of which some, and why
    seed: int
    threads: int
    versions: dict[str, str]
    updated: UpdateSummary | None = None
    store: StoreSummary | None = None

    @classmethod
    def of(cls, trainer: Trainer, config: RunConfig) -> "RunCard":
        """The card of a run, finished or not."""
        at, cut, weights = trainer.progress, trainer.split, trainer.weights
        source = cut.log.metadata.source
        return cls(
            model=config.model,
            data=DataSummary(config.data, config.hash, len(cut.log), None if source is None else str(source)),
            split=SplitSummary.of(cut),
            training=config.training,
            select_by=trainer.select_by,
            weights=tuple(weights),
            chosen_by=f"{METRIC}, full ranking of {len(trainer.valid.rows)} validation positives, by each "
            "validation metric",
            chosen={name: chosen_settings(trainer.model, state) for name, state in weights.items()},
            best={name: {"epoch": at.best_epoch[name], METRIC: value} for name, value in at.best.items()},
            finished=is_finished(trainer.records, config.training),
            debias_curve=_debias_curve(trainer),
            softmax=softmax_in_words(
                trainer.settings.softmax, {"items": cut.known_items, "users": cut.known_users}
            ),
            seed=trainer.settings.seed,
            threads=torch.get_num_threads(),
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
            },
        )

    def to_json(self) -> Document:
        """Plain numbers and words."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in ("updated", "store") or value is not None
        }

    @classmethod
    def from_json(cls, document: Document) -> "RunCard":
        """The card that `to_json` wrote. An unknown or missing field is bad input."""
        return from_document(cls, {"updated": None, "store": None} | document)


def is_finished(records: Sequence[EpochRecord], training: Training) -> bool:
    """Whether no validation metric rose in the last `patience` epochs, and at least in the last one. A model
    that is not trained epoch by epoch, or that has no validation set, is finished."""
    validated = [record for record in records if record.valid]
    if not validated:
        return True
    best = max(
        max(validated, key=lambda record: (record.valid[by][METRIC], -record.epoch)).epoch
        for by in validated[-1].valid
    )
    return validated[-1].epoch - best >= max(training.patience, 1)


def _debias_curve(trainer: Trainer) -> list[dict[str, float]] | None:
    """The validation metrics at each debiasing strength, with the weights that recommend; None where the
    model's debias is not chosen."""
    best = trainer.progress.best_epoch.get(trainer.select_by)
    return next(
        (record.strengths for record in trainer.records if record.epoch == best and record.strengths), None
    )


def chosen_settings(model: Recommender, state: State) -> dict[str, float]:
    """What was chosen on the validation set and by no gradient: the numbers of the state that are no
    parameters and no part of an estimator, which is fitted to the training set."""
    learned = {name for name, _ in model.named_parameters()}
    return {
        name: float(value)
        for name, value in state.items()
        if name not in learned
        and not name.startswith("propensity.")
        and not value.ndim
        and value.is_floating_point()
    }


def training_identity(training: dict[str, Any]) -> dict[str, Any]:
    """The settings of training that tell two runs apart. What `softmax: auto` does was no setting once, and
    runs from then are the same as runs with it."""
    return {name: value for name, value in training.items() if (name, value) != ("softmax", "auto")}


def settings_key(name: str, config: ModelConfig, training: Training) -> str:
    """Two models with the same key differ in nothing but the seed."""
    rest = {name: value for name, value in training_identity(asdict(training)).items() if name != "seed"}
    return json.dumps([name, asdict(config), rest], sort_keys=True, default=str)
