"""Propensities and weights of every row of a log, as a table for any other library."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from unskew.core.progress import progress
from unskew.data.batches.batch import Batch, batch_of_rows
from unskew.data.log.log import Log
from unskew.data.log.split import Part
from unskew.data.log.views import Ints
from unskew.nn.device import device_of, on_device
from unskew.propensity.estimators import Propensity

PARTS: tuple[Part, ...] = ("train", "valid", "test")
ESTIMATES = ("item_view", "user_view", "weight")
BLOCK = 1024  # rows whose propensities are computed together
ROW_GROUP = 64 * BLOCK  # rows that are written together


def propensity_tables(
    estimator: Propensity,
    log: Log,
    borders: tuple[int, int],
    past: tuple[int, int | None],
    rows: Ints | None = None,
) -> Iterator[pa.Table]:
    """Of each row of a log, or of those given, in blocks: both views, the weight, and the part of the split
    that it is in; `borders` are where training and validation set end. The estimator reads so many past items
    and past users."""
    every_row = np.arange(len(log)) if rows is None else rows
    with progress("propensities", len(every_row)) as job:
        for first in range(0, len(every_row), ROW_GROUP):
            rows = every_row[first : first + ROW_GROUP]
            columns: dict[str, Any] = {
                "user": log.users.of(log.user[rows]),
                "item": log.items.of(log.item[rows]),
                "time": pa.array(log.time[rows]),
                "label": pa.array(log.label[rows]),
            }
            blocks = [rows[at : at + BLOCK] for at in range(0, len(rows), BLOCK)]
            parts = []
            for block in blocks:
                parts.append(
                    _estimates(estimator, on_device(batch_of_rows(log, block, *past), device_of(estimator)))
                )
                job.advance(len(block))
            estimates = np.concatenate(parts)
            for column, name in enumerate(ESTIMATES):
                columns[name] = pa.array(estimates[:, column], from_pandas=True)
            columns["part"] = pa.array(np.array(PARTS)[part_of(borders, log.time[rows])])
            yield pa.table(columns)


def part_of(borders: tuple[int, int], time: Ints) -> Ints:
    """Which part each time is in: 0 for training, 1 for validation, 2 for the test."""
    return np.searchsorted(borders, time, "right")


@torch.no_grad()
def _estimates(estimator: Propensity, batch: Batch) -> NDArray[np.float64]:
    """Both views and the weight of each row, (rows, 3); nan where there is no such view."""
    *views, weight = estimator.estimates(batch)
    columns = [torch.full_like(weight, torch.nan) if view is None else view for view in views] + [weight]
    return torch.cat(columns, dim=1).double().cpu().numpy()
