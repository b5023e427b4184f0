"""Bad rows are located by file and line, and can be set aside."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.cli.test_bad_input import GOOD, HEAD


def test_lines_are_counted_through_quoted_line_breaks(write) -> None:
    with pytest.raises(unskew.BadInput, match=r"line 4, column 'timestamp'"):
        unskew.read(write("a.csv", HEAD + '"two\nlines",i1,5\nu2,i2,x\n'))


def test_rows_of_tables_are_counted_from_one(tmp_path: Path) -> None:
    table = pa.table({"user": ["a", None, "b"], "item": ["x", "y", "z"], "time": [1.0, 2.0, float("nan")]})
    with pytest.raises(
        unskew.BadInput, match=r"the table, row 2, column 'user': expected an id, found nothing"
    ):
        unskew.read(table)
    pq.write_table(table.slice(2).append_column("label", pa.array([1])), tmp_path / "t.parquet")
    with pytest.raises(
        unskew.BadInput,
        match=r"t.parquet, row 1, column 'time': expected a finite number of at least 0, found 'nan'",
    ):
        unskew.read(tmp_path / "t.parquet")
    with pytest.raises(unskew.BadInput, match="the table: no rows"):
        unskew.read(table.slice(0, 0))
    with pytest.raises(unskew.BadInput, match="expected plain values of one kind, found list"):
        unskew.read({"user": [["a"]], "item": ["x"], "time": [1]})
    with pytest.raises(unskew.BadInput, match="column 'time': expected times"):
        unskew.read({"user": ["a"], "item": ["x"], "time": [True]})


@pytest.mark.parametrize("name", ["user", "time", "rating", "propensity", "exposed", "position"])
def test_one_nan_in_a_parquet_file_is_found(tmp_path: Path, name: str) -> None:
    """The statistics in such a file leave NaN out, and an engine that trusts them would not look for one."""
    columns = {"user": ["a", "b", "a", "b"], "item": ["x", "y", "x", "y"], "time": [1, 2, 3, 4]}
    columns |= {name: [1.0, 2.0 if name == "user" else 1.0, float("nan"), 1.0]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(
        unskew.BadInput, match=rf"t.parquet, row 3, column '{name}': expected .*, found 'nan'"
    ):
        unskew.read(tmp_path / "t.parquet", positive=1)


@pytest.mark.parametrize("bad", ["u1,i1,soon\n", "u1,i1\n", ",i1,5\n", b"u1,\xff,5\n"])
def test_bad_rows_can_be_set_aside(write, tmp_path: Path, bad: str | bytes) -> None:
    bad = bad.encode() if isinstance(bad, str) else bad
    text = (HEAD + GOOD).encode() + bad + b"u1,i1,later\n" + GOOD.replace("16", "17").encode()
    log = unskew.prepare(write("a.csv", text), tmp_path / "out", skip_bad_rows=True)
    assert (len(log), log.metadata.removed.bad_rows) == (140, 2)
    aside = (tmp_path / "out" / "bad_rows.csv").read_text().splitlines()
    assert aside[0] == "file,line,column,expected,value"
    assert len(aside) == 3
    assert all("a.csv" in line for line in aside[1:])
    assert {line.split(",")[1] for line in aside[1:]} == {"72", "73"}


def test_bad_rows_of_two_files_keep_their_own_lines(write, tmp_path: Path) -> None:
    write("logs/a.csv", HEAD + "u1\n" + GOOD)
    write("logs/b.csv", HEAD + GOOD + '"two\nlines",i1,5\nu1,i1,6,7,8\nu1,i1,soon\n')
    log = unskew.prepare(tmp_path / "logs", tmp_path / "out", skip_bad_rows=True, duplicates="keep")
    assert log.metadata.removed.bad_rows == 3
    aside = (tmp_path / "out" / "bad_rows.csv").read_text().splitlines()[1:]
    assert sorted((Path(line.split(",")[0]).name, line.split(",")[1]) for line in aside) == [
        ("a.csv", "2"),
        ("b.csv", "74"),
        ("b.csv", "75"),
    ]


def test_only_bad_rows(write) -> None:
    with pytest.raises(
        unskew.BadInput, match=r"not one good row of 1; the first: .*line 2, column 'timestamp'"
    ):
        unskew.read(write("a.csv", HEAD + "u,i,x\n"), skip_bad_rows=True)
