"""Several tests with as few rankings as possible: the same figures as one by one."""

import numpy as np
import pytest

import unskew
from unskew.evaluation import evaluate_many as assess
from unskew.evaluation.evaluate import _spare

TESTS = {
    "ordinary": ("full", "uni100"),
    "balanced": ("full",),
    "randomised": ("full", "uni100", "authors"),
    "shown": ("full",),
}


@pytest.fixture(scope="module")
def split() -> unskew.Split:
    return unskew.split(unskew.simulate(users=60, items=30, steps=60, randomised=0.3, seed=4).log)


def rankings(monkeypatch) -> list[int]:
    """How many rows each ranking has, once there are any."""
    real, ranked = assess.rank_each, []

    def counted(network, split, rows, *more, **options):
        ranked.append(len(rows))
        return real(network, split, rows, *more, **options)

    monkeypatch.setattr(assess, "rank_each", counted)
    return ranked


@pytest.mark.parametrize(
    ("name", "settings", "groups"),
    [
        ("popularity", {"recency": "total"}, 1),  # nothing is chosen, so all versions have the same weights
        ("sasrec", {"width": 8, "epochs": 6, "patience": 6, "learning_rate": 0.01}, 3),
    ],
)
def test_tests_share_a_ranking_where_their_weights_are_equal(
    split: unskew.Split, monkeypatch, name: str, settings: dict, groups: int
) -> None:
    model = unskew.create_model(name, settings).fit(split)
    ranked = rankings(monkeypatch)
    found = model.evaluate_each(split, TESTS, sample=40, show_progress=False)
    assert len(ranked) <= groups
    assert sum(ranked) < 4 * 40
    for test, protocols in TESTS.items():
        for one, protocol in zip(found[test], protocols, strict=True):
            alone = model.evaluate(split, protocol, test, sample=40)
            assert (one.test, one.protocol, one.about) == (test, protocol, alone.about)
            assert list(one.values) == list(alone.values)
            for metric, values in alone.values.items():
                np.testing.assert_array_equal(one.values[metric], values)
            np.testing.assert_array_equal(one.weights, alone.weights)
            np.testing.assert_array_equal(one.user, alone.user)
        assert found[test][0].by_segment() == model.evaluate(split, test=test, sample=40).by_segment()


def test_drawn_candidates_do_not_depend_on_what_else_is_ranked() -> None:
    several, one = _spare(np.array([3, 900, 7]), seed=5), _spare(np.array([900]), seed=5)
    np.testing.assert_array_equal(several[1], one[0])
    assert not np.array_equal(several[0], several[2])
    assert not np.array_equal(one, _spare(np.array([900]), seed=6))
    assert 0.4 < several.mean() < 0.6
