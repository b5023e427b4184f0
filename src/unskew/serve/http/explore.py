"""Random exposure with known probabilities.

A list of k items has m random ones, where m ~ Binomial(k, fraction). The k - m best items are listed, and m
items are drawn without replacement from all other candidates, each as likely as any other. So of N candidates
the one with rank r is shown with the probability

    sum over m of P(m) * (1 if r <= k - m else m / (N - (k - m)))
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlog1py, xlogy

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
    ways = gammaln(k + 1) - gammaln(m + 1) - gammaln(k - m + 1)
    return np.asarray(np.exp(ways + xlogy(m, fraction) + xlog1py(k - m, -fraction)))


def propensities(k: int, candidates: int, fraction: float) -> Floats:
    """The probability of being shown of the ranks 1 to k, and, at the end, of any rank beyond."""
    if not 1 <= k <= candidates:
        raise ValueError(f"a list of {k} of {candidates} candidates")
    m = np.arange(k + 1)
    chance = binomial(k, fraction)
    # Of m random items each of the N - (k - m) others is one with this probability; with m = 0, none is.
    drawn = chance * m / np.maximum(candidates - k + m, 1)
    at_most, beyond = np.cumsum(chance), np.cumsum(drawn[::-1])[::-1]
    ranks = np.arange(1, k + 1)
    among_best = at_most[k - ranks]
    among_others = np.append(beyond, 0.0)[k - ranks + 1]
    return np.minimum(np.append(among_best + among_others, beyond[0]), 1.0)


def draw(k: int, candidates: int, fraction: float, random: np.random.Generator) -> Drawn:
    """Draw a list of at most k items of a ranking of so many candidates."""
    k = min(k, candidates)
    if not k:
        return Drawn(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, bool))
    many = int(random.binomial(k, fraction)) if fraction else 0
    best = k - many
    is_random = np.zeros(k, bool)
    is_random[random.choice(k, many, replace=False)] = True
    ranks = np.empty(k, np.int64)
    ranks[~is_random] = np.arange(best)
    ranks[is_random] = best + random.choice(candidates - best, many, replace=False)
    chance = propensities(k, candidates, fraction)
    return Drawn(ranks, chance[np.minimum(ranks, k)], is_random)
