"""The simulated world keeps its word: its log is drawn from the stated probabilities, and those are the
equations'."""

import math

import numpy as np
import pytest

from tests.helpers.errors import refused
from unskew.core.errors import BadInput
from unskew.world import simulate as module
from unskew.world.equations import START, STEP, Simulation
from unskew.world.simulate import World, simulate

# All users impression in every step and no impression is randomised, so o is known for every (u, i, t).
CENSUS = {"users": 60, "items": 40, "steps": 40, "impressions": 1.0, "shown": 5.0, "randomised": 0.0}


@pytest.fixture(scope="module")
def world() -> World:
    return simulate(users=200, items=80, steps=60, impressions=0.2, shown=6.0, randomised=0.2, seed=3)


@pytest.fixture(scope="module")
def census() -> World:
    return simulate(**CENSUS, seed=1)


def columns(world, *names):
    table = world.log.table()
    return tuple(table[name].to_numpy() for name in names)


def grid(world, time):
    """Arguments for every user and every item at one time."""
    return np.arange(world.settings.users)[:, None], np.arange(world.settings.items), time


def moment(step):
    return START + step * STEP


def logit(chance):
    return np.log(chance / (1 - chance))


def gini(counts):
    ordered = np.sort(counts)
    rank = np.arange(1, len(ordered) + 1)
    return 2 * (rank * ordered).sum() / (len(ordered) * ordered.sum()) - (len(ordered) + 1) / len(ordered)


def assert_calibrated(chance, happened):
    """Ten groups of rising probability, each within four standard errors of what it says."""
    order = np.argsort(chance, axis=None)
    for group in np.array_split(order, 10):
        p = chance.ravel()[group]
        deviation = (happened.ravel()[group].astype(float) - p).sum() / math.sqrt((p * (1 - p)).sum())
        assert abs(deviation) < 4
    assert chance.ravel()[order[-1]] > 2 * chance.ravel()[order[0]]  # or there would be nothing to sort


def test_the_default_world_is_of_demo_size_and_not_extreme():
    log = simulate().log
    biased = log.exposed == 0
    assert 90_000 < len(log) < 110_000
    assert (len(log.users), len(log.items)) == (1000, 500)
    assert 0.2 < log.label[biased].mean() < 0.4
    assert log.label[~biased].mean() < log.label[biased].mean() - 0.05  # the policy shows what is liked
    assert abs((~biased).mean() - 0.1) < 0.02


def test_a_seed_repeats_and_another_differs():
    small = {"users": 50, "items": 30, "steps": 10, "shown": 4.0}
    first, again, other = simulate(**small, seed=5), simulate(**small, seed=5), simulate(**small, seed=6)
    assert first.log.table().equals(again.log.table())
    assert np.array_equal(first.exposure(*grid(first, moment(7))), again.exposure(*grid(first, moment(7))))
    assert not first.log.table().equals(other.log.table())
    assert not np.allclose(first.preference(*grid(first, START)), other.preference(*grid(first, START)))


def test_the_log_is_a_log(world):
    log = world.log
    user, item, time = columns(world, "user", "item", "time")
    assert set(np.unique(log.label)) == {0, 1}
    assert set(np.unique(log.exposed)) == {0, 1}
    assert user.min() >= 0
    assert user.max() < 200
    assert item.min() >= 0
    assert item.max() < 80
    assert set(np.unique(time)) == {moment(step) for step in range(60)}
    assert len(np.unique(np.stack([user, item, time]), axis=1).T) == len(log)
    per_step = [len(np.unique(user[time == moment(step)])) for step in range(60)]
    assert max(per_step) == 40  # a fifth of the users
    assert min(per_step) > 35  # the others were shown nothing


def test_logged_propensities_are_the_policys(world):
    user, item, time = columns(world, "user", "item", "time")
    biased = world.log.exposed == 0
    ground_truth = world.exposure(user, item, time)
    np.testing.assert_allclose(world.log.propensity[biased], ground_truth[biased], rtol=1e-5)
    np.testing.assert_allclose(world.log.propensity[~biased], 6 / 80, rtol=1e-6)
    assert not np.allclose(ground_truth[~biased], 6 / 80, rtol=0.1)
    of_impression = {}
    for visitor, when, flag in zip(user, time, world.log.exposed, strict=True):
        assert (
            of_impression.setdefault((visitor, when), flag) == flag
        )  # an impression is served by one policy
    assert abs(np.mean(list(of_impression.values())) - 0.2) < 4 * math.sqrt(0.16 / len(of_impression))


