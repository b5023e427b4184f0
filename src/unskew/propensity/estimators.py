"""Estimators of P(o = 1): how likely was a pair of user and item to be observed?

They estimate it from the item view, from the user view, from frequencies, or take it from the log. A pair's
weight is the inverse of its propensities (Theorem 1, with the clipping of eq. clip_prob_item,
clip_prob_user):

    w = alpha / max(P(i, h_u), M) + (1 - alpha) / max(P(u, h_i), M)

    h_u    the history of the user; P(i, h_u) is the item view
    h_i    the audience of the item; P(u, h_i) is the user view
    M      the clip, the lower bound of propensities
    alpha  the weight of the item view

Bias: with the true propensities and M = 0 the weighted loss is unbiased, for either view and for any mixture
of them. Raising M adds bias. Variance: raising M lowers it, to at most (1/M - 1) delta^2 per pair (Theorem 2,
for M <= 1/2). The weights carry no gradient.
"""

import math
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch, Prefixes, SequenceBatch
from unskew.data.log.log import Log
from unskew.data.log.split import Known, Split
from unskew.nn.layers import Embeddings, is_real, read_before, states_after
from unskew.nn.losses import CHUNK, cross_entropy, divisor
from unskew.nn.phases import Phase
from unskew.nn.vocabulary import SAMPLES, is_sampled
from unskew.propensity.base import (
    ESTIMATORS,
    Needs,
    Propensity,
    PropensityScale,
    Views,
    estimator_named,
    every_estimator,
)
from unskew.propensity.exposure import Exposure
from unskew.propensity.power import Power

__all__ = [
    "ESTIMATORS",
    "DualGRU",
    "Exposure",
    "Frequency",
    "Logged",
    "Needs",
    "Power",
    "Propensity",
    "PropensityScale",
    "SequenceGRU",
    "Unit",
    "Views",
    "estimator",
    "estimator_named",
    "every_estimator",
    "probability",
]

BOUND = 512  # how many ids are summed to bound the softmax normaliser from below


