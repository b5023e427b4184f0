"""FPMC: Factorizing Personalized Markov Chains (Rendle et al., WWW 2010), trained with S-BPR.

    score(u, c) = U_u . V_c + mean over l in the basket of A_c . Z_l

The basket is the last `history` items; by default the last one, as where events have no baskets. The term of
user and last item is dropped, since it is the same for all candidates. A negative is drawn from all items but
the target, a basket of one: what the user had before may be one, which matters where people come back to
things. A stranger has the transition term only, an empty history the user term only. Simplified: Adam in the
place of SGD, and one draw per event and epoch in the place of draws from all events.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from unskew.config import AtLeast1
from unskew.data.batch import Batch, SequenceBatch
from unskew.data.split import Known
from unskew.data.views import HISTORY, PAD
from unskew.layers import Embeddings, is_real, right_padded
from unskew.models.base import DotProduct, HistoryConfig, Phase, Stage

ROWS = 1024  # compared together


class FPMC(DotProduct, name="fpmc", paper="Rendle et al., WWW 2010"):
    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        history: AtLeast1 = 1
        """Items of the basket before, the newest of the user."""
        width: AtLeast1 = 64
        """Width of each of the four tables (d)."""

    config: Config
    recipe: ClassVar[dict[str, Any]] = {
        "rounds": 100,
        "patience": 10,
    }  # rounds are short, and it learns slowly

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        users, items, width = known.users.size, known.items.size, config.width
        self.users = Embeddings(known.users, width, _xavier(users, width))  # U
        self.items = Embeddings(
            known.items, 2 * width, _xavier(items, width)
        )  # V and A side by side: they are read together
        self.basket = Embeddings(known.items, width, _xavier(items, width))  # Z

    @property
    def window(self) -> int:
        return HISTORY

    def context(self, batch: Batch) -> Tensor:
        basket_BK = batch.history_BL[:, max(batch.history_BL.shape[1] - self.history, 0) :]
        known_B = batch.user_B
        if self.users.unknown is None:
            known_B = known_B.masked_fill(known_B >= self.users.known, PAD)  # not the average of all: zero
        return torch.cat(
            [self.users(known_B), torch.einsum("bkd,bk->bd", self.basket(basket_BK), shares(basket_BK))],
            dim=1,
        )

    def vectors(self, item: Tensor) -> Tensor:
        return self.items(item)

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        return (
            Stage(
                "train",
                (Phase("S-BPR", "histories", self.sbpr_loss, self.parameters),),
                rounds,
                validated=True,
            ),
        )

    def sbpr_loss(self, batch: SequenceBatch) -> Tensor:
        """Each event against another item, drawn anew, given the basket before: the newest items strictly
        before."""
        row_N, past_N, target_N, weight_N = batch.targets()
        place_NK = past_N[:, None] - torch.arange(self.history, 0, -1)
        before_NK = right_padded(batch.items_BL)[row_N[:, None], place_NK.clamp(min=0)].masked_fill(
            place_NK < 0, PAD
        )
        weight_N = torch.ones(len(target_N)) if weight_N is None else weight_N
        ids = batch.user_B[row_N], before_NK, target_N, another(target_N, self.items.known)
        tables = self.users.table(), self.basket.table(), self.items.table()
        total = _SBPR.apply(*tables, *ids, weight_N)
        return total / max(len(target_N), 1)


def shares(basket_NK: Tensor) -> Tensor:
    """What each item of a basket counts in its mean."""
    real_NK = is_real(basket_NK)
    return real_NK / real_NK.sum(1, keepdim=True).clamp(min=1)


def another(item: Tensor, items: int) -> Tensor:
    """Of each item, one of the others, all equally likely."""
    return (item + torch.randint(1, max(items, 2), item.shape)) % items


class _SBPR(torch.autograd.Function):
    """-log sigmoid of how much better each target scores than the other item, times its weight, summed.

    There is next to nothing to compute, so moving vectors is all that it costs: they are looked up, compared
    and turned into their gradient while they are in the cache.
    """

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
        weight: Tensor,
    ) -> Tensor:
        of_U, of_Z, of_VA = (torch.zeros_like(table) for table in (U, Z, VA))
        width, total = U.shape[1], U.new_zeros(())
        share, basket = shares(basket)[:, :, None], basket.clamp(min=0)
        for first in range(0, len(target), ROWS):
            part = slice(first, first + ROWS)
            whom, what, better, worse, mine = (
                user[part],
                basket[part].flatten(),
                target[part],
                other[part],
                share[part],
            )
            here = torch.empty(len(whom), 2 * width)
            torch.index_select(U, 0, whom, out=here[:, :width])
            torch.sum(Z.index_select(0, what).view(*mine.shape[:2], width).mul_(mine), 1, out=here[:, width:])
            difference = VA.index_select(0, better).sub_(VA.index_select(0, worse))
            margin = (here * difference).sum(1)
            total += (functional.softplus(-margin) * weight[part]).sum()
            slope = (torch.sigmoid(-margin) * -weight[part])[:, None]
            of_VA.index_add_(0, better, here.mul_(slope)).index_add_(0, worse, here.neg_())
            of_U.index_add_(0, whom, difference.mul_(slope)[:, :width])
            of_Z.index_add_(0, what, (difference[:, None, width:] * mine).view(-1, width))
        context.slopes = of_U, of_Z, of_VA
        return total

    @staticmethod
    def backward(context: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *(slope * gradient[0] for slope in context.slopes), None, None, None, None, None


def _xavier(rows: int, width: int) -> float:
    return float((2 / max(rows + width, 1)) ** 0.5)
