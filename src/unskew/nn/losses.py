"""Losses as pure functions.

Each is a mean or a sum of terms times weights; without weights, every weight is one.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unskew.core.ranks import ranks

FULL_SOFTMAX = 100_000  # the largest number of ids for which all of them are scored
SAMPLES = 2048  # how many are scored where there are more; the whole batch shares them
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


def cross_entropy(
    states_ND: Tensor,
    vectors_VD: Tensor,
    targets_N: Tensor,
    weight_N: Tensor | None = None,
    offsets_V: Tensor | None = None,
) -> Tensor:
    """The sum over targets of their weight times -log softmax among all ids, whose logits are products of the
    target's state and their vectors, plus their offsets. With more than FULL_SOFTMAX ids, the softmax is
    estimated from SAMPLES of them."""
    if weight_N is None:
        weight_N = states_ND.new_ones(len(states_ND))
    if len(vectors_VD) <= FULL_SOFTMAX:
        return _FullSoftmax.apply(states_ND, vectors_VD, offsets_V, targets_N, weight_N)
    if offsets_V is not None:
        vectors_VD = torch.cat([vectors_VD, offsets_V[:, None]], dim=1)
        states_ND = functional.pad(states_ND, (0, 1), value=1.0)
    return sampled_softmax(states_ND, targets_N, vectors_VD, SAMPLES, weight_N)


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
    states_ND: Tensor, targets_N: Tensor, vectors_VD: Tensor, samples: int, weight_N: Tensor | None = None
) -> Tensor:
    """Cross-entropy whose normaliser is estimated from uniformly drawn ids, summed over the targets. The sum
    over all other ids is estimated by V / S times the sum over S draws with replacement from all V ids (the
    correction called log Q), which all targets share. A draw that happens to be the target does not count. As
    S grows, the result approaches the full softmax."""
    size = len(vectors_VD)
    drawn_S = torch.randint(size, (samples,), device=states_ND.device)
    others_NS = states_ND @ vectors_VD[drawn_S].T
    others_NS = others_NS.masked_fill(drawn_S == targets_N[:, None], -torch.inf)
    target_N = (states_ND * vectors_VD[targets_N]).sum(1)
    log_q = float(torch.log(torch.tensor(samples / size)))
    terms_N = torch.logsumexp(torch.cat([target_N[:, None], others_NS - log_q], dim=1), dim=1) - target_N
    return (terms_N if weight_N is None else terms_N * weight_N).sum()