def test_what_is_shown_to_a_user_in_a_step_is_one_impression(world):
    impression_of = {}
    for visitor, when, impression in zip(*columns(world, "user", "time", "impression_id"), strict=True):
        assert impression_of.setdefault((visitor, when), impression) == impression
    assert len(set(impression_of.values())) == len(impression_of)


def test_small_chunks_change_no_ground_truth(monkeypatch, world):
    user, item, time = columns(world, "user", "item", "time")
    whole = world.exposure(user, item, time)
    monkeypatch.setattr(module, "CHUNK", 97)
    np.testing.assert_allclose(world.exposure(user[:1000], item[:1000], time[:1000]), whole[:1000], rtol=1e-6)
    chunked = simulate(**CENSUS)
    ground_truth = chunked.exposure(*columns(chunked, "user", "item", "time"))
    np.testing.assert_allclose(chunked.log.propensity, ground_truth, rtol=1e-5)


def test_probabilities_are_those_of_the_equations(world):
    """Everything recomputed in slow plain steps from the rows of the log and the tastes alone."""
    s = world.settings
    rows = sorted(zip(*columns(world, "time", "user", "item", "label"), strict=True))
    clicks = [(time, user, item) for time, user, item, label in rows if label]

    def vector(tastes, entity, time):
        angle = s.drift * (time - START) / (s.steps * STEP)
        return math.cos(angle) * tastes.start[entity].astype(float) + math.sin(angle) * tastes.turn[entity]

    def profile(past, tastes):
        total, weight = np.zeros(s.width), 0.0
        for time in sorted({time for time, _ in past}):
            new = [vector(tastes, entity, time) for when, entity in past if when == time]
            total, weight = s.memory * total + sum(new), s.memory * weight + len(new)
        return total / weight if weight else total

    in_force = {START: 0, moment(1): 1, moment(20) + 1: 21, moment(33): 33, moment(59): 59, moment(75): 60}
    for time, step in in_force.items():
        past = [click for click in clicks if click[0] < time]
        users, items = np.arange(0, 200, 17), np.arange(0, 80, 9)
        pull, liking = np.zeros((len(users), len(items))), np.zeros((len(users), len(items)))
        for a, user in enumerate(users):
            history = profile([(when, item) for when, who, item in past if who == user], world.item_tastes)
            for b, item in enumerate(items):
                audience = [(when, who) for when, who, what in past if what == item]
                taste = vector(world.user_tastes, user, time), vector(world.item_tastes, item, time)
                popularity = math.log((1 + len(audience)) / (1 + len(past) / s.items))
                by_history, by_audience = history @ taste[1], profile(audience, world.user_tastes) @ taste[0]
                pull[a, b] = s.bias * (
                    s.popularity * popularity + s.history * by_history + s.audience * by_audience
                )
                liking[a, b] = s.offset + s.scale * taste[0] @ taste[1] + world.appeal[item]
        shift = logit(world.exposure(users[:, None], items, time)) - pull
        np.testing.assert_allclose(shift, world.intercepts[step], atol=1e-4)
        np.testing.assert_allclose(logit(world.preference(users[:, None], items, time)), liking, atol=1e-4)
    assert np.ptp(pull) > 1


def test_the_log_is_drawn_from_the_stated_exposure(census):
    user, item, time = columns(census, "user", "item", "time")
    step = (time - START) // STEP
    shown = np.zeros((40, 60, 40), bool)
    shown[step, user, item] = True
    everything = np.arange(60)[:, None], np.arange(40), moment(np.arange(40))[:, None, None]
    assert_calibrated(census.exposure(*everything), shown)


