"""An item exists from its first positive on, or from an earlier time at which it is known to be there."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import unskew
from unskew.data.log.split import cut_log, leave_one_out
from unskew.data.log.views import Sequences
from unskew.training.run_config import KnownShape
from unskew.training.run_log import load_memory, save_memory

NEVER = np.iinfo(np.int64).max
ROWS = {
    "user": ["a", "b", "c", "a", "b", "c", "a", "b", "c"],
    "item": ["w", "w", "x", "x", "y", "y", "z", "z", "z"],
    "time": [10, 20, 30, 40, 50, 60, 70, 80, 90],
}


def listed(log: unskew.Log, **since: int) -> unskew.Log:
    """The log with items that exist before their first positives, in the order of their codes."""
    times = [since.get(str(name), NEVER) for name in log.items.ids.to_pylist()]
    return replace(log, audiences=replace(log.audiences, listed=np.array(times)))


@pytest.fixture
def log() -> unskew.Log:
    return listed(unskew.read(ROWS), y=30, z=45)


def test_an_item_exists_before_its_first_positive(log: unskew.Log) -> None:
    assert log.audiences.since.tolist() == [10, 30, 30, 45]
    assert log.audiences.first_times.tolist() == [10, 30, 50, 70]
    assert log.audiences.existing([10, 11, 30, 31, 45, 46]).tolist() == [0, 1, 1, 3, 3, 4]


def test_a_later_time_than_the_first_positive_changes_nothing() -> None:
    log = listed(unskew.read(ROWS), w=15, y=70)
    assert log.audiences.since.tolist() == log.audiences.first_times.tolist()


def test_first_positives_of_items_that_exist_are_tested(log: unskew.Log) -> None:
    """Only the first positive of x is none of an existing item; those of y and z are."""
    settings = {"fractions": (40, 20, 40)}
    split, without = (unskew.split(each, **settings) for each in (log, unskew.read(ROWS)))
    assert (
        np.flatnonzero(split.first_appearance).tolist() != np.flatnonzero(without.first_appearance).tolist()
    )
    names = [log.items.ids[int(item)].as_py() for item in log.item[split.first_appearance]]
    assert names == ["x"]
    assert (without.known_items, split.known_items) == (2, 4)  # y and z are there when training ends


def test_a_cut_log_does_not_know_what_is_listed_later(log: unskew.Log) -> None:
    cut = cut_log(log, 45)
    assert cut.audiences.since.tolist() == [10, 30, 30, NEVER]
    assert cut_log(log, 46).audiences.since.tolist() == [10, 30, 30, 45]


def test_leave_one_out_numbers_items_by_when_they_exist() -> None:
    log = listed(unskew.read(ROWS), y=30, z=5)
    split = leave_one_out(log, unskew.split(unskew.read(ROWS)).settings)
    since = split.log.audiences.since
    assert (np.diff(since) >= 0).all()
    assert dict(zip(split.log.items.ids.to_pylist(), since.tolist(), strict=True))["z"] == 5
    assert split.known_items == 4


def test_a_live_log_lists_items(log: unskew.Log) -> None:
    live = unskew.Live(log)
    assert live.audiences.since.tolist() == log.audiences.since.tolist()
    (code,) = live.items.add(["new"])
    live.audiences.list(int(code), 95)
    live.audiences.list(int(code), 99)
    assert live.audiences.since.tolist() == [10, 30, 30, 45, 95]
    assert live.audiences.existing([95, 96]).tolist() == [4, 5]
    live.append(["a"], ["new"], [93])
    assert live.audiences.since[4] == 93
    frozen = live.frozen()
    assert frozen.audiences.since.tolist() == [10, 30, 30, 45, 93]
    live.forget("b")
    assert live.audiences.since.tolist() == [10, 30, 30, 45, 93]


def test_recommendations_hold_what_is_listed(log: unskew.Log) -> None:
    for at, items in ((45, {"w", "x", "y"}), (46, {"w", "x", "y", "z"})):
        ranked = unskew.recommend(log, users=["a"], k=4, at=at, include_seen=True)
        assert set(pa.table(ranked)["item_id"].to_pylist()) == items


def test_the_memory_of_a_run_has_the_times(log: unskew.Log, tmp_path: Path) -> None:
    split = unskew.split(log)
    save_memory(lambda name, write: write(tmp_path / name), split)
    there, _ = load_memory(tmp_path, KnownShape.of(split.known))
    assert there.audiences.since.tolist() == log.audiences.since.tolist()


def test_logs_that_differ_in_these_times_differ(log: unskew.Log) -> None:
    without = unskew.read(ROWS)
    assert log.fingerprint() != without.fingerprint()
    assert without.fingerprint() == unskew.read(ROWS).fingerprint()
    assert isinstance(log.audiences, Sequences)
