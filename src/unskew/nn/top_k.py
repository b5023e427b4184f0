"""The best items of many contexts, without holding the scores of all items at once."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from unskew.data.batches.batch import Batch
from unskew.data.log.views import Ints

CHUNK = 8192  # items whose scores are held at once, so that they stay in the cache


class Wanted(NamedTuple):
    """Which lists are wanted of some contexts.

    k: the length of a list.
    hidden: which items no list may hold, (items,).
    row, item: further pairs of a context and an item that its list must not hold.
    debias: the debiasing strength; None is that of the model.
    """

    k: int
    hidden: Tensor
    row: Ints
    item: Ints
    debias: float | None = None


class TopK(NamedTuple):
    """Lists of items, best first, (contexts, k). Where a list is shorter than k, its scores end with minus
    infinity."""

    scores: Tensor
    codes: Tensor


@runtime_checkable
class FindsBest(Protocol):
    """A catalogue that finds the best items of contexts without the scores of all items. Its lists are those
    that the scores would give, up to rounding."""

    def best(self, context: Batch, wanted: Wanted) -> TopK | None:
        """The lists of contexts of one moment; None if this catalogue needs all scores for them."""


def best_of_products(state: Tensor, tables: list[Tensor], wanted: Wanted) -> TopK:
    """The best dot products of each state, (B, D), and the columns of some tables, (D, items of each), a
    chunk of columns at a time."""
    best = TopK(torch.full((len(state), wanted.k), -torch.inf), torch.zeros(len(state), wanted.k).long())
    order = np.argsort(wanted.item, kind="stable")
    row, item = torch.from_numpy(wanted.row[order]), wanted.item[order]
    begin = 0
    for table in tables:
        for columns in table.split(CHUNK, dim=1):
            end = begin + columns.shape[1]
            scores = (state @ columns).masked_fill_(wanted.hidden[begin:end], -torch.inf)
            some = slice(*np.searchsorted(item, [begin, end]))
            scores[row[some], torch.from_numpy(item[some] - begin)] = -torch.inf
            found = scores.topk(min(wanted.k, len(columns.T)))
            joined, places = torch.cat([best.scores, found.values], 1).topk(wanted.k)
            best = TopK(joined, torch.cat([best.codes, found.indices + begin], 1).gather(1, places))
            begin = end
    return best