@pytest.mark.parametrize("served", [0, 1])
def test_clicks_among_the_shown_follow_the_stated_preference(world, served):
    rows = world.log.exposed == served
    user, item, time, label = (column[rows] for column in columns(world, "user", "item", "time", "label"))
    assert_calibrated(world.preference(user, item, time), label)


def test_redraws_follow_both_probabilities_and_leave_the_world_alone(world):
    user, time = np.arange(0, 200, 5), moment(np.arange(20, 60))
    before = world.exposure(user, 3, time)
    draws = list(world.redraws(user, time, count=200, seed=0))
    shown, liked = (np.stack(kind) for kind in zip(*draws, strict=True))
    assert shown.shape == (200, 40, 80)
    chance = world.exposure(user[:, None], np.arange(80), time[:, None])
    taste = world.preference(user[:, None], np.arange(80), time[:, None])
    assert_calibrated(np.broadcast_to(chance, shown.shape), shown)
    assert_calibrated(np.broadcast_to(taste, shown.shape)[shown], liked[shown])  # r knows nothing of o
    assert np.array_equal(before, world.exposure(user, 3, time))
    again, other = (next(world.redraws(user, time, count=1, seed=seed)) for seed in (0, 1))
    assert np.array_equal(again[0], shown[0])
    assert not np.array_equal(other[0], shown[0])


def test_a_impression_shows_as_many_as_asked(census, world):
    for step in (0, 1, 17, 39, 40):  # one after the last, too
        assert census.exposure(*grid(census, moment(step))).sum(1).mean() == pytest.approx(5, rel=1e-4)
    impressions = 60 * 40
    assert abs(len(census.log) / impressions - 5) < 4 * math.sqrt(5 / impressions)
    crowded = simulate(users=1500, items=40, steps=5, impressions=0.5, shown=5.0)  # too many users to ask all
    assert crowded.exposure(*grid(crowded, moment(4))).sum(1).mean() == pytest.approx(5, rel=0.02)
    assert world.exposure(*grid(world, moment(30))).sum(1).std() > 0.1  # a mean over users, not a constant


def test_nothing_depends_on_the_future():
    """Half the steps at the same pace of drift: the first half of the same world."""
    long, short = simulate(**CENSUS, drift=1.0), simulate(**CENSUS | {"steps": 20}, drift=0.5)
    names = "user", "item", "time", "label", "propensity"
    past = columns(long, "time")[0] < moment(20)
    kept = sorted(zip(*(column[past] for column in columns(long, *names)), strict=True))
    assert 0 < len(kept) < len(long.log)
    assert kept == sorted(zip(*columns(short, *names), strict=True))
    for time in (START, moment(7), moment(7) + 1, moment(20)):
        assert np.array_equal(long.exposure(*grid(long, time)), short.exposure(*grid(long, time)))
        assert np.array_equal(long.preference(*grid(long, time)), short.preference(*grid(long, time)))
    assert not np.allclose(
        long.exposure(*grid(long, moment(21))), short.exposure(*grid(long, moment(21))), rtol=1e-3
    )


def test_a_step_sees_only_earlier_steps():
    world = simulate(**CENSUS, drift=0.0)  # so that only events make a difference
    for step in (1, 10):
        now = world.exposure(*grid(world, moment(step)))
        assert np.array_equal(now, world.exposure(*grid(world, moment(step - 1) + 1)))
        assert not np.allclose(now, world.exposure(*grid(world, moment(step) + 1)), rtol=1e-3)
    np.testing.assert_allclose(world.exposure(*grid(world, START)), 5 / 40, rtol=1e-6)  # nothing happened yet
    assert np.array_equal(world.exposure(*grid(world, START)), world.exposure(*grid(world, 0)))
    assert np.array_equal(
        world.exposure(*grid(world, moment(40))), world.exposure(*grid(world, moment(4000)))
    )


def test_tastes_turn_by_the_drift(world):
    still, full = simulate(**CENSUS, drift=0.0), simulate(**CENSUS, drift=2 * math.pi)
    begin = still.preference(*grid(still, START))
    assert np.array_equal(begin, still.preference(*grid(still, moment(40))))
    np.testing.assert_allclose(full.preference(*grid(full, moment(40))), begin, rtol=1e-4)  # once around
    assert np.abs(full.preference(*grid(full, moment(10))) - begin).mean() > 0.05
    for tastes in (world.user_tastes, world.item_tastes):
        vectors = tastes.at(np.arange(80), moment(np.arange(80)))
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 8**0.25, rtol=1e-5)


