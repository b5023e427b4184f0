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

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from unskew.data.batch import Batch, Prefixes, SequenceBatch
from unskew.data.split import Known, Split
from unskew.errors import BadInput
from unskew.layers import Embeddings, is_real, read_before, states_after
from unskew.losses import FULL_SOFTMAX, SAMPLES, cross_entropy

BOUND = 512  # how many ids are summed to bound the softmax normaliser from below

Views = Literal["both", "item", "user"]
Estimator = Literal["dual", "item", "user", "none", "item-pro", "user-pro", "item-user-pro", "logged"]


class Propensity(nn.Module, ABC):
    """An estimator of P(o = 1) for each pair of a batch, and the weights that follow from it.

    alpha: the weight of the item view, from 0 to 1.
    clip: the lower bound of propensities (M), above 0.
    """

    def __init__(self, alpha: float = 0.5, clip: float = 0.05) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise BadInput(f"alpha {alpha}: expected from 0 to 1")
        if not 0 < clip <= 1:
            raise BadInput(f"clip {clip}: expected above 0 and at most 1")
        self.alpha, self.clip = alpha, clip

    def measure(self, split: Split) -> None:
        """Count on the training part what no gradient learns. This is called once, before training."""

    @abstractmethod
    def item_view(self, batch: Batch) -> Tensor | None:
        """P(i, h_u) of each pair, (B, C); None if the estimator has no item view."""

    @abstractmethod
    def user_view(self, batch: Batch) -> Tensor | None:
        """P(u, h_i) of each pair, (B, C); None if the estimator has no user view."""

    def clipped(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """The item view and the user view, raised to at least the clip (eq. clip_prob_item,
        clip_prob_user)."""
        views = self.item_view(batch), self.user_view(batch)
        item, user = (None if view is None else view.clamp(min=self.clip) for view in views)
        return item, user

    @torch.no_grad()
    def weights(self, batch: Batch) -> Tensor:
        """The weight of each pair (Theorem 1 with clipped propensities), (B, C). A single view has the full
        weight."""
        item, user = self.clipped(batch)
        if item is None and user is None:
            return torch.ones(batch.candidates_BC.shape)
        if item is None or user is None:
            only = item if item is not None else user
            assert only is not None
            return 1 / only
        return self.alpha / item + (1 - self.alpha) / user  # eq. UnbiasLI_LU

    @torch.no_grad()
    def statistics(self, batch: Batch) -> dict[str, float]:
        """For the record of a round: typical propensities, the share that is clipped, and the spread of the
        weights."""
        weight = self.weights(batch)
        found = {"weight": float(weight.mean()), "weight_deviation": float(weight.std())}
        for name, view in (("item_view", self.item_view(batch)), ("user_view", self.user_view(batch))):
            if view is not None:
                found[name] = float(view.median())
                found[f"{name}_clipped"] = float((view < self.clip).float().mean())
        return {name: round(value, 6) for name, value in found.items()}


class Unit(Propensity):
    """No weighting: every pair counts as observed with certainty."""

    def __init__(self) -> None:
        super().__init__(clip=1.0)

    def item_view(self, batch: Batch) -> None:
        return None

    def user_view(self, batch: Batch) -> None:
        return None


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

    def loss(self, ids_BL: Tensor, past_BL: Tensor, table: Embeddings) -> Tensor:
        """The sum over a batch of -log P of each known id given those strictly before it (L^AR).

        ids_BL: sequences that are padded on the left.
        past_BL: how many ids of its row are strictly before each.
        """
        wanted = is_real(ids_BL) & (ids_BL < table.known)
        row_N, past_N = wanted.nonzero()[:, 0], past_BL[wanted]
        states = self.outputs(read_before(ids_BL, past_N), table)[row_N, past_N]
        vectors = table.table() if self.trains else table.table().detach()
        return cross_entropy(states, vectors, ids_BL[wanted])


class DualGRU(Propensity):
    """The paper's estimator: one GRU reads the history, another the audience (eq. prob_item, prob_user).

    items, users: the embeddings that the GRUs read.
    layers: how many layers each GRU has.
    views: which of the two views are estimated.
    owner: whether the estimator owns the embeddings and trains them. Otherwise they belong to a recommender
        and are only read.
    """

    def __init__(
        self,
        items: Embeddings,
        users: Embeddings,
        layers: int,
        alpha: float,
        clip: float,
        views: Views = "both",
        owner: bool = False,
    ) -> None:
        super().__init__(alpha, clip)
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
        state_BD = self.items.states_after(batch.histories, table)
        logits_BC = torch.einsum("bcd,bd->bc", table(batch.candidates_BC), state_BD)
        of_BC = torch.arange(len(state_BD))[:, None].expand(logits_BC.shape)
        return probability(logits_BC, state_BD, of_BC, table, least)  # eq. prob_item

    def _user_view(self, batch: Batch, least: float) -> Tensor | None:
        if self.users is None:
            return None
        table = self._tables[1]
        state_AD = self.users.states_after(batch.audiences, table)
        logits_BC = torch.einsum("bcd,bd->bc", state_AD[batch.audience_of_BC], table(batch.user_B))
        return probability(logits_BC, state_AD, batch.audience_of_BC, table, least)  # eq. prob_user

    def loss(self, batch: SequenceBatch) -> Tensor:
        """L^AR of both views over whole sequences, as a mean per id. One pass over a sequence gives every
        prefix."""
        # If a batch has no sequences of the estimated views, the gradient is zero, but it must exist.
        total, count = sum((0 * parameter.sum() for parameter in self.parameters()), torch.zeros(())), 0
        histories, audiences = (batch.items_BL, batch.past_BL), (batch.users_BM, batch.users_past_BM)
        for view, table, (ids, past) in (
            (self.items, self._tables[0], histories),
            (self.users, self._tables[1], audiences),
        ):
            if view is not None and ids.numel():
                total, count = total + view.loss(ids, past, table), count + int(is_real(ids).sum())
        return total / max(count, 1)


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
    undecided = torch.zeros(len(state_ND), dtype=torch.bool)
    undecided[of_BC[bound_BC >= least]] = True
    if bool(undecided.any()):
        part[undecided] = _normaliser(state_ND[undecided], table)
        bound_BC = (logits_BC - part[of_BC]).exp()
    return bound_BC


def _normaliser(state_ND: Tensor, table: Embeddings) -> Tensor:
    """The logarithm of the softmax normaliser over all ids, (N,)."""
    weight = table.table().detach()
    if table.known <= FULL_SOFTMAX:
        return torch.logsumexp(state_ND @ weight.T, dim=1)
    # Estimated from evenly spaced ids, not from drawn ones: a weight must not depend on chance.
    spread = torch.arange(0, table.known, -(-table.known // (8 * SAMPLES)))
    of_spread = torch.logsumexp(state_ND @ weight[spread].T, dim=1)
    return of_spread + torch.log(torch.tensor(table.known / len(spread)))


class Frequency(Propensity):
    """Popularity as propensity: m / max m, where m is the number of an id's training positives.

    These are Item-Pro, User-Pro and Item-User-Pro of Table Ablation, depending on `views`.
    """

    item_share: Tensor
    user_share: Tensor

    def __init__(self, known: Known, alpha: float, clip: float, views: Views = "both") -> None:
        super().__init__(alpha, clip)
        self.views = views
        for name, ids in (("item_share", known.items), ("user_share", known.users)):
            self.register_buffer(name, torch.zeros(ids.size))

    def measure(self, split: Split) -> None:
        for share, counts in ((self.item_share, split.item_counts), (self.user_share, split.user_counts)):
            share.copy_(torch.from_numpy(counts[: len(share)] / counts.max()))

    def item_view(self, batch: Batch) -> Tensor | None:
        return None if self.views == "user" else _share_of(self.item_share, batch.candidates_BC)

    def user_view(self, batch: Batch) -> Tensor | None:
        if self.views == "item":
            return None
        return _share_of(self.user_share, batch.user_B)[:, None].expand(batch.candidates_BC.shape)


def _share_of(shares: Tensor, ids: Tensor) -> Tensor:
    """The shares of some ids; 0 for those that training never saw."""
    known = (ids >= 0) & (ids < len(shares))
    return shares[ids.masked_fill(~known, 0)] * known


class Logged(Propensity):
    """The propensities that the log itself recorded."""

    def measure(self, split: Split) -> None:
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


def estimator(
    kind: Estimator,
    known: Known,
    tables: tuple[Embeddings, Embeddings],
    layers: int,
    alpha: float,
    clip: float,
    owner: bool = False,
) -> Propensity:
    """The estimator of this name.

    kind: `dual` has both GRUs, `item` and `user` one of them, `none` weights nothing, the three `-pro` go by
        frequencies, `logged` reads the log.
    tables: the embeddings of items and of users that the GRUs read.
    layers: how many layers each GRU has.
    alpha: the weight of the item view.
    clip: the lower bound of propensities (M).
    owner: whether the estimator owns the tables and trains them.
    """
    views: Views = "item" if kind.startswith("item") else "user" if kind.startswith("user") else "both"
    if kind == "none":
        return Unit()
    if kind == "logged":
        return Logged(alpha, clip)
    if kind.endswith("-pro"):
        return Frequency(known, alpha, clip, "both" if kind == "item-user-pro" else views)
    return DualGRU(*tables, layers, alpha, clip, views, owner)
