"""GRU4Rec with BPR-max and additional negatives (Hidasi and Karatzoglou, CIKM 2018), often called GRU4Rec+.

A GRU over item vectors; a score is its state times the vector of the candidate plus a bias. One table serves
as input and output (the authors' "constrained embedding"). Each target r_i is compared with negatives r_j,
where s is the softmax of the negatives alone:

    BPR-max   -log sum_j s_j sigmoid(r_i - r_j) + lambda sum_j s_j r_j^2
    TOP1-max  sum_j s_j [sigmoid(r_j - r_i) + sigmoid(r_j^2)]

Negatives are drawn in proportion to count^alpha, with replacement, and are shared by the whole batch; that is
what the authors' parallel sessions are for, so there are none here. Whole windows are read at once, in random
order, with full back-propagation through them; the authors detach the state after every item. Targets of the
batch are no further negatives (63 beside 2,048 at the authors' batch size), and a draw that is the target
does not count, which they do not check. Their dropout acts on the state that is carried on, ours on what is
read of it.

`loss="cross-entropy"` is the softmax among all items. What DEPS calls GRU4Rec+ is RecBole's version of Tan et
al. (DLRS 2016): GRU4Rec with loss="cross-entropy", optimizer="adam", width=64, hidden=128, dropout=0.3,
without biases, at a learning rate of 0.001.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.config import AtLeast1, Dropped, NotNegative
from unskew.data.batch import Batch
from unskew.data.split import Known, Split
from unskew.layers import Dropout, Embeddings
from unskew.losses import cross_entropy
from unskew.models.base import HistoryConfig, NextItem, Stage, adam

CHUNK = 1 << 17  # scores of negatives held at once: they stay in the cache

LOG_OF_NOTHING = -1e9  # its exponential is zero, and unlike minus infinity it has a gradient

Terms = Callable[[Tensor, Tensor, Tensor], Tensor]


class GRU4Rec(NextItem, name="gru4rec", paper="Hidasi and Karatzoglou, CIKM 2018"):
    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: AtLeast1 = 100
        """Width of the item vectors."""
        hidden: AtLeast1 = 100
        """Width of the state; another one than that of the items is mapped back to it."""
        layers: AtLeast1 = 1
        """GRUs upon each other."""
        dropout: Dropped = 0.0
        """Share of the item vectors' entries dropped."""
        state_dropout: Dropped = 0.0
        """Share of the states' entries dropped."""
        loss: Literal["bpr-max", "top1-max", "cross-entropy"] = "bpr-max"
        """BPR-max or TOP1-max with drawn negatives, or cross-entropy among all items."""
        samples: AtLeast1 = 2048
        """Negatives drawn per batch."""
        exponent: NotNegative = 0.5
        """They are drawn in proportion to counts to the power of this (alpha): 0 is uniform, 1 is
        popularity."""
        elu: NotNegative = 0.5
        """Scores below zero are bent to no less than minus this, in BPR-max and TOP1-max; 0 leaves all scores
        as they are."""
        regularisation: NotNegative = 1.0
        """Weight of the squared scores of negatives in BPR-max (lambda)."""
        optimizer: Literal["adagrad", "adam"] = "adagrad"
        """The authors' code needs Adagrad; RecBole has Adam."""

    config: Config
    cumulative: Tensor
    recipe: ClassVar[dict[str, Any]] = {"learning_rate": 0.05, "sequences": 64, "rounds": 40, "patience": 4}
    # The authors train for ten epochs, whatever the validation part says.
    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"rounds": 10, "patience": 10}}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)
        self.bias = Embeddings(known.items, 1, deviation=0.0)
        self.gru = nn.GRU(config.width, config.hidden, config.layers, batch_first=True)
        self.back = nn.Linear(config.hidden, config.width) if config.hidden != config.width else nn.Identity()
        self.dropout, self.state_dropout = Dropout(config.dropout), Dropout(config.state_dropout)
        self.register_buffer("cumulative", torch.zeros(known.items.size, dtype=torch.float64))
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
            elif name != "bias.weight":
                rows, columns = parameter.shape
                bound = (
                    6 / (rows / (3 if name.startswith("gru") else 1) + columns)
                ) ** 0.5  # three gates are one matrix
                nn.init.uniform_(parameter, -bound, bound)

    def measure(self, split: Split) -> None:
        frequency = split.item_counts[: split.known_items] ** np.float64(self.config.exponent)
        self.cumulative.copy_(torch.from_numpy(np.cumsum(frequency)))

    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        states, _ = self.gru(self.dropout(self.items(ids_BL)))
        return self.back(self.state_dropout(states))

    # A bias is one more entry of an item's vector, where that of every context is one.

    def context(self, batch: Batch) -> Tensor:
        return functional.pad(super().context(batch), (0, 1), value=1.0)

    def vectors(self, item: Tensor) -> Tensor:
        return torch.cat([self.items(item), self.bias(item)], dim=-1)

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        (stage,) = super().stages(rounds)
        optimizer = adagrad if self.config.optimizer == "adagrad" else adam
        return (replace(stage, phases=(replace(stage.phases[0], optimizer=optimizer),)),)

    def loss_of(self, states_ND: Tensor, targets_N: Tensor, weight_N: Tensor | None) -> Tensor:
        count = max(len(targets_N), 1)
        if self.config.loss == "cross-entropy":
            return (
                cross_entropy(states_ND, self.items.table(), targets_N, weight_N, self.bias.table()[:, 0])
                / count
            )
        if weight_N is None:
            weight_N = torch.ones(len(targets_N))
        states_ND = functional.pad(states_ND, (0, 1), value=1.0)
        positive_N = self.bent((states_ND * self.vectors(targets_N)).sum(1))
        drawn_K, times_K = torch.unique(self.draw(self.config.samples), return_counts=True)
        pairs = positive_N, states_ND, self.vectors(drawn_K), targets_N, drawn_K, times_K.float(), weight_N
        return _AgainstNegatives.apply(self.terms, *pairs) / count

    def draw(self, size: int) -> Tensor:
        """Item ids in proportion to count^alpha, with replacement."""
        return torch.searchsorted(
            self.cumulative, torch.rand(size, dtype=torch.float64) * self.cumulative[-1], right=True
        )

    def terms(self, positive_N: Tensor, scores_NK: Tensor, times_NK: Tensor) -> Tensor:
        negative_NK = self.bent(scores_NK)
        if self.config.loss == "top1-max":
            return top1_max(positive_N, negative_NK, times_NK)
        return bpr_max(positive_N, negative_NK, times_NK, self.config.regularisation)

    def bent(self, scores: Tensor) -> Tensor:
        """It grows with the score, so ranking needs none of it."""
        return functional.elu(scores, self.config.elu) if self.config.elu else scores


