"""DIN: Deep Interest Network for Click-Through Rate Prediction (Zhou et al., KDD 2018).

How much each past item matters depends on the candidate. An activation unit gives each pair of candidate
and past item a weight, and the user, as seen by this candidate, is the weighted sum of the past items:

    a(q, v) = MLP([q; v; q * v]),    u(q) = sum_l a(q, v_l) v_l,    score(q) = MLP([u(q); q; u(q) * q])

    q    the embedding of the candidate
    v_l  the embedding of the l-th past item
    a    the activation unit
    u    the user's interest as seen by the candidate

What was decided where the paper is silent or its code differs:

Weights  They are not normalised, as in the paper: a long interest is a strong one. `normalised="softmax"` is
         what the authors' code does, with a scale of 1 / sqrt(d). Padding has no weight.
Unit     Layers of 80-40-1 with sigmoids, as in their code, on [q; v; q * v]. They also have q - v, which adds
         nothing to a linear layer that reads both q and v.
Dice     The activation function in the score's MLP, with a learned alpha per unit. Its mean and variance are
         those of the batch in training and running ones afterwards. (Theirs never normalises, and RecBole
         has SiLU instead.)
Simpler  There are only items, no categories and no features of the user; no further batch normalisation, and
         no layer between pooling and the MLP. Adam with 1e-3 is what they use on their own data; on Amazon
         they use SGD. Negatives are drawn again in every epoch.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unskew.core.config import AtLeast1, Width
from unskew.data.batches.batch import Batch
from unskew.data.log.log import LogView
from unskew.data.log.split import Known
from unskew.models.base import ClickModel, HistoryConfig
from unskew.nn.device import on_device
from unskew.nn.layers import Embeddings, is_real
from unskew.nn.scoring import Catalog

KEPT = 1 << 26  # how many activation weights a catalogue keeps: 256 MB
TOGETHER = 1 << 11  # candidates whose hidden layers are held at once: few enough to stay in the cache
EPSILON = 1e-8  # added to the variance in Dice
MOMENTUM = 0.1  # how much a batch changes the running statistics of Dice


class DIN(ClickModel, name="din", paper="Zhou et al., Deep Interest Network, KDD 2018"):
    """Weights past items by the candidate, with an activation unit."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: Width = 64
        """The width of the embeddings (d)."""
        attention: AtLeast1 = 80
        """The width of the first hidden layer of the activation unit; the second is half as wide."""
        hidden: AtLeast1 = 80
        """The width of the first hidden layer of the final MLP; the second is half as wide."""
        normalised: Literal["no", "softmax"] = "no"
        """Whether the weights of a history's items are normalised by a softmax, so that they sum to one."""

    config: Config
    splits_batches = False  # the activation standardises by the whole batch

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        width = config.width
        self.items = Embeddings(known.items, width)
        self.unit = ActivationUnit(width, config.attention)
        self.tower = Tower(width, config.hidden)

    def forward(self, batch: Batch) -> Tensor:
        q_BCD, v_BLD = self.items(batch.candidates_BC), self.items(batch.history_BL)
        real_BL = is_real(batch.history_BL)
        a_BLC = self.unit(q_BCD[:, None], v_BLD[:, :, None])
        return self.tower(interest(a_BLC, v_BLD, real_BL, self.config.normalised), q_BCD)

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        return PairCatalog(self, len(log.items))


