"""Batches: what a model is given. B contexts times C candidates, or whole sequences; nothing is padded
further than the longest sequence of the batch.

Every batch holds the times of the past events beside their ids, in the ticks of the log's clock, and the
features of all users and items by their names. `feature_of` looks a feature up for any ids.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unskew.data.log.log import Log, LogView
from unskew.data.log.views import AUDIENCE, HISTORY, PAD, EventView, Ints, Sequences
from unskew.data.log.vocabulary import VocabularyView

Features = Mapping[str, Tensor]  # by name: the category (whole numbers) or the number of every id
NO_FEATURES: Features = MappingProxyType({})


def features_of(vocabulary: VocabularyView) -> Features:
    """The features of all users or of all items as tensors, which share the memory of the log."""
    return {
        name: torch.from_numpy(feature.numbers if feature.is_number else feature.categories)
        for name, feature in vocabulary.features.items()
    }


def feature_of(table: Tensor, ids: Tensor) -> Tensor:
    """A feature of some ids, in the shape of the ids. Missing (PAD for a category, nan for a number) where
    the
    log says nothing: for PAD, and for ids that are not in it."""
    missing = torch.nan if table.is_floating_point() else PAD
    there = (ids >= 0) & (ids < len(table))
    if not len(table):
        return torch.full(ids.shape, missing, dtype=table.dtype, device=table.device)
    return table[ids.clamp(0, len(table) - 1)].masked_fill(~there, missing)


class Prefixes(NamedTuple):
    """N sequences, each given as the first ids of some row. A causal network reads each row once and so has a
    state for every prefix of it."""

    ids_WL: Tensor  # padded on the right
    row_N: Tensor
    length_N: Tensor
    times_WL: Tensor | None = None  # of the same events

    def some(self, which_S: Tensor) -> "Prefixes":
        """Some of the sequences, and the rows that these are in."""
        rows, row_S = self.row_N[which_S].unique(return_inverse=True)
        times = None if self.times_WL is None else self.times_WL[rows]
        return Prefixes(self.ids_WL[rows], row_S, self.length_N[which_S], times)

    def truncate(self, longest: int | None) -> "Prefixes":
        """The newest `longest` of each sequence (None: all of it); where rows are longer than that, every
        sequence gets a row of its own."""
        if longest is None or self.ids_WL.shape[1] <= longest:
            return self
        place_NL = (self.length_N - longest).clamp(min=0)[:, None] + _places(longest, self.length_N)
        beyond_NL = place_NL >= self.length_N[:, None]
        ids_NL, times_NL = (
            None if rows is None else rows[self.row_N[:, None], place_NL].masked_fill(beyond_NL, PAD)
            for rows in (self.ids_WL, self.times_WL)
        )
        assert ids_NL is not None
        return Prefixes(ids_NL, _places(len(ids_NL), ids_NL), self.length_N.clamp(max=longest), times_NL)


def as_prefixes(ids_BL: Tensor, times_BL: Tensor | None = None) -> Prefixes:
    """Sequences that are padded on the left, each as a row of its own that is padded on the right."""
    is_real = ids_BL != PAD
    order_BL = (~is_real).to(torch.int8).argsort(dim=1, stable=True)
    times_WL = None if times_BL is None else times_BL.gather(1, order_BL)
    return Prefixes(ids_BL.gather(1, order_BL), _places(len(ids_BL), ids_BL), is_real.sum(1), times_WL)


def _places(size: int, like: Tensor) -> Tensor:
    """The numbers from 0, on the device of another tensor."""
    return torch.arange(size, device=like.device)


class Offset(NamedTuple):
    """What is added to the logits of all items while training, as `debiased-NAME` asks for it: a row of
    numbers per moment, and for each context the newest moment that is not after it."""

    moment_N: Tensor  # in the shape of the contexts, (N,) or (B, L)
    table_MV: Tensor  # for each moment, the offset of each item

    def of(self, ids: Tensor) -> Tensor:
        """The offsets of some ids, one or more for each context; the first axis is that of the contexts."""
        return self.table_MV[self.moment_N.view(-1, *[1] * (ids.ndim - 1)), ids]

    def among(self, ids_V: Tensor) -> "Offset":
        """The same for some of the items."""
        return Offset(self.moment_N, self.table_MV[:, ids_V])

    def beside(self, states_ND: Tensor, vectors_VD: Tensor) -> tuple[Tensor, Tensor]:
        """States and vectors with one more dimension per moment, so that their products are larger by the
        offsets."""
        which_NM = torch.nn.functional.one_hot(self.moment_N, len(self.table_MV)).to(states_ND.dtype)
        offsets_VM = self.table_MV[:, : len(vectors_VD)].T
        return torch.cat([states_ND, which_NM], dim=1), torch.cat([vectors_VD, offsets_VM], dim=1)


class Batch(NamedTuple):
    """Contexts (a user at a time) and their candidates, with everything that a model may know of them.

    Axes: B contexts, C candidates, L past items, M past users, A distinct audiences. Sequences are padded on
    the left with PAD. A phase of the kind `prefixes` has its sequences in `shared` instead, and then
    history_BL and audience_AM are empty.
    """

    user_B: Tensor
    times_B: Tensor  # when the context is
    history_BL: Tensor  # the newest items of the user, oldest first
    history_times_BL: Tensor  # when they were
    candidates_BC: Tensor  # in training the logged item comes first
    labels_BC: Tensor
    audience_AM: Tensor  # the newest users of an item, oldest first; each distinct audience once
    audience_times_AM: Tensor  # when they were
    audience_of_BC: Tensor  # which audience belongs to which candidate
    user_features: Features = NO_FEATURES
    item_features: Features = NO_FEATURES
    logged_BC: Tensor | None = None  # the log's own propensities, where it has them and nothing is sampled
    weight_BC: Tensor | None = None  # what a propensity makes of each pair; every loss multiplies by it
    offset_BC: Tensor | None = None  # what it adds to each logit; every loss of candidates adds it
    offset: Offset | None = None  # the same for losses among all items
    epoch: int = 0  # of the sampler that made it: a curriculum goes by it
    shared: tuple[Prefixes, Prefixes] | None = None
    log: LogView | None = None  # that it was made from, for models that read more of its past than is here

    @property
    def histories(self) -> Prefixes:
        """The history of each context."""
        return as_prefixes(self.history_BL, self.history_times_BL) if self.shared is None else self.shared[0]

    @property
    def audiences(self) -> Prefixes:
        """Each distinct audience."""
        if self.shared is not None:
            return self.shared[1]
        return as_prefixes(self.audience_AM, self.audience_times_AM)

    def with_offset(self, logits_BC: Tensor) -> Tensor:
        """The logits of the candidates as a loss sees them."""
        return logits_BC if self.offset_BC is None else logits_BC + self.offset_BC

    def part(self, rows: slice) -> "Batch":
        """Some contexts of a batch without candidates."""
        return self._replace(
            user_B=self.user_B[rows],
            times_B=self.times_B[rows],
            history_BL=self.history_BL[rows],
            history_times_BL=self.history_times_BL[rows],
        )

    def of_targets(self) -> "Batch":
        """The same contexts with their first candidates alone, and with the audiences of these."""
        which_A, audience_of_B1 = self.audience_of_BC[:, :1].unique(return_inverse=True)
        shared = None if self.shared is None else (self.shared[0], self.shared[1].some(which_A))
        return self._replace(
            candidates_BC=self.candidates_BC[:, :1],
            labels_BC=self.labels_BC[:, :1],
            audience_AM=self.audience_AM if shared else self.audience_AM[which_A],
            audience_times_AM=self.audience_times_AM if shared else self.audience_times_AM[which_A],
            audience_of_BC=audience_of_B1,
            logged_BC=None if self.logged_BC is None else self.logged_BC[:, :1],
            shared=shared,
        )

    def truncate(self, history: int, audience: int | None) -> "Batch":
        """The same batch with no more past items and past users than this (None: all of them)."""
        if self.shared is not None:
            return self._replace(shared=(self.histories.truncate(history), self.audiences.truncate(audience)))
        longest = self.audience_AM.shape[1] if audience is None else audience
        items, users = (
            slice(max(table.shape[1] - most, 0), None)
            for table, most in ((self.history_BL, history), (self.audience_AM, longest))
        )
        return self._replace(
            history_BL=self.history_BL[:, items],
            history_times_BL=self.history_times_BL[:, items],
            audience_AM=self.audience_AM[:, users],
            audience_times_AM=self.audience_times_AM[:, users],
        )


def batch(
    log: LogView,
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
    made = batch(log, log.user[rows], log.time[rows], log.item[rows], log.label[rows], history, audience)
    return with_logged(made, log, rows)


def with_logged(made: Batch, log: Log, rows: Ints) -> Batch:
    """The same batch with the propensities that the log recorded for its rows, if it did."""
    if log.propensity is None:
        return made
    return made._replace(logged_BC=torch.from_numpy(log.propensity[rows].astype(np.float32))[:, None])


def contexts(log: LogView, user: ArrayLike, time: ArrayLike, history: int = HISTORY) -> Batch:
    """Contexts without candidates: users of a log at some times."""
    user_B, time_B = (
        np.array(part, np.int64) for part in np.broadcast_arrays(np.atleast_1d(user), np.atleast_1d(time))
    )
    return contexts_of(log, user_B, time_B, log.histories, user_B, history)


def contexts_of(
    log: LogView, user_B: Ints, time_B: Ints, past: EventView, owner_B: Ints, history: int = HISTORY
) -> Batch:
    """Contexts without candidates whose histories are the sequences `owner_B` of `past`, wherever these come
    from: the log itself, or what a caller knows of a user whom the log does not have."""
    window = past.before(owner_B, time_B, history)
    made = bare_contexts(user_B, past.padded(*window), time_B, past.padded_times(*window))
    users, items = features_of(log.users), features_of(log.items)
    return made._replace(user_features=users, item_features=items, log=log)


def bare_contexts(
    user_B: Ints, history_BL: NDArray[np.int32], time_B: Ints, history_times_BL: Ints | None = None
) -> Batch:
    """Contexts without candidates from histories that are padded on the left already. Without times, all past
    events count as just past."""
    times_BL = history_times_BL
    if times_BL is None:
        times_BL = np.where(history_BL == PAD, PAD, time_B[:, None] - 1)
    nothing = torch.zeros(len(user_B), 0, dtype=torch.int64)
    no_users = torch.zeros(0, 0, dtype=torch.int64)
    return Batch(
        user_B=torch.from_numpy(user_B),
        times_B=torch.from_numpy(time_B),
        history_BL=_tensor(history_BL),
        history_times_BL=torch.from_numpy(times_BL),
        candidates_BC=nothing,
        labels_BC=torch.zeros(len(user_B), 0),
        audience_AM=no_users,
        audience_times_AM=no_users,
        audience_of_BC=nothing,
    )


def with_candidates(
    context: Batch,
    log: LogView,
    candidates: ArrayLike,
    labels: ArrayLike | None,
    audience: int | None = AUDIENCE,
) -> Batch:
    """The same contexts with candidates, and each distinct audience of these once; none at all if `audience`
    is 0."""
    candidates_BC = np.array(candidates, np.int64).reshape(len(context.user_B), -1)
    labels_BC = np.zeros(candidates_BC.shape) if labels is None else np.asarray(labels)
    context = context._replace(
        candidates_BC=torch.from_numpy(candidates_BC),
        labels_BC=torch.from_numpy(labels_BC.astype(np.float32).reshape(candidates_BC.shape)),
    )
    if audience == 0:
        no_users = torch.zeros(1, 0, dtype=torch.int64)
        return context._replace(
            audience_AM=no_users,
            audience_times_AM=no_users,
            audience_of_BC=torch.zeros_like(context.candidates_BC),
        )
    time = np.repeat(context.times_B.cpu().numpy(), candidates_BC.shape[1])
    start, end = log.audiences.before(candidates_BC.ravel(), time, audience)
    first, audience_of = _distinct(start, end)
    return context._replace(
        audience_AM=_tensor(log.audiences.padded(start[first], end[first])),
        audience_times_AM=torch.from_numpy(log.audiences.padded_times(start[first], end[first])),
        audience_of_BC=torch.from_numpy(audience_of.reshape(candidates_BC.shape)),
    )


def batch_shared(
    log: Log, user: Ints, time: Ints, candidates: Ints, labels: ArrayLike, history: int, audience: int | None
) -> Batch:
    """The same as `batch`; each history and each audience is a prefix of a row that contexts share."""
    made = batch(log, user, time, candidates, labels, history=0, audience=0)
    histories = _prefixes(log.histories, *log.histories.before(user, time), history)
    start, end = log.audiences.before(candidates.ravel(), np.repeat(time, candidates.shape[1]))
    first, audience_of = _distinct(start, end)
    longest = len(log) if audience is None else audience
    audiences = _prefixes(log.audiences, start[first], end[first], longest)
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
        torch.from_numpy(view.padded_times(starts, ends, right=True)),
    )


def _tensor(codes: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(codes.astype(np.int64))


class SequenceBatch(NamedTuple):
    """Whole sequences: the items of some users and, independently, the users of some items. Padded on the
    left with PAD.

    An event may be predicted from what lies strictly before it; events of the same moment do not. `past_BL`
    says how many events of the window do: they are its first ones.
    """

    user_B: Tensor
    items_BL: Tensor  # what each user met, oldest first: to be read, and to be predicted
    time_BL: Tensor  # when; PAD where nothing is
    event_BL: Tensor  # the row of the log that each entry is; PAD for a context event
    past_BL: Tensor  # how many events of the window lie strictly before each entry
    target_BL: Tensor  # which entries are to be predicted: each event once, no repeats where these are hidden
    item_B: Tensor  # whose audiences the following are
    users_BM: Tensor
    users_time_BM: Tensor
    users_event_BM: Tensor  # the place in the table of audiences
    users_past_BM: Tensor
    user_features: Features = NO_FEATURES
    item_features: Features = NO_FEATURES
    weight_BL: Tensor | None = None  # what a propensity makes of each event; every loss multiplies by it
    offset: Offset | None = None  # what it adds to the logits of all items at each event; every loss adds it
    epoch: int = 0

    def targets(self) -> "Targets":
        """The events to be predicted, one after the other."""
        wanted_BL = self.target_BL
        weight_N = None if self.weight_BL is None else self.weight_BL[wanted_BL]
        offset = self.offset_of(wanted_BL)
        past_N, id_N = self.past_BL[wanted_BL], self.items_BL[wanted_BL]
        return Targets(wanted_BL.nonzero()[:, 0], past_N, id_N, weight_N, offset)

    def offset_of(self, wanted_BL: Tensor) -> Offset | None:
        """The offsets at some of the events, one after the other."""
        return None if self.offset is None else self.offset._replace(moment_N=self.offset.moment_N[wanted_BL])


class Targets(NamedTuple):
    """N events to be predicted: the row of each, how many events of that row are before it, its id, its
    weight, and the offsets of all items at it."""

    row_N: Tensor
    past_N: Tensor
    id_N: Tensor
    weight_N: Tensor | None
    offset: Offset | None
