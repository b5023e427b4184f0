"""Every format, every way in, and ids that come back as they went in."""

import gzip
import json
import time
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
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
        assert log.users.codes(log.users.ids).tolist() == list(range(len(log.users)))


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


def visits(log: unskew.Log) -> dict[tuple, int | None]:
    table = columns(log)
    return dict(
        zip(zip(table["user"], table["item"], table["time"], strict=True), table["visit"], strict=True)
    )


def test_visits_are_numbers_for_what_stood_together(write, tmp_path: Path) -> None:
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
        log = unskew.read(source, visit="session")
        assert visits(log) == {
            ("a", "x", 1): 0,
            ("a", "y", 2): 0,
            ("b", "x", 1): 1,
            ("b", "y", 9): None,
            ("b", "z", 9): None,
        }
    assert unskew.read(table).visit is None
    numbers = pa.table(
        {**table, "visit": pa.array([1.0, 1.0, 2.0, np.nan, None])}
    )  # pandas has no whole numbers with gaps
    pq.write_table(numbers, tmp_path / "v.parquet")
    for source in (numbers, tmp_path / "v.parquet"):
        assert list(visits(unskew.read(source)).values()) == [0, 0, 1, None, None]


def test_preparing_again_changes_nothing(tmp_path: Path) -> None:
    rows = 40
    table = {
        "user": [n % 3 for n in range(rows)],
        "item": [n % 7 for n in range(rows)],
        "time": list(range(rows)),
    }
    table |= {
        "label": [n % 2 for n in range(rows)],
        "visit": [f"v{n // 2}" for n in range(rows)],
        "mine": [n % 2 for n in range(rows)],
    }
    once = unskew.prepare(table, tmp_path / "once", tests="mine")
    assert unskew.prepare(once, tmp_path / "again").fingerprint() == once.fingerprint()


def test_recbole_inter(write) -> None:
    text = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    text += "1\ta\t5.0\t881250949\n2\tb\t2\t881250950\n"
    assert events(unskew.read(write("ml.inter", text), positive=4)) == {
        ("1", "a", 881250949, 1),
        ("2", "b", 881250950, 0),
    }


def test_mind(write) -> None:
    lines = ["1\tU1\t11/12/2019 2:14:46 PM\tN1 N2\tN3-0 N4-1", "2\tU2\t11/12/2019 12:00:01 AM\t\tN3-1"]
    folder = write("mind/behaviors.tsv", "\n".join(lines) + "\n").parent
    write("mind/news.tsv", "N1\tnews\n")
    afternoon = int(datetime(2019, 11, 12, 14, 14, 46, tzinfo=UTC).timestamp())
    midnight = int(datetime(2019, 11, 12, 0, 0, 1, tzinfo=UTC).timestamp())
    shown = {("U1", "N3", afternoon, 0), ("U1", "N4", afternoon, 1), ("U2", "N3", midnight, 1)}
    past = {
        ("U1", "N1", midnight - 2, 1),
        ("U1", "N2", midnight - 1, 1),
    }  # in order, before anything was shown
    assert events(unskew.read(folder)) == shown | past
    visited = {
        ("U1", "N3", afternoon): 0,
        ("U1", "N4", afternoon): 0,
        ("U2", "N3", midnight): 1,
    }  # of impressions 1 and 2
    assert visits(unskew.read(folder)) == visited | {(user, item, time): None for user, item, time, _ in past}
    # A later history holds clicks of the log itself: only the one of the user's first impression lies before
    # it.
    later = "3\tU2\t11/13/2019 1:00:00 AM\tN3 N9\tN4-0"
    assert ("U2", "N9", midnight - 1, 1) not in events(
        unskew.read(write("mind/behaviors.tsv", "\n".join([*lines, later]) + "\n"))
    )
    write("two/behaviors_1.tsv", lines[0] + "\n")
    bad = write("two/behaviors_2.tsv", lines[1] + "\n" + lines[1].replace("N3-1", "N3") + "\n")
    with pytest.raises(unskew.BadInput, match=r"behaviors_2.tsv, line 2, column 'impressions'"):
        unskew.read(bad.parent, format="mind")
    with pytest.raises(unskew.BadInput, match=r"behaviors.tsv, line 2, column 'time'"):
        unskew.read(
            write("mind/behaviors.tsv", lines[0] + "\n" + lines[1].replace("11/12/2019", "13/12/2019") + "\n")
        )
    with pytest.raises(unskew.BadInput, match=r"behaviors.tsv, line 1, column 'impressions': expected an id"):
        unskew.read(write("mind/behaviors.tsv", lines[0].replace("N3-0", "N3") + "\n"))


