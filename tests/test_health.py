"""The health of propensities, by hand-worked numbers and in a world whose true ones are known."""

import json
import math

import numpy as np
import pyarrow as pa
import pytest

import unskew
from unskew.data.held_out import effective_size
from unskew.errors import BadInput
from unskew.propensity import health as module
from unskew.propensity.health import (
    balance_of,
    calibration_of,
    health,
    histogram_of,
    logged_truth,
    views_of,
    weights_of,
)
from unskew.report.health_page import health_page
from unskew.world.simulate import simulate

CLIP = 0.05


def table(log, item, user=None, clip=CLIP, alpha=0.5):
    """What `Model.propensities` gives, with these estimates."""
    user = item if user is None else user
    weight = alpha / np.maximum(item, clip) + (1 - alpha) / np.maximum(user, clip)
    return pa.table({"item_view": item, "user_view": user, "weight": weight})


@pytest.fixture(scope="module")
def split():
    # No randomised visits: one policy, so that its probabilities are the whole truth.
    return unskew.split(
        simulate(users=300, items=80, steps=60, visits=0.2, shown=8.0, randomised=0.0, seed=2).log
    )


@pytest.fixture(scope="module")
def truth(split):
    return logged_truth(split.log)


# By hand


def test_calibration_by_hand():
    estimate, true = np.array([0.1, 0.1, 0.01, 0.01]), np.array([0.4, 0.2, 0.04, 0.02])
    found = calibration_of(estimate, true)
    # log10(true / estimate) is log10(4), log10(2), log10(4), log10(2): its mean is log10(sqrt 8), its half
    # range log10(sqrt 2).
    assert found.scale == pytest.approx(math.sqrt(8))
    assert found.scaled_error == pytest.approx(math.log10(math.sqrt(2)))
    assert found.error == pytest.approx(math.sqrt((math.log10(4) ** 2 + math.log10(2) ** 2) / 2))
    # Ranks 3.5 3.5 1.5 1.5 and 4 3 2 1: covariance 4, variances 4 and 5.
    assert found.spearman == pytest.approx(4 / math.sqrt(4 * 5))
    assert [(point.rows, point.estimated, point.true) for point in found.curve] == [
        (2, pytest.approx(0.01), pytest.approx(0.03)),
        (2, pytest.approx(0.1), pytest.approx(0.3)),
    ]


def test_truth_that_is_not_known_is_left_out():
    assert calibration_of(np.array([0.1, 0.2]), np.array([np.nan, np.nan])) is None
    found = calibration_of(np.array([0.1, 0.2, 0.0]), np.array([np.nan, 0.4, 0.3]))
    assert (found.scale, found.scaled_error) == (pytest.approx(2), pytest.approx(0))
    assert [point.rows for point in found.curve] == [1]


def test_weights_by_hand():
    weight = np.array([1.0, 1.0, 1.0, 5.0])
    assert effective_size(weight) == pytest.approx(64 / 28)
    found = weights_of(weight)
    assert (found.mean, found.median, found.largest, found.rows) == (2, 1, 5, 4)
    assert found.effective_share == pytest.approx(64 / 28 / 4)
    assert [bar.share for bar in found.histogram] == [0.75, *[0] * 10, 0.25]
    assert (found.histogram[0].low, found.histogram[-1].high) == (pytest.approx(1), pytest.approx(5))
    (only,) = histogram_of(np.full(3, 20.0))
    assert (only.low, only.high, only.share) == (20, 20, 1)
    assert weights_of(np.zeros(0)).rows == 0


def test_balance_by_hand():
    observed, uniform = {"x": np.array([0.0, 0.0, 0.0, 4.0])}, {"x": np.array([1.0, 3.0])}
    (found,) = balance_of(observed, uniform, np.array([1.0, 1.0, 1.0, 3.0]))
    # Means 1, weighted 2, uniform 2; variances 3 and 1, so the spread is sqrt 2.
    assert (found.covariate, found.before, found.after) == (
        "x",
        pytest.approx(-1 / math.sqrt(2)),
        pytest.approx(0),
    )
    (flat,) = balance_of({"x": np.ones(2)}, {"x": np.ones(2)}, np.ones(2))
    assert math.isnan(flat.before)


