"""Diverse lists: maximal marginal relevance (Carbonell and Goldstein, 1998).

    next item = argmax over the pool of (1 - diverse) * relevance - diverse * likeness to what is listed

The pool holds the items with the best scores. Relevance is the score, scaled so that the pool goes from 0 to
1; likeness is the cosine of the items' vectors, or, for models that have none, of their audiences.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from unskew.data.log.log import LogView
from unskew.data.log.views import Ints
from unskew.nn.scoring import Catalog, HasItemVectors

POOL, LEAST = 5, 50  # the pool has so many times the items of the list, and at least so many
MEMBERS = 200  # of each audience, the newest


def diverse(
    scores_BI: Tensor, k: int, fraction: float, like: Callable[[Ints], Tensor]
) -> tuple[Tensor, Tensor]:
    """The scores and the codes of the k items that each row lists, in this order. `like` gives the likeness
    of all pairs of some items."""
    pool = scores_BI.topk(min(max(POOL * k, LEAST), scores_BI.shape[1]))
    values, codes = pool.values.clone(), pool.indices.clone()
    for row in range(len(scores_BI)):
        there = int(torch.isfinite(pool.values[row]).sum())
        order = _order(pool.values[row, :there], min(k, there), fraction, like(codes[row, :there].numpy()))
        chosen = torch.cat([order, torch.arange(there, len(values[row]))])
        values[row, : len(chosen)], codes[row, : len(chosen)] = (
            pool.values[row, chosen],
            pool.indices[row, chosen],
        )
        values[row, len(order) :] = -torch.inf
    return values[:, :k], codes[:, :k]


def _order(scores_N: Tensor, k: int, fraction: float, like_NN: Tensor) -> Tensor:
    """Which items of the pool are listed, best first."""
    span = scores_N.max() - scores_N.min() if len(scores_N) else torch.zeros(())
    relevance = (scores_N - scores_N.min()) / span.clamp(min=1e-12) if len(scores_N) else scores_N
    nearest, chosen = torch.zeros_like(relevance), list[int]()
    for _ in range(k):
        gain = (1 - fraction) * relevance - fraction * nearest
        gain[chosen] = -torch.inf
        best = int(gain.argmax())
        nearest = like_NN[best].clone() if not chosen else torch.maximum(nearest, like_NN[best])
        chosen.append(best)
    return torch.tensor(chosen, dtype=torch.int64)


def likeness(catalog: Catalog, log: LogView, at: int, item: Ints) -> Tensor:
    """The likeness of all pairs of some items, (N, N), from 0 to 1."""
    if isinstance(catalog, HasItemVectors):
        directions = torch.nn.functional.normalize(catalog.item_vectors(item), dim=1)
        return (directions @ directions.T).clamp(min=0)
    view = log.audiences
    whose, place = view.flat(*view.before(item, at, MEMBERS))
    users, member = np.unique(view.ids[place], return_inverse=True)
    who = torch.zeros(len(item), max(len(users), 1))
    who[torch.from_numpy(whose), torch.from_numpy(member)] = 1
    directions = torch.nn.functional.normalize(who, dim=1)
    return directions @ directions.T
