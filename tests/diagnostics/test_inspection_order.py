"""Does the order of events carry information? By hand, and in logs where the answer is known."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.inspected import NOW, codes, cut, times
from unskew.data.log.split import Split
from unskew.data.log.views import Sequences
from unskew.diagnostics.log import order as look
from unskew.diagnostics.log.inspect import inspect


def test_coincidences_by_hand():
    # 0>1 three times: 3 pairs; 1>2 twice: 1 pair; 2>0 once; 1>1 does not count
    before, after = codes(0, 1, 0, 1, 0, 2, 1, 1), codes(1, 2, 1, 2, 1, 0, 1, 1)
    assert look.coincidences(before, after, 3) == 4
    assert look.coincidences(codes(), codes(), 3) == 0
    assert look.coincidences(codes(1, 0), codes(0, 1), 2) == 0  # direction matters


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_coincidences_are_pairs_of_equal_transitions(pairs):
    slow = sum(one == other and one[0] != one[1] for one, other in itertools.combinations(pairs, 2))
    assert look.coincidences(codes(*(a for a, _ in pairs)), codes(*(b for _, b in pairs)), 4) == slow


def sequences(items, moments, lengths):
    return Sequences(codes(*items), times(*moments), np.concatenate([[0], np.cumsum(lengths)]))


def test_transitions_stay_within_a_user_and_go_forward_in_time():
    # a: 0 1 | 2 at 1 1 2 -> one step from {0, 1} to 2; b: 2 0 1 at 1 2 3 -> two steps
    found = look.shuffle_test(sequences([0, 1, 2, 2, 0, 1], [1, 1, 2, 1, 2, 3], [3, 3]), 3, 5, seed=0)
    assert found.transitions == 3
    assert found.observed == 0
    alone = look.shuffle_test(sequences([0, 1, 2], [1, 1, 1], [3]), 3, 5, seed=0)
    assert (alone.transitions, alone.observed, alone.mean, alone.deviation) == (0, 0, 0, 0)
    assert math.isnan(alone.z)
    assert math.isnan(alone.ratio)


def test_two_users_with_two_items_by_hand():
    # Both 0 > 1. A shuffle turns each epoch with probability 1/2: the steps agree half of the time, so the
    # mean is 1/2.
    found = look.shuffle_test(sequences([0, 1, 0, 1], [1, 2, 1, 2], [2, 2]), 2, 2000, seed=0)
    assert found.observed == 1
    assert set(found.shuffled) == {0, 1}
    assert found.mean == pytest.approx(0.5, abs=0.05)
    ones = sum(found.shuffled)  # of 2000, so the sample's variance is ones * zeros / (2000 * 1999)
    assert found.deviation == pytest.approx(math.sqrt(ones * (2000 - ones) / (2000 * 1999)), rel=1e-9)
    assert found.z == pytest.approx((1 - found.mean) / found.deviation)
    assert found.ratio == pytest.approx(1 / found.mean)


def walks(seed, shuffled) -> Split:
    """Users walk a circle of 50 items from random places; shuffled, each meets the same items in any
    order."""
    draw = np.random.default_rng(seed)
    user, step = np.repeat(np.arange(100), 12), np.tile(np.arange(12), 100)
    item = (draw.integers(0, 50, 100)[user] + step) % 50
    if shuffled:
        item = item[np.lexsort([draw.random(len(user)), user])]
    return cut(user, item, NOW + step * 1000 + user)


def test_an_informative_order_is_found():
    found = inspect(walks(0, shuffled=False))
    assert found.shuffle.transitions == 100 * 11
    assert found.shuffle.z > 50
    assert found.shuffle.ratio > 5
    assert "carries information" in found.facts()[0]


def test_a_shuffled_order_is_not():
    scores = np.array([inspect(walks(seed, shuffled=True)).shuffle.z for seed in range(12)])
    assert np.abs(scores).max() < 3.5
    assert abs(scores.mean()) < 1
    assert "no visible information" in inspect(walks(0, shuffled=True)).facts()[0]


def test_ties_alone_are_not_an_order():
    # Rows of equal time stand sorted by code. If that counted as an order, low codes would follow high ones
    # all the time.
    draw = np.random.default_rng(1)
    user = np.repeat(np.arange(150), 12)
    split_ = cut(user, draw.integers(0, 12, len(user)), NOW + np.tile(np.arange(12) // 3, 150))
    scores = [inspect(split_, seed=seed).shuffle.z for seed in range(8)]
    assert abs(np.mean(scores)) < 2


def test_a_seed_repeats_and_another_differs():
    steps = walks(3, shuffled=True)
    assert inspect(steps, seed=1) == inspect(steps, seed=1)
    assert inspect(steps, seed=1).shuffle.shuffled != inspect(steps, seed=2).shuffle.shuffled


def test_large_logs_get_fewer_shuffles():
    assert look.number_of_shuffles(0) == look.number_of_shuffles(10**7) == 20
    assert look.number_of_shuffles(2 * 10**7) == 10
    assert look.number_of_shuffles(10**9) == 5
