"""Off-policy estimators: how many items of a list would be answered if another run made the lists.

The lists that were shown are known with the probability p of every item. With r = 1 where a shown item was
answered, and pi(l) the list that the other run would have made at the same time for the same user:

    SNIPS   size * (sum over lists l and items i in pi(l) that were shown, of r / p) / (the same sum of 1 / p)
    DR      mean over lists of: sum over i in pi(l) of q(i) + sum over i in pi(l) that were shown, of
            (r - q(i)) / p

where size is the mean length of pi(l), and q(i) is an estimate of the probability that item i is answered.
SNIPS is consistent (Swaminathan and Joachims, 2015). DR is unbiased whatever q is, and its variance is
smaller the better q is (Dudik, Langford and Li, 2011). Both rest on two assumptions: whether an item is
answered does not depend on the other items of the list or on its position (the item-position model with equal
positions), and every item could be shown (`serve --explore`). Here q is the fraction of an item's showings to
other users that were answered, drawn towards that of all items.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unskew.core.sequential import Ratio, ratio

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

PRIOR = 20.0  # so many showings with the mean rate are added to those of each item


@dataclass(frozen=True)
class LoggedLists:
    """Lists that were shown, one row of arrays for each pair of a list and a shown item, and what another run
    would have shown.

    Attributes
    ----------
    user
        The user of each list.
    row, item, reward, propensity
        Of each shown item: its list, its code, whether it was answered, and the probability of being shown.
    target
        The codes of the list that the other run would have made, (lists, K); negative where there is none.
    """

    user: Ints
    row: Ints
    item: Ints
    reward: Floats
    propensity: Floats
    target: Ints


@dataclass(frozen=True)
class Estimate:
    """The expected number of answered items per list, its standard error, and on how much it rests.

    Attributes
    ----------
    value, error
        The estimate and its standard error over users.
    effective_size
        (sum w)^2 / sum w^2 of the weights of shown items that the other run would have shown, too.
    """

    value: float
    error: float
    effective_size: float


def snips(lists: LoggedLists) -> Estimate:
    """The self-normalised estimate."""
    weight = _weights(lists)
    users, of_user = np.unique(lists.user, return_inverse=True)
    sums = (
        np.bincount(of_user[lists.row], values, minlength=len(users)).astype(float)
        for values in (weight * lists.reward, weight)
    )
    size = float((lists.target >= 0).sum()) / len(lists.target)
    estimate = ratio(*sums)
    return Estimate(size * estimate.value, size * estimate.variance**0.5, _effective_size(weight))


def doubly_robust(lists: LoggedLists) -> Estimate:
    """The doubly robust estimate."""
    weight = _weights(lists)
    shown, expected = _expected_rewards(lists)
    values = expected.sum(1) + np.bincount(
        lists.row, weight * (lists.reward - shown), minlength=len(lists.target)
    )
    estimate = mean_per_list(lists.user, values)
    return Estimate(estimate.value, estimate.variance**0.5, _effective_size(weight))


def logged_value(lists: LoggedLists) -> Estimate:
    """The number of answered items per list as it was, for comparison."""
    values = np.bincount(lists.row, lists.reward, minlength=len(lists.target)).astype(float)
    estimate = mean_per_list(lists.user, values)
    return Estimate(estimate.value, estimate.variance**0.5, float(len(lists.row)))


def mean_per_list(user: Ints, values: Floats) -> Ratio:
    """The mean over lists, with a variance over users."""
    users, of_user = np.unique(user, return_inverse=True)
    both = values, np.ones(len(values))
    sums = (np.bincount(of_user, each, minlength=len(users)).astype(float) for each in both)
    return ratio(*sums)


def _weights(lists: LoggedLists) -> Floats:
    """1 / propensity of shown items that the other run would have shown, too; 0 for all others."""
    wanted = (lists.target[lists.row] == lists.item[:, None]).any(1)
    return np.where(wanted, 1 / lists.propensity, 0.0)


def _effective_size(weight: Floats) -> float:
    return float(weight.sum() ** 2 / max((weight**2).sum(), 1e-300))


def _expected_rewards(lists: LoggedLists) -> tuple[Floats, Floats]:
    """q of each shown item, and of each item of the other run's lists. Users are halved by their codes, and
    each half reads the rewards of the other one, so q does not depend on the reward that it stands beside."""
    half_of_list = lists.user % 2
    half = half_of_list[lists.row]
    items = int(max(lists.item.max(initial=0), lists.target.max(initial=0))) + 1
    rates = np.zeros((2, items))
    for other in (0, 1):
        among = half != other
        mean = float(lists.reward[among].mean()) if among.any() else 0.0
        answered = np.bincount(lists.item[among], lists.reward[among], minlength=items)
        times = np.bincount(lists.item[among], minlength=items)
        rates[other] = (answered + PRIOR * mean) / (times + PRIOR)
    shown = rates[half, lists.item]
    target = np.where(lists.target >= 0, rates[half_of_list[:, None], np.maximum(lists.target, 0)], 0.0)
    return shown, target
