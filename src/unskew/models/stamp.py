"""STAMP: Short-Term Attention/Memory Priority (Liu et al., KDD 2018).

The user's interest is a product of the session's memory and the last item:

    alpha_i  = w0 . sigmoid(W1 x_i + W2 x_t + W3 m_s + b_a)
    m_a      = sum_i alpha_i x_i,    m_s = mean of x_1, ..., x_t
    score(c) = (tanh(W_s m_a + b_s) * tanh(W_t x_t + b_t)) . x_c

    x_i, x_t, x_c  the embeddings of an item of the history, of the last one, and of the candidate
    alpha_i        the attention to item i
    m_a, m_s       the attended memory, and the mean of the history

Where paper and code differ: m_s is added to m_a, as in both known codes but in no equation (`add_mean`).
alpha is not a softmax, so the memory grows with the history. The score has no sigmoid around it, which would
leave the logits of the softmax between 0 and 1. There are biases, though the authors' code has none. The
authors' bounds on the length of looked-up vectors and on the gradient of each tensor are left out. They have
512 sessions in a batch, but short ones; 64 windows of long histories have about as many targets.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unskew.core.config import Search, Settings, Width
from unskew.data.log.split import Known
from unskew.models.base import HistoryConfig, NextItem
from unskew.nn.layers import is_real

CHUNK = 1 << 18  # sigmoids held at once: few enough to stay in the cache


class STAMP(NextItem, name="stamp", paper="Liu et al., KDD 2018"):
    """Attention to the history, with priority for the last item."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: Width = 100
        """The width of embeddings and hidden states (d)."""
        add_mean: bool = True
        """Whether to add the mean of the history to the attended memory, as the authors' code does and their
        equation does not."""

    config: Config
    is_exportable = True
    recipe: ClassVar[Settings] = {"learning_rate": 3e-3, "sequences": 64}
    searched: ClassVar[dict[str, Search]] = {"learning_rate": Search(1e-3, 1e-2, log=True)}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width, deviation=0.002)
        width = config.width
        self.of_item = nn.Linear(width, width)  # W1, b_a
        self.of_last = nn.Linear(width, width, bias=False)  # W2
        self.of_mean = nn.Linear(width, width, bias=False)  # W3
        self.strength = nn.Parameter(torch.empty(width))  # w0
        self.memory = nn.Linear(width, width)  # W_s, b_s
        self.last = nn.Linear(width, width)  # W_t, b_t
        layers = self.of_item, self.of_last, self.of_mean, self.memory, self.last
        for weight in (self.strength, *(layer.weight for layer in layers)):
            nn.init.normal_(weight, std=0.05)
        for layer in (self.of_item, self.memory, self.last):
            nn.init.zeros_(layer.bias)

    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        x_BLD = self.items(ids_BL)
        mean_BLD = running_mean(x_BLD)
        memory_BLD = self.attention(x_BLD, mean_BLD) @ x_BLD
        if self.config.add_mean:
            memory_BLD = memory_BLD + mean_BLD
        return torch.tanh(self.memory(memory_BLD)) * torch.tanh(self.last(x_BLD))

    def read_histories(self, ids_BL: Tensor) -> Tensor:
        x_BLD, real_BL1 = self.items(ids_BL), is_real(ids_BL)[..., None]
        mean_BD = (x_BLD * real_BL1).sum(1) / real_BL1.sum(1).clamp(min=1)
        of_last_BD = self.of_last(x_BLD[:, -1]) + self.of_mean(mean_BD)
        alpha_BL = torch.sigmoid(self.of_item(x_BLD) + of_last_BD[:, None]) @ self.strength
        memory_BD = (alpha_BL[..., None] * x_BLD * real_BL1).sum(1)
        if self.config.add_mean:
            memory_BD = memory_BD + mean_BD
        state_BD = torch.tanh(self.memory(memory_BD)) * torch.tanh(self.last(x_BLD[:, -1]))
        return torch.where(real_BL1.any(1), state_BD, self.start)

    def attention(self, x_BLD: Tensor, mean_BLD: Tensor) -> Tensor:
        """alpha of each item i for each last item t, (B, t, i); zero if i comes after t."""
        of_last_BLD = self.of_last(x_BLD) + self.of_mean(mean_BLD)
        return _TriangularAttention.apply(self.of_item(x_BLD), of_last_BLD, self.strength)


def running_mean(x_BLD: Tensor) -> Tensor:
    """The mean of the first 1, ..., L vectors, (B, L, D)."""
    return x_BLD.cumsum(1) / torch.arange(1, x_BLD.shape[1] + 1, device=x_BLD.device)[:, None]


class _TriangularAttention(torch.autograd.Function):
    """strength . sigmoid(item_i + last_t) for all i <= t; nothing is computed for i > t. The (B, L, L, D)
    sigmoids exist only for a few rows and one t at a time. The backward pass computes them again, which takes
    less time than keeping them in memory."""

    @staticmethod
    def forward(context: Any, item_BLD: Tensor, last_BLD: Tensor, strength_D: Tensor) -> Tensor:
        item_BLD, last_BLD = _decay(item_BLD), _decay(last_BLD)
        context.save_for_backward(item_BLD, last_BLD, strength_D)
        B, L, _ = item_BLD.shape
        alpha_BLL = item_BLD.new_zeros(B, L, L)
        for rows in _chunks(item_BLD):
            for t in range(L):
                alpha_BLL[rows, t, : t + 1] = _sigmoids(item_BLD, last_BLD, rows, t) @ strength_D
        return alpha_BLL

    @staticmethod
    def backward(context: Any, *gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        item_BLD, last_BLD, strength_D = context.saved_tensors
        of_item, of_last = torch.zeros_like(item_BLD), torch.empty_like(last_BLD)
        of_strength = torch.zeros_like(strength_D)
        for rows in _chunks(item_BLD):
            for t in range(item_BLD.shape[1]):
                slope = gradient[0][rows, t, : t + 1].contiguous()
                sigmoid = _sigmoids(item_BLD, last_BLD, rows, t)
                of_strength += slope.view(-1) @ sigmoid.view(-1, len(strength_D))
                sigmoid.addcmul_(sigmoid, sigmoid, value=-1)  # its derivative
                of_item[rows, : t + 1].addcmul_(sigmoid, slope[..., None])
                of_last[rows, t] = (slope[:, None] @ sigmoid)[:, 0]
        return of_item * strength_D, of_last * strength_D, of_strength


def _chunks(x_BLD: Tensor) -> list[slice]:
    """Slices of a few rows each."""
    size = max(1, CHUNK // max(x_BLD.shape[1] * x_BLD.shape[2], 1))
    return [slice(first, first + size) for first in range(0, len(x_BLD), size)]


def _decay(x: Tensor) -> Tensor:
    """exp(-x), so that the sigmoid of a sum is 1 / (1 + a product), without an exponential per pair.

    x is clamped: no product overflows, and long before the bounds every sigmoid is 0 or 1.
    """
    return x.clamp(-40, 40).neg_().exp_()


def _sigmoids(item_BLD: Tensor, last_BLD: Tensor, rows: slice, t: int) -> Tensor:
    """sigmoid(item_i + last_t) for some rows and all i <= t, from the results of `_decay`."""
    one = item_BLD.new_ones(())
    return torch.addcmul(one, item_BLD[rows, : t + 1], last_BLD[rows, t : t + 1]).reciprocal_()
