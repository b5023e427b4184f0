"""`exposure` and `power` find what the simulated world knows: who was shown what, how calibrated, and how
certain. Faults that these tests are there for: a flipped sign, no sum over all items, a count that includes
the present, draws without weights."""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import unskew
from tests.helpers.errors import refused
from unskew.core.errors import BadInput
from unskew.data.batches.batch import batch, batch_of_rows
from unskew.data.log.split import Known
from unskew.data.log.views import PAD
from unskew.diagnostics.log.statistics import spearman
from unskew.propensity.exposure import Exposure, served_at_random
from unskew.propensity.exposure_fit import Fitting, _logit, _Part
from unskew.propensity.impressions import (
    ItemPast,
    Moments,
    blocks,
    impressions_of,
    pairs_of,
    training_impressions,
)
from unskew.propensity.power import Power, most_clicks
from unskew.world.simulate import World, simulate

pytestmark = pytest.mark.slow  # minutes in all

PAST = 50, 30
WORLDS: dict[str, dict[str, float]] = {
    "popularity": {"history": 0.0, "audience": 0.0},
    "even": {"bias": 0.0},
    "biased": {},
    "twice": {"bias": 2.0},
}


@cache
def world_of(name: str, seed: int = 0) -> World:
    return simulate(users=300, items=100, steps=100, impressions=0.15, shown=8.0, seed=seed, **WORLDS[name])


@cache
def split_of(name: str, seed: int = 0) -> unskew.Split:
    return unskew.split(world_of(name, seed).log)


@cache
def exposure_of(name: str, seed: int = 0, **how: int) -> Exposure:
    split = split_of(name, seed)
    made = Exposure(split.known, 0.5, 0.01, Fitting(**how))
    made.fit_statistics(split)
    return made


@cache
def gamma_of(name: str, seed: int, with_random: bool) -> Power:
    """Of a log that has clicks and nothing else, maybe with a strip of random exposure."""
    world = world_of(name, seed)
    table = world.log.table().filter(pa.array(world.log.label == 1))
    keep = ["user", "item", "time", "label"] + (["exposed"] if with_random else [])
    made = Power(0.5, 0.01)
    made.fit_statistics(unskew.split(unskew.read(table.select(keep))))
    return made


def uniform_pairs(name: str, size: int = 4000) -> tuple[Any, Any]:
    """Any user with any item that exists, at times of the training set; and the true probabilities."""
    world, split, random = world_of(name), split_of(name), np.random.default_rng(5)
    log = split.log
    times = np.unique(log.time[split.rows("train")])[3:]
    time, user = random.choice(times, size), random.integers(0, split.known_users, size)
    item = (random.random(size) * log.audiences.existing(time)).astype(np.int64)
    ordinary = ~served_at_random(log, user, time)
    user, item, time = user[ordinary], item[ordinary], time[ordinary]
    ids = log.users.of(user).to_numpy(), log.items.of(item).to_numpy()
    return batch(log, user, time, item[:, None], None, *PAST), world.exposure(*ids, time)


# What is found of the ground truth


@pytest.mark.parametrize(("name", "least"), [("popularity", 0.98), ("biased", 0.82), ("twice", 0.88)])
def test_shown_rows_are_in_the_order_of_their_true_exposure(name: str, least: float) -> None:
    split, log = split_of(name), split_of(name).log
    rows = np.flatnonzero(split.mask("train") & ~split.first_appearance & (log.exposed == 0))[::7]
    found = exposure_of(name).item_view(batch_of_rows(log, rows, *PAST))[:, 0]
    assert spearman(found.double().numpy(), log.propensity[rows]) > least


@pytest.mark.parametrize("name", WORLDS)
def test_probabilities_are_calibrated(name: str) -> None:
    """In every tenth of the pairs, what is estimated is what is true on average; so in the even world all
    probabilities are nearly the same."""
    rows, ground_truth = uniform_pairs(name)
    found = exposure_of(name).item_view(rows)[:, 0].double().numpy()
    tenths = np.array_split(np.argsort(found), 10)
    error = np.mean([abs(found[tenth].mean() - ground_truth[tenth].mean()) for tenth in tenths])
    assert error < 0.11 * ground_truth.mean()
    assert found.mean() == pytest.approx(ground_truth.mean(), rel=0.05)
    if name == "even":
        assert found.std() < 0.1 * found.mean()


