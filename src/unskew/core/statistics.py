"""Statistics of means over users and seeds, on plain arrays: the bootstrap over users, Student's t over seeds
and users, the paired t-test, and Holm's correction.

Two things vary by chance: the users who happen to be in the log, and the seed with which a model was
trained. The variance of a mean over seeds and users is that of a two-way layout. The variance of the means by
seed contains what a seed does to single users, and so does the variance over users, which the bootstrap
estimates; it counts once. Intervals and p-values are those of Student's t with Satterthwaite's degrees of
freedom, so that two seeds say little. With one seed the chance of the seed is unknown: the interval is that
of the bootstrap over users, and there is no p-value.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

Floats = NDArray[np.floating[Any]]
Name = TypeVar("Name", bound=Hashable)

LEVEL = 0.05  # of significance; intervals cover the rest
BLOCK = 500  # draws at once, which keeps the memory small


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference of means, its 95 % interval, and the p-value against 0; None with a single
    seed."""

    value: float
    low: float
    high: float
    p: float | None


@dataclass(frozen=True)
class SeedMeans:
    """The means of a model by seed: on the users of the log, and in every draw of users."""

    means_S: Floats
    drawn_SD: Floats

    def scaled(self, factor: float) -> "SeedMeans":
        """The same in another unit."""
        return SeedMeans(factor * self.means_S, factor * self.drawn_SD)


def bootstrap_means(
    values_RN: Floats, user: NDArray[np.integer[Any]], weights: Floats, draws: int, seed: int = 0
) -> Floats:
    """The weighted mean of each row in every draw of users with replacement (columns). In a draw all rows
    have the same users, so that their differences are paired. Equal seeds draw the same users.

    values_RN: a row for each model, seed or metric, and a column for each unit.
    user, weights: of each unit.
    """
    of = np.unique(user, return_inverse=True)[1]
    order = np.argsort(of, kind="stable")
    starts = np.searchsorted(of[order], np.arange(of.max() + 1))
    unit_weights = weights[order].astype(values_RN.dtype)
    sums = np.add.reduceat(values_RN[:, order] * unit_weights, starts, axis=1)
    sizes = np.add.reduceat(unit_weights, starts)
    blocks = np.array_split(_user_counts(len(starts), draws, seed), -(-draws // BLOCK))
    counts = (block.T.astype(values_RN.dtype) for block in blocks)
    return np.concatenate([(sums @ block) / (sizes @ block) for block in counts], axis=1)


@lru_cache(maxsize=4)
def _user_counts(users: int, draws: int, seed: int) -> NDArray[np.uint8]:
    """How often each user (column) is drawn in each draw (row)."""
    random = np.random.default_rng([seed, 17])
    counts = (np.bincount(random.integers(0, users, users), minlength=users) for _ in range(draws))
    return np.stack([of.astype(np.uint8) for of in counts])


def estimate(one: SeedMeans, other: SeedMeans | None = None) -> Estimate:
    """The mean of a model over users and seeds, or its difference to another model on the same users."""
    groups = [(one, 1)] if other is None else [(one, 1), (other, -1)]
    value = float(sum(sign * group.means_S.mean() for group, sign in groups))
    drawn = np.sum([sign * group.drawn_SD.mean(axis=0, dtype=np.float64) for group, sign in groups], axis=0)
    sizes = [len(group.means_S) for group, _ in groups]
    if min(sizes) < 2:
        low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2]).tolist()
        return Estimate(value, low, high, None)
    seeds = [float(group.means_S.var(ddof=1)) / size for (group, _), size in zip(groups, sizes, strict=True)]
    both = 0.0  # the variance that a seed's effect on single users adds: it is in `seeds` and in `users`
    for (group, _), size in zip(groups, sizes, strict=True):
        rest = group.drawn_SD - group.drawn_SD.mean(axis=0)
        both += float(rest.var(axis=1, ddof=1, dtype=np.float64).sum()) / (size * (size - 1))
    users = max(0.0, float(drawn.var(ddof=1)) - both)
    return student(value, sum(seeds) + users, _freedom(seeds, sizes, users))


def _freedom(seeds: Sequence[float], sizes: Sequence[int], users: float) -> float:
    """Satterthwaite's degrees of freedom of a sum of variances; users are so many that theirs is known."""
    spread = sum(part**2 / (size - 1) for part, size in zip(seeds, sizes, strict=True))
    return (sum(seeds) + users) ** 2 / spread if spread else math.inf


def student(value: float, variance: float, freedom: float) -> Estimate:
    """An estimate with the interval and the p-value of Student's t; without any variance it is certain."""
    if variance <= 0:
        return Estimate(value, value, value, 1.0 if value == 0 else 0.0)
    error = math.sqrt(variance)
    half = float(stdtrit(freedom, 1 - LEVEL / 2)) * error
    p = min(1.0, 2 * float(stdtr(freedom, -abs(value) / error)))
    return Estimate(value, value - half, value + half, p)


def refusal_power(loss: float, error: float, margin: float = 0.0) -> float:
    """The probability that a loss is noticed: that the whole 95 % interval of a difference is below -margin.

    With a true difference of -loss and the standard error s of the paired differences, it is
    Phi((loss - margin) / s - 1.96).
    """
    return float(ndtr((loss - margin) / error - ndtri(1 - LEVEL / 2)))


def smallest_noticed_loss(error: float, margin: float = 0.0, power: float = 0.8) -> float:
    """The loss that is noticed with this probability."""
    return margin + error * float(ndtri(power) + ndtri(1 - LEVEL / 2))


def estimate_over_worlds(values: Sequence[float]) -> Estimate:
    """The mean over simulated worlds, each with users and a seed of its own, which vary with the world."""
    array = np.asarray(values)
    return student(float(array.mean()), float(array.var(ddof=1)) / len(array), len(array) - 1)


def paired_t_test(difference: Floats, weights: Floats | None = None) -> float:
    """The two-sided p-value of Student's paired t-test.

    With weights it is of the weighted mean, whose variance is that of a ratio of two sums. Equal weights are
    as good as none.
    """
    size = len(difference)
    if size < 2:
        return 1.0  # a single unit says nothing
    fraction = np.ones(size) if weights is None else weights / weights.mean()
    mean = float((fraction * difference).mean())
    variance = float(((fraction * (difference - mean)) ** 2).sum()) / (size - 1) / size
    return student(mean, variance, size - 1).p or 0.0


def holm(p_values: Mapping[Name, float | None]) -> dict[Name, float | None]:
    """Holm's correction for several tests: the k-th smallest of m p-values is multiplied by m - k + 1, and
    none may be smaller than the one before. Tests without a p-value count all the same, as ones that find
    nothing."""
    adjusted: dict[Name, float | None] = {}
    highest = 0.0
    known = [(p, name) for name, p in p_values.items() if p is not None]
    for place, (p, name) in enumerate(sorted(known, key=lambda pair: pair[0])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p))
        adjusted[name] = highest
    return {name: adjusted.get(name) for name in p_values}
