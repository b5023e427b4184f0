"""Test, then train: windows that cover the test set once, models that never saw theirs, and refusals."""

import math

import numpy as np
import pytest

import unskew
from unskew.data.log.clock import Clock
from unskew.data.log.split import split_at

DAY = 86_400
START = 1_700_000_000


@pytest.fixture(scope="module")
def split() -> unskew.Split:
    """Forty days; tastes of the hour, so that a model trained long ago knows little. The thirtieth day is
    empty."""
    random = np.random.default_rng(2)
    day = random.integers(0, 40, 3000)
    day = day[day != 30]
    item = (day // 4 * 3 + random.integers(0, 12, len(day))) % 40
    table = {
        "user": random.integers(0, 50, len(day)),
        "item": item,
        "time": START + day * DAY + random.integers(0, DAY, len(day)),
    }
    return unskew.split(unskew.read(table), fractions=(40, 20, 40))


@pytest.fixture(scope="module")
def model(split: unskew.Split) -> unskew.Model:
    return unskew.create_model("sasrec", {"width": 8, "epochs": 2, "valid_examples": 100}).fit(split)


def test_windows_cover_the_test_part_once_and_are_the_frozen_test_in_pieces(
    split: unskew.Split, model: unskew.Model
) -> None:
    found = unskew.rolling(model, split, "3d")
    whole = model.evaluate(split)
    parts = [window.evaluation for window in found.windows if window.evaluation is not None]
    np.testing.assert_array_equal(np.concatenate([part.rows for part in parts]), whole.rows)
    np.testing.assert_allclose(
        np.concatenate([part.values["ndcg@10"] for part in parts]), whole.values["ndcg@10"], rtol=1e-5
    )
    assert found.mean() == pytest.approx(whole.mean("ndcg@10"))
    for window, following in zip(found.windows, found.windows[1:], strict=False):
        assert (window.end - window.start, window.end) == (3 * DAY, following.start)
    assert found.windows[0].start == split.valid_end
    assert found.windows[-1].end == split.log.time.max() + 1
    assert {window.trained_until for window in found.windows} == {split.train_end}
    assert [found.as_dict()[name] for name in ("protocol", "test", "repeats")] == [
        "full",
        "ordinary",
        "kept as candidates",
    ]
    described = found.as_dict()["windows"][0]
    assert described["start"].startswith("2023-")
    low, high = described["interval"]["ndcg@10"]
    assert low <= described["metrics"]["ndcg@10"] <= high


def test_a_window_without_positives_has_no_figure(split: unskew.Split, model: unskew.Model) -> None:
    found = unskew.rolling(model, split, "12h")
    empty = [window for window in found.windows if window.evaluation is None]
    assert [math.isnan(value) for value in found.curve()].count(True) == len(empty) > 0
    assert found.as_dict()["windows"][found.windows.index(empty[0])]["units"] == 0
    assert not math.isnan(found.mean())


def test_refreshed_models_are_trained_before_their_window_and_on_everything_before(
    split: unskew.Split, model: unskew.Model
) -> None:
    found = unskew.rolling(model, split, "6d", refresh="each", sample=60)
    assert len({window.trained_until for window in found.windows}) == len(found.windows) > 2
    for window in found.windows:
        assert window.trained_until < window.start
    again = found.windows[-1]
    here = split_at(split.log, split.settings, again.trained_until, again.start)
    fresh = unskew.create_model("sasrec", {"width": 8, "epochs": 2, "valid_examples": 100}).fit(here)
    expected = fresh.evaluate(here, sample=60, until=again.end)
    assert again.evaluation is not None
    np.testing.assert_array_equal(again.evaluation.values["ndcg@10"], expected.values["ndcg@10"])
    before = (split.log.time < again.start).sum()
    assert (split.log.time < again.trained_until).sum() / before == pytest.approx(40 / 60, abs=0.02)
    assert np.nanmean(found.curve()[1:]) > np.nanmean(
        unskew.rolling(model, split, "6d", sample=60).curve()[1:]
    )  # what a refresh is for


def test_other_tests_roll_too(split: unskew.Split, model: unskew.Model) -> None:
    found = unskew.rolling(model, split, "5d", test="balanced")
    evaluation = found.windows[0].evaluation
    assert evaluation is not None
    items = split.log.item[evaluation.rows]
    assert np.bincount(items, evaluation.weights)[np.unique(items)] == pytest.approx(
        1
    )  # every item of the window counts once


def test_a_window_whose_rows_the_test_does_not_have_has_no_figure(
    split: unskew.Split, model: unskew.Model
) -> None:
    """Under the authors' protocol the test is theirs, which may accept none of a window's few rows."""
    found = unskew.rolling(model, split, "2h", protocol="authors")
    ordinary = unskew.rolling(model, split, "2h")
    nothing = [window.evaluation is None for window in found.windows]
    assert sum(nothing) > sum(window.evaluation is None for window in ordinary.windows)
    assert {window.evaluation.test for window in found.windows if window.evaluation is not None} == {
        "authors"
    }


def test_rows_that_a_model_was_trained_or_chosen_on_are_refused(
    split: unskew.Split, model: unskew.Model
) -> None:
    for train_end, valid_end, said in (
        (START + 3 * DAY, START + 5 * DAY, "trained on"),
        (split.train_end, split.train_end + DAY, "chosen on"),
    ):
        with pytest.raises(unskew.BadInput, match=said):
            model.evaluate(split_at(split.log, split.settings, train_end, valid_end))
    model.evaluate(
        split_at(split.log, split.settings, split.train_end, split.valid_end + DAY), sample=5
    )  # later is no harm


@pytest.mark.parametrize(
    ("window", "ticks", "expected"),
    [("7d", 1, 7 * DAY), ("1.5h", 1000, 5_400_000), ("1w", 1, 7 * DAY), ("25", None, 25)],
)
def test_durations(window: str, ticks: int | None, expected: int) -> None:
    assert Clock(ticks).ticks_in(window) == expected


@pytest.mark.parametrize(
    ("window", "ticks", "said"),
    [
        ("soon", 1, "such as 7d"),
        ("7 moons", 1, "such as 7d"),
        ("7", 1, "a unit"),
        ("7d", None, "only an order"),
        ("0d", 1, "one tick"),
    ],
)
def test_durations_that_are_none(window: str, ticks: int | None, said: str) -> None:
    with pytest.raises(unskew.BadInput, match=said):
        Clock(ticks).ticks_in(window)


def test_too_many_windows_and_unknown_refreshes(split: unskew.Split, model: unskew.Model) -> None:
    with pytest.raises(unskew.BadInput, match="is the unit right"):
        unskew.rolling(model, split, "1s")
    with pytest.raises(unskew.BadInput, match="expected never, each, or a time"):
        unskew.rolling(model, split, "1d", refresh="daily")


def test_a_model_is_refreshed_when_so_much_time_has_passed(split: unskew.Split, model: unskew.Model) -> None:
    """Windows between two refreshes are tested with the model of the last one; only the last windows are
    asked for, and the first of them comes so late that the model is trained again at once."""
    each = unskew.rolling(model, split, "3d", refresh="each", sample=20)
    every_second = unskew.rolling(model, split, "3d", refresh="6d", sample=20, windows=4)
    assert [w.start for w in every_second.windows] == [w.start for w in each.windows[-4:]]
    trained = [w.trained_until for w in every_second.windows]
    fresh = [w.trained_until for w in each.windows[-4:]]
    assert trained == [fresh[0], fresh[0], fresh[2], fresh[2]]
    for one, other in ((0, 0), (2, 2)):
        mine, theirs = every_second.windows[one].evaluation, each.windows[-4:][other].evaluation
        assert mine is not None
        assert theirs is not None
        np.testing.assert_array_equal(mine.values["ndcg@10"], theirs.values["ndcg@10"])