def test_amazon_ratings_and_reviews(write) -> None:
    expected = {
        ("A2SUAM1J3GNN3B", "B0002E1G5C", 1000000000, 1),
        ("A1YJEY40YUW4SE", "7806397051", 1400000000, 0),
    }
    old = "A2SUAM1J3GNN3B,B0002E1G5C,5.0,1000000000\nA1YJEY40YUW4SE,7806397051,3.0,1400000000\n"
    # The 2018 edition turned the columns
    new = "B0002E1G5C,A2SUAM1J3GNN3B,5.0,1000000000\n7806397051,A1YJEY40YUW4SE,3.0,1400000000\n"
    reviews = "".join(
        json.dumps(
            {"reviewerID": u, "asin": i, "overall": 5.0 if y else 1.0, "unixReviewTime": t, "helpful": [0, 0]}
        )
        + "\n"
        for u, i, t, y in expected
    )
    assert events(unskew.read(write("ratings_Beauty.csv", old))) == expected
    assert events(unskew.read(write("Beauty.csv", new))) == expected
    assert events(unskew.read(write("reviews_Beauty.json", reviews), format="amazon")) == expected
    with pytest.raises(
        unskew.BadInput, match=r"line 2, column 'rating': expected a label from 1 to 5, found '9'"
    ):
        unskew.read(write("bad.csv", old.replace("3.0", "9")), format="amazon")


def test_kuairand(write) -> None:
    header = "user_id,video_id,date,hourmin,time_ms,is_click,is_like\n"
    write(
        "kuai/log_standard_4_08.csv",
        header + "1,10,20220408,900,1649376000000,1,0\n2,11,20220408,900,1649376000001,0,0\n",
    )
    write("kuai/log_random_4_22.csv", header + "1,12,20220422,900,1650585600000,0,0\n")
    write("kuai/user_features.csv", "user_id,age\n1,3\n")
    log = unskew.read(write("kuai/README.md", "").parent)
    table = columns(log)
    assert dict(zip(table["item"], table["exposed"], strict=True)) == {"10": 0, "11": 0, "12": 1}
    assert dict(zip(table["item"], table["label"], strict=True)) == {"10": 1, "11": 0, "12": 0}


def test_what_the_path_says_of_exposure(write, tmp_path: Path, monkeypatch) -> None:
    header = ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1\n"
    rows = "0,2019-11-24 00:00:34,14,3,0,0.0125,f,g\n1,2019-11-24 00:00:53,15,1,1,0.25,f,h\n"
    write("random/bts/all/all.csv", header + rows)
    write("obd/random/all/all.csv", header + rows)
    assert columns(unskew.read(tmp_path / "random/bts/all/all.csv"))["exposed"] == [0, 0]
    monkeypatch.chdir(tmp_path / "obd")
    assert columns(unskew.read("random/all/all.csv"))["exposed"] == [1, 1]
    kuai = "user_id,video_id,time_ms,is_click\n1,10,1649376000000,1\n2,11,1649376000001,1\n"
    assert columns(unskew.read(write("log_random_study/log_standard_1.csv", kuai)))["exposed"] == [0, 0]


def test_open_bandit(write) -> None:
    header = ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1\n"
    rows = (
        "0,2019-11-24 00:00:34.762830+00:00,14,3,0,0.0125,f,g\n1,2019-11-24 "
        "00:00:53.965051+00:00,15,1,1,0.25,f,h\n"
    )
    write("obd/random/all/item_context.csv", ",item_id,item_feature_0\n0,0,1\n")
    path = write("obd/random/all/all.csv", header + rows)
    for source in (path, path.parent):
        log = unskew.read(source)
        table = columns(log)
        assert dict(zip(table["user"], table["propensity"], strict=True)) == {"f|g": 0.0125, "f|h": 0.25}
        assert dict(zip(table["user"], table["position"], strict=True)) == {"f|g": 3, "f|h": 1}
        assert table["exposed"] == [1, 1]
        microseconds = (datetime(2019, 11, 24, 0, 0, 34, 762830) - datetime(1970, 1, 1)) // timedelta(
            microseconds=1
        )
        assert microseconds in table["time"]
        assert log.metadata["time_unit"] == "microseconds"


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (["2020-01-01", "2020-01-02 00:00:01"], [1577836800000000, 1577923201000000]),
        (["1.5", "2"], [1500000, 2000000]),  # fractions of a second: microseconds
        (["1377993600.0", "1377993601"], [1377993600, 1377993601]),
        (["1e9", "1000000001"], [1000000000, 1000000001]),
        (
            ["1650585600123456789", "1650585600123456790"],
            [1650585600123456789, 1650585600123456790],
        ),  # beyond what a float can hold
    ],
)
def test_times_of_many_kinds(write, times: list[str], expected: list[int]) -> None:
    log = unskew.read(write("t.csv", f"user,item,time\na,x,{times[0]}\nb,y,{times[1]}\n"))
    assert sorted(columns(log)["time"]) == expected