def test_clipped_shares_by_hand():
    columns = {"item_view": np.array([0.01, 0.05, 0.2, 0.04]), "user_view": np.full(4, np.nan)}
    columns |= {"weight": np.array([20.0, 20.0, 5.0, 20.0]), "truth": np.full(4, np.nan)}
    item, both = views_of(columns, CLIP)
    assert (item.name, item.clipped, item.median, item.calibration) == (
        "item view",
        0.5,
        pytest.approx(0.045),
        None,
    )
    assert (both.name, both.largest) == ("1 / weight", pytest.approx(0.2))
    assert math.isnan(both.clipped)


def test_uniform_pairs_are_of_visits_and_of_what_exists():
    rows = [("a", "x", 1), ("a", "y", 1), ("b", "x", 2), ("b", "z", 3), ("a", "x", 9), ("b", "x", 9)]
    log = unskew.read(pa.table(dict(zip(("user", "item", "time"), zip(*rows, strict=True), strict=True))))
    split = unskew.split(log, shares=(70, 15, 15))
    assert split.train_end == 9
    user, item, time = module.uniform_pairs(split, 6000, 0)
    names, things = (
        vocabulary.of(codes).to_pylist() for vocabulary, codes in ((log.users, user), (log.items, item))
    )
    seen, counts = np.unique(
        [f"{u}{t}{i}" for u, i, t in zip(names, things, time, strict=True)], return_counts=True
    )
    # Three visits; a at 1 with two items counts once. z exists after time 3. At the very first moment nothing
    # did: all known are alike.
    expected = {"a1x": 667, "a1y": 667, "a1z": 667, "b2x": 1000, "b2y": 1000, "b3x": 1000, "b3y": 1000}
    assert dict(zip(seen.tolist(), counts, strict=True)) == {
        name: pytest.approx(n, rel=0.12) for name, n in expected.items()
    }
    # Popularity: x 2, y 1, z 1 positives in training; log(1 + n). Audiences strictly before.
    code = {name: int(log.items.codes([name])[0]) for name in "xyz"}
    found = module.covariates(
        split, log.users.codes(["b", "b"]), np.array([code["x"], code["z"]]), np.array([3, 3])
    )
    assert found["item popularity"] == pytest.approx(np.log([3, 2]))
    assert found["history length"] == pytest.approx(np.log([2, 2]))
    assert found["audience length"] == pytest.approx(np.log([3, 1]))
    assert module.tenths(split, np.array([code["x"], code["y"], code["z"]])).tolist() == [0, 3, 6]


def test_items_that_were_shown_in_training_and_never_taken_are_in_the_last_tenth():
    rows = [("a", "x", 1, 1), ("b", "y", 1, 1), ("a", "n", 2, 0), ("a", "y", 9, 1), ("b", "n", 9, 1)]
    log = unskew.read(
        pa.table(dict(zip(("user", "item", "time", "label"), zip(*rows, strict=True), strict=True)))
    )
    split = unskew.split(log, shares=(3, 0, 2))
    assert split.known_items == 2
    assert module.tenths(split, log.items.codes(["x", "y", "n"])).tolist() == [0, 5, 9]


def test_a_training_part_of_one_moment_has_uniform_pairs_of_all_items():
    log = unskew.read({"user": [*range(20)] * 2, "item": [*range(10)] * 4, "time": [5] * 20 + [6] * 20})
    _, item, time = module.uniform_pairs(unskew.split(log, shares=(1, 0, 1)), 4000, 0)
    assert np.bincount(item, minlength=10) == pytest.approx(400, rel=0.2)
    assert set(time.tolist()) == {5}


# In a world


def test_the_truth_is_in_perfect_health(split, truth):
    found = health(split, table(split.log, truth, clip=1e-6), 1e-6, truth)
    assert found.known
    for view in found.views:
        assert view.calibration.spearman == pytest.approx(1)
        assert view.calibration.error == pytest.approx(0, abs=1e-6)
        assert view.calibration.scale == pytest.approx(1)
        assert all(point.true == pytest.approx(point.estimated) for point in view.calibration.curve)
    assert len(found.views[0].calibration.curve) > 5
    assert found.views[0].clipped == 0
    balance = {part.covariate: part for part in found.balance}
    assert abs(balance["item popularity"].before) > 0.3
    for name in ("item popularity", "audience length"):
        assert abs(balance[name].after) < abs(balance[name].before) / 4
        assert abs(balance[name].after) < 0.1
    assert found.weights.effective_share < 0.7
    # By tenth: the weighted shares are nearer to the uniform ones, and all tenths together are the whole.
    parts = found.deciles
    assert [part.number for part in parts] == list(range(1, 11))
    log, train = split.log, split.rows("train")
    taken = {
        item: log.time[(log.item == item) & (log.label == 1)].min(initial=2**62)
        for item in range(len(log.items))
    }
    existed = [
        time <= min(taken.values()) or taken[item] < time
        for item, time in zip(log.item[train], log.time[train], strict=True)
    ]
    assert sum(part.rows for part in parts) == found.pairs == sum(existed) < len(train)
    for name in ("share", "weighted_share", "uniform_share"):
        assert sum(getattr(part, name) for part in parts) == pytest.approx(1)
    before = sum(abs(part.share - part.uniform_share) for part in parts)
    assert sum(abs(part.weighted_share - part.uniform_share) for part in parts) < before / 3
    assert all(part.views[0].calibration.spearman == pytest.approx(1) for part in parts)


