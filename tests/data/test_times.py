"""Times of all kinds: numbers, dates and timestamps, in any unit and in any time zone."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import columns


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
        assert log.metadata.time_unit == unit
    assert unskew.read(log).metadata.time_unit == unit  # also when it is read again


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
