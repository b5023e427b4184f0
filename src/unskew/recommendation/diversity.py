"""How a list is chosen from scores where it is more than the best items: diversity, and rules about the list.

Diversity is maximal marginal relevance (Carbonell and Goldstein, 1998):

    next item = argmax over the pool of (1 - diverse) * relevance - diverse * likeness to what is listed

The pool holds the items with the best scores and, where items have tags, the best item of each tag. Relevance
is the score, scaled so that the best scores go from 0 to 1. Likeness is the larger of two cosines: that of
the items' vectors (for models that have none, of their audiences), and that of their tags, in which a tag
that n of N items have counts log(1 + N / n).

Rules about the list (`rule_masks.py`) say which items may come next: none of a value that is listed as often
as it may be, and only items that fill a quota as soon as there are no more positions than these need.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from unskew.data.log.arrays import Ints
from unskew.data.log.log import LogView
from unskew.data.log.vocabulary import Feature
from unskew.nn.scoring import Catalog, HasItemVectors
from unskew.recommendation.rule_masks import ItemRules, Mask

POOL, LEAST = 5, 50  # the pool has so many times the items of the list, and at least so many
TAGS_IN_POOL = 200  # whose best items are in the pool
MEMBERS = 200  # of each audience, the newest

Floats = NDArray[np.float32]


class TagVectors:
    """The tags of all items as vectors of length 1, or 0 where an item has none.

    features
        What is known of the items; numbers are no tags.
    items
        How many there are.
    """

    def __init__(self, features: Mapping[str, Feature], items: int) -> None:
        self.features, self.items = features, items
        tagged = [feature.tags for feature in features.values() if not feature.is_number]
        sizes = np.cumsum([0, *(len(tags.names) for tags in tagged)])
        row = np.concatenate([np.zeros(0, np.int64), *(tags.code for tags in tagged)])
        column = [
            np.zeros(0, np.int64),
            *(tags.tag + first for tags, first in zip(tagged, sizes, strict=False)),
        ]
        tag = np.concatenate(column)
        weight = np.log1p(items / np.maximum(np.bincount(tag, minlength=int(sizes[-1])), 1))[tag]
        length = np.sqrt(np.bincount(row, weight**2, minlength=items))
        shape = (items, int(sizes[-1]))
        self._vectors = sparse.csr_array((weight / length[row], (row, tag)), shape, dtype=np.float32)

    def __bool__(self) -> bool:
        return self._vectors.nnz > 0

    def likeness(self, item: Ints) -> Floats:
        """The cosines of all pairs of some items."""
        some = self._vectors[item]
        return np.asarray((some @ some.T).todense(), np.float32)

    def best_of_each(self, item: Ints) -> Ints:
        """The first of some items that has each tag, without more tags than the pool has room for."""
        some = self._vectors[item]
        row = np.repeat(np.arange(len(item)), np.diff(some.indptr))
        _, first = np.unique(some.indices, return_index=True)
        return item[np.unique(row[np.sort(first)])[:TAGS_IN_POOL]]


class Likeness:
    """The likeness of items, from 0 to 1.

    behaviour
        That of all pairs of some items by what users do.
    tags
        Their tags, if there are any.
    """

    def __init__(self, behaviour: Callable[[Ints], Floats], tags: TagVectors) -> None:
        self._behaviour, self.tags = behaviour, tags

    def pairs(self, item: Ints) -> Floats:
        """The likeness of all pairs of some items."""
        behaviour = self._behaviour(item)
        return np.maximum(behaviour, self.tags.likeness(item)) if self.tags else behaviour


def choose(
    scores: Floats, k: int, rules: ItemRules, diverse: float = 0.0, like: Likeness | None = None
) -> Ints:
    """The codes of a list, in its order.

    Parameters
    ----------
    scores
        The scores of all items, minus infinity for those that may not be listed.
    k
        The largest number of items of the list.
    rules
        The rules about the list.
    diverse, like
        How diverse the list is, and the likeness of items.

    Returns
    -------
    numpy.ndarray
        At most k codes.
    """
    candidates = np.flatnonzero(np.isfinite(scores))
    candidates = candidates[np.argsort(-scores[candidates], kind="stable")]
    chosen = _Chosen(rules, min(k, len(candidates)), len(scores))
    for position, code in rules.pins.items():
        if position < chosen.length and np.isfinite(scores[code]):
            chosen.add(code, position)
    if diverse and like is not None:
        _choose_diverse(chosen, candidates, scores, diverse, like)
    while not chosen.is_full:
        following = candidates[chosen.may_follow(candidates)]
        if not len(following):  # no item is left that fills a quota
            following = candidates[chosen.is_open(candidates)]
        if not len(following):
            break
        chosen.add(int(following[0]))
    return chosen.codes()


def _choose_diverse(
    chosen: "_Chosen", candidates: Ints, scores: Floats, diverse: float, like: Likeness
) -> None:
    """Fill a list with diverse items, as long as its rules let any of the pool follow."""
    best = candidates[: max(POOL * chosen.length, LEAST)]
    quotas = [candidates[quota.among[candidates]][: chosen.length] for quota in chosen.rules.quotas]
    pool = np.concatenate([best, chosen.codes(), like.tags.best_of_each(candidates), *quotas])
    pool = pool[np.sort(np.unique(pool, return_index=True)[1])]
    span = max(float(scores[best[0]] - scores[best[-1]]), 1e-12) if len(best) else 1.0
    relevance = np.clip((scores[pool] - scores[best[-1:]]) / span, 0, 1)
    likeness = like.pairs(pool)
    nearest = likeness[np.isin(pool, chosen.codes())].max(axis=0, initial=0)
    while not chosen.is_full:
        gain = (1 - diverse) * relevance - diverse * nearest
        gain[~chosen.may_follow(pool)] = -np.inf
        following = int(gain.argmax()) if len(gain) else 0
        if not len(gain) or not np.isfinite(gain[following]):
            return
        chosen.add(int(pool[following]))
        nearest = np.maximum(nearest, likeness[following])


class _Chosen:
    """A list that is being filled, and what its rules let follow."""

    def __init__(self, rules: ItemRules, length: int, items: int) -> None:
        self.rules, self.length = rules, length
        self._codes = np.full(length, -1, np.int64)
        self._is_open = np.ones(items, bool)  # neither listed nor of a value that is listed often enough
        self._counts = [np.zeros(limit.values, np.int64) for limit in rules.limits]
        self._needs = [quota.least(length) for quota in rules.quotas]

    @property
    def is_full(self) -> bool:
        """Whether the list has all of its items."""
        return not (self._codes < 0).any()

    def codes(self) -> Ints:
        """What is listed, in order."""
        return self._codes[self._codes >= 0]

    def add(self, code: int, position: int | None = None) -> None:
        """List an item, at the first free position or at this one."""
        self._codes[np.flatnonzero(self._codes < 0)[0] if position is None else position] = code
        self._is_open[code] = False
        for limit, counts in zip(self.rules.limits, self._counts, strict=True):
            for value in limit.values_of(code).tolist():
                counts[value] += 1
                if counts[value] >= limit.most:
                    self._is_open[limit.items_with(value)] = False
        self._needs = [
            need - bool(quota.among[code]) for need, quota in zip(self._needs, self.rules.quotas, strict=True)
        ]

    def is_open(self, codes: Ints) -> Mask:
        """Which of some items may be listed at all."""
        return self._is_open[codes]

    def may_follow(self, codes: Ints) -> Mask:
        """Which of some items may be listed next: those that fill a quota, if the positions that are left are
        no more than the quotas need."""
        is_open = self._is_open[codes]
        pairs = zip(self._needs, self.rules.quotas, strict=True)
        due = [(need, quota.among) for need, quota in pairs if need > 0]
        if sum(need for need, _ in due) < int((self._codes < 0).sum()):
            return is_open
        return is_open & np.logical_or.reduce([among[codes] for _, among in due])


def likeness(catalog: Catalog, log: LogView, at: int, item: Ints) -> Floats:
    """The likeness of all pairs of some items by what users do, (N, N), from 0 to 1."""
    if isinstance(catalog, HasItemVectors):
        directions = torch.nn.functional.normalize(catalog.item_vectors(item), dim=1)
        return (directions @ directions.T).clamp(min=0).cpu().numpy()
    view = log.audiences
    whose, place = view.flat(*view.before(item, at, MEMBERS))
    users, member = np.unique(view.ids[place], return_inverse=True)
    who = torch.zeros(len(item), max(len(users), 1))
    who[torch.from_numpy(whose), torch.from_numpy(member)] = 1
    directions = torch.nn.functional.normalize(who, dim=1)
    return (directions @ directions.T).numpy()