@pytest.mark.parametrize(("name", "slope"), [("popularity", 1.0), ("even", 0.0), ("biased", 1.0)])
def test_items_alone_follow_popularity_as_the_policy_does(name: str, slope: float) -> None:
    """P(o = 1) of items alone is proportional to (1 + n)^bias at every time, up to the bend of a sigmoid."""
    log, made = split_of(name).log, exposure_of(name)
    items, times = np.arange(80), np.unique(log.time)[15::10]
    found = made.log_exposure(log, items, times[:, None]).double()
    odds = found - torch.log1p(-found.exp())
    start, end = log.audiences.before(items, times[:, None])
    popularity = np.log1p(end - start)
    for row in range(len(times)):
        fitted, _ = np.polyfit(popularity[row], odds[row].numpy(), 1)
        assert fitted == pytest.approx(slope, abs=0.25)
    # An impression shows as many items at any time.
    assert found.exp().sum(1).numpy() == pytest.approx(np.full(len(times), 8.0), rel=0.35)


def test_standard_errors_cover_the_ground_truth() -> None:
    """The ground truth is one for log1p of all clicks and zero for everything else."""
    deviations = []
    for seed in range(6):
        found = {c.name: c for c in exposure_of("popularity", seed, epochs=0).coefficients()}
        assert tuple(found) == ("constant", *ItemPast.NAMES)
        for name in ItemPast.NAMES:
            deviations.append((found[name].value - (name == "clicks")) / found[name].standard_error)
    assert np.mean(np.abs(deviations) < 2) > 0.8
    assert 0.6 < np.std(deviations) < 1.5


def test_drawn_pairs_agree_with_all_pairs() -> None:
    """Far fewer pairs, the same answer: within the noise that drawing adds."""
    everything, drawn = exposure_of("biased"), exposure_of("biased", most=5, drawn=30)
    log = split_of("biased").log
    items, times = np.arange(80), np.unique(log.time)[20::10]
    one, other = (made.log_exposure(log, items, times[:, None]) for made in (everything, drawn))
    assert float((one - other).abs().mean()) < 0.1
    assert float((one - other).mean()) == pytest.approx(0, abs=0.05)
    for whole, part in zip(everything.coefficients(), drawn.coefficients(), strict=True):
        assert abs(whole.value - part.value) < 2.5 * part.standard_error + 0.02
        assert part.standard_error > 0.9 * whole.standard_error
    rows, ground_truth = uniform_pairs("biased")
    found = drawn.item_view(rows)[:, 0].double().numpy()
    assert found.mean() == pytest.approx(ground_truth.mean(), rel=0.1)


def test_drawn_pairs_stand_for_all_that_there_are() -> None:
    impressions = training_impressions(split_of("biased"), clicked=False)
    impressions = impressions.some(impressions.existing > 1)
    for most, drawn in ((500, 200), (5, 30)):
        pairs = pairs_of(impressions, np.random.default_rng(0), most, drawn)
        total = np.bincount(pairs.impression_id, pairs.weight, minlength=len(impressions))
        np.testing.assert_allclose(total, impressions.existing)
        rows, items = impressions.log.item[impressions.rows], len(impressions.log.items)
        there = np.argsort(impressions.order)[rows] < impressions.existing[impressions.of_row]
        met = set((impressions.of_row[there] * items + rows[there]).tolist())
        keys = pairs.impression_id * items + pairs.item
        assert set(keys[pairs.happened].tolist()) == met
        assert not met & set(keys[~pairs.happened].tolist())
        assert (pairs.weight[pairs.happened] == 1).all()
        cut = list(blocks(pairs, 1000))
        assert [pairs.impression_id[part.start] for part in cut[1:]] != [
            pairs.impression_id[part.stop - 1] for part in cut
        ]
        assert sum(part.stop - part.start for part in cut) == len(keys)
        assert all(pairs.impression_id[part.stop - 1] < pairs.impression_id[part.stop] for part in cut[:-1])


# The past, and nothing else


