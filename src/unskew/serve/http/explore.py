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
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
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
