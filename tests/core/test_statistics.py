"""Statistics of means over users and seeds: equal models are called different in 5 % of the cases."""

import math

import numpy as np
import pytest

from unskew.core.statistics import (
    SeedMeans,
    bootstrap_means,
    estimate,
    estimate_over_worlds,
    holm,
    paired_t_test,
)


def model(random: np.random.Generator, seeds: int, users: int, spreads: tuple[float, float]) -> np.ndarray:
    """A value for each seed and user: the spread of seeds, and that of users within a seed."""
    return spreads[0] * random.standard_normal((seeds, 1)) + spreads[1] * random.standard_normal(
        (seeds, users)
    )


def means_of(values: np.ndarray, draws: int = 200) -> SeedMeans:
    users = values.shape[1]
    return SeedMeans(values.mean(axis=1), bootstrap_means(values, np.arange(users), np.ones(users), draws))


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("spreads", "taste"), [((0.0, 0.3), 0.0), ((0.1, 0.3), 0.0), ((0.0, 0.1), 0.3), ((0.03, 0.1), 0.3)]
)
def test_equal_models_are_called_different_in_5_percent(
    seeds: int, spreads: tuple[float, float], taste: float
) -> None:
    """Where seeds matter and where they do not, and where users like one of the models more."""
    random, different = np.random.default_rng([seeds, int(100 * taste)]), 0
    for _ in range(400):
        one, other = (model(random, seeds, 80, spreads) for _ in range(2))
        one = one + taste * random.standard_normal(80)
        p = estimate(means_of(one), means_of(other)).p
        different += p is not None and p < 0.05
    assert 2 <= different <= 36  # 5 % would be 20


def test_a_difference_that_seeds_and_users_cannot_explain_is_found() -> None:
    random = np.random.default_rng(0)
    one, other = (model(random, 3, 80, (0.01, 0.1)) for _ in range(2))
    difference = estimate(means_of(one + 0.2), means_of(other))
    assert difference.p is not None
    assert difference.p < 0.01
    assert difference.low < 0.2 < difference.high
    assert estimate(means_of(one[:1]), means_of(other)).p is None  # a single seed


def test_what_a_seed_does_to_single_users_counts_once() -> None:
    """Then the variance is that of the means by seed, and not twice as much."""
    random = np.random.default_rng(1)
    values = model(random, 200, 100, (0.0, 1.0))
    half = estimate(means_of(values, 2000)).high - estimate(means_of(values, 2000)).value
    assert half == pytest.approx(1.97 * values.mean(axis=1).std(ddof=1) / math.sqrt(200), rel=0.1)


def test_in_a_draw_all_rows_have_the_same_users() -> None:
    base = np.random.default_rng(0).random(40)
    user = np.repeat(np.arange(20), 2)
    drawn = bootstrap_means(np.stack([base, base + 0.1]), user, np.ones(40), 50)
    assert drawn.shape == (2, 50)
    assert drawn[0].std() > 0.01
    assert np.allclose(drawn[1] - drawn[0], 0.1)
    assert not np.allclose(
        drawn, bootstrap_means(np.stack([base, base + 0.1]), user, np.ones(40), 50, seed=1)
    )
    # By hand: a user is drawn with all rows, each with its weight.
    weights = np.random.default_rng(1).random(40)
    counts = np.bincount(np.random.default_rng([0, 17]).integers(0, 20, 20), minlength=20)[user] * weights
    first = bootstrap_means(base[None], user, weights, 1)[0, 0]
    assert first == pytest.approx((base * counts).sum() / counts.sum())


def test_worlds_vary_as_a_whole() -> None:
    found = estimate_over_worlds([0.4, 0.6])
    assert (found.low, found.high) == pytest.approx((0.5 - 12.706 * 0.1, 0.5 + 12.706 * 0.1), rel=1e-4)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [
        (12.706, 1, 0.05),
        (4.303, 2, 0.05),
        (2.776, 4, 0.05),
        (2.228, 10, 0.05),
        (3.169, 10, 0.01),
        (1.812, 10, 0.10),
        (4.587, 10, 0.001),
        (2.042, 30, 0.05),
        (1.984, 100, 0.05),
        (0.677, 100, 0.50),
        (1.960, 200_000, 0.05),
    ],
)
def test_students_table(t: float, freedom: int, p: float) -> None:
    size = freedom + 1
    spread = np.random.default_rng(0).standard_normal(size)
    spread = (spread - spread.mean()) / spread.std(ddof=1)
    for sign in (1, -1):
        assert paired_t_test(spread + sign * t / math.sqrt(size)) == pytest.approx(p, rel=3e-3)


def test_the_t_test_is_of_the_weighted_mean() -> None:
    """By hand: each unit is off by its fraction of the weight times its distance from the mean."""
    difference, weights = np.array([0.5, 0.1, 0.0, 0.2]), np.array([2.0, 2.0, 4.0, 4.0])
    mean = (1.0 + 0.2 + 0.0 + 0.8) / 12
    off = [2 / 3 * (0.5 - mean), 2 / 3 * (0.1 - mean), 4 / 3 * (0.0 - mean), 4 / 3 * (0.2 - mean)]
    deviation = math.sqrt(sum(each**2 for each in off) / 3)
    spread = np.array([-1.5, -0.5, 0.5, 1.5])
    same = spread / spread.std(ddof=1) + mean / deviation  # the same t of four equal units
    assert paired_t_test(difference, weights) == pytest.approx(paired_t_test(same), rel=1e-9)
    assert paired_t_test(difference, weights) == paired_t_test(difference, 10 * weights)
    assert paired_t_test(difference, np.full(4, 7.0)) == pytest.approx(paired_t_test(difference), rel=1e-9)


def test_the_weighted_t_test_is_seldom_wrong_where_there_is_nothing() -> None:
    random = np.random.default_rng(5)
    weights = 1 / random.integers(1, 20, 300)
    found = [paired_t_test(random.standard_normal(300), weights) for _ in range(400)]
    assert 0.02 < np.mean(np.array(found) < 0.05) < 0.09


def test_students_ends() -> None:
    assert paired_t_test(np.zeros(5)) == 1
    assert paired_t_test(np.full(5, 0.5)) == 0
    assert paired_t_test(np.array([1.0, -1.0])) == pytest.approx(1)
    assert paired_t_test(np.array([0.3])) == 1  # of one unit nothing is known


def test_holm_by_hand() -> None:
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({"only": 0.04}) == {"only": 0.04}
    assert holm({}) == {}
    assert holm({"a": 0.01, "none": None}) == {"a": 0.02, "none": None}
