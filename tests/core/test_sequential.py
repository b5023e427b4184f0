"""The test that may be looked at every day: equal variants are called different in at most 5 % of the tests,
however often one looks, and different ones are found."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import integrate, stats

from unskew.core.sequential import always_valid_interval, likelihood_ratio, ratio

DAYS, TESTS, USERS = 30, 300, 250
Interval = Callable[[float, float], tuple[float, float]]


def always_valid(difference: float, variance: float) -> tuple[float, float]:
    return always_valid_interval(difference, variance, 0.02)


def usual(difference: float, variance: float) -> tuple[float, float]:
    """The interval for one single look."""
    half = 1.959964 * variance**0.5
    return difference - half, difference + half


def looks(random: np.random.Generator, effect: float = 0.0) -> list[tuple[float, float]]:
    """The difference and its variance at the end of each day of one test. Users differ in how often they come
    and in how often they convert, so a user's lists are not independent."""
    sums = []
    for more in (0.0, effect):
        often, rate = random.gamma(1.0, 0.7, USERS), np.clip(random.beta(2, 18, USERS) + more, 0, 1)
        lists = random.poisson(often[:, None], (USERS, DAYS))
        sums.append((random.binomial(lists, rate[:, None]).cumsum(1).astype(float), lists.cumsum(1)))
    found = []
    for day in range(DAYS):
        (one, other) = (ratio(made[:, day], shown[:, day].astype(float)) for made, shown in sums)
        found.append((other.value - one.value, other.variance + one.variance))
    return found


def called_different(interval: Interval, effect: float = 0.0, seed: int = 0) -> float:
    """The fraction of tests that are stopped because an interval excludes 0 on one of the days."""
    random, stopped = np.random.default_rng(seed), 0
    for _ in range(TESTS):
        stopped += any(
            not low <= 0 <= high for low, high in (interval(*look) for look in looks(random, effect))
        )
    return stopped / TESTS


def test_equal_variants_are_called_different_in_at_most_5_percent_of_tests_with_daily_looks() -> None:
    assert called_different(always_valid) <= 0.05


def test_the_usual_interval_would_not_pass() -> None:
    """So the test above can fail."""
    assert called_different(usual) > 0.15


def test_a_difference_is_found() -> None:
    assert called_different(always_valid, effect=0.05, seed=1) > 0.8


def test_the_variance_is_that_of_users_and_not_of_lists() -> None:
    random = np.random.default_rng(2)
    values = []
    for _ in range(2000):
        lists = random.poisson(5.0, 100) + 1
        converted = random.binomial(lists, random.beta(1, 4, 100))
        values.append(ratio(converted.astype(float), lists.astype(float)))
    spread = np.var([each.value for each in values])
    assert np.mean([each.variance for each in values]) == pytest.approx(spread, rel=0.1)
    lists_alone = np.mean([each.value * (1 - each.value) / 600 for each in values])
    assert spread > 1.5 * lists_alone


@pytest.mark.parametrize(("difference", "variance", "tau"), [(0.03, 1e-4, 0.02), (-0.01, 4e-4, 0.05)])
def test_the_likelihood_ratio_is_that_of_a_normal_mixture(
    difference: float, variance: float, tau: float
) -> None:
    def joint(effect: float) -> float:
        return stats.norm.pdf(difference, effect, variance**0.5) * stats.norm.pdf(effect, 0, tau)

    mixed = integrate.quad(joint, -10 * tau, 10 * tau, points=[0, difference])[0]
    expected = mixed / stats.norm.pdf(difference, 0, variance**0.5)
    assert likelihood_ratio(difference, variance, tau) == pytest.approx(expected, rel=1e-6)


def test_the_interval_holds_what_the_ratio_does_not_reject() -> None:
    low, high = always_valid_interval(0.01, 2e-5, 0.01, 0.05)
    for bound in (low, high):
        assert likelihood_ratio(0.01 - bound, 2e-5, 0.01) == pytest.approx(1 / 0.05)
    assert low + high == pytest.approx(0.02)


def test_without_any_variance_nothing_is_decided() -> None:
    assert likelihood_ratio(0.1, 0.0, 0.01) == 1.0
    assert always_valid_interval(0.1, 0.0, 0.01) == (-np.inf, np.inf)
    nothing = ratio(np.zeros(0), np.zeros(0))
    assert np.isnan(nothing.value)
