"""Propensity estimators for tests, and what they are asked about."""

import numpy as np
import torch
from torch import Tensor

import unskew
from unskew.data.batches.batch import Batch, batch
from unskew.nn.layers import Table
from unskew.propensity import estimators as propensity
from unskew.propensity.estimators import DualGRU, SequenceGRU

WIDTH = 6


def dual(
    split: unskew.Split,
    alpha: float = 0.3,
    clip: float = 0.02,
    views: propensity.Views = "both",
    layers: int = 1,
) -> DualGRU:
    torch.manual_seed(0)
    items, users = Table(split.known_items, WIDTH), Table(split.known_users, WIDTH)
    made = DualGRU(items, users, layers, alpha, clip, views)
    with torch.no_grad():
        for table in made._tables:
            table.weight.mul_(3)  # far from uniform
    return made


def some(log: unskew.Log, rows: int = 12, seed: int = 0) -> Batch:
    """Contexts at all times, the very beginning included, and three known candidates each."""
    random = np.random.default_rng(seed)
    time = np.sort(random.integers(0, 250, rows))
    time[:2] = 0  # nothing has happened yet
    user, candidates = random.integers(0, 50, rows), random.integers(0, 30, (rows, 3))
    return batch(log, user, time, candidates, history=6, audience=5)


def of_each(view: SequenceGRU, ids: list[int], table: Table) -> Tensor:
    """The loss of one sequence without ties."""
    return view.loss(torch.tensor([ids]), torch.arange(len(ids))[None], table)


def shown(log: unskew.Log, rows: Batch) -> list[float]:
    """The logged propensity of each row's first candidate, from the rows of the log themselves."""
    columns = (log.user, log.item, log.time)
    keys = zip(*(column.tolist() for column in columns), strict=True)
    known = dict(zip(keys, log.propensity.tolist(), strict=True))
    asked = (rows.user_B, rows.candidates_BC[:, 0], rows.times_B)
    return [known[key] for key in zip(*(column.tolist() for column in asked), strict=True)]
