"""Random exposure with known probabilities.

A list of k items has m random ones, where m ~ Binomial(k, fraction). The m items are drawn without
replacement from all N candidates, each as likely as any other; the k - m best items that were not drawn fill
the rest of the list. So random items are a fair sample of all candidates, the best ones included, and the
positives among them need no weights: P(shown at random) = fraction * k / N for each candidate.

Let t be the rank, counted from 0, of the last item that fills the list. Given m,

    P(t | m) = C(t, k - m - 1) C(N - 1 - t, k - 1 - t) / C(N, m)

because m - (k - 1 - t) of the t items above it were drawn. The other k - m - 1 fill the list, and each of the
t is equally likely to be one of them. So the item with rank r is shown with the probability

    sum over m of P(m) * (m / N + P(t = r | m) + sum over t > r of P(t | m) (k - m - 1) / t)

Rules about the list change that. A pinned item is shown with probability 1, and the others are drawn for the
positions that are left. Where a list has limits or quotas, at most one of its items is random, so that they
hold for what is shown: with the probability e = min(1, fraction * k) one candidate is drawn, each as likely
as any other. If it is not in the list, it takes the place of an item, each as likely as any other among those
whose place it can take without breaking a rule; if there is none, the list stays as it is. Let J(c) be the
places that candidate c can take. An item of the list is shown with the probability

    1 - e / N * sum over the c outside the list of [its place is in J(c)] / |J(c)|

and a candidate outside it with e / N, or 0 if J(c) is empty.

Cold items, which hardly anybody has had yet, may have a share of their own: in the fraction w of the lists,
one of the M cold candidates is drawn, each as likely as any other, and stands at a random position; the rest
of the list is drawn as above from the other candidates, with one position less. With P as above for N
candidates and k positions, and P' for N - 1 and k - 1, the item with rank r is shown with the probability

    (1 - w) P(r) + w / M * ([it is cold] + above(r) P'(r - 1) + below(r) P'(r))

where above and below count the other cold candidates with better and worse ranks. Under limits and quotas,
such a list instead exchanges one item for the cold one as described there. Such draws are not marked as
random, because they are a fair sample of the cold candidates alone.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlog1py, xlogy

from unskew.data.log.arrays import Ints
from unskew.recommendation.rule_masks import ItemRules, Mask

Floats = NDArray[np.float64]


class Drawn(NamedTuple):
    """A list: the ranks of its items, counted from 0, the probability that each was shown, and whether it was
    drawn at random."""

    ranks: NDArray[np.int64]
    propensities: Floats
    random: NDArray[np.bool_]


def binomial(k: int, fraction: float) -> Floats:
    """P(m) for m from 0 to k."""
    m = np.arange(k + 1)
    return np.asarray(np.exp(log_choose(k, m) + xlogy(m, fraction) + xlog1py(k - m, -fraction)))


def log_choose(n: ArrayLike, k: ArrayLike) -> Floats:
    """The logarithm of the binomial coefficient; minus infinity where it is zero."""
    n, k = np.asarray(n), np.asarray(k)
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def propensities(k: int, candidates: int, fraction: float) -> Floats:
    """The probability of being shown of the ranks 1 to k, and, at the end, of any rank beyond."""
    if not 1 <= k <= candidates:
        raise ValueError(f"a list of {k} of {candidates} candidates")
    chance, last = binomial(k, fraction), np.arange(k)
    m = np.arange(k + 1)[:, None]
    ways = log_choose(last, k - m - 1) + log_choose(candidates - 1 - last, k - 1 - last)
    of_last = np.exp(ways - log_choose(candidates, m))  # P(t | m); none if the whole list is random
    above = of_last * (k - m - 1) / np.maximum(last, 1)
    below = np.cumsum(above[:, ::-1], axis=1)[:, ::-1] - above  # the sum over t > r
    at_random = fraction * k / candidates
    return np.minimum(np.append(at_random + chance @ (of_last + below), at_random), 1.0)


def draw(k: int, candidates: int, fraction: float, random: np.random.Generator) -> Drawn:
    """Draw a list of at most k items of a ranking of so many candidates."""
    k = min(k, candidates)
    if not k:
        return Drawn(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, bool))
    many = int(random.binomial(k, fraction)) if fraction else 0
    is_random = np.zeros(k, bool)
    is_random[random.choice(k, many, replace=False)] = True
    ranks = np.empty(k, np.int64)
    ranks[is_random] = random.choice(candidates, many, replace=False)
    # Of the k best items, at least k - m were not drawn.
    ranks[~is_random] = np.setdiff1d(np.arange(k), ranks[is_random])[: k - many]
    chance = propensities(k, candidates, fraction)
    return Drawn(ranks, chance[np.minimum(ranks, k)], is_random)


def draw_list(
    ranked: Ints,
    k: int,
    fraction: float,
    rules: ItemRules,
    random: np.random.Generator,
    cold: Mask | None = None,
    share: float = 0.0,
) -> Drawn:
    """Draw a list of candidates under the rules that its best list was made with.

    Parameters
    ----------
    ranked
        The codes of all candidates: first the best list, then the others, best first.
    k
        The largest number of items of a list.
    fraction
        The fraction of random items.
    rules
        The rules, by codes.
    random
        What draws.
    cold, share
        Which of the ranked candidates are cold, and the fraction of the lists in which one of them is drawn.

    Returns
    -------
    Drawn
        The ranks of the items of the list.
    """
    k = min(k, len(ranked))
    is_pinned = np.zeros(len(ranked), bool)
    is_pinned[[at for at, code in rules.pins.items() if at < k and ranked[at] == code]] = True
    free = np.flatnonzero(~is_pinned)
    length = int((free < k).sum())
    places = np.zeros(0, np.int64) if cold is None or not share else np.flatnonzero(cold[free])
    share = share if len(places) and length else 0.0
    if (fraction or share) and (rules.limits or rules.quotas):
        drawn = _exchange(ranked, k, free, fraction, rules, random, places, share)
    elif share:
        drawn = _draw_with_cold(length, len(free), fraction, places, share, random)
    else:
        drawn = draw(length, len(free), fraction, random)
    ranks, chances, is_random = np.arange(k), np.ones(k), np.zeros(k, bool)
    positions = np.flatnonzero(~is_pinned[:k])
    ranks[positions], chances[positions], is_random[positions] = free[drawn.ranks], *drawn[1:]
    return Drawn(ranks, chances, is_random)


def _draw_with_cold(
    k: int, candidates: int, fraction: float, cold: Ints, share: float, random: np.random.Generator
) -> Drawn:
    """A list of which some have one drawn cold item. `cold` are the ranks of cold candidates."""
    if random.random() < share:
        chosen = int(random.choice(cold))
        others = np.delete(np.arange(candidates), chosen)
        rest = draw(k - 1, candidates - 1, fraction, random)
        ranks = np.insert(others[rest.ranks], random.integers(k), chosen)
        is_random = np.zeros(k, bool)
    else:
        ranks, _, is_random = draw(k, candidates, fraction, random)
    plain = propensities(k, candidates, fraction)
    without = propensities(k - 1, candidates - 1, fraction) if k > 1 else np.zeros(1)
    above = np.searchsorted(cold, ranks)
    is_cold = np.isin(ranks, cold)
    below = len(cold) - above - is_cold
    given_cold = above * without[np.clip(ranks - 1, 0, k - 1)] + below * without[np.minimum(ranks, k - 1)]
    chances = (1 - share) * plain[np.minimum(ranks, k)] + share / len(cold) * (is_cold + given_cold)
    return Drawn(ranks, np.minimum(chances, 1.0), is_random)


def _exchange(
    ranked: Ints,
    k: int,
    free: Ints,
    fraction: float,
    rules: ItemRules,
    random: np.random.Generator,
    cold: Ints,
    share: float,
) -> Drawn:
    """The free positions of a list with limits or quotas, of which at most one is random. Ranks are positions
    in `free`."""
    length = int((free < k).sum())
    ranks, chances, is_random = np.arange(length), np.ones(length), np.zeros(length, bool)
    if not length:
        return Drawn(ranks, chances, is_random)
    at_random = (1 - share) * min(1.0, fraction * length)
    chance = np.full(len(free), at_random / len(free))  # with which each candidate is drawn
    chance[cold] += share / max(len(cold), 1)
    can_take = _places(ranked[:k], ranked[free[:length]], ranked[free[length:]], rules)
    many = can_take.sum(0)
    chances = np.clip(1 - (can_take / np.maximum(many, 1)) @ chance[length:], chance[:length], 1)
    coin = random.random()
    if coin < share + at_random:
        of_all = coin >= share
        candidate = int(random.integers(len(free)) if of_all else random.choice(cold))
        if candidate < length:
            is_random[candidate] = of_all
        elif many[candidate - length]:
            place = random.choice(np.flatnonzero(can_take[:, candidate - length]))
            ranks[place], chances[place], is_random[place] = candidate, chance[candidate], of_all
    return Drawn(ranks, chances, is_random)


def _places(listed: Ints, replaceable: Ints, others: Ints, rules: ItemRules) -> Mask:
    """Which items of a list each of the others can take the place of without breaking a rule that the list
    keeps, (replaceable, others)."""
    can_take = np.ones((len(replaceable), len(others)), bool)
    for limit in rules.limits:
        values = np.concatenate([limit.values_of(code) for code in listed.tolist()])
        for value, count in zip(*np.unique(values, return_counts=True), strict=True):
            if count >= limit.most:
                items = limit.items_with(int(value))
                can_take &= np.isin(replaceable, items)[:, None] | ~np.isin(others, items)
    for quota in rules.quotas:
        if quota.among[listed].sum() <= quota.least(len(listed)):
            can_take &= ~quota.among[replaceable][:, None] | quota.among[others]
    return can_take
