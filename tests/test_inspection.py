import itertools
import json
import math
import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unskew
from unskew.data.clock import Clock
from unskew.data.split import Split, split
from unskew.data.views import Sequences
from unskew.describe import figures as look
from unskew.describe.figures import Bin
from unskew.describe.log import Inspection, Row, inspect
from unskew.report.charts import Bars, Lines, svg
from unskew.report.inspect_page import inspect_page, picture
from unskew.report.page import Section, figure, page, paragraph, points, table

NOW = 1_600_000_000


def cut(user, item, time, label=None, exposed=None, shares=(50, 20, 30), **more) -> Split:
    columns = {"user": user, "item": item, "time": time, "label": label, "exposed": exposed} | more
    log = unskew.read(
        pa.table({name: list(column) for name, column in columns.items() if column is not None})
    )
    return split(log, shares=shares)


def codes(*numbers):
    return np.asarray(numbers, np.int32)


def times(*numbers):
    return np.asarray(numbers, np.int64)


def skewed_log(seed=0) -> Split:
    """40 items with popularity falling like 1 / rank; all of them are known to training."""
    draw = np.random.default_rng(seed)
    weight = 1 / np.arange(1, 41)
    item = draw.choice(40, 6000, p=weight / weight.sum())
    item[:40] = np.arange(40)
    return cut(draw.integers(0, 200, 6000), item, NOW + np.arange(6000))


@pytest.fixture(scope="module")
def skewed() -> Inspection:
    return inspect(skewed_log())


# Numbers worked out by hand


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
        "0.0 % are still at the top in the last slice; half of them were gone after 1 of 10 slices (40 days)"
        in found.sentences()[1]
    )


# Order


def test_coincidences_by_hand():
    # 0>1 three times: 3 pairs; 1>2 twice: 1 pair; 2>0 once; 1>1 does not count
    before, after = codes(0, 1, 0, 1, 0, 2, 1, 1), codes(1, 2, 1, 2, 1, 0, 1, 1)
    assert look.coincidences(before, after, 3) == 4
    assert look.coincidences(codes(), codes(), 3) == 0
    assert look.coincidences(codes(1, 0), codes(0, 1), 2) == 0  # direction matters


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_coincidences_are_pairs_of_equal_transitions(pairs):
    slow = sum(one == other and one[0] != one[1] for one, other in itertools.combinations(pairs, 2))
    assert look.coincidences(codes(*(a for a, _ in pairs)), codes(*(b for _, b in pairs)), 4) == slow


def sequences(items, moments, lengths):
    return Sequences(codes(*items), times(*moments), np.concatenate([[0], np.cumsum(lengths)]))


def test_transitions_stay_within_a_user_and_go_forward_in_time():
    # a: 0 1 | 2 at 1 1 2 -> one step from {0, 1} to 2; b: 2 0 1 at 1 2 3 -> two steps
    found = look.shuffle_test(sequences([0, 1, 2, 2, 0, 1], [1, 1, 2, 1, 2, 3], [3, 3]), 3, 5, seed=0)
    assert found.transitions == 3
    assert found.observed == 0
    alone = look.shuffle_test(sequences([0, 1, 2], [1, 1, 1], [3]), 3, 5, seed=0)
    assert (alone.transitions, alone.observed, alone.mean, alone.deviation) == (0, 0, 0, 0)
    assert math.isnan(alone.z)
    assert math.isnan(alone.ratio)


def test_two_users_with_two_items_by_hand():
    # Both 0 > 1. A shuffle turns each round with probability 1/2: the steps agree half of the time, so the
    # mean is 1/2.
    found = look.shuffle_test(sequences([0, 1, 0, 1], [1, 2, 1, 2], [2, 2]), 2, 2000, seed=0)
    assert found.observed == 1
    assert set(found.shuffled) == {0, 1}
    assert found.mean == pytest.approx(0.5, abs=0.05)
    ones = sum(found.shuffled)  # of 2000, so the sample's variance is ones * zeros / (2000 * 1999)
    assert found.deviation == pytest.approx(math.sqrt(ones * (2000 - ones) / (2000 * 1999)), rel=1e-9)
    assert found.z == pytest.approx((1 - found.mean) / found.deviation)
    assert found.ratio == pytest.approx(1 / found.mean)


def walks(seed, shuffled) -> Split:
    """Users walk a circle of 50 items from random places; shuffled, each meets the same items in any
    order."""
    draw = np.random.default_rng(seed)
    user, step = np.repeat(np.arange(100), 12), np.tile(np.arange(12), 100)
    item = (draw.integers(0, 50, 100)[user] + step) % 50
    if shuffled:
        item = item[np.lexsort([draw.random(len(user)), user])]
    return cut(user, item, NOW + step * 1000 + user)


