"""Losses as pure functions.

Each is a mean or a sum of terms times weights; without weights, every weight is one.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unskew.core.ranks import ranks
from unskew.data.batches.batch import Offset
from unskew.nn.layers import Embeddings
from unskew.nn.vocabulary import SAMPLES, is_sampled

CHUNK = 1 << 19  # logits held at once: few enough to stay in the cache


def weighted_mean(terms: Tensor, weight: Tensor | None = None) -> Tensor:
    """The mean of term times weight; the divisor is the number of terms, not the sum of the weights."""
    weighted = terms if weight is None else terms * weight
    return torch.mean(weighted) if ranks().size == 1 else weighted.sum() / divisor(weighted.numel())


def divisor(terms: int) -> float:
    """What the sum of so many terms is divided by: their number, at least one. Every loss that is not a
    `weighted_mean` must use it, because several ranks may have parts of the batch (`unskew.core.ranks`)."""
    return ranks().divisor(terms)


def bpr(positive: Tensor, negative: Tensor) -> Tensor:
    """The terms -log sigmoid(positive - negative) of Bayesian personalised ranking; the two are broadcast."""
    return functional.softplus(negative - positive)


def click_loss(logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """The binary cross-entropy of clicks, as a weighted mean over pairs."""
    terms = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return weighted_mean(terms, weight)


Vectors = Tensor | Embeddings  # a vector for each id of a vocabulary


def _rows_of(vectors: Vectors, ids: Tensor) -> Tensor:
    return vectors(ids) if isinstance(vectors, Embeddings) else vectors[ids]


def _table_of(vectors: Vectors) -> Tensor:
    return vectors.table() if isinstance(vectors, Embeddings) else vectors


def cross_entropy(
    states_ND: Tensor,
    vectors: Vectors,
    targets_N: Tensor,
    weight_N: Tensor | None = None,
    bias: Vectors | None = None,
    offset: Offset | None = None,
) -> Tensor:
    """The sum over targets of their weight times -log softmax among all ids, full or sampled as
    `unskew.nn.vocabulary` says. The logits are products of the target's state and the vectors of the ids,
    plus the bias of each id, plus the offset of each id at the moment of the target."""
    size = vectors.known if isinstance(vectors, Embeddings) else len(vectors)
    if is_sampled(size):
        return sampled_softmax(states_ND, targets_N, vectors, SAMPLES, weight_N, bias, offset)
    if weight_N is None:
        weight_N = states_ND.new_ones(len(states_ND))
    vectors_VD, bias_V = _table_of(vectors), None if bias is None else _table_of(bias)
    if bias_V is not None and bias_V.ndim == 2:
        bias_V = bias_V[:, 0]
    if offset is not None:
        states_ND, vectors_VD = offset.beside(states_ND, vectors_VD)
    return _FullSoftmax.apply(states_ND, vectors_VD, bias_V, targets_N, weight_N)


class _FullSoftmax(torch.autograd.Function):
    """Cross-entropy that never holds all N x V logits. They exist only in chunks that stay in the cache. The
    gradient of a chunk is computed along with it, so nothing is computed twice."""

    @staticmethod
    def forward(
        context: Any, states: Tensor, vectors: Tensor, offsets: Tensor | None, targets: Tensor, weight: Tensor
    ) -> Tensor:
        wants_states, wants_vectors, wants_offsets = context.needs_input_grad[:3]
        of_states = torch.empty_like(states) if wants_states else None
        of_vectors = torch.zeros_like(vectors) if wants_vectors else None
        of_offsets = torch.zeros_like(offsets) if offsets is not None and wants_offsets else None
        total = states.new_zeros(())
        rows = min(len(states), max(32, CHUNK // max(len(vectors), 1)))
        # All chunks share one buffer: fresh memory costs more time than the matrix product.
        buffer = states.new_empty(rows, len(vectors))
        for first in range(0, len(states), max(rows, 1)):
            part = slice(first, first + rows)
            state, target, scale = states[part], targets[part, None], weight[part, None]
            logits = torch.mm(state, vectors.T, out=buffer[: len(state)])
            if offsets is not None:
                logits.add_(offsets)
            logits.sub_(logits.amax(1, keepdim=True))
            mine = logits.gather(1, target)
            normaliser = logits.exp_().sum(1, keepdim=True)
            total += (scale * (normaliser.log() - mine)).sum()
            if of_states is None and of_vectors is None and of_offsets is None:
                continue
            slope = logits.mul_(scale / normaliser)
            slope.scatter_add_(1, target, -scale)
            if of_states is not None:
                torch.mm(slope, vectors, out=of_states[part])
            if of_vectors is not None:
                of_vectors.addmm_(slope.T, state)
            if of_offsets is not None:
                of_offsets += slope.sum(0)
        context.slopes = of_states, of_vectors, of_offsets
        return total

    @staticmethod
    def backward(context: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if slope is None else slope * gradient[0] for slope in context.slopes), None, None


def sampled_softmax(
    states_ND: Tensor,
    targets_N: Tensor,
    vectors: Vectors,
    samples: int,
    weight_N: Tensor | None = None,
    bias: Vectors | None = None,
    offset: Offset | None = None,
) -> Tensor:
    """Cross-entropy whose normaliser is estimated from uniformly drawn ids, summed over the targets. The sum
    over all other ids is estimated by V / S times the sum over S draws with replacement from all V ids (the
    correction called log Q), which all targets share. A draw that happens to be the target does not count. As
    S grows, the result approaches the full softmax."""
    size = vectors.known if isinstance(vectors, Embeddings) else len(vectors)
    drawn_S = torch.randint(size, (samples,), device=states_ND.device)
    others_NS = states_ND @ _rows_of(vectors, drawn_S).T
    target_N = (states_ND * _rows_of(vectors, targets_N)).sum(1)
    if bias is not None:
        others_NS = others_NS + _rows_of(bias, drawn_S).flatten()
        target_N = target_N + _rows_of(bias, targets_N).flatten()
    if offset is not None:
        others_NS = others_NS + offset.table_MV[:, drawn_S][offset.moment_N]
        target_N = target_N + offset.of(targets_N)
    others_NS = others_NS.masked_fill(drawn_S == targets_N[:, None], -torch.inf)
    log_q = float(torch.log(torch.tensor(samples / size)))
    terms_N = torch.logsumexp(torch.cat([target_N[:, None], others_NS - log_q], dim=1), dim=1) - target_N
    return (terms_N if weight_N is None else terms_N * weight_N).sum()
