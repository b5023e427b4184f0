"""Is one model better than another, or is the difference due to chance?

There are two sources of chance: the seed with which a model was trained, and the users who happen to be in
the log. The bootstrap draws both with replacement: the users, the same for both models, and the seeds,
separately for each model. The mean of n resampled seeds varies less than the mean of n new ones, by a factor
of (n - 1) / n in variance, and is corrected for that. With a single seed, the effect of the seed is unknown.
Then the interval is over users only, says so, and comes without a p-value.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unskew.errors import BadInput
from unskew.evaluate import Evaluation

Floats = NDArray[np.float64]

DRAWS = 2000


@dataclass(frozen=True)
class Comparison:
    """How much better the first model is, on the same units."""

    metric: str
    difference: float  # the weighted mean of the first model minus that of the second
    low: float  # the 95 % interval of the difference
    high: float
    seeds: tuple[int, int]  # how many seeds each of the two models has
    p_bootstrap: float | None  # over seeds and users; None if one of the models has a single seed
    # The paired t-test of the paper, over units, of means over seeds. It ignores chance due to the seeds.
    p_t: float | None

    @property
    def interval_over(self) -> str:
        """Which sources of chance the interval covers."""
        return "users and seeds" if min(self.seeds) > 1 else "users only"


def compare(
    one: Evaluation | Sequence[Evaluation],
    other: Evaluation | Sequence[Evaluation],
    metric: str = "ndcg@10",
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """Compare two models on the same units.

    one, other: the evaluations of each model; one, or one for each seed that it was trained with.
    draws: how often the bootstrap draws.
    seed: the seed of these draws.
    """
    ones, others = ([found] if isinstance(found, Evaluation) else list(found) for found in (one, other))
    _check_comparable([*ones, *others], metric)
    first, second = (np.stack([found.values[metric] for found in group]) for group in (ones, others))
    weights = ones[0].weights
    means_of_first = _means(first, weights, ones[0].user, draws, seed, 1)
    drawn = means_of_first - _means(second, weights, ones[0].user, draws, seed, 2)
    low, high = np.quantile(drawn, [0.025, 0.975])
    difference = first.mean(0) - second.mean(0)
    seeds = len(first), len(second)
    p_bootstrap = p_t = None
    if min(seeds) > 1:
        tail = min((drawn <= 0).mean(), (drawn >= 0).mean())
        p_bootstrap, p_t = min(1.0, 2 * float(tail + 1 / draws)), paired_t(difference)
    mean = float((difference * weights).sum() / weights.sum())
    return Comparison(metric, mean, float(low), float(high), seeds, p_bootstrap, p_t)


def interval(
    found: Evaluation | Sequence[Evaluation], metric: str, draws: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The 95 % bootstrap interval of a mean: over users and, if there are several evaluations, over seeds."""
    group = [found] if isinstance(found, Evaluation) else list(found)
    _check_comparable(group, metric)
    values = np.stack([each.values[metric] for each in group])
    low, high = np.quantile(_means(values, group[0].weights, group[0].user, draws, seed, 1), [0.025, 0.975])
    return float(low), float(high)


def _check_comparable(group: list[Evaluation], metric: str) -> None:
    """Refuse evaluations that differ in anything but the model and its seed."""
    first = group[0]
    for each in group:
        if metric not in each.values:
            raise BadInput(f"no metric {metric!r}; there are {', '.join(each.values)}")
        if (first.protocol, first.test) != (each.protocol, each.test):
            raise BadInput(
                f"{first.protocol} on {first.test} cannot be compared with {each.protocol} on {each.test}"
            )
        if first.about.get("repeats") != each.about.get("repeats"):
            raise BadInput(
                f"repeats {first.about.get('repeats')} cannot be compared with repeats "
                f"{each.about.get('repeats')}"
            )
        if first.about.get("data") != each.about.get("data"):
            raise BadInput("the evaluations are not of the same data")
        same_users = np.array_equal(first.user, each.user)
        same_weights = np.array_equal(first.weights, each.weights)
        if not same_users or not _same_rows(first, each) or not same_weights:
            raise BadInput("the evaluations are not of the same rows")


def _same_rows(one: Evaluation, other: Evaluation) -> bool:
    if one.rows is None or other.rows is None:
        return one.rows is other.rows
    return np.array_equal(one.rows, other.rows)


def _means(
    values_SU: Floats, weights_U: Floats, user_U: NDArray[np.int64], draws: int, seed: int, stream: int
) -> Floats:
    """The weighted mean of each draw of users and seeds.

    The drawn users depend on `seed` only, so two models are compared on the same users. The drawn seeds also
    depend on `stream`, which differs between the models.
    """
    users, of = np.unique(user_U, return_inverse=True)
    size = np.bincount(of, weights_U)
    sums_SU = np.stack([np.bincount(of, values * weights_U) for values in values_SU])
    of_users, of_seeds = np.random.default_rng([seed, 17]), np.random.default_rng([seed, 17, stream])
    seeds = len(values_SU)
    widened = math.sqrt(seeds / (seeds - 1)) if seeds > 1 else 0.0
    means = np.empty(draws)
    for draw in range(draws):
        times = np.bincount(of_users.integers(0, len(users), len(users)), minlength=len(users))
        mean_S = sums_SU @ times / float(size @ times)
        chosen = of_seeds.integers(0, seeds, seeds)
        means[draw] = mean_S.mean() + widened * (mean_S[chosen].mean() - mean_S.mean())
    return means


def paired_t(difference: Floats) -> float:
    """The two-sided p-value of Student's paired t-test."""
    size = len(difference)
    if size < 2:
        return 1.0  # a single unit says nothing
    deviation = difference.std(ddof=1)
    if not deviation:
        return 1.0 if not difference.any() else 0.0
    t = abs(difference.mean()) / (deviation / np.sqrt(size))
    # With x = sqrt(n) tan(angle), the density of T with n degrees of freedom becomes a power of the cosine.
    freedom = size - 1
    angle = math.atan(t / math.sqrt(freedom))
    angles = np.linspace(angle, min(math.pi / 2, angle + 40 / math.sqrt(freedom)), 20_001)
    height = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(1.0, 2 * height * float(np.trapezoid(np.cos(angles) ** (freedom - 1), angles)))


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Holm's correction for several tests.

    The k-th smallest of m p-values is multiplied by m - k + 1, and none may be smaller than the one before.
    """
    adjusted, highest = {}, 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda pair: pair[1])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p))
        adjusted[name] = highest
    return adjusted
