"""What a run says of itself: data, split, settings, seed, versions, and what the validation set chose."""

import dataclasses
import json
import platform
from typing import Any

import numpy as np
import torch

from unskew.data.log.split import Split
from unskew.models.base import Recommender, Training
from unskew.training.trainer import METRIC, Trainer

State = dict[str, torch.Tensor]


def weights_of(trainer: Trainer) -> dict[str, State]:
    """The weights that each validation metric chose; where nothing was chosen, the newest."""
    return trainer.best or {trainer.select_by: trainer.model.state_dict()}


def card_of(split: Split, trainer: Trainer, asked: dict[str, Any]) -> dict[str, Any]:
    """What a run says of itself."""
    at, log = trainer.progress, split.log
    weights = weights_of(trainer)
    ranked = f"{METRIC}, full ranking of {len(trainer.valid.rows)} validation positives"
    known = {"known_users": split.known_users, "known_items": split.known_items}
    cut = {"train_end": split.train_end, "valid_end": split.valid_end, **known}
    source = log.metadata.source
    return {
        "model": asked["model"],
        "data": {"folder": asked["data"], "hash": asked["hash"], "rows": len(log), "source": source},
        "split": asked["split"] | cut | {"min_count": split.min_count, "repeats": split.repeats},
        "training": asked["training"],
        "select_by": trainer.select_by,
        "weights": list(weights),
        "chosen_by": f"{ranked}, by each version of the part",
        "chosen": {name: chosen_settings(trainer.model, state) for name, state in weights.items()},
        "best": {name: {"epoch": at.best_epoch[name], METRIC: value} for name, value in at.best.items()},
        "debias_curve": _debias_curve(trainer),
        "seed": trainer.settings.seed,
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


def _debias_curve(trainer: Trainer) -> list[dict[str, float]] | None:
    """What each debiasing strength gives on the validation set, by each of its versions, with the weights
    that recommend; None where the model's debias is not chosen."""
    best = trainer.progress.best_epoch.get(trainer.select_by)
    return next(
        (one["strengths"] for one in trainer.records if one["epoch"] == best and "strengths" in one), None
    )


def chosen_settings(model: Recommender, state: State) -> dict[str, float]:
    """What was chosen on the validation set and by no gradient: the numbers of the state that are no
    parameters and no part of an estimator, which is fitted to the training set."""
    learned = {name for name, _ in model.named_parameters()}
    left = {
        name: value
        for name, value in state.items()
        if name not in learned and not name.startswith("propensity.")
    }
    return {
        name: float(value) for name, value in left.items() if not value.ndim and value.is_floating_point()
    }


def settings_key(name: str, config: Any, training: Training) -> str:
    """Two models with the same key differ in nothing but the seed."""
    rest = {name: value for name, value in dataclasses.asdict(training).items() if name != "seed"}
    return json.dumps([name, dataclasses.asdict(config), rest], sort_keys=True, default=str)