def test_a_constant_factor_costs_calibration_but_not_the_rest(split, truth):
    honest, scaled = (
        health(split, table(split.log, factor * truth, clip=1e-9), 1e-9, truth) for factor in (1, 0.02)
    )
    found = scaled.views[0].calibration
    assert found.scale == pytest.approx(50)
    assert (found.error, found.scaled_error) == (pytest.approx(math.log10(50)), pytest.approx(0, abs=1e-6))
    assert found.spearman == pytest.approx(1)
    assert scaled.weights.effective == pytest.approx(honest.weights.effective)
    assert [part.after for part in scaled.balance] == pytest.approx([part.after for part in honest.balance])


def test_a_constant_estimate_knows_nothing(split, truth):
    found = health(split, table(split.log, np.full(len(truth), 0.01)), CLIP, truth)
    for view in found.views:
        assert math.isnan(view.calibration.spearman)
    assert [view.clipped for view in found.views[:2]] == [1, 1]
    assert found.weights.effective_share == pytest.approx(1)
    assert [bar.share for bar in found.weights.histogram] == [1]
    assert all(part.after == pytest.approx(part.before) for part in found.balance)
    assert "naive" in " ".join(found.sentences())
    assert "–" in {row.value for row in found.rows()}


def test_a_shuffled_estimate_is_told_from_the_truth(split, truth):
    wrong = np.random.default_rng(0).permutation(truth)
    found = health(split, table(split.log, truth, wrong), CLIP, truth)
    item, user, both = found.views
    assert item.calibration.spearman == pytest.approx(1)
    assert abs(user.calibration.spearman) < 0.05
    assert 0.2 < both.calibration.spearman < 0.95
    assert user.calibration.scaled_error > 0.3


def test_only_training_rows_are_looked_at(split, truth):
    estimates = truth.copy()
    estimates[~split.mask("train")] = 0.5
    assert health(split, table(split.log, estimates), CLIP, truth) == health(
        split, table(split.log, truth), CLIP, truth
    )


def test_one_view_and_no_truth(split, truth):
    nothing = np.full(len(truth), np.nan)
    found = health(split, pa.table({"item_view": truth, "user_view": nothing, "weight": 1 / truth}), CLIP)
    assert [view.name for view in found.views] == ["item view", "1 / weight"]
    assert not found.known
    assert {view.calibration for view in found.views} == {None}
    assert "Calibration" not in health_page(found, "a run")


@pytest.mark.parametrize("estimates", ["truth", "constant"])
def test_as_json_as_table_and_as_page(split, truth, estimates):
    item = truth if estimates == "truth" else np.full(len(truth), 0.01)
    found = health(split, table(split.log, item), CLIP, truth)
    document = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert document["pairs"] == found.pairs
    assert (document["views"][0]["calibration"]["spearman"] is None) == (estimates == "constant")
    head, lines = found.decile_table()
    assert {len(line) for line in lines} == {len(head)}
    assert len(lines) == 10
    assert {row.group for row in found.rows()} == {
        "log",
        "item view",
        "user view",
        "1 / weight",
        "weights",
        "balance",
    }
    page = health_page(found, "<run>")
    assert "Propensities of &lt;run&gt;" in page
    assert page.count("<svg") == 6
    assert "nan" not in page


def test_wrong_lengths_are_named(split, truth):
    with pytest.raises(BadInput, match="expected one per row"):
        health(split, table(split.log, truth[:-1]), CLIP)
    with pytest.raises(BadInput, match="true propensities"):
        health(split, table(split.log, truth), CLIP, truth[:-1])
