"""A test of a difference that may be looked at at any time: the mixture sequential probability ratio test.

The usual 95 % interval is right at one time that was fixed beforehand. Whoever looks every day, and stops on
the first day on which the interval excludes 0, finds a difference between equal variants far too often. With
the estimate d of the difference, its variance V, and effects that are a priori normal with the standard
deviation tau, the likelihood ratio of "some difference" to "none" is

    L = sqrt(V / (V + tau^2)) * exp(d^2 * tau^2 / (2 * V * (V + tau^2)))

Without a difference, L is a martingale with mean 1, so it ever reaches 1 / alpha with a probability of at
most alpha (Ville's inequality; Robbins, 1970; Johari, Pekelis and Walsh, 2022). Hence p = min(1, 1 / L) over
all times so far is a p-value at every time, and

    d +- sqrt(V * (V + tau^2) / tau^2 * (log((V + tau^2) / V) - 2 * log(alpha)))

covers the true difference at all times together with a probability of at least 1 - alpha. Any tau that is
fixed beforehand is valid; intervals are narrowest where sqrt(V) is about tau / 3.

V is an estimate here, which is harmless as soon as there are some tens of conversions. A user's lists are no
independent events: V is that of sums over users. What a user does later resembles what this user did before,
so estimates at two times are more strongly correlated than those of independent events, and the process
leaves its bounds less often (Slepian's inequality).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unskew.core.statistics import LEVEL

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Ratio:
    """A ratio of two sums over users, and the variance of its estimate."""

    value: float
    variance: float


def ratio(numerator: Floats, denominator: Floats) -> Ratio:
    """The ratio of two sums over users. Its variance is that of the sum of numerator - ratio * denominator
    over users, divided by the square of the second sum.

    Parameters
    ----------
    numerator, denominator
        Of each user, such as converted lists and lists.
    """
    total = float(denominator.sum())
    if total <= 0:
        return Ratio(math.nan, math.nan)
    value = float(numerator.sum()) / total
    users = len(numerator)
    residuals = numerator - value * denominator
    variance = float((residuals**2).sum()) * users / max(users - 1, 1) / total**2
    return Ratio(value, variance)


def likelihood_ratio(difference: float, variance: float, tau: float) -> float:
    """How much more likely the estimate is with some difference than with none."""
    if not variance > 0:
        return 1.0
    whole = variance + tau**2
    exponent = difference**2 * tau**2 / (2 * variance * whole) + 0.5 * math.log(variance / whole)
    return math.exp(min(exponent, 700.0))


def always_valid_interval(
    difference: float, variance: float, tau: float, level: float = LEVEL
) -> tuple[float, float]:
    """The interval that covers the true difference at all times together with probability 1 - level."""
    if not variance > 0:
        return -math.inf, math.inf
    whole = variance + tau**2
    half = math.sqrt(variance * whole / tau**2 * (math.log(whole / variance) - 2 * math.log(level)))
    return difference - half, difference + half
