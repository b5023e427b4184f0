"""DIN: Deep Interest Network for Click-Through Rate Prediction (Zhou et al., KDD 2018).

How much each past item matters depends on the candidate: an activation unit gives the pair (candidate, past
item) a weight, and the user, as this candidate sees them, is the sum of the past items times their weights.

Weights    not normalised, as in the paper: a long interest is a strong one. `normalised="softmax"` is what
           the authors' code does, with 1/sqrt(d). Padding has no weight.
Unit       80-40-1 with sigmoids, as in their code, on [q, v, q * v]: q - v adds nothing to a linear layer
           that reads both.
Dice       in the tower, with an alpha learned per unit and statistics that are really taken: of the batch in
           training, running ones afterwards. (Theirs never normalises, and RecBole's is SiLU.)
Simpler    items only, no categories, no features of the user; no further batch norms and no layer between
           pooling and tower; Adam 1e-3 as on their own data, for SGD as on Amazon's; negatives are drawn anew
           in every epoch.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.catalog import Catalog
from unskew.config import AtLeast1
from unskew.data.batch import Batch
from unskew.data.log import Log
from unskew.data.split import Known
from unskew.layers import Embeddings, is_real
from unskew.losses import weighted_mean
from unskew.models.base import HistoryConfig, Phase, Recommender, Stage

KEPT = 1 << 26  # activation weights that a catalogue keeps: 256 MB
TOGETHER = 1 << 11  # candidates whose hidden layers are held at once: they stay in the cache
EPSILON = 1e-8  # beside the variance in Dice
MOMENTUM = 0.1  # of the running statistics


class DIN(Recommender, name="din", paper="Zhou et al., Deep Interest Network, KDD 2018"):
    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: AtLeast1 = 64
        """Width of embeddings (d)."""
        attention: AtLeast1 = 80
        """Width of the first hidden layer of the activation unit; the second is half as wide."""
        hidden: AtLeast1 = 80
        """Width of the first hidden layer of the tower; the second is half as wide."""
        normalised: Literal["no", "softmax"] = "no"
        """Whether the weights of a history's items sum to one."""

    config: Config

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        width = config.width
        self.items = Embeddings(known.items, width)
        self.unit = ActivationUnit(width, config.attention)
        self.tower = Tower(width, config.hidden)

    def forward(self, batch: Batch) -> Tensor:
        q_BCD, v_BLD, real_BL = (
            self.items(batch.candidates_BC),
            self.items(batch.history_BL),
            is_real(batch.history_BL),
        )
        a_BLC = self.unit(q_BCD[:, None], v_BLD[:, :, None])
        return self.tower(interest(a_BLC, v_BLD, real_BL, self.config.normalised), q_BCD)

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        return PairCatalog(self, len(log.items))

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        return (
            Stage(
                "train", (Phase("clicks", "pairs", self.click_loss, self.parameters),), rounds, validated=True
            ),
        )

    def click_loss(self, batch: Batch) -> Tensor:
        terms_BC = functional.binary_cross_entropy_with_logits(self(batch), batch.labels_BC, reduction="none")
        return weighted_mean(terms_BC, batch.weight_BC)


