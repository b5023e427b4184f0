"""Every format, every way in, and ids that come back as they went in."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import columns

ROWS = [("ann", "x", 30), ("bob", "y", 10), ("ann", "y", 20), ("bob", "x", 40)]
CSV = "user_id,item_id,timestamp\n" + "".join(f"{u},{i},{t}\n" for u, i, t in ROWS)


def events(log: unskew.Log) -> set[tuple]:
    table = columns(log)
    return set(zip(table["user"], table["item"], table["time"], table["label"], strict=True))


EXPECTED = {(u, i, t, 1) for u, i, t in ROWS}


def test_csv_tsv_and_others(write) -> None:
    assert events(unskew.read(write("a.csv", CSV))) == EXPECTED
    assert events(unskew.read(write("a.tsv", CSV.replace(",", "\t")))) == EXPECTED
    assert events(unskew.read(write("semicolon.csv", CSV.replace(",", ";")))) == EXPECTED
    assert events(unskew.read(write("windows.csv", "\ufeff" + CSV.replace("\n", "\r\n")))) == EXPECTED
    assert events(unskew.read(write("a.csv.gz", gzip.compress(CSV.encode())))) == EXPECTED
    assert events(unskew.read(write("ratings.dat", CSV.replace(",", "::")), delimiter="::")) == EXPECTED
    quoted = CSV.replace("ann", '"ann, ""the"" reader"').replace("x", '"x\ny"')
    assert {user for user, *_ in events(unskew.read(write("quoted.csv", quoted)))} == {
        'ann, "the" reader',
        "bob",
    }


def test_json_lines(write) -> None:
    lines = "".join(
        json.dumps({"user_id": u, "item_id": i, "timestamp": t, "more": {"nested": [1]}}) + "\n"
        for u, i, t in ROWS
    )
    assert events(unskew.read(write("a.jsonl", lines))) == EXPECTED
    assert events(unskew.read(write("a.json.gz", gzip.compress(lines.encode())))) == EXPECTED
    numbers = "".join(json.dumps({"user_id": u, "item_id": u, "timestamp": u}) + "\n" for u in (7, 8))
    assert columns(unskew.read(write("numbers.jsonl", numbers)))["user"] == [7, 8]  # not "7"
    with pytest.raises(
        unskew.BadInput, match=r"numbers.jsonl, column 'user_id': expected plain values of one kind"
    ):
        unskew.read(write("numbers.jsonl", numbers + '{"user_id": "nine", "item_id": 1, "timestamp": 2}\n'))


def test_the_first_record_does_not_decide_for_all(write) -> None:
    records = [
        {"user": 1, "item": 1, "time": 1, "rating": None},
        {"user": 2, "item": 2, "time": 2, "rating": 4},
    ]
    records += [{"user": 3, "item": 3, "time": 3, "rating": 3.5}]
    lines = "".join(json.dumps(record) + "\n" for record in records[1:])
    assert dict(
        zip(
            *(columns(unskew.read(write("r.jsonl", lines), positive=4))[key] for key in ("user", "label")),
            strict=True,
        )
    ) == {
        2: 1,
        3: 0,
    }
    with pytest.raises(unskew.BadInput, match=r"r.jsonl, line 1, column 'rating': .* found nothing"):
        unskew.read(write("r.jsonl", json.dumps(records[0]) + "\n" + lines), positive=4)


def test_parquet_one_file_a_folder_a_pattern(tmp_path: Path) -> None:
    table = pa.table(
        {"user_id": [r[0] for r in ROWS], "item_id": [r[1] for r in ROWS], "timestamp": [r[2] for r in ROWS]}
    )
    (tmp_path / "parts").mkdir()
    pq.write_table(table, tmp_path / "all.parquet")
    pq.write_table(table.slice(0, 2), tmp_path / "parts" / "part-0.parquet")
    pq.write_table(table.slice(2), tmp_path / "parts" / "part-1.parquet")
    (tmp_path / "parts" / "_SUCCESS").touch()
    for source in (tmp_path / "all.parquet", tmp_path / "parts", str(tmp_path / "parts" / "part-*.parquet")):
        assert events(unskew.read(source)) == EXPECTED
    pq.write_table(table.rename_columns(["who", "what", "when"]), tmp_path / "parts" / "part-2.parquet")
    with pytest.raises(
        unskew.BadInput, match=r"part-2.parquet: its columns are not those of .*part-0.parquet"
    ):
        unskew.read(tmp_path / "parts")


def test_tables_in_memory() -> None:
    frame = {"uid": [r[0] for r in ROWS], "sku": [r[1] for r in ROWS], "when": [r[2] for r in ROWS]}
    for table in (
        pa.table(frame),
        pd.DataFrame(frame),
        pl.DataFrame(frame),
        pa.table(frame).to_reader(),
        frame,
    ):
        assert events(unskew.read(table, user="uid", item="sku", time="when")) == EXPECTED
    with pytest.raises(unskew.BadInput, match="expected a path or a table"):
        unskew.read(42)


def test_preparing_again_changes_nothing(tmp_path: Path) -> None:
    rows = 40
    table = {
        "user": [n % 3 for n in range(rows)],
        "item": [n % 7 for n in range(rows)],
        "time": list(range(rows)),
    }
    table |= {
        "label": [n % 2 for n in range(rows)],
        "impression_id": [f"v{n // 2}" for n in range(rows)],
        "mine": [n % 2 for n in range(rows)],
    }
    once = unskew.prepare(table, tmp_path / "once", tests="mine")
    assert unskew.prepare(once, tmp_path / "again").fingerprint() == once.fingerprint()


def test_a_prepared_folder_is_opened_as_it_is(log: unskew.Log, tmp_path: Path) -> None:
    made = unskew.prepare(log, tmp_path / "data", duplicates="keep")
    again = unskew.read(tmp_path / "data")
    assert isinstance(again.time.base, np.memmap)  # a plain array on the mapped pages
    assert columns(again) == columns(made) == columns(log)


def test_a_file_without_a_header(write) -> None:
    text = "".join(f"{u}::{i}::{t}\n" for u, i, t in ROWS)
    assert (
        events(unskew.read(write("ratings.dat", text), delimiter="::", columns="user,item,time")) == EXPECTED
    )
    with pytest.raises(unskew.BadInput, match="a file without a header"):
        unskew.read(write("ratings.csv", text.replace("::", ",")))


def test_labels_in_words(write) -> None:
    log = unskew.read(write("w.csv", "user,item,time,label\na,x,1,true\nb,y,2,False\n"))
    assert dict(zip(columns(log)["user"], columns(log)["label"], strict=True)) == {"a": 1, "b": 0}


def test_help_explains_every_keyword() -> None:
    text = unskew.prepare.__doc__
    for name, words in (
        ("min_count", "Users and items with fewer positives in the training set are unknown to every model"),
        ("k_core", "Remove users and items with fewer interactions than this"),
        ("format", "The format of the source"),
    ):
        assert f"\n{name}\n    {words}" in text


def test_titles_travel_with_the_items(tmp_path: Path) -> None:
    table = {"user": ["a", "b"], "item": [2, 1], "time": [1, 2], "title": ["Two", "One"]}
    assert unskew.prepare(table, tmp_path / "d").items.titles.to_pylist() == ["Two", "One"]


def test_labels_may_be_words(write: Callable[..., Path]) -> None:
    rows = "u1,i1,view,1\nu1,i2,purchase,2\nu2,i1, cart ,3\nu2,i2,view,4\nu3,i1,Purchase,5\n"
    source = write("events.csv", "user,item,event_type,time\n" + rows)
    log = unskew.read(source, label="event_type", positive="purchase,cart")
    by_time = dict(zip(log.time.tolist(), log.label.tolist(), strict=True))
    assert by_time == {1: 0, 2: 1, 3: 1, 4: 0, 5: 0}
    for number in (4, "4"):
        with pytest.raises(unskew.BadInput, match="a finite number" if number == 4 else "not one positive"):
            unskew.read(source, label="event_type", positive=number)
