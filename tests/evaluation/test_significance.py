"""Comparisons: intervals that cover the ground truth, over users and seeds, and a refusal of what cannot be
compared."""

import math
from typing import Any

import numpy as np
import pytest

import unskew
from unskew.core.statistics import paired_t_test
from unskew.evaluation.evaluate import Evaluation
from unskew.evaluation.significance import check_comparable, compare, interval, seed_means


def evaluated(values: Any, user: Any = None, **more: Any) -> Evaluation:
    values = np.asarray(values, float)
    parts = {
        "protocol": "full",
        "test": "ordinary",
        "user": np.arange(len(values)) if user is None else np.asarray(user),
    } | more
    return Evaluation(values={"ndcg@10": values}, **({"weights": np.ones(len(values))} | parts))


def test_what_cannot_be_compared() -> None:
    one = evaluated([0.1, 0.2, 0.3])
    for other in (
        evaluated([0.1, 0.2, 0.3], protocol="uni100"),
        evaluated([0.1, 0.2, 0.3], protocol="authors"),
        evaluated([0.1, 0.2, 0.3], test="balanced"),
        evaluated([0.1, 0.2, 0.3], about={"repeats": "hidden"}),
    ):
        with pytest.raises(unskew.BadInput, match="cannot be compared"):
            compare(one, other)
    one = evaluated([0.1, 0.2, 0.3], rows=np.array([4, 5, 6]))
    same = evaluated([0.1, 0.2, 0.3], rows=np.array([4, 5, 6]))
    assert compare(one, same).difference == 0
    for other in (
        evaluated([0.1, 0.2]),
        evaluated([0.1, 0.2, 0.3], user=[0, 2, 1], rows=one.rows),
        evaluated(
            [0.1, 0.2, 0.3], rows=np.array([4, 5, 7])
        ),  # the same users, and another row of one of them
        evaluated([0.1, 0.2, 0.3]),
        evaluated([0.1, 0.2, 0.3], rows=one.rows, weights=np.array([1.0, 2.0, 1.0])),
    ):
        with pytest.raises(unskew.BadInput, match="not of the same rows"):
            compare(one, other)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"protocol": "uni100"}, "protocol full is not protocol uni100"),
        ({"test": "balanced"}, "the ordinary test is not the balanced test"),
        ({"about": {"repeats": "hidden"}}, "repeats are None in one and hidden in the other"),
        ({"about": {"data": "abc"}}, "they are not of the same data"),
        ({"values": [0.1, 0.2]}, "they are not of the same rows: 3 units and 2 units"),
        ({"user": [0, 2, 1]}, "they are not of the same rows, though both have 3 units"),
        ({"weights": np.array([1.0, 2.0, 1.0])}, "they are not of the same rows: the weights differ"),
    ],
)
def test_an_error_says_which_two_and_in_what_they_differ(other: dict[str, Any], said: str) -> None:
    values = [0.1, 0.2, 0.3]
    group = [evaluated(values), evaluated(values), evaluated(**({"values": values} | other))]
    with pytest.raises(unskew.BadInput) as error:
        check_comparable(group, "ndcg@10", ["a", "b", "c"])
    assert str(error.value) == f"a and c cannot be compared: {said}"
    with pytest.raises(unskew.BadInput, match=r"^c: no metric 'x'; there are ndcg@10$"):
        check_comparable([evaluated(values)], "x", ["c"])


def test_an_error_of_compare_names_the_models() -> None:
    one = evaluated([0.1, 0.2], about={"model": "pulse", "training_seed": 3})
    with pytest.raises(unskew.BadInput, match=r"evaluation 1 \(pulse, seed 3\) and evaluation 2 cannot be"):
        compare(one, evaluated([0.1, 0.2], test="balanced"))


def test_candidates_of_another_seed_are_others() -> None:
    """A whole catalogue is the same for every seed; a hundred drawn items are not."""
    for protocol, same_users in (("full", True), ("uni100", False), ("authors", False)):
        one, other = (evaluated([0.1, 0.2], protocol=protocol, about={"seed": seed}) for seed in (0, 1))
        if same_users:
            check_comparable([one, other])
        else:
            with pytest.raises(unskew.BadInput, match="candidates were drawn with seed 0 and with seed 1"):
                check_comparable([one, other])


def test_the_same_model_twice_is_no_difference() -> None:
    one = evaluated(np.random.default_rng(0).random(50))
    found = compare([one, one], [one, one], draws=200)
    assert (found.difference, found.low, found.high, found.p_seeds, found.p_rows) == (0, 0, 0, 1, 1)


def test_of_one_seed_there_is_an_interval_over_users_and_no_p_over_seeds() -> None:
    one, other = synthetic(0, 0.2)
    for pair in ((one, other), ([one], [other, other]), ([one, one], other)):
        found = compare(*pair)
        assert found.p_seeds is None
        assert found.p_rows == paired_t_test(one.values["ndcg@10"] - other.values["ndcg@10"]) < 1e-6
        assert found.interval_over == "users only"
        assert found.low < found.difference < found.high
    assert compare([one, one], [other, other]).interval_over == "users and seeds"


def synthetic(seed: int, ground_truth: float, users: int = 60) -> tuple[Evaluation, Evaluation]:
    """Users differ in how much they gain, and a user's rows are correlated: rows are not independent, users
    are."""
    random = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), random.integers(1, 12, users))
    base = random.random(len(user))
    gain = ground_truth + 0.1 * random.standard_normal(users)[user] + 0.01 * random.standard_normal(len(user))
    return evaluated(base + gain, user), evaluated(base, user)