class Unit(Propensity, name="none"):
    """No weighting: every pair counts as observed with certainty."""

    def __init__(self) -> None:
        super().__init__(clip=1.0)

    @classmethod
    def build(cls, needs: Needs) -> "Unit":
        return cls()

    def item_view(self, batch: Batch) -> None:
        return None

    def user_view(self, batch: Batch) -> None:
        return None

    def log_exposure(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        return torch.zeros(np.broadcast_shapes(np.shape(item), np.shape(time)))


class SequenceGRU(nn.Module):
    """Predicts the next id of a sequence: a GRU over embeddings, and a softmax over all ids.

    A learned vector stands before every sequence, so there is a prediction of the first id and for an empty
    sequence, too.

    trains: whether the loss also trains the embeddings, which it should only if they belong to the estimator.
    """

    def __init__(self, width: int, layers: int, trains: bool = False) -> None:
        super().__init__()
        self.trains = trains
        self.start = nn.Parameter(torch.zeros(width))
        self.gru = nn.GRU(width, width, layers, batch_first=True)
        self.out = nn.Linear(width, width)
        nn.init.normal_(self.start, std=width**-0.5)

    def outputs(self, ids_BL: Tensor, table: Embeddings) -> Tensor:
        """The outputs y after 0, 1, ..., L ids of sequences that are padded on the right, (B, L + 1, D)."""
        embedded = table(ids_BL) if self.trains else table(ids_BL).detach()
        started = torch.cat([self.start.expand(len(ids_BL), 1, -1), embedded], dim=1)
        return self.out(self.gru(started)[0])

    def states_after(self, prefixes: Prefixes, table: Embeddings) -> Tensor:
        """The output y after the whole of each sequence, (N, D)."""
        return states_after(prefixes, lambda ids_BL: self.outputs(ids_BL, table))

    def highest_log_probability(self, vectors: Tensor, table: Embeddings) -> Tensor:
        """An upper bound of log P of ids with some vectors (..., D), after any sequence at all, (...).

        The mean of exp is at least exp of the mean, so with the mean vector m of all V ids

            log P(i) = e(i) y - log sum_j exp(e(j) y) <= (e(i) - m) y - log V

        and y = W g + b with |g| <= 1 in each of its entries, since g is the output of a GRU.
        """
        summed, times = _normalised_ids(table)
        difference = vectors.detach() - summed.mean(0)
        weight, bias = self.out.weight.detach(), self.out.bias.detach()
        return (difference @ weight).abs().sum(-1) + difference @ bias - math.log(len(summed) * times)

    def loss(self, ids_BL: Tensor, past_BL: Tensor, table: Embeddings) -> Tensor:
        """The sum over a batch of -log P of each known id given those strictly before it (L^AR).

        ids_BL: sequences that are padded on the left.
        past_BL: how many ids of its row are strictly before each.
        """
        wanted = is_real(ids_BL) & (ids_BL < table.known)
        row_N, past_N = wanted.nonzero()[:, 0], past_BL[wanted]
        states = self.outputs(read_before(ids_BL, past_N), table)[row_N, past_N]
        vectors = table if self.trains else table.table().detach()
        return cross_entropy(states, vectors, ids_BL[wanted])


class DualGRU(Propensity, name="dual"):
    """The paper's estimator: one GRU reads the history, another the audience. With the output y of a GRU, the
    item view is, depending on `scale`,

        softmax    P(i, h_u) = exp(e(i) y) / sum_j exp(e(j) y)               eq. prob_item
        min-max    P(i, h_u) = (e(i) y - min) / (max - min)                  commented out above eq. prob_item
        min, max   the smallest and the largest e(j) y of all known items j

    and the user view likewise, among the known users (eq. prob_user). A softmax sums to 1, so it is small
    wherever there are many ids; min-max is 0 for one id and 1 for another, however many there are. The GRUs
    are trained by the cross-entropy of the softmax with either scale.

    items, users: the embeddings that the GRUs read.
    layers: how many layers each GRU has.
    views: which of the two views are estimated.
    owner: whether the estimator owns the embeddings and trains them. Otherwise they belong to a recommender
        and are only read.
    scale: how logits become propensities.
    """

    named_views: ClassVar[Views] = "both"  # that the registered name stands for
    has_scale = True

    @classmethod
    def build(cls, needs: Needs) -> "DualGRU":
        known, tables = needs.known, needs.tables
        items, users = tables or (Embeddings(ids, needs.width) for ids in (known.items, known.users))
        owner = tables is None
        return cls(items, users, needs.layers, needs.alpha, needs.clip, cls.named_views, owner, needs.scale)

    @classmethod
    def has_two_views(cls) -> bool:
        return cls.named_views == "both"

    def __init__(
        self,
        items: Embeddings,
        users: Embeddings,
        layers: int,
        alpha: float,
        clip: float,
        views: Views = "both",
        owner: bool = False,
        scale: PropensityScale = "softmax",
    ) -> None:
        super().__init__(alpha, clip)
        self.scale = scale
        self._tables = (items, users)
        if owner:
            self.own_items = items if views != "user" else None
            self.own_users = users if views != "item" else None
        width = items.weight.shape[1]
        self.items = SequenceGRU(width, layers, owner) if views != "user" else None
        self.users = SequenceGRU(width, layers, owner) if views != "item" else None

    def item_view(self, batch: Batch) -> Tensor | None:
        return self._item_view(batch, 0.0)

    def user_view(self, batch: Batch) -> Tensor | None:
        return self._user_view(batch, 0.0)

    def clipped(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        views = self._item_view(batch, self.clip), self._user_view(batch, self.clip)
        item, user = (None if view is None else view.clamp(min=self.clip) for view in views)
        return item, user

    def _item_view(self, batch: Batch, least: float) -> Tensor | None:
        if self.items is None:
            return None
        table = self._tables[0]
        below_BC = table.weight.new_zeros(batch.candidates_BC.shape)
        row_R = self._undecided(least, self.items, table(batch.candidates_BC), table)
        if not len(row_R):
            return below_BC
        state_RD = self.items.states_after(batch.histories.some(row_R), table)
        logits_RC = torch.einsum("rcd,rd->rc", table(batch.candidates_BC[row_R]), state_RD)
        of_RC = torch.arange(len(row_R), device=row_R.device)[:, None].expand(logits_RC.shape)
        propensity_RC = self._propensity(logits_RC, state_RD, of_RC, table, least)  # eq. prob_item
        return below_BC.index_put((row_R,), propensity_RC)

    def _user_view(self, batch: Batch, least: float) -> Tensor | None:
        if self.users is None:
            return None
        table = self._tables[1]
        below_BC = table.weight.new_zeros(batch.candidates_BC.shape)
        row_R = self._undecided(least, self.users, table(batch.user_B)[:, None], table)
        if not len(row_R):
            return below_BC
        which_A, of_RC = batch.audience_of_BC[row_R].unique(return_inverse=True)
        state_AD = self.users.states_after(batch.audiences.some(which_A), table)
        logits_RC = torch.einsum("rcd,rd->rc", state_AD[of_RC], table(batch.user_B[row_R]))
        propensity_RC = self._propensity(logits_RC, state_AD, of_RC, table, least)  # eq. prob_user
        return below_BC.index_put((row_R,), propensity_RC)

    def _propensity(
        self, logits_BC: Tensor, state_ND: Tensor, of_BC: Tensor, table: Embeddings, least: float
    ) -> Tensor:
        """The propensities of logits that were computed from some states, on the estimator's scale."""
        if self.scale == "min-max":
            return min_max(logits_BC, state_ND, of_BC, table)
        return probability(logits_BC, state_ND, of_BC, table, least)

    def _undecided(self, least: float, view: SequenceGRU, vectors_BCD: Tensor, table: Embeddings) -> Tensor:
        """The contexts in which the softmax probability of an id with one of these vectors may reach `least`.
        In the others, whatever the view reads, none does, so their sequences need not be read."""
        if least <= 0 or self.scale != "softmax":
            return torch.arange(len(vectors_BCD), device=vectors_BCD.device)
        highest_BC = view.highest_log_probability(vectors_BCD, table)
        return (highest_BC >= math.log(least)).any(1).nonzero()[:, 0]

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("propensity", "sequences", self.loss, self.parameters),)

    def loss(self, batch: SequenceBatch) -> Tensor:
        """L^AR of both views over whole sequences, as a mean per id. One pass over a sequence gives every
        prefix."""
        # If a batch has no sequences of the estimated views, the gradient is zero, but it must exist.
        first = torch.zeros_like(batch.user_B[:1])
        own = [module for module in self.children() if isinstance(module, Embeddings)]
        tables = {id(table.weight) for table in own}
        parts = [parameter for parameter in self.parameters() if id(parameter) not in tables]
        parts += [table(first) for table in own]  # of a large table, a gradient has only some rows
        nothing = self._tables[0].weight.new_zeros(())
        total, count = sum((0 * part.sum() for part in parts), nothing), 0
        histories, audiences = (batch.items_BL, batch.past_BL), (batch.users_BM, batch.users_past_BM)
        for view, table, (ids, past) in (
            (self.items, self._tables[0], histories),
            (self.users, self._tables[1], audiences),
        ):
            if view is not None and ids.numel():
                total, count = total + view.loss(ids, past, table), count + int(is_real(ids).sum())
        return total / divisor(count)


class ItemGRU(DualGRU, name="item"):
    """Only the GRU that reads the history."""

    named_views = "item"


class UserGRU(DualGRU, name="user"):
    """Only the GRU that reads the audience."""

    named_views = "user"


def probability(
    logits_BC: Tensor, state_ND: Tensor, of_BC: Tensor, table: Embeddings, least: float
) -> Tensor:
    """Softmax probabilities of some ids: exact if they reach `least`, otherwise anything below it.

    The softmax normaliser is a sum over all ids, the most expensive part of a training step. A sum over only
    a few ids is smaller, so it gives an upper bound of the probability. Nearly always this bound is below the
    clip already, and then the full sum is not needed.

    logits_BC: the logits of the ids.
    state_ND: the states that the logits were computed from.
    of_BC: which of these states belongs to each logit.
    table: the embeddings of all ids.
    least: the clip; 0 for exact probabilities everywhere.
    """
    if least <= 0 or table.known <= BOUND:
        return (logits_BC - _normaliser(state_ND, table)[of_BC]).exp()
    part = torch.logsumexp(state_ND @ table.weight.detach()[:BOUND].T, dim=1)
    bound_BC = (logits_BC - part[of_BC]).exp()
    undecided = torch.zeros_like(state_ND[:, 0], dtype=torch.bool)
    undecided[of_BC[bound_BC >= least]] = True
    if bool(undecided.any()):
        part[undecided] = _normaliser(state_ND[undecided], table)
        bound_BC = (logits_BC - part[of_BC]).exp()
    return bound_BC


def _normaliser(state_ND: Tensor, table: Embeddings) -> Tensor:
    """The logarithm of the softmax normaliser over all ids, (N,)."""
    summed, times = _normalised_ids(table)
    return torch.logsumexp(state_ND @ summed.T, dim=1) + math.log(times)


def _normalised_ids(table: Embeddings) -> tuple[Tensor, float]:
    """The vectors over which the normaliser is summed, and how many ids each of them stands for."""
    weight = table.table().detach()
    if not is_sampled(table.known):
        return weight, 1.0
    # Estimated from evenly spaced ids, not from drawn ones: a weight must not depend on chance.
    spread = torch.arange(0, table.known, -(-table.known // (8 * SAMPLES)), device=weight.device)
    return weight[spread], table.known / len(spread)


def min_max(logits_BC: Tensor, state_ND: Tensor, of_BC: Tensor, table: Embeddings) -> Tensor:
    """Where logits lie between the smallest (0) and the largest (1) logit of all ids.

    Ids that training never saw may lie outside; they count as the nearest end. Where all ids have the same
    logit, each of them is at the largest.

    logits_BC, state_ND, of_BC, table: as for `probability`.
    """
    vectors, rows = table.table().detach(), max(32, CHUNK // max(table.known, 1))
    ends = [torch.aminmax(states @ vectors.T, dim=1) for states in state_ND.split(rows)]
    low_N, high_N = torch.cat([end.min for end in ends]), torch.cat([end.max for end in ends])
    low_BC, spread_BC = low_N[of_BC], (high_N - low_N)[of_BC]
    scaled_BC = (logits_BC - low_BC) / spread_BC.masked_fill(spread_BC == 0, 1)
    return scaled_BC.clamp(0, 1).masked_fill(spread_BC == 0, 1)


class Frequency(Propensity, name="item-user-pro"):
    """Popularity as propensity: m / max m, where m is the number of an id's training positives.

    These are Item-Pro, User-Pro and Item-User-Pro of Table Ablation, depending on `views`. It is one number
    per id: whatever happens in the training set counts at all times.
    """

    named_views: ClassVar[Views] = "both"
    item_share: Tensor
    user_share: Tensor

    @classmethod
    def build(cls, needs: Needs) -> "Frequency":
        return cls(needs.known, needs.alpha, needs.clip, cls.named_views)

    def __init__(self, known: Known, alpha: float, clip: float, views: Views = "both") -> None:
        super().__init__(alpha, clip)
        self.views = views
        for name, ids in (("item_share", known.items), ("user_share", known.users)):
            self.register_buffer(name, torch.zeros(ids.size))

    @classmethod
    def knows_items(cls) -> bool:
        return cls.named_views != "user"

    @classmethod
    def has_two_views(cls) -> bool:
        return cls.named_views == "both"

    def fit_statistics(self, split: Split) -> None:
        for fraction, counts in ((self.item_share, split.item_counts), (self.user_share, split.user_counts)):
            fraction.copy_(torch.from_numpy(counts[: len(fraction)] / counts.max()))

    def item_view(self, batch: Batch) -> Tensor | None:
        return None if self.views == "user" else _share_of(self.item_share, batch.candidates_BC)

    def user_view(self, batch: Batch) -> Tensor | None:
        if self.views == "item":
            return None
        return _share_of(self.user_share, batch.user_B)[:, None].expand(batch.candidates_BC.shape)

    def log_exposure(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        """The logarithm of the share. An item without a training positive counts as if it had half of
        one."""
        if self.views == "user":
            return super().log_exposure(log, item, time)
        asked, _ = np.broadcast_arrays(np.asarray(item, np.int64), np.asarray(time))
        some = self.item_share[self.item_share > 0]
        least = float(some.min()) / 2 if len(some) else 1.0
        return (
            _share_of(self.item_share, torch.tensor(asked, device=self.item_share.device))
            .clamp(min=least)
            .log()
        )


class ItemPro(Frequency, name="item-pro"):
    """Popularity of items alone."""

    named_views = "item"


class UserPro(Frequency, name="user-pro"):
    """Activity of users alone."""

    named_views = "user"


def _share_of(shares: Tensor, ids: Tensor) -> Tensor:
    """The fractions of some ids; 0 for those that training never saw."""
    is_known = (ids >= 0) & (ids < len(shares))
    return shares[ids.masked_fill(~is_known, 0)] * is_known


class Logged(Propensity, name="logged"):
    """The propensities that the log itself recorded."""

    def fit_statistics(self, split: Split) -> None:
        if split.log.propensity is None:
            raise BadInput("this log has no propensities: prepare it with --propensity COLUMN")

    def item_view(self, batch: Batch) -> Tensor:
        if batch.logged_BC is None:
            raise BadInput(
                "this log has no propensities (--propensity names the column), or its negatives are sampled "
                "and have none"
            )
        return batch.logged_BC

    def user_view(self, batch: Batch) -> None:
        return None


def estimator(name: str, needs: Needs) -> Propensity:
    """A new estimator of this name.

    name: `dual` has both GRUs, `item` and `user` one of them, `none` weights nothing, the three `-pro` go by
        frequencies, `logged` reads the log, `exposure` learns from impressions, `power` from clicks; or the
        name of an estimator of another package.
    """
    return estimator_named(name).build(needs)
