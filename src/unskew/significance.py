"""Is one model better than another? Two sources of chance: which seed a model was trained with, and which
users came.

The bootstrap draws both: users with replacement, the same for all models, and seeds with replacement, for
each model of its own. Three seeds resampled vary less than three new ones would, by a factor of (n - 1) / n
in variance; their deviations are widened by that. With one seed nothing is known of the first source, so
there is an interval over users that says so, and no p-value.
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
    difference: float
    low: float  # of the 95 % interval
    high: float
    seeds: tuple[int, int]  # of the two models
    p_bootstrap: float | None  # over seeds and users; None where one of the models has one seed only
    p_t: (
        float | None
    )  # the paper's paired t-test over units, of means over seeds: it takes the seeds for granted

    @property
    def interval_over(self) -> str:
        return "users and seeds" if min(self.seeds) > 1 else "users only"


def compare(
    one: Evaluation | Sequence[Evaluation],
    other: Evaluation | Sequence[Evaluation],
    metric: str = "ndcg@10",
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """Compare two models on the same units. Of each, one evaluation or several, trained with different
    seeds."""
    ones, others = ([found] if isinstance(found, Evaluation) else list(found) for found in (one, other))
    _check_comparable([*ones, *others], metric)
    first, second = (np.stack([found.values[metric] for found in group]) for group in (ones, others))
    weights = ones[0].weights
    drawn = _means(first, weights, ones[0].user, draws, seed, 1) - _means(
        second, weights, ones[0].user, draws, seed, 2
    )
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
    """95 % bootstrap interval of a mean: over users and, of several evaluations, over seeds."""
    group = [found] if isinstance(found, Evaluation) else list(found)
    _check_comparable(group, metric)
    values = np.stack([each.values[metric] for each in group])
    low, high = np.quantile(_means(values, group[0].weights, group[0].user, draws, seed, 1), [0.025, 0.975])
    return float(low), float(high)


def _check_comparable(group: list[Evaluation], metric: str) -> None:
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
        if (
            not np.array_equal(first.user, each.user)
            or not _same_rows(first, each)
            or not np.array_equal(first.weights, each.weights)
        ):
            raise BadInput("the evaluations are not of the same rows")


def _same_rows(one: Evaluation, other: Evaluation) -> bool:
    return (
        one.rows is other.rows
        if one.rows is None or other.rows is None
        else np.array_equal(one.rows, other.rows)
    )


def _means(
    values_SU: Floats, weights_U: Floats, user_U: NDArray[np.int64], draws: int, seed: int, stream: int
) -> Floats:
    """Weighted means of drawn users and drawn seeds. The users of a draw depend on `seed` only, so models are
    compared on the same."""
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
    """Two-sided p of Student's paired t-test."""
    size = len(difference)
    if size < 2:
        return 1.0  # of one unit nothing is known
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
    """Holm's correction: the k-th smallest of m is multiplied by m - k + 1, and none is below the one
    before."""
    adjusted, highest = {}, 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda pair: pair[1])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p))
        adjusted[name] = highest
    return adjusted
