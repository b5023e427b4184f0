"""ItemKNN with recency: items are near to each other if the same users have both (Sarwar et al., WWW 2001;
Deshpande and Karypis, TOIS 2004).

    sim(a, b) = sum over the users u of w(u, a) w(u, b) / (|w_a| |w_b| + shrink)
    score(c)  = sum over the items i of the history of decay^age(i) sim(c, i)

    w(u, a)  0 unless user u has item a in the training set, and otherwise by `weighting`:
               cosine   1, so sim = |U_a & U_b| / (sqrt(|U_a| |U_b|) + shrink)
               tf-idf   idf(u) = log(1 + items / items of u): a user who takes everything says little
               bm25     idf(u) (K1 + 1) / (1 + K1 (1 - B + B |U_a| / mean of |U|)), and nothing is divided:
                        sim = sum of w w (Robertson and Walker, SIGIR 1994)
    age(i)   the number of newer items in the history; an item that is in the history twice counts twice

What was decided: A user counts once for an item. Each candidate keeps only its nearest neighbours. Where past
items are candidates, an item is its own neighbour, because who took it once may take it again; elsewhere it
is not. Nothing is learned by gradients; the decay is chosen on the validation set unless it is given. Ties
are broken by popularity, which also ranks the items for an empty history.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from unskew.core.config import AtLeast1, NotNegative, Search, Share
from unskew.data.batches.batch import Batch
from unskew.data.log.log import LogView
from unskew.data.log.split import Known, Split
from unskew.data.log.views import PAD
from unskew.models.base import HistoryConfig
from unskew.models.recency import CountingModel
from unskew.nn.scoring import Catalog

DECAYS = (0.5, 0.8, 0.95, 1.0)
TIE = 1e-6  # what popularity adds to the score of the most popular item: far less than any similarity
K1, B = 1.2, 0.75  # of bm25
BLOCK = 2048  # items whose neighbours are searched together

Weighting = Literal["cosine", "tf-idf", "bm25"]


class ItemToItem(CountingModel):
    """A model whose scores are a product of the histories and a matrix of items by items. Popularity breaks
    ties."""

    knows_by = ("items",)
    counts_once: ClassVar[bool] = False  # whether an item that is in the history twice counts once
    popularity_I: Tensor

    def __init__(self, known: Known, config: HistoryConfig, **defaults: float) -> None:
        super().__init__(known, config, **defaults)
        self.register_buffer("popularity_I", torch.zeros(known.items.size))

    @property
    def past_decay(self) -> float:
        """The weight of an item of the history relative to the next newer one."""
        return 1.0

    @abstractmethod
    def matrix(self) -> Any:
        """What each item of the history (row) adds to the score of each candidate (column)."""

    def fit_statistics(self, split: Split) -> None:
        counts = split.item_counts[: split.known_items]
        self.popularity_I.copy_(torch.from_numpy(TIE * counts / max(counts.max(initial=0), 1)).float())

    def take_over(self, before: Any, items: Tensor) -> None:
        """Begin with what the same model of other codes has counted (`unskew.training.extend`); `items` has
        the code that each item had before, or PAD."""
        known = (items != PAD) & (items < len(before.popularity_I))
        self.popularity_I[known] = before.popularity_I[items[known]]
        code_now = torch.full_like(before.popularity_I, PAD, dtype=torch.int64)
        code_now[items[known]] = known.nonzero()[:, 0]
        self.take_over_pairs(before, items[known], code_now)

    @abstractmethod
    def take_over_pairs(self, before: Any, items: Tensor, code_now: Tensor) -> None:
        """Take over what was counted of pairs of items: of those that both have, by their codes before;
        `code_now` gives the code now of each code before, or PAD."""

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        return ItemToItemCatalog(self, log)


class ItemToItemCatalog:
    """A catalogue that needs one product of two matrices per block of contexts."""

    def __init__(self, model: ItemToItem, log: LogView) -> None:
        self.model, self.log, self.matrix = model, log, model.matrix()

    def scores(self, context: Batch) -> Tensor:
        """The scores of all items in each context; of items that training never saw, zero."""
        own, popularity_I = context.history_BL.cpu().numpy(), self.model.popularity_I
        row, place = np.nonzero((own != PAD) & (own < len(popularity_I)))
        weight = (self.model.past_decay ** (own.shape[1] - 1 - place)).astype(np.float32)
        shape = len(own), len(popularity_I)
        past = sparse.csr_array((weight, (row, own[row, place])), shape=shape)
        if self.model.counts_once:
            past.data[:] = 1
        product = past @ self.matrix
        dense = product.toarray() if sparse.issparse(product) else np.asarray(product)
        scores = torch.from_numpy(dense) + popularity_I.cpu()
        return functional.pad(scores, (0, len(self.log.items) - scores.shape[1]))


class ItemKNN(ItemToItem, name="itemknn", paper="Sarwar et al., WWW 2001; Deshpande and Karypis, TOIS 2004"):
    """Scores candidates by their similarity to the items of the history."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        neighbours: Annotated[AtLeast1, Search.among(50, 100, 200)] = 100
        """The number of nearest items that each candidate is compared with."""
        shrink: Annotated[NotNegative, Search.among(0.0, 10.0, 100.0)] = 0.0
        """A number added to the denominator of a similarity, so that pairs of items with few common users
        count less. `bm25` has no denominator."""
        weighting: Annotated[Weighting, Search.among("cosine", "tf-idf", "bm25")] = "cosine"
        """What a user counts for an item: as every user (`cosine`), the more the fewer items the user has
        (`tf-idf`), or that and the less the more users the item has (`bm25`)."""
        decay: Share | None = None
        """The weight of an item of the history relative to the next newer one. By default the one that
        validation prefers."""

    config: Config
    tried: ClassVar[dict[str, tuple[float, ...]]] = {"decay": DECAYS}
    decay: Tensor
    nearest_IK: Tensor
    similarity_IK: Tensor

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, decay=1.0)
        shape = known.items.size, min(config.neighbours, known.items.size)
        self.register_buffer("nearest_IK", torch.zeros(shape, dtype=torch.int64))
        self.register_buffer("similarity_IK", torch.zeros(shape))

    def fit_statistics(self, split: Split) -> None:
        super().fit_statistics(split)
        config = self.config
        nearest, similarity = nearest_items(split, config.neighbours, config.shrink, config.weighting)
        self.nearest_IK.copy_(nearest)
        self.similarity_IK.copy_(similarity)

    def take_over_pairs(self, before: "ItemKNN", items: Tensor, code_now: Tensor) -> None:
        known = code_now[items]
        kept = min(before.nearest_IK.shape[1], self.nearest_IK.shape[1])
        self.nearest_IK[known, :kept] = code_now.clamp(min=0)[before.nearest_IK[items, :kept]]
        self.similarity_IK[known, :kept] = before.similarity_IK[items, :kept]

    @property
    def past_decay(self) -> float:
        return float(self.decay)

    def matrix(self) -> Any:
        size, neighbours = self.nearest_IK.shape
        candidate, near = np.repeat(np.arange(size), neighbours), self.nearest_IK.cpu().numpy().ravel()
        similarity = self.similarity_IK.cpu().numpy().ravel()
        of = similarity != 0
        return sparse.csr_array((similarity[of], (near[of], candidate[of])), shape=(size, size))


