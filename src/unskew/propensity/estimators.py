"""How likely was a pair to be observed? Estimates P(o = 1) from the item view, the user view, frequencies or
the log itself.

    w = alpha / max(P(i, h_u), M) + (1 - alpha) / max(P(u, h_i), M)            (Theorem 1, eq. clip_prob_item,
                                                                               clip_prob_user)

Symbols: h_u the history of the user, h_i the audience of the item, M the clip, alpha the weight of the item
view. With the true propensities and M = 0 the weighted loss is unbiased, from either view and from any
mixture of them. Raising M lowers the variance, at most (1/M - 1) delta^2 per pair (Theorem 2, for M <= 1/2),
and adds bias. The weights carry no gradient.
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

BOUND = 512  # ids whose sum bounds the normaliser from below

Views = Literal["both", "item", "user"]
Estimator = Literal["dual", "item", "user", "none", "item-pro", "user-pro", "item-user-pro", "logged"]


class Propensity(nn.Module, ABC):
    """P(o = 1) of each pair of a batch, and what it makes of them."""

    def __init__(self, alpha: float = 0.5, clip: float = 0.05) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise BadInput(f"alpha {alpha}: expected from 0 to 1")
        if not 0 < clip <= 1:
            raise BadInput(f"clip {clip}: expected above 0 and at most 1")
        self.alpha, self.clip = alpha, clip

    def measure(self, split: Split) -> None:
        """Count on the training part what no gradient learns. Called once, before training."""

    @abstractmethod
    def item_view(self, batch: Batch) -> Tensor | None:
        """P(i, h_u) of each pair, (B, C); None where there is no such view."""

    @abstractmethod
    def user_view(self, batch: Batch) -> Tensor | None:
        """P(u, h_i) of each pair, (B, C)."""

    def clipped(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """Both views, raised to at least the clip.   eq. clip_prob_item, clip_prob_user"""
        item, user = self.item_view(batch), self.user_view(batch)
        return None if item is None else item.clamp(min=self.clip), None if user is None else user.clamp(
            min=self.clip
        )

    @torch.no_grad()
    def weights(self, batch: Batch) -> Tensor:
        """Theorem 1 with clipped propensities. One view alone counts fully."""
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
        """Typical propensities, how many are clipped, and the spread of the weights."""
        weight = self.weights(batch)
        found = {"weight": float(weight.mean()), "weight_deviation": float(weight.std())}
        for name, view in (("item_view", self.item_view(batch)), ("user_view", self.user_view(batch))):
            if view is not None:
                found |= {
                    name: float(view.median()),
                    f"{name}_clipped": float((view < self.clip).float().mean()),
                }
        return {name: round(value, 6) for name, value in found.items()}


class Unit(Propensity):
    """Everything was observed: no weights."""

    def __init__(self) -> None:
        super().__init__(clip=1.0)

    def item_view(self, batch: Batch) -> None:
        return None

    def user_view(self, batch: Batch) -> None:
        return None


class SequenceGRU(nn.Module):
    """Who comes next? A GRU over embeddings, a softmax over all ids. It trains the embeddings only if they
    are its own.

    A learned start stands before every sequence, so the first element and an empty sequence have a
    prediction, too.
    """

    def __init__(self, width: int, layers: int, trains: bool = False) -> None:
        super().__init__()
        self.trains = trains
        self.start = nn.Parameter(torch.zeros(width))
        self.gru = nn.GRU(width, width, layers, batch_first=True)
        self.out = nn.Linear(width, width)
        nn.init.normal_(self.start, std=width**-0.5)

    def outputs(self, ids_BL: Tensor, table: Embeddings) -> Tensor:
        """y after 0, 1, ..., L elements of sequences that are padded on the right: (B, L + 1, D)."""
        embedded = table(ids_BL) if self.trains else table(ids_BL).detach()
        started = torch.cat([self.start.expand(len(ids_BL), 1, -1), embedded], dim=1)
        return self.out(self.gru(started)[0])

    def states_after(self, prefixes: Prefixes, table: Embeddings) -> Tensor:
        """y after the whole of each sequence: (N, D)."""
        return states_after(prefixes, lambda ids_BL: self.outputs(ids_BL, table))

    def loss(self, ids_BL: Tensor, past_BL: Tensor, table: Embeddings) -> Tensor:
        """-log P of each element given those strictly before it, summed over the batch; padded on the left.
        (L^AR)

        `past_BL` says how many elements of its row are before each.
        """
        wanted = is_real(ids_BL) & (ids_BL < table.known)
        row_N, past_N = wanted.nonzero()[:, 0], past_BL[wanted]
        states = self.outputs(read_before(ids_BL, past_N), table)[row_N, past_N]
        return cross_entropy(states, table.table() if self.trains else table.table().detach(), ids_BL[wanted])


class DualGRU(Propensity):
    """The paper's estimator: two GRUs, over the history and over the audience (eq. prob_item, prob_user)."""

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
        """The tables belong to a recommender and are only read, unless it is said that the estimator owns
        them."""
        super().__init__(alpha, clip)
        self._tables = (items, users)
        if owner:
            self.own_items, self.own_users = (
                (items if views != "user" else None),
                (users if views != "item" else None),
            )
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
        """L^AR of both views over whole sequences, mean per element: one pass yields every prefix."""
        # A batch may have no sequence of the only view, and yet needs a gradient.
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
    """Softmax probabilities of some ids, exact wherever they reach `least`; below that, only known to be
    below.

    A sum over some ids is less than that over all, so it gives an upper bound. Nearly always the bound is
    below the clip already, and the sum over all ids, the dearest part of a training step, need not be known.
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
    weight = table.table().detach()
    if table.known <= FULL_SOFTMAX:
        return torch.logsumexp(state_ND @ weight.T, dim=1)
    # Estimated from a fixed spread of ids: a weight must not depend on a draw.
    spread = torch.arange(0, table.known, -(-table.known // (8 * SAMPLES)))
    return torch.logsumexp(state_ND @ weight[spread].T, dim=1) + torch.log(
        torch.tensor(table.known / len(spread))
    )


class Frequency(Propensity):
    """Popularity as propensity: m / max m over training positives (Item-Pro, User-Pro, Item-User-Pro of Table
    Ablation)."""

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
        return (
            None
            if self.views == "item"
            else _share_of(self.user_share, batch.user_B)[:, None].expand(batch.candidates_BC.shape)
        )


def _share_of(shares: Tensor, ids: Tensor) -> Tensor:
    """The shares of some ids; 0 for those that training never saw."""
    known = (ids >= 0) & (ids < len(shares))
    return shares[ids.masked_fill(~known, 0)] * known


class Logged(Propensity):
    """The probabilities that the log itself recorded."""

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
    """The estimator of this name: both GRUs, one of them, none, frequencies, or what was logged."""
    views: Views = "item" if kind.startswith("item") else "user" if kind.startswith("user") else "both"
    if kind == "none":
        return Unit()
    if kind == "logged":
        return Logged(alpha, clip)
    if kind.endswith("-pro"):
        return Frequency(known, alpha, clip, "both" if kind == "item-user-pro" else views)
    return DualGRU(*tables, layers, alpha, clip, views, owner)
