"""Borders in time, the three tests, and what is known."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unskew
from unskew.data.split import authors_popularity, borders, inverse_popularity

shares = st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), shares)
def test_equal_times_never_straddle_and_borders_are_nearest(times: list[int], wanted: tuple[int, int, int]) -> None:
    time, share = np.array(times), np.array(wanted, float)
    share /= share.sum()
    train_end, valid_end = borders(time, share)
    assert train_end <= valid_end
    assert (time < train_end).any()
    possible = [int((time < cut).sum()) for cut in [*sorted(set(times))[1:], max(times) + 1]]  # every cut that leaves something to train on
    reached = abs((time < train_end).sum() - share[0] * len(time))
    assert reached == min(abs(rows - share[0] * len(time)) for rows in possible)


def test_shares_by_hand() -> None:
    log = unskew.read(pa.table({"user": list("ababababab"), "item": list("xyxyxyxyzz"), "time": [1, 2, 3, 4, 5, 5, 7, 8, 9, 10]}))
    split = unskew.split(log)
    # half of ten rows would part the two rows at time 5; the nearest border is one row away on either side, the earlier wins
    assert (split.train_end, split.valid_end) == (5, 8)
    assert [row["rows"] for row in split.summary()] == [4, 3, split.summary()[2]["rows"], 3, split.summary()[4]["rows"]]
    assert split.known_items == 2  # z is born in the test part
    assert log.items.of(np.arange(split.known_items)).to_pylist() == ["x", "y"]
    assert next(row for row in split.summary() if row["part"] == "test")["unknown_item_rows"] == 2


def test_parts_are_disjoint_and_complete(log: unskew.Log) -> None:
    split = unskew.split(log)
    together = np.concatenate([split.rows("train"), split.rows("valid"), split.rows("test")])
    assert sorted(together.tolist()) == list(range(len(log)))
    assert (
        log.time[split.rows("train")].max() < log.time[split.rows("valid")].min() <= log.time[split.rows("valid")].max() < split.valid_end
    )


def test_counts_are_of_training_positives(log: unskew.Log) -> None:
    split = unskew.split(log)
    table = log.table().to_pandas()
    train = table[(table.time < split.train_end) & (table.label == 1)]
    expected = train.groupby("item").size()
    counted = dict(zip(log.items.ids.to_pylist(), split.item_counts.tolist(), strict=True))
    assert {item: count for item, count in counted.items() if count} == expected.to_dict()


def test_inverse_popularity_by_hand() -> None:
    assert inverse_popularity(np.array([4, 2, 0, 1]), 1.0).tolist() == [0.25, 0.5, 1.0, 1.0]
    assert inverse_popularity(np.array([4, 1]), 0.5).tolist() == [0.5, 1.0]
    assert inverse_popularity(np.array([4, 1]), 0.0).tolist() == [1.0, 1.0]


def test_authors_popularity_by_hand() -> None:
    weight = authors_popularity(np.array([8, 4, 2, 0]))
    middle = (2**0.005 - 1) / (4**0.005 - 1)
    assert weight == pytest.approx([0.0, middle, 1.0, 0.0])  # the most popular item always vanishes


def test_resampling_flattens_popularity_and_is_seeded() -> None:
    random = np.random.default_rng(0)
    rows = 40_000
    item = np.minimum((50 * random.random(rows) ** 3).astype(int), 49)
    log = unskew.read(pa.table({"user": random.integers(0, 500, rows), "item": item, "time": np.arange(rows)}))
    split, again, other = unskew.split(log), unskew.split(log), unskew.split(log, resample_seed=1)
    ordinary, resampled = (np.bincount(log.item[split.rows("test", test)], minlength=50) for test in ("ordinary", "resampled"))
    assert ordinary.max() / ordinary.min() > 5
    # every item is now expected about equally often; what is drawn is within five standard deviations of a Poisson count
    expected = ordinary * split.acceptance
    assert (np.abs(resampled - expected) < 5 * np.sqrt(expected + 1)).all()
    assert expected.std() / expected.mean() < 0.25 < ordinary.std() / ordinary.mean() / 3  # sampling noise is what is left
    assert (split.rows("test", "resampled") == again.rows("test", "resampled")).all()
    assert split.rows("test", "resampled").tolist() != other.rows("test", "resampled").tolist()


def test_randomised_test_holds_exactly_the_random_rows() -> None:
    table = pa.table({"user": ["a", "b"] * 10, "item": ["x", "y", "z", "x"] * 5, "time": range(20), "is_rand": [0, 0, 1, 0] * 5})
    log = unskew.read(table)
    split = unskew.split(log)
    assert split.tests() == ("ordinary", "resampled", "randomised")
    rows = split.rows("test", "randomised")
    assert sorted(log.time[rows].tolist()) == [14, 18]


def test_wrong_use(log: unskew.Log) -> None:
    with pytest.raises(unskew.BadInput, match="expected three"):
        unskew.split(log, shares=(0, 1, 1))
    with pytest.raises(unskew.BadInput, match="no randomised test"):
        unskew.split(log).rows("test", "randomised")
    with pytest.raises(unskew.BadInput, match="never resampled"):
        unskew.split(log).rows("train", "resampled")
    with pytest.raises(TypeError, match="share"):
        unskew.split(log, share=(1, 1, 1))  # type: ignore[call-arg]