def test_probabilities_stay_inside_zero_and_one():
    world = simulate(**CENSUS, bias=30.0, scale=40.0)
    for step in (0, 5, 40):
        for chance in (
            world.exposure(*grid(world, moment(step))),
            world.preference(*grid(world, moment(step))),
        ):
            assert 0 < chance.min()
            assert chance.max() < 1
    assert world.exposure(*grid(world, moment(40))).min() < 1e-6  # the settings are extreme
    assert world.log.propensity.min() > 0


def test_inverse_propensities_undo_the_bias(world):
    """Sum of f / P(o = 1) over the shown is unbiased for the sum of f over all; the plain mean is not."""
    user, time = np.arange(0, 200, 4), np.full(50, moment(60))
    pairs = user[:, None], np.arange(80), time[:, None]
    chance = world.exposure(*pairs)
    _, liked = next(world.redraws(user, time, count=1, seed=9))  # r is held fixed, o varies
    loss = np.where(liked, -math.log(0.2), -math.log(0.8))
    draws = [shown for shown, _ in world.redraws(user, time, count=400, seed=10)]
    weighted = np.array([(shown * loss / chance).sum() for shown in draws])
    naive = np.array([loss[shown].mean() for shown in draws])
    variance = (loss**2 * (1 / chance - 1)).sum()
    assert abs(weighted.mean() - loss.sum()) < 4 * math.sqrt(variance / 400)
    assert 0.7 < weighted.var() / variance < 1.4
    assert math.sqrt(variance / 400) < 0.02 * loss.sum()  # so the line above can fail
    assert abs(naive.mean() - loss.mean()) > 20 * naive.std() / math.sqrt(400)
    assert naive.mean() > 1.1 * loss.mean()


def test_shapes_broadcast(world):
    assert world.exposure(1, 2, START).shape == ()
    assert world.preference([[1], [2]], [3, 4, 5], START).shape == (2, 3)
    assert world.exposure([], [], []).shape == (0,)
    pairs = world.exposure([[1], [2]], [3, 4, 5], moment(30))
    assert pairs[1, 2] == pytest.approx(float(world.exposure(2, 5, moment(30))), rel=1e-6)


OUTSIDE = [(200, 0, "user"), (-1, 0, "user"), (0, 80, "item"), (0, [0, -1], "item")]


@pytest.mark.parametrize(("user", "item", "name"), OUTSIDE)
def test_ids_outside_the_world_are_refused(world, user, item, name):
    for question in (world.exposure, world.preference):
        with pytest.raises(BadInput, match=f"^{name} outside this world"):
            question(user, item, START)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("users", 1),
        ("items", 1),
        ("steps", 0),
        ("width", 1),
        ("shown", 500.0),
        ("shown", 0.0),
        ("impressions", 0.0),
        ("impressions", 1.5),
        ("bias", -1.0),
        ("bias", math.nan),
        ("drift", math.inf),
        ("history", math.nan),
        ("memory", 1.1),
        ("randomised", -0.1),
        ("seed", -1),
        ("trend", -1.0),
        ("season", 0.0),
        ("recency", 1.5),
        ("born", 1.0),
        ("born", 0.99),
        ("births", 0.0),
        ("novelty", math.nan),
        ("young", 0.0),
    ],
)
def test_bad_settings_are_named(name, value):
    with refused(name):
        simulate(**{name: value})


def test_a_world_without_clicks_is_refused():
    with pytest.raises(BadInput, match="not one click"):
        simulate(users=2, items=2, steps=1, shown=0.5, offset=-15.0, scale=0.0)


def test_settings_are_kept():
    settings = simulate(users=20, items=10, steps=3, shown=2.0, seed=4).settings
    assert settings == Simulation(users=20, items=10, steps=3, shown=2.0, seed=4)
