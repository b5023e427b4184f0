"""Metrics: functions of the rank of each positive, and figures of the recommended lists.

Ranks count from 1. Equal scores share the mean of their ranks, so a model that gives every item the same
score earns nothing.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from unskew.data.log.split import Split
from unskew.data.log.views import PAD
from unskew.diagnostics.log.statistics import gini

Floats = NDArray[np.float64]


def ndcg(rank: Floats, cut: int) -> Floats:
    """NDCG@cut with one relevant item: 1 / log2(rank + 1), and 0 beyond the cut-off."""
    return np.where(rank <= cut, 1 / np.log2(np.maximum(rank, 1) + 1), 0.0)


def hit(rank: Floats, cut: int) -> Floats:
    """The hit rate HR@cut: 1 if the item is among the first `cut`, otherwise 0."""
    return (rank <= cut).astype(np.float64)


def mrr(rank: Floats, cut: int) -> Floats:
    """The reciprocal rank MRR@cut: 1 / rank, and 0 beyond the cut-off."""
    return np.where(rank <= cut, 1 / np.maximum(rank, 1), 0.0)


# With one relevant item, recall@K is HR@K; with several targets per user it is not (evaluate.py).
METRICS: dict[str, Callable[[Floats, int], Floats]] = {"ndcg": ndcg, "hr": hit, "recall": hit, "mrr": mrr}


def written(metric: str) -> str:
    """A metric as papers write it: NDCG@10."""
    return metric.upper() if metric == "auc" or metric.partition("@")[0] in METRICS else metric


def beyond_accuracy(split: Split, lists: NDArray[np.int32], head: float = 0.2) -> dict[str, float]:
    """What the recommended lists are like, apart from being right.

    coverage: the fraction of the items that are recommended to at least one user.
    gini: how unevenly the recommendations are distributed over the items; 0 is even.
    popularity: the mean number of training positives of a recommended item.
    long_tail: the fraction of recommendations outside the head, the most popular items in training.

    `lists` has one row of items per context, PAD where a list is shorter; `head` is the fraction of the known
    items that makes up the head.
    """
    counts, known, listed = split.item_counts, split.known_items, lists[lists != PAD]
    shown = np.bincount(listed, minlength=len(split.log.items))
    popular = np.argsort(-counts[:known], kind="stable")[: int(np.ceil(head * known))]
    tail = np.ones(len(counts), bool)
    tail[popular] = False
    return {
        "coverage@10": float((shown > 0).mean()),
        "gini@10": gini(shown),
        "popularity@10": float(counts[listed].mean()),
        "long_tail@10": float(tail[listed].mean()),
    }