def test_counts_are_by_hand() -> None:
    rows = [("u", "a", 0, 1), ("v", "a", 8, 0), ("v", "b", 8, 1), ("u", "a", 16, 1), ("u", "b", 16, 0)]
    log = unskew.read(
        pa.table(
            {
                name: [row[place] for row in rows]
                for place, name in enumerate(("user", "item", "time", "label"))
            }
        )
    )
    assert np.diff(impressions_of(log).offsets).tolist() == [3, 2]
    found = np.expm1(ItemPast(log, (8.0, 4.0)).at([0, 1, 5], 16))
    expected = [
        [1, 2**-2, 2**-4, 2, 2**-2 + 2**-1, 2**-4 + 2**-2],
        [1, 2**-1, 2**-2, 1, 2**-1, 2**-2],
        [0] * 6,
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert most_clicks(log, [0, 1, 16, 17]).tolist() == [0, 1, 1, 2]
    times, which = Moments(0, 8).of_times([7, 8, 9, 16, 15])
    assert (times[which].tolist(), times.tolist()) == ([0, 8, 8, 16, 8], [0, 8, 16])


def test_what_was_not_yet_known_changes_nothing() -> None:
    """The same training set with another future gives the same numbers, and so do the same days of a longer
    log."""
    world, split = world_of("biased"), split_of("biased")
    table = world.log.table()
    late = world.log.time >= split.train_end
    flipped = table.set_column(3, "label", pa.array(np.where(late, 1 - world.log.label, world.log.label)))
    other = unskew.read(flipped)
    kept = dataclasses.replace(split, log=other)
    # Only the codes of what training never saw can differ.
    assert other.items.ids[: split.known_items].equals(split.log.items.ids[: split.known_items])
    for made, again in (
        (exposure_of("biased"), Exposure(split.known, 0.5, 0.01)),
        (Power(0.5, 0.01), Power(0.5, 0.01)),
    ):
        if isinstance(made, Power):
            made.fit_statistics(split)
        again.fit_statistics(kept)
        for name, value in made.state_dict().items():
            torch.testing.assert_close(again.state_dict()[name], value, msg=name)


def test_impressions_at_random_have_the_share_of_what_they_show() -> None:
    split, log = split_of("biased"), split_of("biased").log
    rows = np.flatnonzero(split.mask("train") & (log.exposed == 1))
    found = exposure_of("biased").item_view(batch_of_rows(log, rows, *PAST))
    assert len(found.unique()) == 1
    assert float(found[0, 0]) == pytest.approx(8 / 100, rel=0.1)
    assert float(found[0, 0]) == pytest.approx(log.propensity[rows].mean(), rel=0.1)
    ordinary = np.flatnonzero(split.mask("train") & (log.exposed == 0))
    assert not served_at_random(log, log.user[ordinary].astype(np.int64), log.time[ordinary]).any()


def test_new_users_and_items_have_nothing_personal() -> None:
    split, log, made = split_of("twice"), split_of("twice").log, exposure_of("twice")
    assert float(made.user_P.abs().max()) > 0.1
    time, new = int(split.valid_end), len(log.users) + 5
    known = made.item_view(batch(log, [0, 1, 2], [time] * 3, np.tile(np.arange(9), (3, 1)), None, *PAST))
    assert not torch.allclose(known[0], known[1])
    nobody = made.item_view(batch(log, [new, PAD], [time] * 2, np.tile(np.arange(9), (2, 1)), None, *PAST))
    torch.testing.assert_close(nobody[0], nobody[1])
    unknown = [len(log.items), len(log.items) + 7]
    nothing = made.log_exposure(log, unknown, time)
    assert bool(nothing.isfinite().all())
    assert float(nothing[0]) == float(nothing[1]) < float(made.log_exposure(log, np.arange(50), time).min())


def test_a_longer_past_in_the_batch_changes_nothing_and_shared_rows_are_read_equally() -> None:
    """Only the newest 20 are read, wherever the batch has them."""
    split, log, made = split_of("twice"), split_of("twice").log, exposure_of("twice")
    rows = np.flatnonzero(split.mask("train"))[-40:]
    whole = made.item_view(batch_of_rows(log, rows, 60, 60))
    torch.testing.assert_close(made.item_view(batch_of_rows(log, rows, 20, 20)), whole)
    less = made.item_view(batch_of_rows(log, rows, 2, 2))
    assert not torch.allclose(less, whole, rtol=1e-2)
    shared = unskew.data.batches.batch.batch_shared(
        log,
        log.user[rows].astype(np.int64),
        log.time[rows],
        log.item[rows, None].astype(np.int64),
        log.label[rows, None],
        60,
        None,
    )
    torch.testing.assert_close(made.item_view(shared), whole)


def test_what_is_fitted_is_what_is_asked() -> None:
    """The logit of a pair by hand, as it is fitted, and as a batch has it: with large personal terms."""
    split, log = split_of("twice"), split_of("twice").log
    made, random = Exposure(split.known, 0.5, 0.01), torch.Generator().manual_seed(0)
    made.load_state_dict(exposure_of("twice").state_dict())
    made.line.copy_(torch.tensor([0.0, 1.0]))
    for name in ("item_bias", "user_P", "history_E", "item_Q", "user_G", "audience_F"):
        made.get_buffer(name).normal_(generator=random)
    impressions = training_impressions(split, clicked=False)
    impressions = impressions.some(
        (np.arange(len(impressions)) % 97 == 3) & ~impressions.random & (impressions.time > log.time.min())
    )
    slow, fast = made.half_lives.tolist()
    past, moments = ItemPast(log, (slow, fast)), Moments(*made.moments.tolist())
    part = _Part(impressions, split.known, past, moments, Fitting(), np.random.default_rng(0))
    part.rebase(made.theta.numpy())
    vectors = {
        name: torch.cat([made.get_buffer(name), torch.zeros(1, width)])
        for name, width in (
            ("item_bias", 1),
            *((name, 16) for name in ("user_P", "history_E", "item_Q", "user_G", "audience_F")),
        )
    }
    fitted = torch.cat([_logit(vectors, block) for block in part.blocks])
    pairs = pairs_of(impressions, np.random.default_rng(0))
    user, time = impressions.user[pairs.impression_id], impressions.time[pairs.impression_id]
    found = made.item_view(batch(log, user, time, pairs.item[:, None], None, *PAST))[:, 0]
    torch.testing.assert_close(found, torch.sigmoid(fitted), atol=1e-4, rtol=1e-3)
    for place in range(0, len(user), 1 + len(user) // 20):
        by_hand = float(made._base(log, pairs.item[place], time[place]))
        u, i = int(user[place]), int(pairs.item[place])
        if u >= split.known_users or i >= split.known_items:
            continue

        def mean(view: Any, entity: int, table: torch.Tensor, when: int = int(time[place])) -> torch.Tensor:
            start, end = view.before(entity, when, 20)
            ids = view.ids[start:end][::-1].astype(np.int64)
            weight = 0.9 ** torch.arange(len(ids))
            return 3 * (weight[:, None] * table[ids.copy()]).sum(0) / max(float(weight.sum()), 1e-9)

        side = made.user_P[u] + mean(log.histories, u, made.history_E)
        by_hand += float(made.item_bias[i, 0] + side @ made.item_Q[i])
        by_hand += float(made.user_G[u] @ mean(log.audiences, i, made.audience_F))
        assert float(fitted[place]) == pytest.approx(by_hand, abs=1e-3)


# Clicks alone


def test_gamma_is_in_the_order_of_the_bias() -> None:
    """A single log of clicks says little about it; three say more."""
    found = {
        name: np.mean([float(gamma_of(name, seed, False).uncapped) for seed in range(3)])
        for name in ("even", "biased", "twice")
    }
    assert abs(found["even"]) < 0.35
    assert found["even"] + 0.35 < found["biased"] < found["twice"]
    assert 0.6 < found["biased"] < 1.2
    for name in ("even", "twice"):
        made = gamma_of(name, 0, False)
        assert float(made.gamma) == min(max(float(made.uncapped), 0), 1)


def test_random_exposure_tells_gamma_without_assumptions() -> None:
    for name, ground_truth in (("even", 0.0), ("popularity", 1.0), ("biased", 1.0)):
        found = gamma_of(name, 0, True).coefficients()[0]
        alone = gamma_of(name, 0, False).coefficients()[0]
        assert abs(found.value - ground_truth) < 3 * found.standard_error + 0.1
        assert found.standard_error > alone.standard_error


def test_the_standard_error_of_gamma_is_that_of_chance() -> None:
    found = [gamma_of("popularity", seed, True).coefficients()[0] for seed in range(6)]
    spread = np.std([each.value for each in found], ddof=1)
    typical = np.mean([each.standard_error for each in found])
    assert typical / 2.2 < spread < 2.2 * typical


def test_power_is_a_power_of_popularity_and_at_most_one() -> None:
    log, made = split_of("biased").log, Power(0.5, 0.01, gamma=0.5)
    made.fit_statistics(split_of("biased"))
    assert made.coefficients()[0][1:] == (0.5, 0.0)
    time = np.unique(log.time)[[0, 1, 30, 90]]
    items = np.arange(len(log.items) + 2)
    start, end = log.audiences.before(items, time[:, None])
    clicks = torch.from_numpy(end - start).double()
    torch.testing.assert_close(made.log_exposure(log, items, time[:, None]), (0.5 * clicks.log1p()).float())
    view = made.item_view(batch(log, [0] * 4, time, np.tile(items, (4, 1)), None, 1, 1))
    expected = ((1 + clicks) / (1 + clicks.max(1, keepdim=True).values)) ** 0.5
    torch.testing.assert_close(view, expected.float())
    assert float(view.max()) == 1
    assert made.user_view(batch(log, [0], [0], [[0]])) is None


# Bad input


def test_logs_and_estimators_that_cannot_be_used(positive_log: unskew.Log, split: unskew.Split) -> None:
    clicks = unskew.split(positive_log)
    with pytest.raises(BadInput, match="learns from what was shown and not clicked"):
        Exposure(clicks.known, 0.5, 0.01).fit_statistics(clicks)
    first = unskew.split(
        unskew.read(pa.table({"user": ["u", "v"], "item": ["a", "b"], "time": [1, 1], "label": [1, 1]}))
    )
    with pytest.raises(BadInput, match="needs clicks at several moments"):
        Power(0.5, 0.01).fit_statistics(first)
    for made in (Exposure(split.known, 0.5, 0.01), Power(0.5, 0.01)):
        with pytest.raises(BadInput, match="has not been fitted: call `fit_statistics` first"):
            made.log_exposure(split.log, 0, 0)
        bare = batch(split.log, [0], [0], [[0]])._replace(log=None)
        with pytest.raises(BadInput, match="this batch comes from none"):
            made.item_view(bare)
    with refused("gamma"):
        Power(0.5, 0.01, gamma=2)


def test_shapes_depend_on_what_is_known_alone() -> None:
    split = split_of("biased")
    known: Known = split.known
    fresh = Exposure(known, 0.5, 0.01)
    fresh.load_state_dict(exposure_of("biased").state_dict())
    rows, _ = uniform_pairs("biased", 50)
    assert torch.equal(fresh.item_view(rows), exposure_of("biased").item_view(rows))
    assert not list(fresh.parameters())


def test_a_impression_with_some_random_items_is_not_a_random_impression() -> None:
    """A service that explores lists random items among the best ones; only impressions that are random as a
    whole tell what would be clicked if everything were exposed equally."""
    rows = {"user": ["a"] * 4 + ["b"] * 2, "item": ["p", "q", "r", "s", "p", "q"], "time": [1, 1, 2, 2, 3, 3]}
    rows |= {"label": [1, 0, 1, 0, 1, 1], "exposed": [1, 0, 1, 1, 0, 0], "impression_id": [0, 0, 1, 1, 2, 2]}
    everything = unskew.split(unskew.read(pa.table(rows)), fractions=(100, 0, 0))
    for clicked in (False, True):
        found = training_impressions(everything, clicked)
        assert found.time.tolist() == [1, 2, 3]
        assert found.random.tolist() == [False, True, False]


def test_a_list_with_one_random_item_is_not_served_at_random() -> None:
    """The same rule where propensities are estimated: user a at 1 was shown a mixed list, at 2 a random one;
    user c has, at one time, a random impression and one that is not, and a row of no impression."""
    rows = {
        "user": ["a"] * 4 + ["b"] + ["c"] * 5,
        "item": ["p", "q", "r", "s", "p", "p", "q", "r", "s", "p"],
        "time": [1, 1, 2, 2, 2, 3, 3, 4, 4, 5],
        "label": [1, 0, 1, 0, 1, 1, 0, 1, 0, 1],
        "exposed": [1, 0, 1, 1, 0, 1, 0, 1, 1, 1],
        "impression_id": ["0", "0", "1", "1", "2", "3", "4", "5", "5", None],
    }
    log = unskew.read(pa.table(rows))
    moments = {"a": (1, 2, 3), "b": (2,), "c": (3, 4, 5)}
    user = log.users.codes([name for name, times in moments.items() for _ in times]).astype(np.int64)
    time = np.array([log.clock.moment(time) for times in moments.values() for time in times])
    expected = [False, True, False, False, False, True, True]
    assert served_at_random(log, user, time).tolist() == expected
    without = unskew.read(pa.table(rows).drop_columns(["impression_id"]))
    assert served_at_random(without, user, time).tolist() == expected
    assert not served_at_random(unskew.read(pa.table(rows).drop_columns(["exposed"])), user, time).any()
