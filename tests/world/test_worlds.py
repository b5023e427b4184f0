"""Worlds of several kinds, and how near a model comes to the ground truth in them: in numbers worked out by
hand, and in what the worlds promise."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import unskew
from tests.helpers.errors import refused
from unskew.core.errors import BadInput
from unskew.data.log.preparation import Metadata
from unskew.data.reading.prepare import prepare
from unskew.diagnostics.log.statistics import spearman
from unskew.evaluation.significance import compare, interval
from unskew.world.equations import START, STEP, births
from unskew.world.ground_truth import (
    TrueScorer,
    check_of_world,
    evaluate_against_ground_truth,
    impressions_of,
    world_of,
)
from unskew.world.kinds import KINDS, kind_named
from unskew.world.simulate import World, simulate

SIZE = {"users": 200, "items": 80, "steps": 60, "impressions": 0.2, "shown": 6.0, "seed": 3}
TRENDS = {"trend": 1.0, "season": 30.0, "recency": 0.85}
NOVELTY = {"born": 0.5, "births": 0.8, "novelty": 3.0, "young": 5.0, "recency": 0.9}


@pytest.fixture(scope="module")
def world() -> World:
    return simulate(**SIZE)


@pytest.fixture(scope="module")
def split(world) -> unskew.Split:
    return unskew.split(world.log)


@pytest.fixture(scope="module")
def trends() -> World:
    return simulate(**SIZE, **TRENDS)


@pytest.fixture(scope="module")
def novelty() -> World:
    return simulate(**SIZE, **NOVELTY)


def moment(step):
    return START + step * STEP


def columns(world, *names):
    table = world.log.table()
    return tuple(table[name].to_numpy() for name in names)


def grid(world, time):
    return np.arange(world.settings.users)[:, None], np.arange(world.settings.items), time


def logit(chance):
    return np.log(chance / (1 - chance))


# The equations, from the rows of the log alone


@pytest.mark.parametrize("more", [TRENDS, NOVELTY, TRENDS | NOVELTY], ids=["trends", "novelty", "both"])
def test_the_probabilities_of_the_new_worlds_are_those_of_the_equations(more):
    world = simulate(**SIZE, **more, history=0.0, audience=0.0)  # test_simulate.py has these two
    s = world.settings
    clicks = [row for row in zip(*columns(world, "time", "item", "label"), strict=True) if row[2]]
    for time, step in {START: 0, moment(7): 7, moment(20) + 1: 21, moment(59): 59, moment(75): 60}.items():
        count = np.zeros(s.items)
        for when, item, _ in clicks:
            if when < time:
                count[item] += s.recency ** (step - 1 - (when - START) // STEP)
        later = round(s.born * s.items)
        birth = np.array([max(0, math.ceil((i - (s.items - later) + 1) / s.births)) for i in range(s.items)])
        born = birth <= step
        newness = np.where(birth > 0, np.exp(-(step - birth) / s.young), 0)
        pull = s.popularity * np.log((1 + count) / (1 + count[born].mean())) + s.novelty * newness
        chance = world.exposure(5, np.arange(s.items), time)
        assert (chance[~born] == 0).all()
        assert np.array_equal(world.exists(np.arange(s.items), time), born)
        np.testing.assert_allclose(logit(chance[born]) - pull[born], world.intercepts[step], atol=2e-4)
        assert world.exposure(*grid(world, time)).sum(1).mean() == pytest.approx(6, rel=1e-4)
        turned = (time - START) / (s.season * STEP)
        wave = s.trend * math.sqrt(2) * np.sin(2 * math.pi * (turned + world.phase.astype(float)))
        affinity = world.user_tastes.at(np.full(s.items, 5), time) * world.item_tastes.at(
            np.arange(s.items), time
        )
        liked = s.offset + s.scale * affinity.sum(1) + world.appeal + wave
        np.testing.assert_allclose(logit(world.preference(5, np.arange(s.items), time)), liked, atol=2e-4)


@pytest.mark.parametrize("made", ["trends", "novelty"])
def test_the_log_holds_the_stated_propensities(made, request):
    world = request.getfixturevalue(made)
    user, item, time, label = columns(world, "user", "item", "time", "label")
    biased = world.log.exposed == 0
    truly = world.exposure(user, item, time)
    np.testing.assert_allclose(world.log.propensity[biased], truly[biased], rtol=1e-4)
    existing = (world.birth[None] <= ((time - START) // STEP)[:, None]).sum(1)
    np.testing.assert_allclose(world.log.propensity[~biased], (6 / existing)[~biased], rtol=1e-6)
    liked = world.preference(user, item, time)
    off = (label - liked).sum() / math.sqrt((liked * (1 - liked)).sum())
    assert abs(off) < 4


@pytest.mark.parametrize("more", [TRENDS, NOVELTY], ids=["trends", "novelty"])
def test_a_world_with_fewer_steps_is_the_beginning_of_a_longer_one(more):
    long, short = simulate(**SIZE, **more, drift=0.9), simulate(**SIZE | {"steps": 20}, **more, drift=0.3)
    names = "user", "item", "time", "label", "propensity"
    past = columns(long, "time")[0] < moment(20)
    kept = sorted(zip(*(column[past] for column in columns(long, *names)), strict=True))
    assert kept == sorted(zip(*columns(short, *names), strict=True))
    for time in (moment(7), moment(19) + 5, moment(20)):
        assert np.array_equal(long.exposure(*grid(long, time)), short.exposure(*grid(long, time)))
        assert np.array_equal(long.preference(*grid(long, time)), short.preference(*grid(long, time)))


# What they promise


def test_in_trends_appeal_changes_and_popularity_follows_it(world):
    trends = simulate(
        users=400, items=80, steps=80, impressions=0.4, trend=1.0, season=60.0, recency=0.75, seed=3
    )

    def appeal(made, step):
        of = np.zeros(80, int), moment(step)
        tasted = made.user_tastes.at(*of) * made.item_tastes.at(np.arange(80), moment(step))
        return logit(made.preference(0, np.arange(80), moment(step))) - made.settings.scale * tasted.sum(1)

    assert np.allclose(appeal(world, 0), appeal(world, 40), atol=1e-4)  # elsewhere it never changes
    assert np.allclose(appeal(trends, 0), appeal(trends, 60), atol=1e-3)  # a season later
    assert np.abs(appeal(trends, 0) - appeal(trends, 30)).mean() > 1  # half a season later
    assert (appeal(trends, 20) + 2 - trends.appeal).std() == pytest.approx(1, rel=0.25)
    # What is liked now is shown more now than what will be liked half a season later.
    steps = (30, 45, 60, 75)
    shown = [trends.exposure(*grid(trends, moment(step))).mean(0) for step in steps]
    now, then = (
        [
            spearman(one, appeal(trends, step + gap) - trends.appeal)
            for one, step in zip(shown, steps, strict=True)
        ]
        for gap in (0, 30)
    )
    assert min(now) > 0.2
    assert np.mean(now) > np.mean(then) + 0.6
    lasting = [spearman(one, trends.appeal) for one in shown]
    assert np.mean(lasting) > 0.2  # a part of it is deserved for good


def test_in_novelty_nothing_is_shown_before_its_birth_and_the_new_is_shown_more(novelty):
    item, time = columns(novelty, "item", "time")
    step = (time - START) // STEP
    assert (step >= novelty.birth[item]).all()
    assert births(novelty.settings)[:42].tolist() == [0] * 40 + [2, 3]
    assert (novelty.birth > 0).sum() == 40
    assert len(set(item) & set(range(40, 80))) > 30  # most of the newborn were shown
    plain = simulate(**SIZE, **NOVELTY | {"novelty": 0.0})
    at = 50
    new = (novelty.birth > at - 5) & (novelty.birth <= at)
    assert new.sum() >= 3
    fraction = [
        made.exposure(*grid(made, moment(at)))[:, new].mean() / (6 / (novelty.birth <= at).sum())
        for made in (novelty, plain)
    ]
    assert fraction[0] > 1.2  # new items are shown more than the mean item
    assert fraction[1] < 0.8  # without the extra they are shown less, because nobody has clicked them yet


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_can_be_simulated_and_its_log_be_split(name):
    assert KINDS[name].about.endswith(".")
    small = replace(kind_named(name), users=120, items=60, steps=40, shown=5.0, seed=2)
    made = unskew.split(simulate(**asdict(small)).log)
    assert len(impressions_of(made, 50)) == 50


def test_the_kinds_are_what_they_say():
    base = asdict(kind_named("bias-1"))
    changed = {
        name: {key for key, value in asdict(kind_named(name)).items() if value != base[key]} for name in KINDS
    }
    assert changed == {
        "popularity": {"history", "audience"},
        "bias-0": {"bias"},
        "bias-1": set(),
        "bias-2": {"bias"},
        "trends": {"trend", "recency"},
        "novelty": {"born", "novelty", "recency"},
    }
    with pytest.raises(BadInput, match=r"^no world 'trend'; did you mean 'trends'\?"):
        kind_named("trend")


# The ground truth of scores


class Table:
    """A score for each user and item, in the ids of the world."""

    history = 1

    def __init__(self, scores_UI):
        self.scores_UI = scores_UI

    def catalog(self, log, first, last):
        self.log, self.period = log, (first, last)
        return self

    def scores(self, context):
        times = context.times_B.numpy()
        assert self.period[0] <= times.min() <= times.max() < self.period[1]
        user = self.log.users.ids.to_numpy()[context.user_B.numpy()]
        return torch.from_numpy(self.scores_UI[user][:, self.log.items.ids.to_numpy()])


def test_who_knows_the_ground_truth_is_perfect_and_who_knows_the_exposure_is_not(world, split):
    oracle, exposed = (
        evaluate_against_ground_truth(TrueScorer(world, by), world, split, 200)
        for by in ("preference", "exposure")
    )
    for metric in ("ndcg@10", "fraction@10", "preference"):
        assert oracle.values[metric] == pytest.approx(1)
        assert 0.2 < exposed.mean(metric) < 0.9
    assert exposed.values["exposure"] == pytest.approx(1)
    assert oracle.mean("exposure") == pytest.approx(exposed.mean("preference"))
    assert oracle.values["beyond"] == pytest.approx(0)
    assert exposed.mean("beyond") > 0.9
    assert oracle.mean("clicks@10") > exposed.mean("clicks@10") > 1
    assert (oracle.values["clicks@10"] <= 10).all()


def test_impressions_are_of_the_test_part_and_seeded(split):
    log = split.log
    rows = impressions_of(split, 100)
    assert log.time[rows].min() >= split.valid_end
    assert (np.diff(log.time[rows]) >= 0).all()
    pairs = set(zip(log.user[rows].tolist(), log.time[rows].tolist(), strict=True))
    assert len(pairs) == 100
    assert np.array_equal(rows, impressions_of(split, 100))
    assert not np.array_equal(rows, impressions_of(split, 100, seed=1))
    test = log.time >= split.valid_end
    everything = set(zip(log.user[test].tolist(), log.time[test].tolist(), strict=True))
    assert len(impressions_of(split, None)) == len(everything)


def test_the_figures_are_those_of_the_definition(world, split):
    """Rounded scores, so that there are ties; everything in slow plain steps."""
    scores = np.random.default_rng(1).normal(size=(200, 80)).round(1)
    found = evaluate_against_ground_truth(Table(scores), world, split, 7, cut=3)
    log = split.log
    for place, row in enumerate(impressions_of(split, 7)):
        user = log.users.ids[int(log.user[row])].as_py()
        items = log.items.ids.to_numpy()
        liked, shown = (chance(user, items, log.time[row]) for chance in (world.preference, world.exposure))
        mine = scores[user][items]
        order = sorted(range(len(items)), key=lambda code: (-mine[code], code))
        gain = sum(liked[code] / math.log2(rank + 2) for rank, code in enumerate(order[:3]))
        best = sum(value / math.log2(rank + 2) for rank, value in enumerate(sorted(liked, reverse=True)[:3]))
        assert found.values["ndcg@3"][place] == pytest.approx(gain / best)
        clicks = sum(liked[code] for code in order[:3])
        assert found.values["clicks@3"][place] == pytest.approx(clicks)
        assert found.values["fraction@3"][place] == pytest.approx(clicks / sum(sorted(liked)[-3:]))
        one, other, both = spearman(mine, liked), spearman(mine, shown), spearman(liked, shown)
        assert found.values["preference"][place] == pytest.approx(one)
        assert found.values["exposure"][place] == pytest.approx(other)
        beyond = (other - one * both) / math.sqrt((1 - one**2) * (1 - both**2))
        assert found.values["beyond"][place] == pytest.approx(beyond)


def test_scores_of_another_user_are_found_out(world, split):
    """A planted shift by one user, or by one item, leaves nothing of the ground truth but what everybody
    likes."""
    mine = world.preference(*grid(world, moment(55)))
    found = {
        name: evaluate_against_ground_truth(Table(scores), world, split, 300)
        for name, scores in {
            "mine": mine,
            "another user's": np.roll(mine, 1, axis=0),
            "another item's": np.roll(mine, 1, axis=1),
        }.items()
    }
    assert found["mine"].mean("ndcg@10") > 0.97  # tastes turn a little from then to the impressions
    assert found["another user's"].mean("ndcg@10") < 0.6
    assert found["another item's"].mean("ndcg@10") < 0.5
    said = compare(found["mine"], found["another user's"], "ndcg@10", 300)
    assert said.low > 0.3
    low, high = interval(found["mine"], "preference", 300)
    assert low < found["mine"].mean("preference") < high


def test_a_constant_score_is_not_correlated_with_anything(world, split):
    found = evaluate_against_ground_truth(Table(np.ones((200, 80))), world, split, 50)
    for metric in ("preference", "exposure", "beyond"):
        assert not found.values[metric].any()
    even = simulate(**SIZE, bias=0.0)
    found = evaluate_against_ground_truth(TrueScorer(even), even, unskew.split(even.log), 50)
    assert np.abs(found.values["exposure"]).max() < 0.2  # all are shown equally often, up to rounding


def test_only_what_was_born_is_asked_for(novelty):
    split = unskew.split(novelty.log, fractions=(30, 10, 60))
    early = impressions_of(split, None)[0]
    born = novelty.exists(np.arange(80), int(split.log.time[early]))
    assert not born.all()
    unborn_first = np.tile(np.where(born, 0.0, 9.0), (200, 1)) + novelty.preference(
        *grid(novelty, moment(50))
    )
    fair = novelty.preference(*grid(novelty, moment(50)))
    found, same = (
        evaluate_against_ground_truth(Table(scores), novelty, split, None) for scores in (unborn_first, fair)
    )
    assert found.values["ndcg@10"][0] == pytest.approx(same.values["ndcg@10"][0])
    assert found.mean("ndcg@10") < same.mean("ndcg@10") - 0.1  # later they exist, and the score is wrong


def test_a_trained_model_is_asked_with_the_weights_that_were_chosen(world, split):
    model = unskew.create_model("sasrec", {"epochs": 2, "width": 8, "layers": 1, "learning_rate": 0.01})
    model.fit(split, show_progress=False)
    found = evaluate_against_ground_truth(model, world, sample=60)
    assert (found.test, found.about["model"], found.about["weights_chosen_by"]) == (
        "ground-truth",
        "sasrec",
        "ordinary",
    )
    assert np.array_equal(
        found.values["ndcg@10"],
        evaluate_against_ground_truth(model.network, world, split, 60).values["ndcg@10"],
    )
    by_balanced = evaluate_against_ground_truth(model, world, split, 60, select_by="balanced")
    assert by_balanced.about["weights_chosen_by"] == "balanced"
    assert np.array_equal(
        found.values["ndcg@10"], evaluate_against_ground_truth(model, world, sample=60).values["ndcg@10"]
    )
    earlier = unskew.split(world.log, fractions=(40, 10, 50))
    with pytest.raises(BadInput, match="this model was chosen on rows before"):
        evaluate_against_ground_truth(model, world, earlier)


# The world of a log


def test_the_world_of_a_prepared_log_is_found_and_exact(world, tmp_path):
    once = prepare(world.log, tmp_path / "once", duplicates="keep")
    twice = prepare(str(tmp_path / "once"), tmp_path / "twice")
    for log in (world.log, once, twice, unskew.Log.open(tmp_path / "twice")):
        again = world_of(log)
        assert again.settings == world.settings
        assert np.array_equal(
            again.exposure(*grid(world, moment(33))), world.exposure(*grid(world, moment(33)))
        )


def test_other_logs_have_no_known_ground_truth(world, split):
    other = unskew.read({"user": [1, 2, 1], "item": [1, 1, 2], "time": [1, 2, 3]})
    with pytest.raises(BadInput, match=r"^this log: not a log of a simulated world that .* made"):
        world_of(other)
    with pytest.raises(BadInput, match="are not those of its world"):
        check_of_world(other, world)
    with pytest.raises(BadInput, match="did not happen"):
        evaluate_against_ground_truth(TrueScorer(world), simulate(**SIZE | {"seed": 4}), split)
    newer = replace(world.log, metadata=Metadata(world={"users": 3, "magic": 1.0}))
    with pytest.raises(BadInput, match=r"settings that this version does not know: \['magic'\]"):
        world_of(newer)


@pytest.mark.parametrize(
    ("given", "wrong"), [({"sample": 0}, "sample"), ({"cut": 0}, "cut"), ({"split": None}, "split")]
)
def test_bad_questions_are_named(world, split, given, wrong):
    with refused(wrong):
        evaluate_against_ground_truth(TrueScorer(world), world, **{"split": split} | given)