class ActivationUnit(nn.Module):
    """The weight of a past item v for a candidate q. The first layer is in three parts, of which only one is
    of the pair."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.of_candidate, self.of_past = nn.Linear(width, hidden), nn.Linear(width, hidden, bias=False)
        self.of_both = nn.Linear(width, hidden, bias=False)
        self.second, self.last = nn.Linear(hidden, hidden // 2), nn.Linear(hidden // 2, 1)

    def forward(self, q: Tensor, v: Tensor) -> Tensor:
        """Weights of vectors (..., D); the two are broadcast."""
        return self.weight(self.of_both(q * v) + self.of_past(v) + self.of_candidate(q))

    def weight(self, hidden: Tensor) -> Tensor:
        """What the first layer makes of a pair becomes its weight."""
        return self.last(torch.sigmoid(self.second(torch.sigmoid(hidden)))).squeeze(-1)


def interest(a_BLC: Tensor, v_BLD: Tensor, real_BL: Tensor, normalised: Literal["no", "softmax"]) -> Tensor:
    """The user as each candidate sees them: the sum of the past items times their weights, (B, C, D)."""
    if normalised == "softmax":
        scaled_BLC = (a_BLC * v_BLD.shape[2] ** -0.5).masked_fill(~real_BL[..., None], -torch.inf)
        a_BLC = scaled_BLC.softmax(1).nan_to_num(0.0)  # of nothing, nothing
    else:
        a_BLC = a_BLC * real_BL[..., None]
    return a_BLC.transpose(1, 2) @ v_BLD


class Tower(nn.Module):
    """Logits from [u, q, u * q]."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.of_candidate, self.of_user = nn.Linear(width, hidden), nn.Linear(2 * width, hidden, bias=False)
        self.first_dice, self.second, self.second_dice = (
            Dice(hidden),
            nn.Linear(hidden, hidden // 2),
            Dice(hidden // 2),
        )
        self.last = nn.Linear(hidden // 2, 1)

    def forward(self, u: Tensor, q: Tensor) -> Tensor:
        return self.logit(u, q, self.of_candidate(q))

    def logit(self, u: Tensor, q: Tensor, of_candidate: Tensor) -> Tensor:
        hidden = self.first_dice(self.of_user(torch.cat([u, u * q], dim=-1)) + of_candidate)
        return self.last(self.second_dice(self.second(hidden))).squeeze(-1)


class Dice(nn.Module):
    """s p(s) + alpha s (1 - p(s)), where p is the logistic function of s less its mean, over its
    deviation."""

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
    """A weight belongs to a pair of items, whoever the user is: those of a past item, for all candidates, are
    computed once and kept.

    Only the newest used are, as many as fit.
    """

    def __init__(self, model: DIN, items: int) -> None:
        self.model, self.items = model, items
        self.q_ID: Tensor = model.items(torch.arange(items))
        self.for_unit, self.for_tower = (
            model.unit.of_candidate(self.q_ID),
            model.tower.of_candidate(self.q_ID),
        )
        self.weights = torch.empty(
            min(max(KEPT // max(items, 1), model.history), model.items.known + 1), items
        )
        self.row_of: OrderedDict[int, int] = (
            OrderedDict()
        )  # the rows of `weights`, that of the item used longest ago first

    def scores(self, context: Batch) -> Tensor:
        return torch.stack([self._row(history_L[is_real(history_L)]) for history_L in context.history_BL])

    def _row(self, history_L: Tensor) -> Tensor:
        """Logits of all items after one history."""
        model, v_LD = self.model, self.model.items(history_L)
        # To the model all strangers are one item.
        rows = [
            self._kept(item, v_LD[place])
            for place, item in enumerate(history_L.clamp(max=model.items.known).tolist())
        ]
        a_LI, everybody = self.weights[rows], torch.ones(1, len(rows), dtype=torch.bool)
        logits_I = self.q_ID.new_empty(self.items)
        for first in range(0, self.items, TOGETHER):
            part = slice(first, first + TOGETHER)
            u_JD = interest(a_LI[None, :, part], v_LD[None], everybody, model.config.normalised)[0]
            logits_I[part] = model.tower.logit(u_JD, self.q_ID[part], self.for_tower[part])
        return logits_I

    def _kept(self, item: int, v_D: Tensor) -> int:
        """The row of `weights` with those of this past item."""
        if item not in self.row_of:
            row = (
                len(self.row_of)
                if len(self.row_of) < len(self.weights)
                else self.row_of.popitem(last=False)[1]
            )
            self.row_of[item] = row
            unit = self.model.unit
            projected, both_DH = (
                unit.of_past(v_D),
                v_D[:, None] * unit.of_both.weight.T,
            )  # (q * v) W = q (v * W)
            for first in range(0, self.items, TOGETHER):
                part = slice(first, first + TOGETHER)
                self.weights[row, part] = unit.weight(
                    torch.addmm(self.for_unit[part] + projected, self.q_ID[part], both_DH)
                )
        self.row_of.move_to_end(item)
        return self.row_of[item]
