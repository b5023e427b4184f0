"""Is one model better than another, or is the difference due to chance?

There are two sources of chance: the seed with which a model was trained, and the users who happen to be in
the log. The bootstrap draws both with replacement: the users, the same for all models, and the seeds,
separately for each model. The mean of n resampled seeds varies less than the mean of n new ones, by a factor
of (n - 1) / n in variance, and is corrected for that. With a single seed, the effect of the seed is unknown.
Then the interval is over users only, says so, and the bootstrap gives no p-value.

The paired t-test over units, which papers report, is always given. It takes the means over seeds for granted
and all units for independent, though rows of one user are correlated. So it answers a smaller question:
whether these very networks differ on such rows, and not whether the models do. With a single seed it is the
only p-value there is, and whoever shows it says what it ignores.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.evaluation.evaluate import Evaluation

Floats = NDArray[np.float64]
AnyFloats = NDArray[np.floating[Any]]
Name = TypeVar("Name", bound=Hashable)

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
    p_t: float  # the paired t-test over units, of means over seeds; it ignores chance due to the seeds

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
    check_comparable([*ones, *others], metric)
    first, second = drawn_means([ones, others], metric, draws, seed)
    return comparison_of(ones, others, metric, first - second)


def comparison_of(
    ones: Sequence[Evaluation], others: Sequence[Evaluation], metric: str, drawn: Floats
) -> Comparison:
    """The comparison of two models whose differences the bootstrap has drawn already."""
    seeds, weights = (len(ones), len(others)), ones[0].weights
    first, second = (np.mean([found.values[metric] for found in group], axis=0) for group in (ones, others))
    difference = first - second
    p_bootstrap = two_sided(drawn) if min(seeds) > 1 else None
    mean = float((difference * weights).sum() / weights.sum())
    return Comparison(metric, mean, *bounds(drawn), seeds, p_bootstrap, paired_t(difference, weights))


def interval(
    found: Evaluation | Sequence[Evaluation], metric: str, draws: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The 95 % bootstrap interval of a mean: over users and, if there are several evaluations, over seeds."""
    group = [found] if isinstance(found, Evaluation) else list(found)
    check_comparable(group, metric)
    return bounds(drawn_means([group], metric, draws, seed)[0])


def check_comparable(
    group: Sequence[Evaluation], metric: str | None = None, names: Sequence[str] | None = None
) -> None:
    """Refuse evaluations that differ in anything but the model and its seed.

    metric: refuse evaluations without this one, too.
    names: what an error calls each evaluation; by default its model.
    """
    called = names or [_called(found, number) for number, found in enumerate(group, 1)]
    for name, each in zip(called, group, strict=True):
        if metric is not None and metric not in each.values:
            raise BadInput(f"{name}: no metric {metric!r}; there are {', '.join(each.values)}")
        different = unlike(group[0], each)
        if different:
            raise BadInput(f"{called[0]} and {name} cannot be compared: {different}")


def _called(found: Evaluation, number: int) -> str:
    model, seed = found.about.get("model"), found.about.get("training_seed")
    known = "" if model is None else f" ({model})" if seed is None else f" ({model}, seed {seed})"
    return f"evaluation {number}{known}"


def unlike(one: Evaluation, other: Evaluation) -> str:
    """In what two evaluations differ besides the model and its seed; empty if they can be compared."""
    both = one.about, other.about
    if one.protocol != other.protocol:
        return f"protocol {one.protocol} is not protocol {other.protocol}"
    if one.test != other.test:
        return f"the {one.test} test is not the {other.test} test"
    data, repeats, seeds = ([about.get(name) for about in both] for name in ("data", "repeats", "seed"))
    if data[0] != data[1]:
        return "they are not of the same data"
    if repeats[0] != repeats[1]:
        return f"repeats are {repeats[0]} in one and {repeats[1]} in the other"
    if one.protocol != "full" and seeds[0] != seeds[1]:
        return f"their candidates were drawn with seed {seeds[0]} and with seed {seeds[1]}"
    if len(one.user) != len(other.user):
        return f"they are not of the same rows: {len(one.user):,} units and {len(other.user):,} units"
    if not np.array_equal(one.user, other.user) or not _same_rows(one, other):
        return f"they are not of the same rows, though both have {len(one.user):,} units"
    if not np.array_equal(one.weights, other.weights):
        return "they are not of the same rows: the weights differ"
    return ""


def _same_rows(one: Evaluation, other: Evaluation) -> bool:
    if one.rows is None or other.rows is None:
        return one.rows is other.rows
    return np.array_equal(one.rows, other.rows)


