"""Ids come back as they went in, codes follow time, and impressions get numbers."""

import uuid
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import columns

IDS = {
    "int64": pa.array([7, 3, 7, 2**60]),
    "uint64": pa.array([7, 3, 7, 2**64 - 1], pa.uint64()),
    "int8": pa.array([-7, 3, -7, 0], pa.int8()),
    "string": pa.array(["007", "7", "007", "ä ö\n"]),
    "large_string": pa.array(["a", "b", "a", "c" * 300], pa.large_string()),
    "category": pa.array(["a", "b", "a", "c"]).dictionary_encode(),
    "float": pa.array([1.5, 2.5, 1.5, -0.25]),
    "date": pa.array([date(2020, 1, 2), date(2021, 1, 2), date(2020, 1, 2), date(1999, 1, 1)]),
    "moment": pa.array([datetime(2020, 1, 1, 0, 0, 0, 123456), datetime(2021, 1, 1)] * 2, pa.timestamp("us")),
    "bytes": pa.array([b"\xff\x00", b"a", b"\xff\x00", b""]),
    "bool": pa.array([True, False, True, False]),
    "uuid": pa.array([uuid.UUID(int=n).bytes for n in (5, 3, 5, 2**100)], pa.uuid()),
    "decimal": pa.array(
        [Decimal("1.10"), Decimal("2.2"), Decimal("1.10"), Decimal("-3")], pa.decimal128(10, 3)
    ),
    "duration": pa.array([timedelta(seconds=n) for n in (5, 3, 5, 1)]),
    "fixed": pa.array([b"ab", b"cd", b"ab", b"ef"], pa.binary(2)),
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_come_back_exactly_as_they_went_in(kind: str, tmp_path: Path) -> None:
    ids = IDS[kind]
    table = pa.table({"user": ids, "item": ["x", "y", "y", "z"], "time": [1, 2, 3, 4]})
    for log in (unskew.read(table), unskew.prepare(table, tmp_path / "data")):
        back = dict(zip(columns(log)["item"] + columns(log)["time"], columns(log)["user"] * 2, strict=True))
        assert [back[time] for time in (1, 2, 3, 4)] == ids.to_pylist()
        assert log.users.ids.type == (ids.type.value_type if pa.types.is_dictionary(ids.type) else ids.type)
        few = list(range(len(log.users)))
        assert log.users.codes(log.users.ids).tolist() == few
        many = pa.concat_arrays([log.users.ids] * 5)  # so many that another way finds them
        assert log.users.codes(many).tolist() == few * 5
        unknown = pa.nulls(1, log.users.ids.type)
        assert log.users.codes(unknown).tolist() == [-1]
        assert log.users.codes(pa.concat_arrays([unknown, many])).tolist() == [-1, *few * 5]


def test_vocabulary_says_what_it_does_not_know() -> None:
    log = unskew.read({"user": [5, 6], "item": ["a", "b"], "time": [1, 2]})
    assert log.users.codes([6, 99, 5]).tolist() == [1, -1, 0]
    with pytest.raises(unskew.BadInput, match="ids of type int64"):
        log.users.codes(["ann"])
    with pytest.raises(unskew.BadInput, match="expected a list of ids, found '123'"):
        log.users.codes("123")
    assert log.users.of(np.array([1, -1])).to_pylist() == [6, None]


def test_codes_follow_the_first_positive(log: unskew.Log) -> None:
    """Being shown is no beginning: what exists at any moment is a prefix of the codes, and who never had a
    positive comes last."""
    rows = list(zip(*columns(log).values(), strict=True))
    for place, vocabulary, view in ((0, log.users, log.histories), (1, log.items, log.audiences)):
        taken: dict[str, int] = {}
        for row in rows:
            if row[3]:
                taken[row[place]] = min(row[2], taken.get(row[place], row[2]))
        firsts = [taken.get(name, np.iinfo(np.int64).max) for name in vocabulary.ids.to_pylist()]
        assert firsts == sorted(firsts) == view.first_times.tolist()
    shown = {"user": ["a", "b", "b"], "item": ["x", "x", "y"], "time": [1, 3, 2], "label": [0, 1, 1]}
    assert unskew.read(shown).items.ids.to_pylist() == ["y", "x"]
    assert unskew.read(shown).users.ids.to_pylist() == ["b", "a"]


def impressions(log: unskew.Log) -> dict[tuple, int | None]:
    table = columns(log)
    return dict(
        zip(
            zip(table["user"], table["item"], table["time"], strict=True), table["impression_id"], strict=True
        )
    )


def test_impressions_are_numbers_for_what_stood_together(write, tmp_path: Path) -> None:
    rows = [
        ("a", "x", 1, "s2"),
        ("a", "y", 2, "s2"),
        ("b", "x", 1, "s10"),
        ("b", "y", 9, ""),
        ("b", "z", 9, None),
    ]
    names = ("user", "item", "time", "session")
    table = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    text = ",".join(names) + "\n" + "".join(f"{u},{i},{t},{v or ''}\n" for u, i, t, v in rows)
    for source in (table, write("v.csv", text)):
        log = unskew.read(source, impression_id="session")
        assert impressions(log) == {
            ("a", "x", 1): 0,
            ("a", "y", 2): 0,
            ("b", "x", 1): 1,
            ("b", "y", 9): None,
            ("b", "z", 9): None,
        }
    assert unskew.read(table).impression_id is None
    numbers = pa.table(
        {**table, "impression_id": pa.array([1.0, 1.0, 2.0, np.nan, None])}
    )  # pandas has no whole numbers with gaps
    pq.write_table(numbers, tmp_path / "v.parquet")
    for source in (numbers, tmp_path / "v.parquet"):
        assert list(impressions(unskew.read(source)).values()) == [0, 0, 1, None, None]
