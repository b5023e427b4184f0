"""What several ranks and one process both do: train some models, rank a test, continue runs.

torchrun --nproc-per-node 2 tests/helpers/ranked.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

import unskew
from tests.conftest import random_table
from tests.helpers.contract import tiny
from unskew.core.ranks import joined, ranks
from unskew.data.log.held_out import held_out
from unskew.evaluation.evaluate import rank as rank_rows
from unskew.models.base import MODELS, Training
from unskew.training.run import train
from unskew.training.run_config import RunSettings
from unskew.training.trainer import Trainer

# Settings with which a loss draws nothing at random: what is drawn differs with the number of ranks.
SAME_LOSSES: dict[str, dict[str, Any]] = {
    "deps": {"hidden_ids": 0.0, "mlm_weight": 0.0},
    "gru4rec": {"loss": "cross-entropy"},
    "bst": {},
    "ubpr": {},
    "pulse": {"sample": 100},
}


def trained(name: str, folder: Path | None = None, epochs: int = 1, resume: bool = False) -> Trainer:
    """A small model, trained for some epochs."""
    split = unskew.split(unskew.read(random_table(rows=900, users=40, items=30)))
    config = tiny(MODELS[name], dropout=0.0, state_dropout=0.0, **SAME_LOSSES[name])
    training = Training(epochs=epochs, batch_size=100, sequences=16, valid_examples=40)
    return train(split, RunSettings(model=name, config=config, training=training), folder, resume=resume)


def numbers(trainer: Trainer) -> dict[str, np.ndarray]:
    """The losses of all epochs, the weights, and the rank of each row of the test."""
    rows = held_out(trainer.split, "test", "ordinary").rows
    found = {"losses": np.array([list(record.losses.values()) for record in trainer.records])}
    found |= {f"weight {name}": value.numpy() for name, value in trainer.model.state_dict().items()}
    ranked = rank_rows(trainer.model, trainer.split, rows)
    return found | {"rows": ranked.rows, "ranks": ranked.full, "shown": ranked.shown, "top": ranked.top}


def averaged_rows() -> np.ndarray:
    """The mean of two gradients, of which each has two rows."""
    parameter, rank = torch.nn.Parameter(torch.zeros(6, 2)), ranks().rank
    rows, values = torch.tensor([[rank, 5]]), torch.full((2, 2), rank + 1.0)
    parameter.grad = torch.sparse_coo_tensor(rows, values, (6, 2), check_invariants=True)
    ranks().average(torch.tensor(0.0), [parameter])
    return parameter.grad.to_dense().numpy()


def write(folder: Path) -> None:
    """Do it all, and write what came out."""
    found = {"rows": averaged_rows()}
    for name in SAME_LOSSES:
        found |= {f"{name}: {part}": value for part, value in numbers(trained(name)).items()}
    for name in ("whole", "stopped"):
        trained("gru4rec", folder / name, epochs=2 if name == "whole" else 1)
    resumed = trained("gru4rec", folder / "stopped", epochs=2, resume=True)
    found |= {f"resumed: {part}": value for part, value in numbers(resumed).items()}
    ranks().wait()
    if ranks().is_first:
        save_file({name: np.ascontiguousarray(value) for name, value in found.items()}, folder / "found")


if __name__ == "__main__":
    with joined():
        write(Path(sys.argv[1]))