def training_matrix(split: Split) -> Any:
    """Users x items, sparse: 1 where a user has a positive on an item in the training set. A rare item counts
    as unknown, so nobody has it."""
    train = split.mask("train") & (split.log.label == 1)
    if split.known.items.rare is not None:
        train[train] = ~split.known.items.rare[split.log.item[train]]
    user, item = split.log.user[train], split.log.item[train]
    shape = split.known_users, split.known_items
    matrix = sparse.csr_array((np.ones(len(user), np.float32), (user, item)), shape=shape)
    matrix.data[:] = 1
    return matrix


def weighted(matrix: Any, weighting: Weighting) -> tuple[Any, NDArray[np.float32]]:
    """The matrix of w, and the norm of each item that similarities are divided by."""
    if weighting != "cosine":
        of_user, of_item = matrix.sum(axis=1), matrix.sum(axis=0)
        idf = np.log1p(matrix.shape[1] / np.maximum(of_user, 1))
        matrix = sparse.diags_array(idf) @ matrix
        if weighting == "bm25":
            saturation = (K1 + 1) / (1 + K1 * (1 - B + B * of_item / max(of_item.mean(), 1e-12)))
            matrix = matrix @ sparse.diags_array(saturation)
            return sparse.csr_array(matrix, dtype=np.float32), np.ones(matrix.shape[1], np.float32)
    norm = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=0)))
    return sparse.csr_array(matrix, dtype=np.float32), norm.astype(np.float32)


def nearest_items(
    split: Split, neighbours: int, shrink: float, weighting: Weighting = "cosine"
) -> tuple[Tensor, Tensor]:
    """The nearest items of each known item, and their similarities, (I, K) each; of equally near ones, those
    with the first codes. The similarity is zero if the two have no common user."""
    matrix, norm = weighted(training_matrix(split), weighting)
    items, by_item = split.known_items, sparse.csr_array(matrix.T)
    kept = min(neighbours, items)
    nearest, similarity = np.zeros((items, kept), np.int64), np.zeros((items, kept), np.float32)
    divisor = 0.0 if weighting == "bm25" else shrink
    for first in range(0, items, BLOCK):
        near = sparse.csr_array(by_item[first : first + BLOCK] @ matrix)
        near.sort_indices()
        row = np.repeat(np.arange(near.shape[0]), np.diff(near.indptr))
        values = near.data / np.maximum(norm[first + row] * norm[near.indices] + divisor, 1e-12)
        if not split.repeats:
            values[near.indices == first + row] = 0
        for item, (start, end) in enumerate(zip(near.indptr[:-1], near.indptr[1:], strict=True), first):
            best = start + np.argsort(-values[start:end], kind="stable")[:kept]
            nearest[item, : len(best)], similarity[item, : len(best)] = near.indices[best], values[best]
    return torch.from_numpy(nearest), torch.from_numpy(similarity)
