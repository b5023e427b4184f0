"""What is derived of a log is the same in memory and in its folder; it is computed once, and again when the
columns are others. Tables that are sorted part by part are as if they were sorted at once."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unskew
from tests.conftest import quick
from tests.helpers.processes import start_python
from unskew.data.log.arrays import smallest, sort_into, true_positions
from unskew.data.log.decay import Decay
from unskew.data.log.derived import FolderShelf
from unskew.data.log.log import Log

HALF_LIVES = (3.0, 50.0)


def everything(log: Log) -> dict[str, np.ndarray]:
    """All that is derived of a log."""
    return {
        "timeline ids": log.timeline.ids,
        "timeline times": log.timeline.times,
        "rows of audiences": log.in_history(np.arange(log.positives), log.user[: log.positives]),
        "repeated": log.repeated,
        "moments": log.histories.moments,
        "counts": Decay(log.audiences, HALF_LIVES).at(np.arange(len(log.items)), log.now),
        "total": Decay(log.timeline, HALF_LIVES).at(0, log.now),
    }


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(value, other[name]) for name, value in one.items())


def counted(calls: list[str], name: str) -> Any:
    def fill(array: np.ndarray) -> None:
        calls.append(name)
        array[:] = np.arange(len(array))

    return fill


def test_a_log_in_its_folder_has_the_same(data: Path) -> None:
    log = Log.open(data)
    kept = log.kept_in(data)
    assert equal(everything(log), everything(kept))
    assert log.fingerprint() == kept.fingerprint()
    assert {"stamp.json", "repeated.npy", "timeline_ids.npy"} <= {
        path.name for path in (data / "derived").iterdir()
    }
    again = Log.open(data).kept_in(data)
    files = {path: path.stat().st_mtime_ns for path in (data / "derived").glob("*.npy")}
    assert equal(everything(log), everything(again))
    assert files == {path: path.stat().st_mtime_ns for path in (data / "derived").glob("*.npy")}
    for array in (again.timeline.ids, again.repeated, again.histories.by_id):
        assert not array.flags.writeable  # the pages of the file


def test_a_naive_loop_agrees(data: Path) -> None:
    log = Log.open(data).kept_in(data)
    user, item, time = (column.tolist() for column in (log.user, log.item, log.time))
    positives = list(zip(user, item, time, strict=True))[: log.positives]
    in_time = sorted(positives, key=lambda event: (event[2], event[0], event[1]))
    assert log.timeline.ids.tolist() == [item for _, item, _ in in_time]
    first: dict[tuple[int, int], int] = {}
    for who, what, when in positives:
        first[who, what] = min(first.get((who, what), when), when)
    repeats = [first.get((who, what), when) < when for who, what, when in zip(user, item, time, strict=True)]
    assert log.repeated.tolist() == repeats
    by_item = sorted(range(log.positives), key=lambda row: (item[row], time[row], user[row]))
    assert log.in_history(np.arange(log.positives), log.audiences.ids).tolist() == by_item


def test_had_before_is_strictly_before() -> None:
    log = quick([(0, 0, 1), (0, 1, 2), (0, 0, 5), (1, 1, 3)])
    user, item, time = (
        np.array([[0, 0, 0], [1, 1, 2]]),
        np.array([0, 1, -1]),
        np.array([[1, 2, 9], [2, 4, 9]]),
    )
    assert log.had_before(user, item, time).tolist() == [[False, False, False], [False, True, False]]
    assert log.had_before(user[0], item, time[0] + 1).tolist() == [True, True, False]


def test_columns_that_are_others_are_derived_again(data: Path, tmp_path: Path) -> None:
    calls: list[str] = []
    column = tmp_path / "column"
    column.write_bytes(b"one")
    for content, expected in ((b"one", ["x"]), (b"one", ["x"]), (b"other", ["x", "x"])):
        if column.read_bytes() != content:
            column.write_bytes(content)
        shelf = FolderShelf(data, {"column": column})
        assert shelf.array("x", np.int64, 4, counted(calls, "x")).tolist() == [0, 1, 2, 3]
        assert calls == expected


def test_columns_are_checked_once(data: Path) -> None:
    source = {"column": data / "item.npy"}
    assert not FolderShelf(data, source).is_checked
    FolderShelf(data, source).set_checked()
    FolderShelf(data, source).fingerprint(lambda: "x")
    assert FolderShelf(data, source).is_checked
    assert FolderShelf(data, source).fingerprint(lambda: "y") == "x"
    (data / "item.npy").touch()
    assert not FolderShelf(data, source).is_checked
    assert FolderShelf(data, source).fingerprint(lambda: "y") == "y"


def test_what_is_damaged_or_of_another_shape_is_derived_again(data: Path) -> None:
    calls: list[str] = []
    source = {"column": data / "item.npy"}
    FolderShelf(data, source).array("x", np.int64, 4, counted(calls, "x"))
    assert len(FolderShelf(data, source).array("x", np.int64, 5, counted(calls, "longer"))) == 5
    (data / "derived" / "x.npy").write_bytes(b"cut")
    assert len(FolderShelf(data, source).array("x", np.int64, 5, counted(calls, "damaged"))) == 5
    stamp = json.loads((data / "derived" / "stamp.json").read_text())
    (data / "derived" / "stamp.json").write_text(json.dumps(stamp | {"format": 0}))
    FolderShelf(data, source).array("x", np.int64, 5, counted(calls, "format"))
    assert calls == ["x", "longer", "damaged", "format"]


def test_an_array_that_fails_leaves_nothing(data: Path) -> None:
    def fails(array: np.ndarray) -> None:
        raise KeyboardInterrupt

    shelf = FolderShelf(data, {"column": data / "item.npy"})
    with pytest.raises(KeyboardInterrupt):
        shelf.array("x", np.int64, 4, fails)
    assert [path.name for path in (data / "derived").iterdir()] == ["stamp.json"]
    assert shelf.array("x", np.int64, 4, counted([], "x")).tolist() == [0, 1, 2, 3]  # the lock is free


def test_one_array_may_need_another(data: Path) -> None:
    shelf = FolderShelf(data, {"column": data / "item.npy"})

    def outer(array: np.ndarray) -> None:
        array[:] = 2 * shelf.part("inner").array("x", np.int64, 4, counted([], "x"))

    assert shelf.array("x", np.int64, 4, outer).tolist() == [0, 2, 4, 6]


def test_live_logs_share_the_files_until_they_change(data: Path) -> None:
    log = Log.open(data).kept_in(data)
    one, other = unskew.Live(log), unskew.Live(log)
    user, item = (ids.ids[0].as_py() for ids in (log.users, log.items))
    assert one.append([user, "new"], [item, "newer"], [log.now + 5, 0]) == 2
    assert other.positives == log.positives
    for live in (other, unskew.Live(log)):  # an event that comes first moves all others of the time line
        assert np.array_equal(live.timeline.times[: log.positives], log.timeline.times)
    plain = unskew.Live(Log.open(data))
    plain.append([user, "new"], [item, "newer"], [log.now + 5, 0])
    for mine, theirs in ((one, plain), (unskew.Live(log), unskew.Live(Log.open(data)))):
        assert unskew.read(mine).fingerprint() == unskew.read(theirs).fingerprint()
        assert equal(everything(mine.frozen()), everything(theirs.frozen()))


def test_processes_that_begin_together_derive_once(data: Path) -> None:
    script = f"""