# Each negative stands for as many draws as `times` says; zero is none.


def bpr_max(positive_N: Tensor, negative_NK: Tensor, times_NK: Tensor, regularisation: float) -> Tensor:
    """-log sum_j s_j sigmoid(r_i - r_j), in logarithms throughout: neither a target far ahead nor one far
    behind is lost."""
    log_share_NK = log_softmax_of_draws(negative_NK, times_NK)
    log_better_N = torch.logsumexp(
        log_share_NK + functional.logsigmoid(positive_N[:, None] - negative_NK), dim=1
    )
    drawn_N = (times_NK > 0).any(1)  # who has no negative at all has nothing to be compared with
    return torch.where(drawn_N, -log_better_N, 0.0) + regularisation * (
        log_share_NK.exp() * negative_NK.square()
    ).sum(1)


def top1_max(positive_N: Tensor, negative_NK: Tensor, times_NK: Tensor) -> Tensor:
    share_NK = log_softmax_of_draws(negative_NK, times_NK).exp()
    return (
        share_NK * (torch.sigmoid(negative_NK - positive_N[:, None]) + torch.sigmoid(negative_NK.square()))
    ).sum(1)


def log_softmax_of_draws(score_NK: Tensor, times_NK: Tensor) -> Tensor:
    """Logarithms of the softmax among the draws alone. What was not drawn, the target above all, takes no
    part in it."""
    log_weight_NK = (score_NK + times_NK.clamp(min=1).log()).masked_fill(times_NK == 0, LOG_OF_NOTHING)
    return log_weight_NK - torch.logsumexp(log_weight_NK, dim=1, keepdim=True).clamp(min=LOG_OF_NOTHING / 2)


class _AgainstNegatives(torch.autograd.Function):
    """The weighted sum of terms. Scores of negatives exist only in chunks, and each chunk makes its gradient
    at once."""

    @staticmethod
    def forward(
        context: Any,
        terms: Terms,
        positive_N: Tensor,
        states_ND: Tensor,
        vectors_KD: Tensor,
        targets_N: Tensor,
        drawn_K: Tensor,
        times_K: Tensor,
        weight_N: Tensor,
    ) -> Tensor:
        of_positive, of_states, of_vectors = (
            torch.empty_like(positive_N),
            torch.empty_like(states_ND),
            torch.zeros_like(vectors_KD),
        )
        total = positive_N.new_zeros(())
        rows = max(32, CHUNK // max(len(drawn_K), 1))
        for first in range(0, len(targets_N), rows):
            part = slice(first, first + rows)
            positive, state = positive_N[part].detach().requires_grad_(), states_ND[part]
            scores = (state @ vectors_KD.T).requires_grad_()
            times = times_K.expand(len(state), -1).masked_fill(drawn_K == targets_N[part, None], 0)
            with torch.enable_grad():
                loss = (terms(positive, scores, times) * weight_N[part]).sum()
            of_positive[part], slope = torch.autograd.grad(loss, (positive, scores))
            torch.mm(slope, vectors_KD, out=of_states[part])
            of_vectors.addmm_(slope.T, state)
            total += loss.detach()
        context.slopes = of_positive, of_states, of_vectors
        return total

    @staticmethod
    def backward(context: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(slope * gradient[0] for slope in context.slopes), None, None, None, None


def adagrad(parameters: Any, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    # The authors' 1e-6 is inside of the root.
    return torch.optim.Adagrad(parameters, lr=learning_rate, weight_decay=weight_decay, eps=1e-3, fused=True)