OFFSETS = {
    "2024-01-01T00:00:00Z": 0,
    "2024-01-01 02:00:00+02:00": 0,
    "2023-12-31 19:00-05": 0,
    "2024-01-01T00:00:00.25 +0000": 250_000,
}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_the_machines_own_zone_never_matters(write, tmp_path: Path, monkeypatch, zone: str) -> None:
    midnight = 1_704_067_200_000_000
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        text = "user,item,time\n" + "".join(f"u{n},i{n},{moment}\n" for n, moment in enumerate(OFFSETS))
        read = columns(unskew.read(write("offsets.csv", text)))
        assert {user: moment - midnight for user, moment in zip(read["user"], read["time"], strict=True)} == {
            f"u{n}": after for n, after in enumerate(OFFSETS.values())
        }
        moments = [datetime(2024, 11, 3, 5, 30, tzinfo=UTC), datetime(2024, 11, 3, 6, 30, tzinfo=UTC)]
        for unit in ("s", "ms", "us", "ns"):
            table = pa.table(
                {
                    "user": [1, 2],
                    "item": [1, 2],
                    "time": pa.array(moments, pa.timestamp(unit, "America/New_York")),
                }
            )
            pq.write_table(table, tmp_path / f"{unit}.parquet")
            for source in (table, tmp_path / f"{unit}.parquet"):
                assert columns(unskew.read(source))["time"] == [1730611800000000, 1730615400000000]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("times", "expected", "unit"),
    [
        ([1.7e9 + 0.5, 1.7e9], [1700000000000000, 1700000000500000], "microseconds"),
        ([1.7e12 + 0.5, 1.7e12], [1700000000000000, 1700000000000500], "microseconds"),
        (
            [1.7e15 + 0.5, 1.7e15],
            [1700000000000000, 1700000000000001],
            "microseconds",
        ),  # finer than that is rounded
        ([0.25, 1.0], [250000, 1000000], "microseconds"),
        ([1.5e9, 1e9], [1000000000, 1500000000], "as given"),
    ],
)
def test_fractions_of_any_unit(write, times: list[float], expected: list[int], unit: str) -> None:
    for source in (
        {"user": [1, 2], "item": [1, 2], "time": times},
        write("f.csv", "user,item,time\n" + "".join(f"{n},{n},{t!r}\n" for n, t in enumerate(times))),
    ):
        log = unskew.read(source)
        assert sorted(columns(log)["time"]) == expected
        assert log.metadata["time_unit"] == unit
    assert unskew.read(log).metadata["time_unit"] == unit  # also when it is read again


def test_moments_in_tables() -> None:
    moments = [datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, 0, 0, 1, tzinfo=UTC)]
    for array in (
        pa.array(moments, pa.timestamp("us", "UTC")),
        pa.array(moments, pa.timestamp("ms")),
        pd.Series(moments),
        pl.Series(moments),
    ):
        frame = (
            pd.DataFrame({"user": [1, 2], "item": [1, 2], "time": array})
            if isinstance(array, pd.Series)
            else {"user": [1, 2], "item": [1, 2], "time": array}
        )
        frame = pl.DataFrame(frame) if isinstance(array, pl.Series) else frame
        assert columns(unskew.read(frame))["time"] == [1577836800000000, 1577836801000000]


def test_a_prepared_folder_is_opened_as_it_is(log: unskew.Log, tmp_path: Path) -> None:
    made = unskew.prepare(log, tmp_path / "data", duplicates="keep")
    again = unskew.read(tmp_path / "data")
    assert isinstance(again.time, np.memmap)
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
    assert (
        "min_count: Users and items with fewer positives in the training part are unknown to every model"
        in unskew.prepare.__doc__
    )
    assert "k_core: Remove users and items with fewer interactions than this" in unskew.prepare.__doc__
    assert "format: What the source is" in unskew.prepare.__doc__


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
