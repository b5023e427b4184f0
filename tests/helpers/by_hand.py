"""Batches, written down by hand."""

import numpy as np
import torch
from torch import Tensor

from unskew.data.batches.batch import Batch, SequenceBatch, bare_contexts
from unskew.data.log.views import PAD

Lists = list[list[int]]


def padded(rows: Lists, filling: int = PAD) -> Tensor:
    """Rows of any length, padded on the left."""
    width = max(map(len, rows), default=0)
    return torch.tensor([[filling] * (width - len(row)) + row for row in rows], dtype=torch.int64).view(
        len(rows), width
    )


def in_order(rows: Lists) -> Tensor:
    """How many are before each place where no two events are of one moment."""
    return padded([list(range(len(row))) for row in rows], 0)


def context(history: list[int]) -> Batch:
    """The context of an unknown user after a history, without candidates."""
    return bare_contexts(np.array([10**6]), np.array([history], np.int32), np.array([10**9]))


def pairs(user_B: Tensor, candidates_BC: Tensor, labels_BC: Tensor) -> Batch:
    """Pairs of users and items of whom nothing else is known."""
    nothing = torch.zeros(len(user_B), 0, dtype=torch.int64)
    return Batch(
        user_B=user_B,
        times_B=torch.full(user_B.shape, 9),
        history_BL=nothing,
        history_times_BL=nothing,
        candidates_BC=candidates_BC,
        labels_BC=labels_BC,
        audience_AM=nothing[:1],
        audience_times_AM=nothing[:1],
        audience_of_BC=torch.zeros_like(candidates_BC),
    )


def sequences(
    histories: Lists,
    past: Lists | None = None,
    wanted: Lists | None = None,
    weight: list[list[float]] | None = None,
    audiences: Lists | None = None,
    audience_past: Lists | None = None,
    times: Lists | None = None,
) -> SequenceBatch:
    """Histories of users 0, 1, ... and audiences of items 0, 1, ...; by default every event is one to be
    predicted, after all before it."""
    audiences = audiences or []
    items_BL = padded(histories)
    return SequenceBatch(
        user_B=torch.arange(len(histories)),
        items_BL=items_BL,
        time_BL=in_order(histories) if times is None else padded(times),
        event_BL=torch.where(items_BL == PAD, PAD, torch.arange(items_BL.numel()).view(items_BL.shape)),
        past_BL=in_order(histories) if past is None else padded(past, 0),
        target_BL=items_BL != PAD if wanted is None else padded(wanted, 0).bool(),
        item_B=torch.arange(len(audiences)),
        users_BM=padded(audiences),
        users_time_BM=in_order(audiences),
        users_event_BM=padded(audiences),
        users_past_BM=in_order(audiences) if audience_past is None else padded(audience_past, 0),
        weight_BL=None if weight is None else torch.tensor(weight),
    )
