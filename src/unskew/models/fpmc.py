"""FPMC: Factorizing Personalized Markov Chains (Rendle et al., WWW 2010), trained with S-BPR.

    score(u, c) = <U_u, V_c> + mean over l in the basket of <A_c, Z_l>

    U_u, V_c  the embeddings of user u and candidate c for the user's taste
    A_c, Z_l  the embeddings of candidate c and of item l for the transition from l to c
    basket    the last `history` items of the user; by default only the last one, because events here have no
              baskets

S-BPR compares each event with another item, drawn at random: -log sigmoid of the difference of their scores.

What was decided where the paper is silent: The term of user and last item is dropped, because it is the same
for all candidates. A negative is drawn from all items but the target, so it may be an item that the user had
before; that matters where people come back to things. An unknown user has only the transition term, and an
empty history only the user term. Simpler than in the paper: Adam replaces SGD, and every event is drawn once
per epoch instead of at random.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from unskew.core.config import AtLeast1, Settings, Width
from unskew.data.batches.batch import Batch, SequenceBatch
from unskew.data.log.split import Known
from unskew.data.log.views import HISTORY, PAD
from unskew.models.base import DotProduct, HistoryConfig
from unskew.nn.layers import Embeddings, is_real, right_padded
from unskew.nn.losses import divisor
from unskew.nn.phases import Phase

ROWS = 1024  # events that are compared together: few enough for their vectors to stay in the cache


class FPMC(DotProduct, name="fpmc", paper="Rendle et al., WWW 2010"):
    """Matrix factorisation plus a factorised Markov chain of the last items."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        history: AtLeast1 = 1
        """The number of last items of a user that count as the basket before."""
        width: Width = 64
        """The width of each of the four embedding tables (d)."""

    config: Config
    knows_by = ("items", "user")
    # Epochs are short, and the model learns slowly.
    recipe: ClassVar[Settings] = {"epochs": 100, "patience": 10}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        users, items, width = known.users.size, known.items.size, config.width
        self.users = Embeddings(known.users, width, _xavier(users, width))  # U
        self.users.begins = "zero"
        # V and A side by side, because they are read together
        self.items = Embeddings(known.items, 2 * width, _xavier(items, width))
        self.basket = Embeddings(known.items, width, _xavier(items, width))  # Z

    @property
    def window(self) -> int:
        return HISTORY

    def context(self, batch: Batch) -> Tensor:
        basket_BK = batch.history_BL[:, max(batch.history_BL.shape[1] - self.history, 0) :]
        known_B = batch.user_B
        if self.users.unknown is None:
            # An unknown user gets the zero vector instead of the mean of all users.
            known_B = known_B.masked_fill(known_B >= self.users.known, PAD)
        basket_BD = torch.einsum("bkd,bk->bd", self.basket(basket_BK), fractions(basket_BK))
        return torch.cat([self.users(known_B), basket_BD], dim=1)

    def vectors(self, item: Tensor) -> Tensor:
        return self.items(item)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("S-BPR", "histories", self.sbpr_loss, self.parameters),)

    def sbpr_loss(self, batch: SequenceBatch) -> Tensor:
        """The mean S-BPR loss of each event against another item. The basket is the newest items strictly
        before the event."""
        row_N, past_N, target_N, weight_N, offset = batch.targets()
        position_NK = past_N[:, None] - torch.arange(self.history, 0, -1, device=past_N.device)
        before_NK = right_padded(batch.items_BL)[row_N[:, None], position_NK.clamp(min=0)]
        before_NK = before_NK.masked_fill(position_NK < 0, PAD)
        nothing_N = self.items.weight.new_zeros(len(target_N))
        weight_N = nothing_N + 1 if weight_N is None else weight_N
        other_N = another(target_N, self.items.known)
        ahead_N = nothing_N if offset is None else offset.of(target_N) - offset.of(other_N)
        ids = batch.user_B[row_N], before_NK, target_N, other_N
        tables = self.users.table(), self.basket.table(), self.items.table()
        total = _SBPR.apply(*tables, *ids, ahead_N, weight_N)
        return total / divisor(len(target_N))


def fractions(basket_NK: Tensor) -> Tensor:
    """The weight of each item of a basket in the mean of the basket; zero for padding."""
    real_NK = is_real(basket_NK)
    return real_NK / real_NK.sum(1, keepdim=True).clamp(min=1)


def another(item: Tensor, items: int) -> Tensor:
    """For each item, one of the others, all equally likely."""
    return (item + torch.randint(1, max(items, 2), item.shape, device=item.device)) % items


class _SBPR(torch.autograd.Function):
    """The weighted sum of -log sigmoid of how much higher each target scores than the other item, plus how
    far it is `ahead` anyway. There is little to compute, and most of the time goes into moving vectors. So
    they are looked up, compared and turned into their gradients in chunks that stay in the cache."""

    @staticmethod
    def forward(
        context: Any,
        U: Tensor,
        Z: Tensor,
        VA: Tensor,
        user: Tensor,
        basket: Tensor,
        target: Tensor,
        other: Tensor,
        ahead: Tensor,
        weight: Tensor,
    ) -> Tensor:
        of_U, of_Z, of_VA = (torch.zeros_like(table) for table in (U, Z, VA))
        width, total = U.shape[1], U.new_zeros(())
        fraction, basket = fractions(basket)[:, :, None], basket.clamp(min=0)
        for first in range(0, len(target), ROWS):
            part = slice(first, first + ROWS)
            whom, what, mine = user[part], basket[part].flatten(), fraction[part]
            better, worse = target[part], other[part]
            here = U.new_empty(len(whom), 2 * width)
            torch.index_select(U, 0, whom, out=here[:, :width])
            torch.sum(Z.index_select(0, what).view(*mine.shape[:2], width).mul_(mine), 1, out=here[:, width:])
            difference = VA.index_select(0, better).sub_(VA.index_select(0, worse))
            margin = (here * difference).sum(1) + ahead[part]
            total += (functional.softplus(-margin) * weight[part]).sum()
            slope = (torch.sigmoid(-margin) * -weight[part])[:, None]
            of_VA.index_add_(0, better, here.mul_(slope)).index_add_(0, worse, here.neg_())
            of_U.index_add_(0, whom, difference.mul_(slope)[:, :width])
            of_Z.index_add_(0, what, (difference[:, None, width:] * mine).view(-1, width))
        context.slopes = of_U, of_Z, of_VA
        return total

    @staticmethod
    def backward(context: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *(slope * gradient[0] for slope in context.slopes), None, None, None, None, None, None


def _xavier(rows: int, width: int) -> float:
    """The standard deviation of Glorot and Bengio for a matrix of this shape."""
    return float((2 / max(rows + width, 1)) ** 0.5)
