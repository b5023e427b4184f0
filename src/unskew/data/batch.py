"""Batches: what a model is given. B contexts times C candidates, or whole sequences; nothing is padded
further than the longest sequence of the batch."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unskew.data.log import Log
from unskew.data.views import AUDIENCE, HISTORY, PAD, Ints, Sequences


class Prefixes(NamedTuple):
    """N sequences, each the first ids of a row: what is causal reads a row once and has all its prefixes."""

    ids_WL: Tensor  # padded on the right
    row_N: Tensor
    length_N: Tensor

    def truncate(self, longest: int | None) -> "Prefixes":
        """No more than this of each (None: all); where rows are longer, each sequence gets a row of its
        own."""
        if longest is None or self.ids_WL.shape[1] <= longest:
            return self
        place_NL = (self.length_N - longest).clamp(min=0)[:, None] + torch.arange(longest)
        ids_NL = self.ids_WL[self.row_N[:, None], place_NL].masked_fill(
            place_NL >= self.length_N[:, None], PAD
        )
        return Prefixes(ids_NL, torch.arange(len(ids_NL)), self.length_N.clamp(max=longest))


def as_prefixes(ids_BL: Tensor) -> Prefixes:
    """Sequences that are padded on the left, each a row of its own."""
    is_real = ids_BL != PAD
    ids_WL = ids_BL.gather(1, (~is_real).to(torch.int8).argsort(dim=1, stable=True))
    return Prefixes(ids_WL, torch.arange(len(ids_BL)), is_real.sum(1))


class Batch(NamedTuple):
    """Axes: B contexts, C candidates, L past items, M past users, A distinct audiences. PAD stands for
    nobody, on the left.

    Where a phase reads sequences once, both are `shared` instead, and history_BL and audience_AM are empty.
    """

    user_B: Tensor
    history_BL: Tensor  # as long as the longest of the batch
    candidates_BC: Tensor  # in training the logged item comes first
    audience_AM: Tensor  # each distinct audience once ...
    audience_of_BC: Tensor  # ... and which one belongs to which candidate
    labels_BC: Tensor
    times_B: Tensor
    logged_BC: Tensor | None = None  # the log's own propensities, where it has them and nothing is sampled
    weight_BC: Tensor | None = None  # what a propensity makes of each pair; every loss multiplies by it
    epoch: int = 0  # of the sampler that made it: a curriculum goes by it
    shared: tuple[Prefixes, Prefixes] | None = None

    @property
    def histories(self) -> Prefixes:
        """The history of each context."""
        return as_prefixes(self.history_BL) if self.shared is None else self.shared[0]

    @property
    def audiences(self) -> Prefixes:
        """Each distinct audience."""
        return as_prefixes(self.audience_AM) if self.shared is None else self.shared[1]


def batch(
    log: Log,
    user: ArrayLike,
    time: ArrayLike,
    candidates: ArrayLike,
    labels: ArrayLike | None = None,
    history: int = HISTORY,
    audience: int | None = AUDIENCE,
) -> Batch:
    """What a model may know of each context (user, time) and each of its candidates: events strictly before,
    no others."""
    return with_candidates(contexts(log, user, time, history), log, candidates, labels, audience)


def batch_of_rows(log: Log, rows: Ints, history: int = HISTORY, audience: int | None = AUDIENCE) -> Batch:
    """Rows of the log, each a context with its own item, label and, where the log has it, propensity."""
    return with_logged(
        batch(log, log.user[rows], log.time[rows], log.item[rows], log.label[rows], history, audience),
        log,
        rows,
    )


def with_logged(made: Batch, log: Log, rows: Ints) -> Batch:
    if log.propensity is None:
        return made
    return made._replace(logged_BC=torch.from_numpy(log.propensity[rows].astype(np.float32))[:, None])


def contexts(log: Log, user: ArrayLike, time: ArrayLike, history: int = HISTORY) -> Batch:
    """Contexts without candidates."""
    user_B, time_B = (
        np.array(part, np.int64) for part in np.broadcast_arrays(np.atleast_1d(user), np.atleast_1d(time))
    )
    return bare_contexts(user_B, log.histories.padded(*log.histories.before(user_B, time_B, history)), time_B)


def bare_contexts(user_B: Ints, history_BL: NDArray[np.int32], time_B: Ints) -> Batch:
    """The same for histories from anywhere, padded on the left."""
    nothing = torch.zeros(len(user_B), 0, dtype=torch.int64)
    no_audience = torch.zeros(0, 0, dtype=torch.int64)
    return Batch(
        torch.from_numpy(user_B),
        _tensor(history_BL),
        nothing,
        no_audience,
        nothing,
        torch.zeros(len(user_B), 0),
        torch.from_numpy(time_B),
    )


def with_candidates(
    context: Batch, log: Log, candidates: ArrayLike, labels: ArrayLike | None, audience: int | None = AUDIENCE
) -> Batch:
    """The same contexts with candidates, and each distinct audience of them once; none at all if none is
    read."""
    candidates_BC = np.array(candidates, np.int64).reshape(len(context.user_B), -1)
    labels_BC = (
        np.zeros(candidates_BC.shape, np.float32) if labels is None else np.asarray(labels, np.float32)
    )
    context = context._replace(
        candidates_BC=torch.from_numpy(candidates_BC),
        labels_BC=torch.from_numpy(labels_BC.reshape(candidates_BC.shape)),
    )
    if audience == 0:
        nobody = torch.zeros(1, 0, dtype=torch.int64)
        return context._replace(audience_AM=nobody, audience_of_BC=torch.zeros_like(context.candidates_BC))
    start, end = log.audiences.before(
        candidates_BC.ravel(), np.repeat(context.times_B.numpy(), candidates_BC.shape[1]), audience
    )
    first, audience_of = _distinct(start, end)
    return context._replace(
        audience_AM=_tensor(log.audiences.padded(start[first], end[first])),
        audience_of_BC=torch.from_numpy(audience_of.reshape(candidates_BC.shape)),
    )


def batch_shared(
    log: Log, user: Ints, time: Ints, candidates: Ints, labels: ArrayLike, history: int, audience: int | None
) -> Batch:
    """The same as `batch`, with each history and each audience a prefix of a row that many of them share."""
    made = batch(log, user, time, candidates, labels, history=0, audience=0)
    histories = _prefixes(log.histories, *log.histories.before(user, time), history)
    start, end = log.audiences.before(candidates.ravel(), np.repeat(time, candidates.shape[1]))
    first, audience_of = _distinct(start, end)
    audiences = _prefixes(log.audiences, start[first], end[first], len(log) if audience is None else audience)
    return made._replace(
        audience_of_BC=torch.from_numpy(audience_of.reshape(candidates.shape)), shared=(histories, audiences)
    )


def _distinct(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Of many windows that end in one table: the first of each distinct one, and which one each is.

    Two of them are the same exactly if they end at the same event; all empty ones are one.
    """
    _, first, which = np.unique(np.where(end > start, end, -1), return_index=True, return_inverse=True)
    return first, which


