"""ItemKNN with recency: an item is near to another if the same users have both (Sarwar et al., WWW 2001;
Deshpande and Karypis, TOIS 2004).

    sim(a, b) = |U_a & U_b| / (sqrt(|U_a| |U_b|) + shrink)          score(c) = sum over the history of
                                                                    decay^(age of i) sim(c, i)

U_a are the users who have item a in the training part; a user counts once. Age is the number of newer items
in the history; an item that is in it twice counts twice. Each candidate keeps its nearest neighbours (pruned
by candidate). Nothing is learned by gradients; the decay is chosen on the validation part unless it is given.
Ties, and whoever has no history, go by popularity.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unskew.catalog import Catalog
from unskew.config import AtLeast1, NotNegative, Share
from unskew.data.batch import Batch
from unskew.data.log import Log
from unskew.data.split import Known, Split
from unskew.data.views import PAD
from unskew.models.base import HistoryConfig, Recommender, Stage

DECAYS = (0.5, 0.8, 0.95, 1.0)
BLOCK = 512  # candidates whose neighbours are searched together
TIE = 1e-6  # of the most popular item's popularity; far below any similarity


class ItemKNN(Recommender, name="itemknn", paper="Sarwar et al., WWW 2001; Deshpande and Karypis, TOIS 2004"):
    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        neighbours: AtLeast1 = 100
        """Items that each candidate is compared with, the nearest."""
        shrink: NotNegative = 0.0
        """Raises the denominator, so that few common users count less."""
        decay: Share | None = None
        """Weight of a history item in relation to the next newer one; by default what validation prefers."""

    config: Config
    nearest_IK: Tensor
    similarity_IK: Tensor
    popularity_I: Tensor
    decay: Tensor

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        items = known.items.size
        kept = min(config.neighbours, items - 1)
        self.register_buffer("nearest_IK", torch.zeros(items, kept, dtype=torch.int64))
        self.register_buffer("similarity_IK", torch.zeros(items, kept))
        self.register_buffer("popularity_I", torch.zeros(items))
        self.register_buffer(
            "decay", torch.tensor(1.0 if config.decay is None else config.decay, dtype=torch.float64)
        )

    def measure(self, split: Split) -> None:
        nearest, similarity = nearest_items(split, self.config.neighbours, self.config.shrink)
        self.nearest_IK.copy_(nearest)
        self.similarity_IK.copy_(similarity)
        counts = split.item_counts[: split.known_items]
        self.popularity_I.copy_(torch.from_numpy(TIE * counts / max(counts.max(), 1)))

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        if self.config.decay is not None:
            return []
        return [{"decay": torch.tensor(decay, dtype=torch.float64)} for decay in DECAYS]

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        return ()

    def past(self, history_BL: Tensor) -> Tensor:
        """How much of each known item is in each history, (B, I)."""
        age_L = torch.arange(history_BL.shape[1] - 1, -1, -1)
        weight_BL = (self.decay**age_L).float().expand(history_BL.shape)
        counted = (history_BL != PAD) & (history_BL < len(self.popularity_I))
        empty = torch.zeros(len(history_BL), len(self.popularity_I))
        return empty.scatter_add_(1, history_BL.masked_fill(~counted, 0), weight_BL * counted)

    def forward(self, batch: Batch) -> Tensor:
        known = batch.candidates_BC < len(self.popularity_I)
        candidates = batch.candidates_BC.masked_fill(~known, 0)
        past_BI, nearest_BCK = self.past(batch.history_BL), self.nearest_IK[candidates]
        met = past_BI.gather(1, nearest_BCK.flatten(1)).view(nearest_BCK.shape)
        return ((met * self.similarity_IK[candidates]).sum(2) + self.popularity_I[candidates]) * known

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        return _Neighbourhood(self, len(log.items))


class _Neighbourhood:
    """One sparse product per block of contexts."""

    def __init__(self, model: ItemKNN, items: int) -> None:
        self.model, self.items = model, items
        size, neighbours = model.nearest_IK.shape
        candidate = torch.arange(size).repeat_interleave(neighbours)
        places = torch.stack([candidate, model.nearest_IK.flatten()])
        self.similarity_II = torch.sparse_coo_tensor(
            places, model.similarity_IK.flatten(), (size, size), check_invariants=True
        ).coalesce()

    def scores(self, context: Batch) -> Tensor:
        known = (self.similarity_II @ self.model.past(context.history_BL).T).T + self.model.popularity_I
        return torch.nn.functional.pad(known, (0, self.items - known.shape[1]))


def nearest_items(split: Split, neighbours: int, shrink: float) -> tuple[Tensor, Tensor]:
    """The nearest other items of each known item and how near they are, (I, K) each; of those without a
    common user, zero."""
    items, users = split.known_items, split.known_users
    train = split.mask("train") & (split.log.label == 1)
    rare = split.known.items.rare
    if rare is not None:  # a rare item is unknown, and so it is nobody's neighbour
        train[train] = ~rare[split.log.item[train]]
    pairs = np.unique(split.log.item[train].astype(np.int64) * users + split.log.user[train])
    item, user = torch.from_numpy(pairs // users), torch.from_numpy(pairs % users)
    has_IU = torch.sparse_coo_tensor(
        torch.stack([item, user]), torch.ones(len(item)), (items, users), check_invariants=True
    ).coalesce()
    size_I = torch.bincount(item, minlength=items).float()
    kept = min(neighbours, items - 1)
    nearest, similarity = torch.zeros(items, kept, dtype=torch.int64), torch.zeros(items, kept)
    for first in range(0, items, BLOCK):
        block = torch.arange(first, min(first + BLOCK, items))
        mine = (item >= first) & (item <= block[-1])
        has_UB = torch.zeros(users, len(block)).index_put_((user[mine], item[mine] - first), torch.ones(()))
        near_IB = (has_IU @ has_UB) / (torch.sqrt(size_I[:, None] * size_I[block]) + shrink).clamp(min=1e-12)
        near_IB[block, torch.arange(len(block))] = -1  # nobody is a neighbour of oneself
        best = near_IB.T.topk(kept, dim=1)
        nearest[block], similarity[block] = best.indices, best.values
    return nearest, similarity
