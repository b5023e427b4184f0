"""Named tests: the rows that a column of the log marks."""

from pathlib import Path

import numpy as np
import pytest

import unskew
from tests.conftest import random_table
from tests.data.test_held_out import named
from unskew.cli import main
from unskew.data.log.held_out import (
    available_tests,
    held_out,
)


@pytest.mark.parametrize("name", ["paper", "the paper's own; 2021/06: *"])
def test_a_named_test_is_the_rows_that_a_column_marks(tmp_path: Path, name: str) -> None:
    """Also after preparing again, and from disk, whatever the name is."""
    table = random_table(negatives=0.2)
    marked = (np.arange(table.num_rows) % 5 == 0).astype(int)
    table = table.append_column(name, [marked])
    read = unskew.read(table, tests=name)
    prepared = unskew.prepare(table, tmp_path / "once", tests=name, duplicates="keep")
    again = unskew.prepare(prepared, tmp_path / "again", duplicates="keep")
    expected = sorted(
        (u, i, t)
        for u, i, t, y, mark in zip(*table.to_pydict().values(), strict=True)
        if mark and y and t >= unskew.split(read).valid_end and any(table_row_before(table, i, t))
    )
    for log in (
        read,
        prepared,
        again,
        unskew.Log.open(tmp_path / "again"),
        unskew.read(unskew.read(prepared)),
    ):
        split = unskew.split(log)
        assert list(log.marks) == [name]
        assert sorted(named(split, held_out(split, "test", name))) == expected
        assert available_tests(split)[-1] == name
    assert 10 < len(expected) < len(held_out(unskew.split(read), "test").rows) / 3
    assert {log.fingerprint() for log in (read, prepared, again)} == {read.fingerprint()}
    turned = table.set_column(4, name, [1 - marked])
    assert unskew.read(turned, tests=name).fingerprint() != read.fingerprint()


def table_row_before(table, item: str, time: int) -> list[bool]:
    rows = zip(table["item"].to_pylist(), table["time"].to_pylist(), table["label"].to_pylist(), strict=True)
    return [i == item and t < time and bool(y) for i, t, y in rows]


def test_several_named_tests_and_of_duplicates_the_marked_one_stays(tmp_path: Path) -> None:
    rows = [
        ("a", "x", 1, 0, 0),
        ("b", "y", 1, 0, 0),
        ("a", "y", 5, 0, 1),
        ("a", "y", 5, 1, 0),
        ("b", "x", 6, 0, 1),
    ]
    table = dict(zip(("user", "item", "time", "one", "two"), map(list, zip(*rows, strict=True)), strict=True))
    log = unskew.prepare(table, tmp_path / "out", tests="one, two")
    split = unskew.split(log, fractions=(1, 0, 1))
    assert list(log.marks) == ["one", "two"]
    assert named(split, held_out(split, "test", "one")) == [("a", "y", 5)]
    assert named(split, held_out(split, "test", "two")) == [("b", "x", 6)]


def test_the_command_line_names_tests_too(tmp_path: Path, write) -> None:
    source = write(
        "log.csv", "user,item,time,mine\n" + "".join(f"u{n % 3},i{n % 4},{n},{n % 2}\n" for n in range(40))
    )
    assert main(["prepare", str(source), "--out", str(tmp_path / "data"), "--tests", "mine"]) == 0
    split = unskew.split(unskew.Log.open(tmp_path / "data"))
    assert [time for _, _, time in named(split, held_out(split, "test", "mine"))] == [29, 31, 33, 35, 37, 39]


def test_a_value_of_a_column_names_a_test_and_two_of_them_are_borders(tmp_path: Path, write) -> None:
    """Published data sets say `train`, `valid` and `test` in one column. Rows of the first kind may come
    later: they are no training rows then."""
    part = ["train"] * 20 + ["valid", "train"] * 5 + ["test", "train "] * 5
    rows = [f"u{n % 3},i{n % 4},{n},{part[n]}\n" for n in range(40)]
    source = write("log.csv", "user,item,time,split\n" + "".join(rows))
    tests = "published=split:test, tuned = split:valid"
    log = unskew.prepare(source, tmp_path / "data", tests=tests, borders="tuned,published")
    assert list(log.marks) == ["published", "tuned"]
    split = unskew.split(unskew.Log.open(tmp_path / "data"))
    assert (split.train_end, split.valid_end) == (20, 30)
    assert [time for _, _, time in named(split, held_out(split, "test", "published"))] == [30, 32, 34, 36, 38]
    assert unskew.split(log, borders="").train_end == 20  # by fractions again: half of 40 rows
    assert unskew.split(log, borders="", fractions=(75, 5, 20)).train_end == 30
    assert unskew.split(log, fractions=(75, 5, 20)).train_end == 20  # borders count more than fractions


@pytest.mark.parametrize(
    ("borders", "said"),
    [
        ("published", "two named tests"),
        ("published,tuned", "begins after"),
        ("tuned,nothing", "no row is marked as 'nothing'; named tests are published, tuned, nobody"),
        ("tuned,nobody", "no row is marked as 'nobody'"),
    ],
)
def test_borders_that_are_none_are_refused_and_nothing_is_written(
    tmp_path: Path, write, borders: str, said: str
) -> None:
    part = ["train"] * 10 + ["valid"] * 5 + ["test"] * 5
    source = write(
        "log.csv", "user,item,time,split\n" + "".join(f"u{n % 3},i{n % 4},{n},{part[n]}\n" for n in range(20))
    )
    tests = "published=split:test,tuned=split:valid,nobody=split:none"
    with pytest.raises(unskew.BadInput, match=said):
        unskew.prepare(source, tmp_path / "data", tests=tests, borders=borders)
    assert not (tmp_path / "data").exists()
