"""Is one model better than another, or is the difference due to chance?

There are two sources of chance: the seed with which a model was trained, and the users who happen to be in
the log. Intervals and p-values cover both if every model has several seeds: Student's t over seeds and users
with Satterthwaite's degrees of freedom (`unskew.core.statistics`), which calls equal models different in 5 %
of the cases (docs/evaluation-protocol.md). With a single seed, the effect of the seed is unknown. Then the
interval is that of a bootstrap over users only, says so, and there is no p-value over seeds.

The paired t-test over rows, which papers report, is always given. It takes the means over seeds for granted
and all rows for independent, though rows of one user are correlated. So it answers a smaller question:
whether these very networks differ on such rows, and not whether the models do. With a single seed it is the
only p-value there is, and its readers must know what it ignores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.core.errors import BadInput
from unskew.core.statistics import SeedMeans, bootstrap_means, estimate, paired_t_test
from unskew.evaluation.evaluate import Evaluation

DRAWS = 2000
NORMAL_QUANTILE = 1.96  # half the width of a 95 % interval, in standard errors


@dataclass(frozen=True)
class Comparison:
    """How much better the first model is, on the same units."""

    metric: str
    difference: float  # the weighted mean of the first model minus that of the second
    low: float  # the 95 % interval of the difference
    high: float
    seeds: tuple[int, int]  # how many seeds each of the two models has
    p_seeds: float | None  # over seeds and users; None if one of the models has a single seed
    p_rows: float  # the paired t-test over rows, of means over seeds; it ignores chance due to the seeds

    @property
    def interval_over(self) -> str:
        """Which sources of chance the interval covers."""
        return "users and seeds" if min(self.seeds) > 1 else "users only"

    @property
    def error(self) -> float:
        """The standard error of the difference, from the width of its interval."""
        return (self.high - self.low) / (2 * NORMAL_QUANTILE)


def compare(
    one: Evaluation | Sequence[Evaluation],
    other: Evaluation | Sequence[Evaluation],
    metric: str = "ndcg@10",
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """Compare two models on the same units.

    Parameters
    ----------
    one, other
        The evaluations of each model: one, or one for each seed that it was trained with.
    metric
        The metric to compare by.
    draws
        The number of draws of the bootstrap over users.
    seed
        The seed of these draws.
    """
    ones, others = _group(one), _group(other)
    check_comparable([*ones, *others], metric)
    return comparison_of(
        ones, others, metric, *(seed_means(of, metric, draws, seed) for of in (ones, others))
    )


def comparison_of(
    ones: Sequence[Evaluation], others: Sequence[Evaluation], metric: str, first: SeedMeans, second: SeedMeans
) -> Comparison:
    """The comparison of two models by their means, which the bootstrap has drawn already."""
    rows = [np.mean([evaluation.values[metric] for evaluation in of], axis=0) for of in (ones, others)]
    p_rows = paired_t_test(rows[0] - rows[1], ones[0].weights)
    difference = estimate(first, second)
    bounds = (difference.value, difference.low, difference.high)
    return Comparison(metric, *bounds, (len(ones), len(others)), difference.p, p_rows)


def interval(
    evaluation: Evaluation | Sequence[Evaluation], metric: str, draws: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of a mean: over users and, if there are several evaluations, over seeds."""
    group = _group(evaluation)
    check_comparable(group, metric)
    mean = estimate(seed_means(group, metric, draws, seed))
    return mean.low, mean.high


def seed_means(group: Sequence[Evaluation], metric: str, draws: int, seed: int) -> SeedMeans:
    """The weighted mean of each seed of a model, on its users and in every draw of users."""
    values = np.stack([evaluation.values[metric] for evaluation in group])
    drawn = bootstrap_means(values, group[0].user, group[0].weights, draws, seed)
    return SeedMeans(np.array([evaluation.mean(metric) for evaluation in group]), drawn)


def _group(evaluation: Evaluation | Sequence[Evaluation]) -> list[Evaluation]:
    return [evaluation] if isinstance(evaluation, Evaluation) else list(evaluation)


def check_comparable(
    group: Sequence[Evaluation], metric: str | None = None, names: Sequence[str] | None = None
) -> None:
    """Refuse evaluations that differ in anything but the model and its seed.

    metric: refuse evaluations without this one, too.
    names: the names of the evaluations in an error; by default their models.
    """
    titles = names or [_title(evaluation, number) for number, evaluation in enumerate(group, 1)]
    for name, evaluation in zip(titles, group, strict=True):
        if metric is not None and metric not in evaluation.values:
            raise BadInput(f"{name}: no metric {metric!r}; there are {', '.join(evaluation.values)}")
        different = unlike(group[0], evaluation)
        if different:
            raise BadInput(f"{titles[0]} and {name} cannot be compared: {different}")


def _title(evaluation: Evaluation, number: int) -> str:
    model, seed = evaluation.about.get("model"), evaluation.about.get("training_seed")
    details = "" if model is None else f" ({model})" if seed is None else f" ({model}, seed {seed})"
    return f"evaluation {number}{details}"


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
