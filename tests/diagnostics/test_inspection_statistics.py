"""Figures of a log, worked out by hand."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unskew
from tests.helpers.inspected import NOW, codes, cut, times
from unskew.data.log.clock import Clock
from unskew.data.log.split import split
from unskew.diagnostics.log import statistics as look
from unskew.diagnostics.log.inspect import inspect
from unskew.diagnostics.log.statistics import Bin


def test_gini_by_hand():
    assert look.gini([3, 3, 3, 3]) == pytest.approx(0)
    assert look.gini([0, 0, 0, 8]) == pytest.approx(3 / 4)  # (n - 1) / n
    # mean absolute difference of 1, 2, 3, 4 is 20 / 16; half of it over the mean 2.5
    assert look.gini([4, 1, 3, 2]) == pytest.approx(0.25)
    assert math.isnan(look.gini([0, 0]))
    assert math.isnan(look.gini([]))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30).filter(any), st.integers(1, 9))
def test_gini_is_the_mean_absolute_difference_and_has_no_unit(counts, scale):
    x = np.array(counts, float)
    slow = np.abs(x[:, None] - x).sum() / (2 * len(x) ** 2 * x.mean())
    assert look.gini(counts) == pytest.approx(slow)
    assert look.gini(x * scale) == pytest.approx(slow)


def test_ranks_share_their_mean():
    assert look.ranks([10, 30, 20, 20]).tolist() == [1, 4, 2.5, 2.5]
    assert look.ranks([7, 7, 7]).tolist() == [2, 2, 2]


def test_spearman_by_hand():
    assert look.spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1)
    assert look.spearman([1, 2, 3], [9, 4, 1]) == pytest.approx(-1)
    # ranks 1 2 3 4 and 2 1 4 3: 1 - 6 * 4 / (4 * 15)
    assert look.spearman([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)
    # ranks 1.5 1.5 3 and 1 2 3: deviations (-.5 -.5 1) and (-1 0 1): 1.5 / sqrt(1.5 * 2)
    assert look.spearman([5, 5, 6], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(3))
    assert math.isnan(look.spearman([1, 1], [1, 2]))


def test_popularity_by_hand():
    counts = times(*([1] * 15 + [5] * 4 + [15]))  # 50 positives on 20 items
    found = look.popularity_of(counts, seed=0)
    assert found.top_1_percent == pytest.approx(15 / 50)  # one item, rounded up
    assert found.top_10_percent == pytest.approx(20 / 50)
    assert found.half == 3  # 15 + 5 + 5 = 25
    assert found.curve[0] == (1, 15)
    assert found.curve[-1] == (20, 1)
    assert dict(found.curve)[5] == 5
    assert found.gini == look.gini(counts) > found.gini_even > 0


def test_popularity_curve_has_few_points_and_no_zeros():
    found = look.popularity_of(np.concatenate([np.arange(1, 2001), np.zeros(500, np.int64)]), seed=0)
    ranks, counts = zip(*found.curve, strict=True)
    assert len(found.curve) <= look.CURVE_POINTS
    assert ranks[-1] == 2000
    assert counts[-1] == 1
    assert list(counts) == [2001 - rank for rank in ranks]


def test_lengths_by_hand():
    found = look.lengths_of(times(0, 0, 1, 2, 3, 4, 5, 8, 9, 51), limit=50)
    assert (found.mean, found.median) == (8.3, 3.5)
    assert found.p90 == pytest.approx(9 + 0.1 * 42)
    assert (found.empty, found.cut) == (0.2, 0.1)
    assert found.bins == (
        Bin(0, 0, 0.2), Bin(1, 1, 0.1), Bin(2, 2, 0.1), Bin(3, 4, 0.2), Bin(5, 8, 0.2),
        Bin(9, 16, 0.1), Bin(17, 32, 0), Bin(33, 64, 0.1),
    )  # fmt: skip
    assert look.lengths_of(times(50), limit=50).cut == 0  # fifty of fifty are read


def test_lengths_count_what_is_strictly_before():
    found = inspect(cut("aaabb", "xyxyx", [1, 1, 2, 1, 2]))
    # a: x@1 y@1 x@2, b: y@1 x@2: 0 0 2 0 1 items before; x: a@1, then a b@2; y: a b@1
    assert found.history.mean == pytest.approx(3 / 5)
    assert found.history.empty == pytest.approx(3 / 5)
    assert found.audience.mean == pytest.approx(2 / 5)
    assert found.audience.empty == pytest.approx(3 / 5)


def test_negatives_are_rows_and_never_past():
    found = inspect(cut("aaab", "xyzx", [1, 2, 3, 4], label=[1, 0, 1, 1]))
    assert (found.size.interactions, found.size.positives) == (4, 3)
    assert found.size.sparsity == pytest.approx(1 - 4 / 6)
    assert found.history.mean == pytest.approx(1 / 3)  # only z of a has one: x; y was not taken


def test_ties_by_hand():
    found = inspect(cut("aaabbc", "xyzxyx", [5, 5, 6, 6, 7, 8])).clock
    assert found.tied_rows == pytest.approx(4 / 6)  # 5 5 and 6 6
    assert found.tied_positives == pytest.approx(2 / 6)  # 5 5 of a; a and b at 6 are two users
    assert found.distinct == 4


def test_small_times_are_shown_as_they_are():
    clock = inspect(cut("aab", "xyx", [1, 2, 3])).clock
    assert (clock.first, clock.last, clock.resolution) == (1, 3, "order only")
    assert math.isnan(clock.days)


@pytest.mark.parametrize("ticks", [1, 10**3, 10**6, 10**9])
def test_dates_are_recognised_by_their_magnitude(ticks):
    # 1_600_000_000 is 2020-09-13 12:26:40
    clock = inspect(cut("aab", "xyx", [NOW * ticks, (NOW + 5) * ticks, (NOW + 86400) * ticks])).clock
    assert (clock.first, clock.last) == ("2020-09-13 12:26:40", "2020-09-14 12:26:40")
    assert (clock.days, clock.resolution) == (1, "second")


@pytest.mark.parametrize(
    ("first", "last", "unit", "ticks"),
    [
        (NOW, NOW + 9, "as given", 1),
        (NOW * 1000, NOW * 1000 + 9, "as given", 1000),
        (5, NOW, "as given", None),  # the first is no date
        (NOW, NOW * 1000, "as given", None),  # of two units
        (5, 9, "milliseconds", 1000),
    ],
)
def test_the_unit_is_guessed_only_where_all_times_are_dates(first, last, unit, ticks):
    assert Clock.of(first, last, unit) == Clock(ticks)


def test_time_stamps_are_microseconds():
    stamps = pa.array([0, 1, 90_000_000], pa.timestamp("us"))  # too small for a guess by magnitude
    log = unskew.read(pa.table({"user": ["a", "a", "b"], "item": ["x", "y", "x"], "time": stamps}))
    clock = inspect(split(log)).clock
    assert (clock.first, clock.last, clock.resolution) == (
        "1970-01-01 00:00:00",
        "1970-01-01 00:01:30",
        "microsecond",
    )


@pytest.mark.parametrize(
    ("distances", "name"),
    [([86400, 3 * 86400], "day"), ([86400, 3600], "hour"), ([60, 300], "minute"), ([1, 60], "second")],
)
def test_resolution_is_the_largest_common_unit(distances, name):
    distinct = NOW + np.cumsum([0, *distances])  # NOW is no midnight: a day may begin at any hour
    assert Clock(1).resolution(distinct) == name
    assert Clock(1000).resolution(distinct * 1000) == name
    assert Clock(1000).resolution(np.append(distinct * 1000, distinct[-1] * 1000 + 7)) == "millisecond"


def test_days_are_shown_without_hours():
    midnight = 1_599_955_200
    clock = inspect(cut("aab", "xyx", [midnight, midnight + 86400, midnight + 2 * 86400])).clock
    assert (clock.first, clock.last, clock.resolution) == ("2020-09-13", "2020-09-15", "day")


def test_most_popular_and_jaccard_by_hand():
    assert look.most_popular(times(5, 0, 7, 5, 1), 3).tolist() == [2, 0, 3]
    assert look.most_popular(times(0, 4, 0), 3).tolist() == [1]
    assert look.jaccard(times(1, 2, 3), times(3, 4)) == pytest.approx(1 / 4)
    assert look.jaccard(times(1, 2), times(2, 1)) == 1


def test_slices_keep_equal_times_together_and_are_never_empty():
    assert look.slice_edges(np.arange(20), 10).tolist() == list(range(2, 20, 2))
    assert look.slice_edges(times(1, 1, 1, 1, 2, 2, 2, 3), 4).tolist() == [2]
    assert look.slice_edges(times(4, 4, 4), 10).tolist() == []


def test_drift_by_hand(monkeypatch):
    monkeypatch.setattr(look, "SLICES", 3)
    monkeypatch.setattr(look, "TOP", 2)
    # First slice: item 0 three times, 1 twice, 2 once. Second: 1 three times, 3 twice, 0 once. Third: only 4;
    # 25 more are never taken.
    item = codes(0, 0, 0, 1, 1, 2, 1, 1, 1, 3, 3, 0, 4, 4, 4, 4, 4, 4)
    born = np.array([0, 3, 5, 9, 12] + [np.iinfo(np.int64).max] * 25)
    found = look.drift_of(item, np.arange(18), born, Clock(None))
    first, second, third = found.slices
    assert (found.top, first.positives, second.positives, third.positives) == (2, 6, 6, 6)
    assert (first.start, second.start, third.start) == (0, 6, 12)
    assert second.new == pytest.approx(2 / 6)  # item 3
    assert second.overlap_first == second.overlap_previous == pytest.approx(1 / 3)  # {0, 1} and {1, 3}
    assert second.correlation == pytest.approx(
        0
    )  # the four that exist, ranks 4 3 2 1 and 2 4 1 3: 1 - 6 * 10 / 60
    assert (third.new, third.overlap_first, third.overlap_previous) == (1, 0, 0)
    # The five that exist: counts 1 3 0 2 0 and 0 0 0 0 6, ranks 3 5 1.5 4 1.5 and 2.5 2.5 2.5 2.5 5.
    assert third.correlation == pytest.approx(look.spearman([1, 3, 0, 2, 0], [0, 0, 0, 0, 6]))
    assert third.correlation == pytest.approx(-3.75 / math.sqrt(9.5 * 5))
    assert (first.overlap_first, found.kept, found.half_life) == (
        1,
        0,
        1,
    )  # of {0, 1}, half is left in the second slice
    assert math.isnan(first.new)


def test_drift_of_a_log_that_changes_its_items_completely():
    item = np.repeat(np.arange(10), 40)
    found = inspect(cut(np.tile(np.arange(8), 50), item, NOW + 86400 * np.arange(400)))
    assert [part.positives for part in found.drift.slices] == [40] * 10
    assert [part.new for part in found.drift.slices[1:]] == [1.0] * 9
    assert (found.drift.kept, found.drift.half_life, found.drift.half_life_days) == (0, 1, 40)
    assert (
        "0.0 % are still on top at the end; half were replaced after 1 of 10 time slices (40 days)"
        in found.biases()[1]
    )