class ActivationUnit(nn.Module):
    """The weight a(q, v) of a past item v for a candidate q.

    The first layer is a sum of three parts, of which only one depends on both.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.of_candidate, self.of_past = nn.Linear(width, hidden), nn.Linear(width, hidden, bias=False)
        self.of_both = nn.Linear(width, hidden, bias=False)
        self.second, self.last = nn.Linear(hidden, hidden // 2), nn.Linear(hidden // 2, 1)

    def forward(self, q: Tensor, v: Tensor) -> Tensor:
        """The weights of pairs of vectors (..., D); the two are broadcast."""
        return self.weight(self.of_both(q * v) + self.of_past(v) + self.of_candidate(q))

    def weight(self, hidden: Tensor) -> Tensor:
        """The weights of pairs, from the output of the first layer before its sigmoid."""
        return self.last(torch.sigmoid(self.second(torch.sigmoid(hidden)))).squeeze(-1)


def interest(a_BLC: Tensor, v_BLD: Tensor, real_BL: Tensor, normalised: Literal["no", "softmax"]) -> Tensor:
    """The user's interest as seen by each candidate, (B, C, D): the sum of the embeddings v of the past items
    with their weights a."""
    if normalised == "softmax":
        scaled_BLC = (a_BLC * v_BLD.shape[2] ** -0.5).masked_fill(~real_BL[..., None], -torch.inf)
        a_BLC = scaled_BLC.softmax(1).nan_to_num(0.0)  # the softmax over an empty history is not a number
    else:
        a_BLC = a_BLC * real_BL[..., None]
    return a_BLC.transpose(1, 2) @ v_BLD


class Tower(nn.Module):
    """The final MLP: logits from [u; q; u * q]."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.of_candidate, self.of_user = nn.Linear(width, hidden), nn.Linear(2 * width, hidden, bias=False)
        self.first_dice, self.second = Dice(hidden), nn.Linear(hidden, hidden // 2)
        self.second_dice = Dice(hidden // 2)
        self.last = nn.Linear(hidden // 2, 1)

    def forward(self, u: Tensor, q: Tensor) -> Tensor:
        """The logits of users u and candidates q, (..., D) each."""
        return self.logit(u, q, self.of_candidate(q))

    def logit(self, u: Tensor, q: Tensor, of_candidate: Tensor) -> Tensor:
        """The same, with the candidates' part of the first layer given."""
        hidden = self.first_dice(self.of_user(torch.cat([u, u * q], dim=-1)) + of_candidate)
        return self.last(self.second_dice(self.second(hidden))).squeeze(-1)


class Dice(nn.Module):
    """The activation function s p(s) + alpha s (1 - p(s)), where p is the sigmoid of s after normalisation to
    mean zero and variance one."""

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, s: Tensor) -> Tensor:
        mean, variance = self.mean, self.variance
        if self.training:
            variance, mean = torch.var_mean(s.flatten(0, -2), dim=0, correction=0)
            with torch.no_grad():
                self.mean.lerp_(mean, MOMENTUM)
                self.variance.lerp_(variance, MOMENTUM)
        p = torch.sigmoid((s - mean) * (variance + EPSILON).rsqrt())
        return s * (self.alpha + (1 - self.alpha) * p)


class PairCatalog:
    """A catalogue that keeps the activation weights of past items for all candidates. Such a weight depends
    on two items and not on the user, so it is computed once. As many as fit are kept: those of the past items
    that were used most recently."""

    def __init__(self, model: DIN, items: int) -> None:
        self.model, self.items = model, items
        self.q_ID: Tensor = model.items(torch.arange(items, device=model.items.weight.device))
        self.for_unit = model.unit.of_candidate(self.q_ID)
        self.for_tower = model.tower.of_candidate(self.q_ID)
        kept = min(max(KEPT // max(items, 1), model.history), model.items.known + 1)
        self.weights = self.q_ID.new_empty(kept, items)
        # The row of `weights` that belongs to each past item. The item that was used longest ago comes first.
        self.row_of: OrderedDict[int, int] = OrderedDict()

    def scores(self, context: Batch) -> Tensor:
        """The logits of all items, one context after the other."""
        return torch.stack([self._row(history_L[is_real(history_L)]) for history_L in context.history_BL])

    def _row(self, history_L: Tensor) -> Tensor:
        """The logits of all items after one history without padding."""
        model, v_LD = self.model, self.model.items(history_L)
        items = history_L.clamp(max=model.items.known).tolist()  # to the model, all unknown items are one
        rows = [self._kept(item, v_D) for item, v_D in zip(items, v_LD, strict=True)]
        a_LI = self.weights[on_device(torch.tensor(rows, dtype=torch.int64), v_LD.device)]
        all_real = torch.ones_like(a_LI[None, :, 0], dtype=torch.bool)
        logits_I = self.q_ID.new_empty(self.items)
        for first in range(0, self.items, TOGETHER):
            part = slice(first, first + TOGETHER)
            u_JD = interest(a_LI[None, :, part], v_LD[None], all_real, model.config.normalised)[0]
            logits_I[part] = model.tower.logit(u_JD, self.q_ID[part], self.for_tower[part])
        return logits_I

    def _kept(self, item: int, v_D: Tensor) -> int:
        """The row of `weights` that holds the weights of this past item; they are computed if they are not
        there."""
        if item not in self.row_of:
            full = len(self.row_of) == len(self.weights)
            row = self.row_of.popitem(last=False)[1] if full else len(self.row_of)
            self.row_of[item] = row
            unit = self.model.unit
            # (q * v) W = q (v * W)
            projected, both_DH = unit.of_past(v_D), v_D[:, None] * unit.of_both.weight.T
            for first in range(0, self.items, TOGETHER):
                part = slice(first, first + TOGETHER)
                hidden = torch.addmm(self.for_unit[part] + projected, self.q_ID[part], both_DH)
                self.weights[row, part] = unit.weight(hidden)
        self.row_of.move_to_end(item)
        return self.row_of[item]
