"""GRU4Rec with BPR-max and additional negatives (Hidasi and Karatzoglou, CIKM 2018), often called GRU4Rec+.

A GRU reads the embeddings of the history's items, and one table serves as input and output (the authors'
"constrained embedding"):

    r_c = <h, e_c> + b_c,    h = GRU(e_1, ..., e_L)

    BPR-max   -log sum_j s_j sigmoid(r_i - r_j) + lambda sum_j s_j r_j^2
    TOP1-max  sum_j s_j [sigmoid(r_j - r_i) + sigmoid(r_j^2)]

    e, b      the embeddings and the biases of items; h is the state after the history
    r_i, r_j  the scores of the target and of a negative
    s_j       the softmax among the negatives alone
    lambda    the weight of the regularisation

Negatives are drawn in proportion to count^alpha, with replacement, and the whole batch shares them. This is
what the authors' parallel sessions are for, so there are none here.

Where this differs from the authors' code: Whole windows are read at once, in random order, with full
back-propagation through them; the authors detach the state after every item. The other targets of a batch are
not used as negatives (these are 63 beside 2,048 drawn ones at the authors' batch size). A draw that is the
target itself does not count, which they do not check. Their dropout acts on the state that is carried on to
the next item, ours on what is read from it.

`loss="cross-entropy"` is the softmax among all items. What the DEPS paper calls GRU4Rec+ is RecBole's version
of Tan et al. (DLRS 2016): GRU4Rec with loss="cross-entropy", optimizer="adam", width=64, hidden=128,
dropout=0.3, without biases, at a learning rate of 0.001.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.core.config import AtLeast1, Dropped, NotNegative, Search, Settings, Width
from unskew.data.batches.batch import Batch, Offset
from unskew.data.log.split import Known, Split
from unskew.models.base import HistoryConfig, NextItem
from unskew.nn.layers import Dropout, Embeddings
from unskew.nn.losses import cross_entropy, divisor
from unskew.nn.phases import Phase, adam

CHUNK = 1 << 17  # scores of negatives held at once: few enough to stay in the cache
LOG_OF_NOTHING = -1e9  # its exponential is zero, and unlike with minus infinity, gradients are not nan

# A loss per target, from its score (N,), the scores of negatives (N, K), and how often each was drawn (N, K).
Terms = Callable[[Tensor, Tensor, Tensor], Tensor]


class GRU4Rec(NextItem, name="gru4rec", paper="Hidasi and Karatzoglou, CIKM 2018"):
    """A GRU over the history, trained against many drawn negatives."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: Width = 100
        """The width of the item embeddings."""
        hidden: Width = 100
        """The width of the GRU's hidden state. If it differs from that of the embeddings, a linear layer maps
        the state to their width."""
        layers: AtLeast1 = 1
        """The number of GRU layers."""
        dropout: Dropped = 0.0
        """The fraction of the item embeddings' entries that dropout sets to zero."""
        state_dropout: Dropped = 0.0
        """The fraction of the hidden states' entries that dropout sets to zero."""
        loss: Literal["bpr-max", "top1-max", "cross-entropy"] = "bpr-max"
        """The loss: BPR-max or TOP1-max against drawn negatives, or cross-entropy among all items."""
        samples: AtLeast1 = 2048
        """The number of negatives drawn for a batch."""
        exponent: Annotated[NotNegative, Search(0.0, 1.0)] = 0.5
        """Negatives are drawn in proportion to their counts to the power of this (alpha): 0 is uniform, 1 is
        by popularity."""
        elu: Annotated[NotNegative, Search.among(0.0, 0.5, 1.0)] = 0.5
        """BPR-max and TOP1-max bend scores below zero (ELU), so that none is below minus this; 0 leaves
        scores as they are."""
        regularisation: Annotated[NotNegative, Search(0.0, 2.0)] = 1.0
        """The weight of the negatives' squared scores in BPR-max (lambda)."""
        optimizer: Literal["adagrad", "adam"] = "adagrad"
        """The optimizer: Adagrad as in the authors' code, or Adam as in RecBole."""

    config: Config
    is_exportable = True
    cumulative: Tensor
    recipe: ClassVar[Settings] = {"learning_rate": 0.05, "sequences": 64, "epochs": 40, "patience": 5}
    searched: ClassVar[dict[str, Search]] = {"learning_rate": Search(0.01, 0.25, log=True)}
    # The authors train for ten epochs, whatever the validation set says.
    presets: ClassVar[dict[str, Settings]] = {"paper": {"epochs": 10, "patience": 10}}

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
                matrices = 3 if name.startswith("gru") else 1  # those of the three gates are one parameter
                bound = (6 / (rows / matrices + columns)) ** 0.5
                nn.init.uniform_(parameter, -bound, bound)

    def fit_statistics(self, split: Split) -> None:
        frequency = split.item_counts[: split.known_items] ** np.float64(self.config.exponent)
        self.cumulative.copy_(torch.from_numpy(np.cumsum(frequency)))

    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        states, _ = self.gru(self.dropout(self.items(ids_BL)))
        return self.back(self.state_dropout(states))

    # The bias of an item is one more entry of its vector; the vector of a context has a one there.

    def context(self, batch: Batch) -> Tensor:
        return functional.pad(super().context(batch), (0, 1), value=1.0)

    def read_histories(self, ids_BL: Tensor) -> Tensor:
        return functional.pad(super().read_histories(ids_BL), (0, 1), value=1.0)

    def vectors(self, item: Tensor) -> Tensor:
        return torch.cat([self.items(item), self.bias(item)], dim=-1)

    def phases(self) -> tuple[Phase, ...]:
        (phase,) = super().phases()
        return (replace(phase, optimizer=adagrad if self.config.optimizer == "adagrad" else adam),)

    def loss_of(
        self, states_ND: Tensor, targets_N: Tensor, weight_N: Tensor | None, offset: Offset | None = None
    ) -> Tensor:
        count = divisor(len(targets_N))
        if self.config.loss == "cross-entropy":
            total = cross_entropy(states_ND, self.items, targets_N, weight_N, self.bias, offset)
            return total / count
        if weight_N is None:
            weight_N = states_ND.new_ones(len(targets_N))
        states_ND = functional.pad(states_ND, (0, 1), value=1.0)
        score_N = (states_ND * self.vectors(targets_N)).sum(1)
        drawn_K, times_K = torch.unique(self.draw(self.config.samples), return_counts=True)
        vectors_KD = self.vectors(drawn_K)
        if offset is not None:
            score_N = score_N + offset.of(targets_N)
            states_ND, vectors_KD = offset.among(drawn_K).beside(states_ND, vectors_KD)
        pairs = self.bent(score_N), states_ND, vectors_KD, targets_N, drawn_K, times_K.float(), weight_N
        return _AgainstNegatives.apply(self.terms, *pairs) / count

    def draw(self, size: int) -> Tensor:
        """Draw item ids in proportion to count^alpha, with replacement, (size,)."""
        drawn = torch.rand(size, dtype=torch.float64, device=self.cumulative.device) * self.cumulative[-1]
        return torch.searchsorted(self.cumulative, drawn, right=True)

    def terms(self, positive_N: Tensor, scores_NK: Tensor, times_NK: Tensor) -> Tensor:
        """The loss of each target; see `bpr_max` for the arguments."""
        negative_NK = self.bent(scores_NK)
        if self.config.loss == "top1-max":
            return top1_max(positive_N, negative_NK, times_NK)
        return bpr_max(positive_N, negative_NK, times_NK, self.config.regularisation)

    def bent(self, scores: Tensor) -> Tensor:
        """Scores as the losses see them. Bending does not change their order, so ranking does without it."""
        return functional.elu(scores, self.config.elu) if self.config.elu else scores