def test_an_informative_order_is_found():
    found = inspect(walks(0, shuffled=False))
    assert found.shuffle.transitions == 100 * 11
    assert found.shuffle.z > 50
    assert found.shuffle.ratio > 5
    assert "carries information" in found.sentences()[2]


def test_a_shuffled_order_is_not():
    scores = np.array([inspect(walks(seed, shuffled=True)).shuffle.z for seed in range(12)])
    assert np.abs(scores).max() < 3.5
    assert abs(scores.mean()) < 1
    assert "no visible information" in inspect(walks(0, shuffled=True)).sentences()[2]


def test_ties_alone_are_not_an_order():
    # Rows of equal time stand sorted by code. If that counted as an order, low codes would follow high ones
    # all the time.
    draw = np.random.default_rng(1)
    user = np.repeat(np.arange(150), 12)
    split_ = cut(user, draw.integers(0, 12, len(user)), NOW + np.tile(np.arange(12) // 3, 150))
    scores = [inspect(split_, seed=seed).shuffle.z for seed in range(8)]
    assert abs(np.mean(scores)) < 2


def test_a_seed_repeats_and_another_differs():
    walk = walks(3, shuffled=True)
    assert inspect(walk, seed=1) == inspect(walk, seed=1)
    assert inspect(walk, seed=1).shuffle.shuffled != inspect(walk, seed=2).shuffle.shuffled


def test_large_logs_get_fewer_shuffles():
    assert look.number_of_shuffles(0) == look.number_of_shuffles(10**7) == 20
    assert look.number_of_shuffles(2 * 10**7) == 10
    assert look.number_of_shuffles(10**9) == 5


# The tests


def test_tests_by_hand():
    # Training: x 6, y 3, z 1, w 1, v 1 (the head is one of five items: x). Test positives: x x y and n, which
    # is new; nobody had it before the first time, so that one is left out, and the second counts.
    item = [*"xxxxxxyyyzwv", *"xxynn"]
    found = inspect(cut([*"abababababab", *"ababa"], item, NOW + np.arange(17), shares=(12, 0, 5)))
    assert [tested.test for tested in found.tests] == ["ordinary", "balanced", "authors"]
    ordinary, balanced, authors = found.tests
    assert (ordinary.positives, balanced.positives) == (4, 4)
    assert (ordinary.effective_sample_size, balanced.effective_sample_size) == (
        4,
        pytest.approx(9 / 2.5),
    )  # 1/2 1/2 1 1
    assert (ordinary.head, ordinary.long_tail, ordinary.unknown_items) == (0.5, 0.25, 0.25)
    assert (balanced.head, balanced.long_tail, balanced.unknown_items) == tuple([pytest.approx(1 / 3)] * 3)
    assert (ordinary.gini, balanced.gini) == (pytest.approx(look.gini([2, 1, 1])), pytest.approx(0))
    logs = math.log10(6), math.log10(3)  # n counts as 1
    assert ordinary.mean_log10_popularity == pytest.approx((2 * logs[0] + logs[1]) / 4)
    assert balanced.mean_log10_popularity == pytest.approx(sum(logs) / 3)
    assert ordinary.deciles == (0.5, 0, 0.25, 0, 0, 0, 0, 0, 0, 0)  # five items: every other tenth
    assert balanced.deciles == pytest.approx((1 / 3, 0, 1 / 3, 0, 0, 0, 0, 0, 0, 0))
    assert authors.positives <= 2  # the most popular of the held-out part, x, always vanishes


def test_the_balanced_test_flattens_a_skewed_one(skewed):
    ordinary, balanced, _ = skewed.tests
    assert ordinary.unknown_items == balanced.unknown_items == 0
    assert balanced.positives == ordinary.positives
    assert balanced.effective_sample_size < ordinary.effective_sample_size == ordinary.positives
    assert balanced.gini == pytest.approx(0, abs=1e-9)
    assert ordinary.gini > 0.3
    assert balanced.mean_log10_popularity < ordinary.mean_log10_popularity - 0.3
    assert balanced.deciles == pytest.approx([0.1] * 10)  # 40 items, all of them in the test
    assert balanced.head + balanced.long_tail == pytest.approx(1)
    assert f"where every item counts once (balanced), {100 * balanced.head:.1f} % is" in skewed.sentences()[3]


def test_unknown_items_are_told_apart_from_the_tail():
    found = inspect(cut([*"abcdef"] * 2, [*"xxxyyy", *"nnnmmm"], NOW + np.arange(12)))
    for tested in found.tests[:2]:
        assert tested.unknown_items == 1
        assert tested.head == tested.long_tail == sum(tested.deciles) == 0
    assert (
        "Test: 0.0 % of the ordinary test is on the most popular fifth of the items" in found.sentences()[3]
    )


def test_every_test_is_there_where_the_log_knows_it():
    draw = np.random.default_rng(0)
    exposed = np.arange(400) % 4 == 0
    user, item, label = np.repeat(np.arange(40), 10), draw.integers(0, 9, 400), draw.integers(0, 2, 400)
    time = NOW + np.arange(400) // 5  # five at a time
    found = inspect(
        cut(user, item, time, label, exposed.astype(int), propensity=draw.choice([0.25, 0.5], 400))
    )
    assert [tested.test for tested in found.tests] == [
        "ordinary",
        "balanced",
        "shown",
        "randomised",
        "weighted",
        "authors",
    ]
    by_name = {tested.test: tested for tested in found.tests}
    assert (
        by_name["randomised"].positives == (exposed & (label == 1))[280:].sum()
    )  # every item is there by then
    assert by_name["weighted"].positives == by_name["ordinary"].positives == label[280:].sum()
    assert by_name["weighted"].effective_sample_size < by_name["ordinary"].effective_sample_size
    assert {row.group for row in found.rows()} >= {"randomised test", "shown test", "weighted test"}
    assert [row["part"] for row in found.split] == ["train", "valid", "test"]
    assert "randomised" in inspect_page(found)


def test_repeats_by_hand():
    # Training (10 positives): a has x twice, b has y twice. Test: x and z of a again, z of b. Then a is shown
    # x, which is no positive.
    label = [1] * 13 + [0]
    found = inspect(
        cut([*"aabbabzzzz", *"abaa"], [*"xxyyzwxywv", *"xzzx"], NOW + np.arange(14), label, shares=(10, 0, 4))
    )
    assert (found.repeats.positives, found.repeats.repeated, found.repeats.kept) == (13, 4, True)
    assert (found.repeats.train_share, found.repeats.test_share) == (pytest.approx(0.2), pytest.approx(2 / 3))
    said = (
        "Repeats: 30.8 % of the positives are on an item that the same user had before; past items stay "
        "candidates."
    )
    assert said in found.sentences()
    rows = {row.name: row.value for row in found.rows() if row.group == "repeats"}
    assert rows == {
        "repeated positives": "4",
        "in training / test": "20.0 % / 66.7 %",
        "past items": "candidates",
    }
    never = inspect(cut([*"aabbccddee"], [*"xyxyxyxyxy"], NOW + np.arange(10)))
    assert (never.repeats.repeated, never.repeats.kept) == (0, False)
    assert not [sentence for sentence in never.sentences() if sentence.startswith("Repeats")]


# What is handed on


DEGENERATE = {
    "three rows": lambda: cut("aab", "xyx", [1, 2, 3]),
    "one time per user": lambda: cut("aabbcc", "xyxyxy", [1, 1, 2, 2, 3, 3]),
    "one time": lambda: cut("aabb", "xyxy", [7, 7, 7, 7]),
    "no valid rows": lambda: cut("abababab", "xyyxxyxy", range(8), shares=(50, 0, 50)),
    "no test rows": lambda: cut("abababab", "xyyxxyxy", range(8), shares=(80, 20, 0)),
    "no positives in the test": lambda: cut("abababab", "xyyxxyxy", range(8), label=[1, 1, 1, 0, 0, 0, 0, 0]),
    "one positive": lambda: cut("abababab", "xyyxxyxy", range(8), label=[1, 0, 0, 0, 0, 0, 0, 0]),
    "more rows than pairs": lambda: cut("ab" * 10, "xyyx" * 5, range(20)),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_logs_have_a_report(name):
    found = inspect(DEGENERATE[name]())
    written = json.dumps(found.as_dict(), allow_nan=False)
    assert json.loads(written) == found.as_dict()
    assert not any("nan" in f"{row.value} {row.meaning}" for row in found.rows())
    html = inspect_page(found)
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)
    ET.fromstring(picture(found))


def test_undefined_is_null():
    found = inspect(DEGENERATE["no positives in the test"]()).as_dict()
    assert found["tests"][0]["positives"] == 0
    assert found["tests"][0]["gini"] is None
    assert found["clock"]["days"] is None
    assert found["drift"]["slices"][0]["new"] is None


def test_sentences_of_logs_that_say_little():
    together = inspect(DEGENERATE["one time"]()).sentences()
    assert "Drift: not to be seen, all positives have one time." in together
    assert "Order: cannot be tested, nobody has two positives at different times." in together
    assert any(sentence.startswith("Ties: 100.0 % of the positives") for sentence in together)
    assert (
        "Order: too little data to judge, no transition occurs twice."
        in inspect(DEGENERATE["three rows"]()).sentences()
    )
    nothing = "Test: the test part has no positives that could be ranked."
    assert nothing in inspect(DEGENERATE["no positives in the test"]()).sentences()
    recurring = next(
        row for row in inspect(DEGENERATE["more rows than pairs"]()).rows() if row.name == "sparsity"
    )
    assert recurring == Row("size", "sparsity", "-400.00 %", "below 0: the same pairs again and again")


def test_rows_are_formatted_for_people(skewed):
    rows = {(row.group, row.name): row for row in skewed.rows()}
    assert rows["size", "interactions"].value == "6,000"
    assert rows["size", "sparsity"].value == f"{100 * (1 - 6000 / 200 / 40):.2f} %"
    assert rows["time", "first"].value == "2020-09-13 12:26:40"
    assert rows["order", "by chance"].meaning == "20 shuffles"
    assert rows["ordinary test", "positives"].value == "1,800"
    assert rows["ordinary test", "effective sample size"].value == "1,800"


def test_the_split_is_passed_on():
    log = skewed_log()
    assert list(inspect(log).split) == log.summary()


# The page


def drawings(html: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)


def test_the_page_needs_nothing_else(skewed):
    html = inspect_page(skewed)
    addresses = set(re.findall(r"""https?://[^"'\s<>)]+""", html))
    assert addresses == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }  # namespaces, never fetched
    assert not re.search(r"<(script|link|img|iframe|object|embed)\b|@import|@font-face", html)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', html)) == set(re.findall(r'href="(#[^"]*)"', html))
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_drawings_are_xml_with_ids_of_their_own(skewed):
    html = inspect_page(skewed)
    assert len(drawings(html)) == 7
    for drawing in drawings(html):
        root = ET.fromstring(drawing)
        assert root.get("role") == "img"
        assert "".join(root.itertext()).strip()  # text stays text
        assert "currentColor" in drawing
        assert not re.search(r"fill: #ffffff|fill: #000000", drawing)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert ids
    assert len(ids) == len(set(ids))
    pointed_at = set(re.findall(r'(?:url\(|href=")#([^")]+)', html))
    assert pointed_at == set(ids)