import numpy, pathlib, time
from unskew.data.log.derived import FolderShelf
folder = pathlib.Path({str(data)!r})
def fill(array):
    with (folder.parent / "calls").open("a") as file:
        file.write("x")
    time.sleep(0.3)
    array[:] = 7
found = FolderShelf(folder, {{"column": folder / "item.npy"}}).array("x", "int64", 4, fill)
assert found.tolist() == [7] * 4
"""
    children = [start_python("-c", script) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert (data.parent / "calls").read_text() == "x"


def test_a_folder_that_cannot_be_written_is_said(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    shelf = FolderShelf(data, {"column": data / "item.npy"})
    with pytest.warns(UserWarning, match="cannot be written"):
        assert shelf.array("x", np.int64, 4, counted([], "x")).tolist() == [0, 1, 2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shelf.array("x", np.int64, 4, counted([], "x")).tolist() == [0, 1, 2, 3]


def test_prepare_replaces_a_folder_with_what_is_derived(data: Path, source: Path) -> None:
    everything(Log.open(data).kept_in(data))
    unskew.prepare(source, data, positive=1)
    assert not (data / "derived").exists()


keys = st.lists(st.integers(-20, 20) | st.sampled_from([0, 10**15]), max_size=60)


@effort(max_examples=60)
@given(keys, st.integers(1, 9))
def test_sorting_part_by_part_is_sorting(values: list[int], size: int) -> None:
    table = np.array(values, np.int64)
    places = np.empty(len(table), np.int32)
    sort_into(places, lambda part: np.arange(part.start, part.stop), table.__getitem__, size)
    assert places.tolist() == np.argsort(table, kind="stable").tolist()


@effort(max_examples=60)
@given(keys.filter(bool), st.integers(2, 9), st.data())
def test_selecting_is_sorting(values: list[int], bins: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(values) - 1))
    assert smallest(np.array(values, np.int64), number, bins) == sorted(values)[number]


@given(st.lists(st.booleans(), max_size=40).filter(any), st.integers(1, 9))
def test_the_nth_true_value(values: list[bool], size: int) -> None:
    places = np.flatnonzero(values)
    numbers = np.arange(len(places))[::-1]
    assert true_positions(np.array(values), numbers, size).tolist() == places[::-1].tolist()
