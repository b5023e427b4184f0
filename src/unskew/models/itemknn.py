"""ItemKNN with recency: items are near to each other if the same users have both (Sarwar et al., WWW 2001;
Deshpande and Karypis, TOIS 2004).

    sim(a, b) = |U_a & U_b| / (sqrt(|U_a| |U_b|) + shrink)
    score(c)  = sum over the items i of the history of decay^age(i) sim(c, i)

    U_a     the users who have item a in the training set; each user counts once
    age(i)  the number of newer items in the history; an item that is in the history twice counts twice

What was decided: Each candidate keeps only its nearest neighbours. Nothing is learned by gradients; the decay
is chosen on the validation set unless it is given. Ties are broken by popularity, which also ranks the items
for an empty history.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from unskew.core.config import AtLeast1, NotNegative, Search, Share
from unskew.data.batches.batch import Batch
from unskew.data.log.log import LogView
from unskew.data.log.split import Known, Split
from unskew.data.log.views import PAD
from unskew.models.base import HistoryConfig, Recommender
from unskew.nn.phases import Stage
from unskew.nn.scoring import Catalog

DECAYS = (0.5, 0.8, 0.95, 1.0)  # those that are tried on the validation set
BLOCK = 512  # candidates whose neighbours are searched together
TIE = 1e-6  # what popularity adds to the score of the most popular item: far less than any similarity


class ItemKNN(Recommender, name="itemknn", paper="Sarwar et al., WWW 2001; Deshpande and Karypis, TOIS 2004"):
    """Scores candidates by their similarity to the items of the history."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        """The settings of ItemKNN."""

        neighbours: Annotated[AtLeast1, Search.among(50, 100, 200)] = 100
        """The number of nearest items that each candidate is compared with."""
        shrink: Annotated[NotNegative, Search.among(0.0, 10.0, 100.0)] = 0.0
        """A number added to the denominator of a similarity, so that pairs of items with few common users
        count less."""
        decay: Share | None = None
        """The weight of an item of the history relative to the next newer one. By default the one that
        validation prefers."""

    config: Config
    knows_by = ("items",)
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
        decay = 1.0 if config.decay is None else config.decay
        self.register_buffer("decay", torch.tensor(decay, dtype=torch.float64))

    def fit_statistics(self, split: Split) -> None:
        nearest, similarity = nearest_items(split, self.config.neighbours, self.config.shrink)
        self.nearest_IK.copy_(nearest)
        self.similarity_IK.copy_(similarity)
        counts = split.item_counts[: split.known_items]
        self.popularity_I.copy_(torch.from_numpy(TIE * counts / max(counts.max(), 1)))

    def take_over(self, before: "ItemKNN", items: Tensor) -> None:
        """Begin with what the same model of other codes has counted (`unskew.training.extend`).

        items: the code that each item had before, or PAD.
        """
        known = (items != PAD) & (items < len(before.popularity_I))
        now = torch.zeros(len(before.popularity_I), dtype=torch.int64)
        now[items[known]] = known.nonzero()[:, 0]
        kept = min(before.nearest_IK.shape[1], self.nearest_IK.shape[1])
        self.nearest_IK[known, :kept] = now[before.nearest_IK[items[known], :kept]]
        self.similarity_IK[known, :kept] = before.similarity_IK[items[known], :kept]
        self.popularity_I[known] = before.popularity_I[items[known]]

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        if self.config.decay is not None:
            return []
        return [{"decay": torch.tensor(decay, dtype=torch.float64)} for decay in DECAYS]

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        return ()

    def past(self, history_BL: Tensor) -> Tensor:
        """The weight of each known item in each history, (B, I)."""
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

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        return _Neighbourhood(self, len(log.items))


class _Neighbourhood:
    """A catalogue that needs one sparse matrix product per block of contexts."""

    def __init__(self, model: ItemKNN, items: int) -> None:
        self.model, self.items = model, items
        size, neighbours = model.nearest_IK.shape
        candidate = torch.arange(size).repeat_interleave(neighbours)
        pairs = torch.stack([candidate, model.nearest_IK.flatten()])
        similarity = model.similarity_IK.flatten()
        sparse = torch.sparse_coo_tensor(pairs, similarity, (size, size), check_invariants=True)
        self.similarity_II = sparse.coalesce()

    def scores(self, context: Batch) -> Tensor:
        known = (self.similarity_II @ self.model.past(context.history_BL).T).T + self.model.popularity_I
        return torch.nn.functional.pad(known, (0, self.items - known.shape[1]))


def nearest_items(split: Split, neighbours: int, shrink: float) -> tuple[Tensor, Tensor]:
    """The nearest other items of each known item, and their similarities, (I, K) each. The similarity is zero
    if the two have no common user."""
    items, users = split.known_items, split.known_users
    train = split.mask("train") & (split.log.label == 1)
    rare = split.known.items.rare
    if rare is not None:  # a rare item counts as unknown, so it is no neighbour
        train[train] = ~rare[split.log.item[train]]
    pairs = np.unique(split.log.item[train].astype(np.int64) * users + split.log.user[train])
    item, user = torch.from_numpy(pairs // users), torch.from_numpy(pairs % users)
    pairs_2N, ones_N = torch.stack([item, user]), torch.ones(len(item))
    has_IU = torch.sparse_coo_tensor(pairs_2N, ones_N, (items, users), check_invariants=True).coalesce()
    size_I = torch.bincount(item, minlength=items).float()
    kept = min(neighbours, items - 1)
    nearest, similarity = torch.zeros(items, kept, dtype=torch.int64), torch.zeros(items, kept)
    for first in range(0, items, BLOCK):
        block = torch.arange(first, min(first + BLOCK, items))
        mine = (item >= first) & (item <= block[-1])
        has_UB = torch.zeros(users, len(block)).index_put_((user[mine], item[mine] - first), torch.ones(()))
        near_IB = (has_IU @ has_UB) / (torch.sqrt(size_I[:, None] * size_I[block]) + shrink).clamp(min=1e-12)
        near_IB[block, torch.arange(len(block))] = -1  # an item is not its own neighbour
        best = near_IB.T.topk(kept, dim=1)
        nearest[block], similarity[block] = best.indices, best.values
    return nearest, similarity