def test_the_page_and_the_picture_are_the_same_bytes_again(skewed):
    assert inspect_page(skewed) == inspect_page(inspect(skewed_log()))
    assert picture(skewed) == picture(skewed)


def test_the_picture_stands_alone_on_white(skewed):
    root = ET.fromstring(picture(skewed))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "fill: #ffffff" in picture(skewed)
    assert "currentColor" not in picture(skewed)
    text = "".join(root.itertext())
    assert "Popularity of the items" in text
    assert "What the test asks for" in text
    assert "balanced" in text


def test_text_is_escaped():
    evil = """<script>alert("1 & 'x'")</script>"""
    parts = (
        paragraph(evil),
        points([evil, f"{evil}: {evil}"]),
        table([evil], [[evil]], caption=evil),
        figure("", evil),
    )
    html = page(evil, [Section(evil, parts)], evil)
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(&quot;1 &amp; &#x27;x&#x27;&quot;)&lt;/script&gt;") == 12
    chart = svg(Bars([evil], {evil: [0.5], "b": [0.1]}, evil, evil, evil), "chart", evil)
    root = ET.fromstring(chart)
    assert root.get("aria-label") == evil
    assert "".join(root.itertext()).count(evil) == 5
    assert "<script" not in chart


def test_the_source_is_escaped(skewed, tmp_path):
    folder = tmp_path / 'a<b> & "c"'
    folder.mkdir()
    (folder / "log.csv").write_text("user,item,time\n" + "".join(f"{n % 3},{n % 4},{n}\n" for n in range(30)))
    html = inspect_page(inspect(split(unskew.read(folder))))
    assert "a&lt;b&gt; &amp; &quot;c&quot;" in html
    assert "<b>" not in html


def test_tables_put_numbers_on_the_right():
    html = table(["name", "n", "why"], [["a", "1", "so"]], remarks=(2,))
    assert '<td>a</td><td class="n">1</td><td class="soft">so</td>' in html


def test_a_chart_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(unskew.BadInput, match=re.escape("pip install 'unskew[report]'")):
        svg(Lines([1, 2], {"a": [1, 2]}, "x", "y"), "chart", "a line")


def test_the_settings_of_matplotlib_change_nothing(skewed):
    import matplotlib as mpl

    before = picture(skewed)
    with mpl.rc_context(
        {"font.size": 30, "axes.grid": True, "axes.facecolor": "red", "svg.fonttype": "path"}
    ):
        assert picture(skewed) == before
        assert mpl.rcParams["font.size"] == 30
