"""Borders in time, what is known, which rows may be targets, and whether past items are candidates."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unskew
from tests.conftest import columns, quick, random_table
from tests.helpers.errors import refused
from unskew.data.log.split import PART_OF_THE_TASK, borders

fractions = st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), fractions)
def test_equal_times_never_straddle_and_borders_are_nearest(
    times: list[int], wanted: tuple[int, int, int]
) -> None:
    time, fraction = np.array(times), np.array(wanted, float)
    fraction /= fraction.sum()
    train_end, valid_end = borders(time, fraction)
    assert train_end <= valid_end
    assert (time < train_end).any()
    possible = [
        int((time < cut).sum()) for cut in [*sorted(set(times))[1:], max(times) + 1]
    ]  # every cut that leaves something to train on
    reached = abs((time < train_end).sum() - fraction[0] * len(time))
    assert reached == min(abs(rows - fraction[0] * len(time)) for rows in possible)


def test_shares_by_hand() -> None:
    log = unskew.read(
        pa.table(
            {"user": list("ababababab"), "item": list("xyxyxyxyzz"), "time": [1, 2, 3, 4, 5, 5, 7, 8, 9, 10]}
        )
    )
    split = unskew.split(log)
    # half of ten rows would part the two rows at time 5; the nearest border is one row away on either side,
    # the earlier wins
    assert (split.train_end, split.valid_end) == (5, 8)
    assert [row["rows"] for row in split.summary()] == [4, 3, 3]
    assert split.known_items == 2  # z is born in the test set
    assert log.items.of(np.arange(split.known_items)).to_pylist() == ["x", "y"]
    assert next(row for row in split.summary() if row["part"] == "test")["unknown_item_rows"] == 2


def test_parts_are_disjoint_and_complete(log: unskew.Log) -> None:
    split = unskew.split(log)
    together = np.concatenate([split.rows("train"), split.rows("valid"), split.rows("test")])
    assert sorted(together.tolist()) == list(range(len(log)))
    assert (
        log.time[split.rows("train")].max()
        < log.time[split.rows("valid")].min()
        <= log.time[split.rows("valid")].max()
        < split.valid_end
    )


def test_counts_are_of_training_positives(log: unskew.Log) -> None:
    split = unskew.split(log)
    table = log.table().to_pandas()
    train = table[(table.time < split.train_end) & (table.label == 1)]
    expected = train.groupby("item").size()
    counted = dict(zip(log.items.ids.to_pylist(), split.item_counts.tolist(), strict=True))
    assert {item: count for item, count in counted.items() if count} == expected.to_dict()


def test_a_summary_by_hand() -> None:
    rows = [
        ("a", "x", 1, 1),
        ("b", "x", 2, 1),
        ("a", "x", 3, 1),
        ("a", "y", 3, 0),
        ("b", "y", 4, 1),
        ("b", "z", 5, 1),
        ("c", "x", 6, 1),
    ]
    log = unskew.read(
        pa.table(
            dict(zip(("user", "item", "time", "label"), map(list, zip(*rows, strict=True)), strict=True))
        )
    )
    train, valid, test = unskew.split(log, fractions=(4, 1, 2)).summary()
    assert train == {
        "part": "train",
        "rows": 4,
        "positives": 3,
        "users": 2,
        "items": 2,
        "unknown_user_rows": 0,
    } | {
        "unknown_item_rows": 1,  # y was shown, but nobody took it
        "repeated_positives": 1,
        "first_appearances": 0,  # at the very first moment everything is new
    }
    assert (valid["positives"], valid["unknown_item_rows"], valid["first_appearances"]) == (1, 1, 1)
    assert (test["unknown_user_rows"], test["unknown_item_rows"], test["first_appearances"]) == (1, 1, 1)


# What is known


def test_rare_ids_by_hand() -> None:
    user, item = [*"aaabbcabc"], [*"xyxzxxxyz"]
    log = unskew.read({"user": user, "item": item, "time": range(9)})
    split = unskew.split(log, fractions=(6, 0, 3), min_count=2)  # training: a 3, b 2, c 1; x 4, y 1, z 1
    assert (split.known_users, split.known_items, split.min_count) == (3, 3, 2)
    for vocabulary, known, rare in (
        (log.users, split.known.users, ["c"]),
        (log.items, split.known.items, ["y", "z"]),
    ):
        assert known.size == 3
        assert known.rare is not None
        assert vocabulary.of(np.flatnonzero(known.rare)).to_pylist() == rare
    everyone = unskew.split(log, fractions=(6, 0, 3))
    assert everyone.known.users.rare is everyone.known.items.rare is None
    assert (split.mask("train") == everyone.mask("train")).all()  # a threshold moves no row


def test_the_threshold_of_prepare_is_the_default_of_split(tmp_path: Path) -> None:
    table = random_table(rows=300)
    log = unskew.prepare(table, tmp_path / "out", min_count=3)
    assert len(log) == len(unskew.prepare(table, tmp_path / "plain"))  # no row disappears
    split = unskew.split(log)
    assert split.min_count == 3
    taken = [row for row in zip(*columns(log).values(), strict=True) if row[3] and row[2] < split.train_end]
    counts = {
        item: sum(row[1] == item for row in taken) for item in log.items.ids.to_pylist()[: split.known_items]
    }
    assert split.known.items.rare is not None
    assert split.known.items.rare.tolist() == [count < 3 for count in counts.values()]
    assert unskew.split(log, min_count=1).known.items.rare is None  # the caller has the last word
    with refused("min_count"):
        unskew.split(log, min_count=0)


# Repeats


triples = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 6), st.integers(0, 1)),
    min_size=4,
    max_size=60,
)


@pytest.mark.slow
@effort(max_examples=25)
@given(triples)
def test_repeated_is_the_naive_loop(rows: list[tuple[int, int, int, int]]) -> None:
    """A row repeats if its user had a positive on its item strictly before: ties and what was only shown do
    not count."""
    rows += [(8, 8, 3, 1), (9, 9, 3, 1)]
    log = unskew.read(
        pa.table(
            dict(zip(("user", "item", "time", "label"), map(list, zip(*rows, strict=True)), strict=True))
        )
    )
    table = list(zip(*columns(log).values(), strict=True))
    slow = [
        any((u, i) == (user, item) and y and t < time for u, i, t, y in table)
        for user, item, time, _ in table
    ]
    assert log.repeated.tolist() == slow
    user, item, time = np.meshgrid(
        np.arange(len(log.users)), np.arange(len(log.items)), np.arange(8), indexing="ij"
    )
    had = log.had_before(user, item, time)
    names = log.users.ids.to_pylist(), log.items.ids.to_pylist()
    for place in np.ndindex(had.shape):
        pair = names[0][place[0]], names[1][place[1]]
        assert had[place] == any((u, i) == pair and y and t < place[2] for u, i, t, y in table)


@pytest.mark.parametrize(("repeats", "kept"), [(0, False), (1, False), (2, True), (3, True)])
def test_auto_keeps_repeats_from_one_percent_on(repeats: int, kept: bool) -> None:
    """200 training positives. What comes later does not decide, and what was only shown does not either."""
    assert PART_OF_THE_TASK == 0.01
    user, item, time = np.arange(200) % 20, np.arange(200) // 20, np.arange(200)
    item[20 : 20 + repeats] = 0  # the first users have item 0 already
    later = {
        "user": np.arange(20),
        "item": np.zeros(20, int),
        "time": np.arange(300, 320),
        "label": np.ones(20, int),
    }
    shown = {
        "user": np.arange(20),
        "item": np.zeros(20, int),
        "time": np.full(20, 190),
        "label": np.zeros(20, int),
    }
    rows = {"user": user, "item": item, "time": time, "label": np.ones(200, int)}
    log = unskew.read({name: np.concatenate([rows[name], shown[name], later[name]]) for name in rows})
    split = unskew.split(log, fractions=(220, 10, 10))
    assert (split.train_end, int(log.repeated[split.mask("train") & (log.label == 1)].sum())) == (
        300,
        repeats,
    )
    assert split.repeats is kept
    assert unskew.split(log, fractions=(220, 10, 10), repeats="keep").repeats
    assert not unskew.split(log, fractions=(220, 10, 10), repeats="hide").repeats


@pytest.mark.parametrize("repeats", ["keep", "hide"])
@pytest.mark.parametrize("reads_audiences", [True, False])
def test_targets_are_the_naive_loop(log: unskew.Log, repeats: str, reads_audiences: bool) -> None:
    split = unskew.split(log, repeats=repeats)
    table = list(zip(*columns(log).values(), strict=True))
    taken = [row for row in table if row[3]]
    begins = min(time for _, _, time, _ in taken)
    expected = []
    for user, item, time, _ in table:
        past = [(u, i) for u, i, t, _ in taken if t < time]
        is_new = time > begins and item not in {i for _, i in past}
        repeated = (user, item) in past
        expected.append(
            time < split.train_end
            and not (repeated and repeats == "hide")
            and not (is_new and reads_audiences)
        )
    assert split.targets("train", reads_audiences).tolist() == expected
    assert 0 < sum(expected) < sum(time < split.train_end for _, _, time, _ in table) or (
        repeats == "keep" and not reads_audiences
    )


def test_an_item_that_was_only_shown_does_not_exist() -> None:
    rows = [
        ("a", "x", 5, 1),
        ("a", "y", 6, 0),
        ("b", "y", 7, 1),
        ("a", "y", 7, 0),
        ("a", "y", 8, 0),
        ("b", "z", 5, 1),
    ]
    log = unskew.read(
        dict(zip(("user", "item", "time", "label"), map(list, zip(*rows, strict=True)), strict=True))
    )
    split = unskew.split(log)
    table = columns(log)
    first = {
        (item, time, label)
        for item, time, label, new in zip(
            table["item"], table["time"], table["label"], split.first_appearance, strict=True
        )
        if new
    }
    # x and z are there from the very first moment; y was shown at 6, and at 7 it is taken for the first time.
    assert first == {("y", 6, 0), ("y", 7, 0), ("y", 7, 1)}


def test_wrong_use(log: unskew.Log) -> None:
    with refused("fractions"):
        unskew.split(log, fractions=(0, 1, 1))
    with pytest.raises(unskew.BadInput, match="no part 'tset'"):
        unskew.split(log).mask("tset")  # type: ignore[arg-type]
    with refused("repeats"):
        unskew.split(log, repeats="never")  # type: ignore[call-arg]
    with refused("fraction"):
        unskew.split(log, fraction=(1, 1, 1))  # type: ignore[call-arg]
    late = unskew.read({"user": [1, 2, 3], "item": [1, 2, 3], "time": [1, 2, 3], "label": [0, 0, 1]})
    with pytest.raises(unskew.BadInput, match="the training set has no positive"):
        unskew.split(late)


@pytest.mark.parametrize("repeats", ["hide", "keep"])
def test_list_targets_of_leave_one_out_are_the_last_training_positives(repeats: str) -> None:
    """User 0 has three training positives, user 1 one, user 2 (who takes item 0 again) two, user 3 one."""
    events = [(0, item, item) for item in range(5)] + [(1, item, item + 1) for item in range(3)]
    events += [(2, 0, 3), (2, 0, 4), (2, 1, 5), (2, 2, 6), (3, 4, 9)]
    split = unskew.split(quick(events), kind="leave-one-out", repeats=repeats)
    log, is_target = split.list_targets()
    rows = np.flatnonzero(is_target)
    users, items = split.log.users.of(split.log.user[rows]), split.log.items.of(split.log.item[rows])
    targets = list(zip(users.to_pylist(), items.to_pylist(), split.log.time[rows].tolist(), strict=True))
    assert targets == [(0, 2, 2)] + [(2, 0, 4)] * (repeats == "keep")
    left = list(zip(log.user.tolist(), log.time.tolist(), strict=True))
    codes = log.users.codes([0, 1, 2, 3]).tolist()
    named = [(codes.index(user), time) for user, time in left]
    assert sorted(named) == [(0, 0), (0, 1), (1, 1), (2, 3), (3, 9)]
    assert len(log.histories.ids) == len(log.audiences.ids) == log.positives == 5
