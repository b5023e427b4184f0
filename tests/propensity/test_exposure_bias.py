"""What the exposure of a simulated world depends on, and how strongly."""

import math

import numpy as np

from tests.world.test_simulate import CENSUS, columns, gini, grid, logit, moment
from unskew.world.simulate import simulate


def test_without_bias_exposure_is_uniform():
    world = simulate(**CENSUS, bias=0.0)
    for step in (0, 20, 40):
        np.testing.assert_allclose(world.exposure(*grid(world, moment(step))), 5 / 40, rtol=1e-6)
    np.testing.assert_allclose(world.log.propensity, 5 / 40, rtol=1e-6)


def test_more_bias_concentrates_exposure():
    counts = [
        np.bincount(columns(simulate(**CENSUS, bias=bias), "item")[0], minlength=40)
        for bias in (0.0, 0.5, 1.0)
    ]
    none, some, much = (gini(count) for count in counts)
    assert none < 0.05
    assert some > none + 0.05
    assert much > some + 0.1


def test_randomised_impressions_are_uniform():
    world = simulate(**CENSUS | {"randomised": 1.0}, bias=2.0)
    counts = np.bincount(columns(world, "item")[0], minlength=40)
    expected = 60 * 40 * 5 / 40
    assert (world.log.exposed == 1).all()
    assert ((counts - expected) ** 2 / (expected * (1 - 5 / 40))).sum() < 40 + 4 * math.sqrt(80)
    assert (
        np.ptp(logit(world.exposure(*grid(world, moment(40))))) > 1
    )  # what the biased policy would have done


def test_exposure_depends_on_popularity():
    world = simulate(**CENSUS, history=0.0, audience=0.0)
    time = moment(30)
    pull = logit(world.exposure(*grid(world, time)))
    assert np.ptp(pull, axis=0).max() < 1e-5  # the user plays no part
    start, end = world.log.audiences.before(np.arange(len(world.log.items)), time)
    clicks = np.zeros(40)
    clicks[world.log.items.ids.to_numpy()] = end - start
    assert np.ptp(clicks) > 10
    np.testing.assert_allclose(
        pull[0] - pull[0].mean(), np.log1p(clicks) - np.log1p(clicks).mean(), atol=1e-4
    )


def clickers(world, time, column):
    who, when, label = columns(world, column, "time", "label")
    return np.unique(who[(when < time) & (label == 1)])


def test_exposure_depends_on_history():
    world = simulate(**CENSUS | {"impressions": 0.3}, popularity=0.0, audience=0.0)
    time = moment(3)
    pull = logit(world.exposure(*grid(world, time)))
    active = clickers(world, time, "user")
    newcomers = np.setdiff1d(np.arange(60), active)
    assert 5 < len(active) < 55
    assert np.ptp(pull[newcomers]) < 1e-5  # nothing to go by: every item similar
    assert np.ptp(pull[active], axis=1).min() > 0.1
    later = moment(40)
    pull = logit(world.exposure(*grid(world, later)))
    liking = logit(world.preference(*grid(world, later))) - world.appeal
    similar = [np.corrcoef(pull[user], liking[user])[0, 1] for user in clickers(world, later, "user")]
    assert np.mean(similar) > 0.3  # a history tells the taste


def test_exposure_depends_on_audience():
    world = simulate(**CENSUS | {"impressions": 0.1}, popularity=0.0, history=0.0)
    time = moment(2)
    pull = logit(world.exposure(*grid(world, time)))
    known = clickers(world, time, "item")
    new = np.setdiff1d(np.arange(40), known)
    assert 5 < len(known) < 35
    assert np.ptp(pull[:, new]) < 1e-5
    assert np.ptp(pull[:, known], axis=0).min() > 0.1
    later = moment(40)
    pull = logit(world.exposure(*grid(world, later)))
    liking = logit(world.preference(*grid(world, later)))
    similar = [np.corrcoef(pull[:, item], liking[:, item])[0, 1] for item in clickers(world, later, "item")]
    assert np.mean(similar) > 0.3