def bpr_max(positive_N: Tensor, negative_NK: Tensor, times_NK: Tensor, regularisation: float) -> Tensor:
    """The loss BPR-max of each target, (N,), computed in logarithms so that very large and very small
    differences keep their precision. A negative that was drawn 0 times is left out; the regularisation is
    lambda."""
    log_share_NK = log_softmax_of_draws(negative_NK, times_NK)
    log_better_NK = functional.logsigmoid(positive_N[:, None] - negative_NK)
    log_better_N = torch.logsumexp(log_share_NK + log_better_NK, dim=1)
    squares_N = (log_share_NK.exp() * negative_NK.square()).sum(1)
    has_negatives_N = (times_NK > 0).any(1)  # a target without any has nothing to be compared with
    return torch.where(has_negatives_N, -log_better_N, 0.0) + regularisation * squares_N


def top1_max(positive_N: Tensor, negative_NK: Tensor, times_NK: Tensor) -> Tensor:
    """The loss TOP1-max of each target, (N,); see `bpr_max` for the arguments."""
    share_NK = log_softmax_of_draws(negative_NK, times_NK).exp()
    worse_NK = torch.sigmoid(negative_NK - positive_N[:, None])
    return (share_NK * (worse_NK + torch.sigmoid(negative_NK.square()))).sum(1)


def log_softmax_of_draws(score_NK: Tensor, times_NK: Tensor) -> Tensor:
    """The logarithms of the softmax among the draws alone, (N, K). Items that were not drawn, and the target,
    take no part in it."""
    log_weight_NK = (score_NK + times_NK.clamp(min=1).log()).masked_fill(times_NK == 0, LOG_OF_NOTHING)
    return log_weight_NK - torch.logsumexp(log_weight_NK, dim=1, keepdim=True).clamp(min=LOG_OF_NOTHING / 2)


class _AgainstNegatives(torch.autograd.Function):
    """The weighted sum of the terms of all targets.

    Scores of negatives exist only in chunks, and the gradient of a chunk is computed along with it.
    """

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
        of_positive, of_states = torch.empty_like(positive_N), torch.empty_like(states_ND)
        of_vectors = torch.zeros_like(vectors_KD)
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
    """The Adagrad optimizer of the authors' code."""
    # The authors add 1e-6 inside the root, which is 1e-3 outside.
    return torch.optim.Adagrad(parameters, lr=learning_rate, weight_decay=weight_decay, eps=1e-3, fused=True)
