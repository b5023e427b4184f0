"""The figures of the health of propensities, worked out by hand."""

import math

import numpy as np
import pyarrow as pa
import pytest

import unskew
from tests.conftest import SMALL_DEPS
from unskew.data.log.held_out import effective_size
from unskew.diagnostics.propensity import health
from unskew.diagnostics.propensity import statistics as module
from unskew.diagnostics.propensity.health import (
    TrainingWeights,
    judge_exposure_taken,
    training_weights,
    weighted_rows,
)
from unskew.diagnostics.propensity.statistics import (
    balance_of,
    calibration_of,
    histogram_of,
    views_of,
    weights_of,
)
from unskew.diagnostics.propensity.verdicts import WeightVerdict, judge_weights
from unskew.world.simulate import simulate

CLIP = 0.05


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


def test_ground_truth_that_is_not_known_is_left_out():
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
    assert [bar.fraction for bar in found.histogram] == [0.75, *[0] * 10, 0.25]
    assert (found.histogram[0].low, found.histogram[-1].high) == (pytest.approx(1), pytest.approx(5))
    (only,) = histogram_of(np.full(3, 20.0))
    assert (only.low, only.high, only.fraction) == (20, 20, 1)
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
    columns |= {"weight": np.array([20.0, 20.0, 5.0, 20.0]), "ground-truth": np.full(4, np.nan)}
    item, both = views_of(columns, CLIP)
    assert (item.name, item.clipped, item.median, item.calibration) == (
        "item view",
        0.5,
        pytest.approx(0.045),
        None,
    )
    assert (both.name, both.largest) == ("1 / weight", pytest.approx(0.2))
    assert math.isnan(both.clipped)


def test_uniform_pairs_are_of_impressions_and_of_what_exists():
    rows = [("a", "x", 1), ("a", "y", 1), ("b", "x", 2), ("b", "z", 3), ("a", "x", 9), ("b", "x", 9)]
    log = unskew.read(pa.table(dict(zip(("user", "item", "time"), zip(*rows, strict=True), strict=True))))
    split = unskew.split(log, fractions=(70, 15, 15))
    assert split.train_end == 9
    user, item, time = module.uniform_pairs(split, 6000, 0)
    names, things = (
        vocabulary.of(codes).to_pylist() for vocabulary, codes in ((log.users, user), (log.items, item))
    )
    seen, counts = np.unique(
        [f"{u}{t}{i}" for u, i, t in zip(names, things, time, strict=True)], return_counts=True
    )
    # Three impressions; a at 1 with two items counts once. z exists after time 3. At the very first moment
    # nothing did: all known are similar.
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
    split = unskew.split(log, fractions=(3, 0, 2))
    assert split.known_items == 2
    assert module.tenths(split, log.items.codes(["x", "y", "n"])).tolist() == [0, 5, 9]


def test_a_training_part_of_one_moment_has_uniform_pairs_of_all_items():
    log = unskew.read({"user": [*range(20)] * 2, "item": [*range(10)] * 4, "time": [5] * 20 + [6] * 20})
    _, item, time = module.uniform_pairs(unskew.split(log, fractions=(1, 0, 1)), 4000, 0)
    assert np.bincount(item, minlength=10) == pytest.approx(400, rel=0.2)
    assert set(time.tolist()) == {5}


# The weights of a trained model


def test_the_weights_of_a_trained_model_are_looked_at(
    model: unskew.Model, model_split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = training_weights(model, model_split)
    weights = model.propensities(model_split.log, weighted_rows(model_split))["weight"]
    assert seen.weight.tolist() == weights.to_pylist()
    assert (seen.clip, seen.exposure) == (model.propensity.clip, None)
    assert seen.finding == judge_weights(weights, model.propensity.clip)
    monkeypatch.setattr(health, "SAMPLE", 10)
    assert len(training_weights(model, model_split).weight) == 10
    assert training_weights(unskew.create_model("popularity").fit(model_split), model_split) is None


def test_weights_at_the_clip_are_clipped() -> None:
    assert TrainingWeights(CLIP, np.array([20.0, 20.0 - 1e-9, 19.9, 1.0])).clipped == 0.5


def test_a_model_that_does_not_weight_says_what_it_takes_out(model_split: unskew.Split) -> None:
    brief = {
        "epochs": 1,
        "width": 8,
        "valid_examples": 50,
        "propensity": "item-pro",
        "method": "logit-offset",
    }
    made = unskew.create_model("debiased-gru4rec", brief).fit(model_split, show_progress=False)
    seen = training_weights(made, model_split)
    assert seen.exposure == judge_exposure_taken(made.network.correction, model_split)
    assert seen.finding.kind is WeightVerdict.EXPOSURE_TAKEN
    assert len(seen.weight) == 0


def test_a_model_that_reads_impressions_says_that_nothing_is_weighted() -> None:
    """By default; with a power, there are weights."""
    split = unskew.split(simulate(users=60, items=40, steps=60, impressions=0.3).log)
    for asked, said in (({}, WeightVerdict.UNWEIGHTED.of()), ({"strength": 0.5}, None)):
        made = unskew.create_model("deps", SMALL_DEPS | asked, "auto").fit(split, show_progress=False)
        assert made.network.correction.method == "ips"
        assert training_weights(made, split).exposure == said
        assert bool(len(training_weights(made, split).weight)) != bool(said)