def drawn_means(groups: Sequence[Sequence[Evaluation]], metric: str, draws: int, seed: int) -> Floats:
    """The weighted mean of each model (row) in each draw of users and seeds (column).

    groups: of each model its evaluations, one for each seed; all of the same units (`check_comparable`).

    In a draw all models have the same users, so that their differences are paired. The seeds are drawn for
    each model on its own.
    """
    weights_U = groups[0][0].weights
    users, of = np.unique(groups[0][0].user, return_inverse=True)
    size = np.bincount(of, weights_U)
    sums = [
        np.stack([np.bincount(of, found.values[metric] * weights_U) for found in group]) for group in groups
    ]
    means = [np.empty((len(group), draws)) for group in groups]
    for draw, times in enumerate(users_drawn(len(users), draws, seed)):
        total = float(size @ times)
        for sums_SU, means_SD in zip(sums, means, strict=True):
            means_SD[:, draw] = sums_SU @ times / total
    return np.stack(over_seeds(means, seed))


def users_drawn(users: int, draws: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """How often each user is drawn, draw by draw."""
    random = np.random.default_rng([seed, 17])
    for _ in range(draws):
        yield np.bincount(random.integers(0, users, users), minlength=users)


def over_seeds(means: Sequence[AnyFloats], seed: int) -> list[AnyFloats]:
    """Of each model the mean over seeds that are drawn for it alone, in every draw of users.

    means: of each model the means by seed (first axis) and draw of users (last axis).
    """
    streams = (np.random.default_rng([seed, 17, stream]) for stream in range(1, len(means) + 1))
    return [resampled(each, random) for each, random in zip(means, streams, strict=True)]


def resampled(means: AnyFloats, random: np.random.Generator) -> AnyFloats:
    """The mean over the first axis, redrawn with replacement for every place of the last one, and widened:
    the mean of n resampled seeds varies less than that of n new ones."""
    size, draws = len(means), means.shape[-1]
    mean = np.asarray(means.mean(axis=0))
    if size == 1:
        return mean
    chosen = random.integers(0, size, (draws, size)).T
    drawn = means[chosen, ..., np.arange(draws)].mean(axis=0, dtype=np.float64).T
    return np.asarray(mean + math.sqrt(size / (size - 1)) * (drawn - mean), means.dtype)


def bounds(drawn: AnyFloats) -> tuple[float, float]:
    """The 95 % interval of what the bootstrap has drawn."""
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    return low, high


def two_sided(drawn: AnyFloats) -> float:
    """The p-value of differences that the bootstrap has drawn. It is never 0: so few draws cannot know."""
    tail = min((drawn <= 0).mean(), (drawn >= 0).mean())
    return min(1.0, 2 * float(tail + 1 / len(drawn)))


def paired_t(difference: Floats, weights: Floats | None = None) -> float:
    """The two-sided p-value of Student's paired t-test.

    With weights it is of the weighted mean, whose variance is that of a ratio of two sums. Equal weights are
    as good as none.
    """
    size = len(difference)
    if size < 2:
        return 1.0  # a single unit says nothing
    fraction = np.ones(size) if weights is None else weights / weights.mean()
    mean = (fraction * difference).mean()
    deviation = np.sqrt(((fraction * (difference - mean)) ** 2).sum() / (size - 1))
    if not deviation:
        return 1.0 if not difference.any() else 0.0
    t = abs(mean) / (deviation / np.sqrt(size))
    # With x = sqrt(n) tan(angle), the density of T with n degrees of freedom becomes a power of the cosine.
    freedom = size - 1
    angle = math.atan(t / math.sqrt(freedom))
    angles = np.linspace(angle, min(math.pi / 2, angle + 40 / math.sqrt(freedom)), 20_001)
    height = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(1.0, 2 * height * float(np.trapezoid(np.cos(angles) ** (freedom - 1), angles)))


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Holm's correction for several tests.

    The k-th smallest of m p-values is multiplied by m - k + 1, and none may be smaller than the one before.
    """
    adjusted: dict[Name, float] = {}
    highest = 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda pair: pair[1])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p))
        adjusted[name] = highest
    return adjusted


def holm_of_known(p_values: Mapping[Name, float | None]) -> dict[Name, float | None]:
    """The same where some tests have no p-value: they count all the same, as ones that find nothing."""
    adjusted = holm({name: 1.0 if p is None else p for name, p in p_values.items()})
    return {name: None if p is None else adjusted[name] for name, p in p_values.items()}