def _prefixes(view: Sequences, start: Ints, end: Ints, length: int) -> Prefixes:
    starts, ends, row = view.shared(start, end, length)
    return Prefixes(
        _tensor(view.padded(starts, ends, right=True)),
        torch.from_numpy(row),
        torch.from_numpy(end - starts[row]),
    )


def _tensor(codes: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(codes.astype(np.int64))


class SequenceBatch(NamedTuple):
    """Padded on the left with PAD. The two views are independent: some users' histories, and some items'
    audiences.

    An event may be predicted from what is strictly before it, and events at the same moment are not.
    `past_BL` says how many
    events of the window are: they are its first ones.
    """

    user_B: Tensor
    items_BL: Tensor
    event_BL: Tensor  # the row of the log that each place of a history is
    past_BL: Tensor  # how many events of the window lie strictly before each place
    # Which places are to be predicted: each event once, without repeats where past items are hidden
    target_BL: Tensor
    item_B: Tensor  # whose audiences these are
    users_BM: Tensor
    users_event_BM: Tensor  # the place in the table of audiences
    users_past_BM: Tensor
    weight_BL: Tensor | None = None  # what a propensity makes of each event; every loss multiplies by it
    epoch: int = 0

    def targets(self) -> "Targets":
        """The events to be predicted, one after the other."""
        wanted_BL = self.target_BL
        weight_N = None if self.weight_BL is None else self.weight_BL[wanted_BL]
        return Targets(wanted_BL.nonzero()[:, 0], self.past_BL[wanted_BL], self.items_BL[wanted_BL], weight_N)


class Targets(NamedTuple):
    """N events to be predicted: the row of each, how many events of that row are before it, its id, and its
    weight."""

    row_N: Tensor
    past_N: Tensor
    id_N: Tensor
    weight_N: Tensor | None