def test_the_interval_covers_the_ground_truth() -> None:
    ground_truth, trials = 0.03, 150
    found = [compare(*synthetic(seed, ground_truth), draws=300, seed=seed) for seed in range(trials)]
    covered = sum(one.low <= ground_truth <= one.high for one in found) / trials
    assert 0.88 <= covered <= 0.99  # of rows instead of users, it would be about 60 %
    assert np.mean([one.difference for one in found]) == pytest.approx(ground_truth, abs=0.01)


def test_a_clear_difference_has_a_small_p_and_none_has_not() -> None:
    one, other = synthetic(0, 0.2)
    clear = compare([one, one], [other, other])
    assert clear.p_seeds < 0.002
    assert clear.p_rows < 1e-6
    assert clear.low > 0.1
    turned = compare([other, other], [one, one])
    assert turned.difference == -clear.difference
    assert turned.p_seeds < 0.002
    assert (turned.low, turned.high) == pytest.approx((-clear.high, -clear.low))
    none = [
        compare([one, one], [other, other], draws=200)
        for one, other in (synthetic(seed, 0.0) for seed in range(60))
    ]
    assert np.mean([found.p_seeds < 0.05 for found in none]) < 0.15


def trained(seed: int, seeds: int, between: float, users: int = 200) -> list[Evaluation]:
    """The same model from several seeds: each is better or worse for everybody by chance."""
    random = np.random.default_rng(seed)
    base = np.random.default_rng(0).random(users)
    return [
        evaluated(base + between * random.standard_normal() + 0.05 * random.standard_normal(users))
        for _ in range(seeds)
    ]


def test_twins_that_differ_in_nothing_but_their_seeds_are_seldom_called_different() -> None:
    """Users alone would call nearly all of them different: the seeds' own spread is far above that of two
    hundred users."""
    found = [
        compare(trained(2 * trial, 4, 0.03), trained(2 * trial + 1, 4, 0.03), draws=300, seed=trial)
        for trial in range(80)
    ]
    assert np.mean([each.p_seeds < 0.05 for each in found]) < 0.12
    over_users = [
        compare(trained(2 * trial, 4, 0.03)[0], trained(2 * trial + 1, 4, 0.03)[0], draws=300)
        for trial in range(80)
    ]
    assert np.mean([each.low > 0 or each.high < 0 for each in over_users]) > 0.5


def test_a_difference_beyond_seeds_and_users_is_found() -> None:
    better = [evaluated(each.values["ndcg@10"] + 0.2) for each in trained(1, 4, 0.03)]
    assert compare(better, trained(2, 4, 0.03)).p_seeds < 0.01


def test_a_difference_is_weighted() -> None:
    weights = np.array([1.0, 3.0, 0.5])
    one, other = evaluated([0.5, 0.1, 0.9], weights=weights), evaluated([0.1, 0.2, 0.1], weights=weights)
    assert compare(one, other).difference == pytest.approx((0.4 - 0.3 + 0.4) / 4.5)
    low, high = interval(evaluated([0.2] * 3, weights=weights), "ndcg@10")
    assert (low, high) == pytest.approx((0.2, 0.2))


def test_in_a_draw_all_models_have_the_same_users() -> None:
    base = np.random.default_rng(0).random(40)
    drawn = [seed_means([evaluated(base + shift)], "ndcg@10", 50, 0).drawn_SD[0] for shift in (0.0, 0.1)]
    assert drawn[0].std() > 0.01
    assert np.allclose(drawn[1] - drawn[0], 0.1)


def test_comparisons_are_seeded() -> None:
    pair = synthetic(1, 0.02)
    assert compare(*pair, draws=100, seed=1) == compare(*pair, draws=100, seed=1)
    assert compare(*pair, draws=100, seed=1) != compare(*pair, draws=100, seed=2)


def test_the_interval_of_one_mean() -> None:
    values = np.random.default_rng(3).random(400)
    low, high = interval(evaluated(values), "ndcg@10")
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)


def same_users(*values: float) -> list[Evaluation]:
    """Seeds that differ, each the same for all of its users: what is left is the chance of the seeds."""
    return [evaluated(np.full(30, value)) for value in values]


def test_two_seeds_say_little() -> None:
    """Their mean has one degree of freedom, for which Student's table says 12.7."""
    low, high = interval(same_users(0.4, 0.6), "ndcg@10")
    assert (low, high) == pytest.approx((0.5 - 1.2706, 0.5 + 1.2706), abs=1e-3)
    found = compare(same_users(0.4, 0.6), same_users(0.3, 0.3))
    assert (found.low, found.high) == pytest.approx((0.2 - 1.2706, 0.2 + 1.2706), abs=1e-3)
    both = compare(same_users(0.4, 0.6), same_users(0.4, 0.6))
    half = 4.3027 * math.sqrt(0.02)  # two degrees of freedom
    assert (both.low, both.high) == pytest.approx((-half, half), abs=1e-3)


def test_p_is_of_both_sides() -> None:
    """A difference of one standard error, with one degree of freedom."""
    for better, worse in (
        (same_users(0.5, 0.7), same_users(0.5, 0.5)),
        (same_users(0.5, 0.5), same_users(0.5, 0.7)),
    ):
        assert compare(better, worse).p_seeds == pytest.approx(0.5, abs=1e-3)
