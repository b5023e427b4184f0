"""Positives of a user with the same time: unordered, or in the order of the file."""

from pathlib import Path

import pytest

import unskew

ROWS = """user,item,timestamp
b,x,100
a,z,100
a,x,100
a,y,100
a,w,101
a,v,200
b,y,300
b,x,300
"""


def times(log: unskew.Log) -> list[tuple[str, str, int]]:
    columns = log.users.of(log.user).to_pylist(), log.items.of(log.item).to_pylist(), log.time.tolist()
    return sorted(zip(*columns, strict=True), key=lambda row: (row[0], row[2]))


def test_in_file_order_all_times_of_a_user_are_distinct(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(ROWS)
    log = unskew.prepare(tmp_path / "log.csv", tmp_path / "data", ties="file-order")
    assert times(log) == [
        *[("a", "z", 100), ("a", "x", 101), ("a", "y", 102), ("a", "w", 103), ("a", "v", 200)],
        *[("b", "x", 100), ("b", "y", 300), ("b", "x", 301)],
    ]
    assert unskew.Log.open(tmp_path / "data").metadata.settings.ties == "file-order"


def test_strictly_times_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(ROWS)
    log = unskew.prepare(tmp_path / "log.csv", tmp_path / "data")
    assert [time for *_, time in times(log)] == [100, 100, 100, 101, 200, 100, 300, 300]


def test_a_duplicate_in_the_file_is_no_second_event(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(ROWS + "a,z,100\n")
    log = unskew.prepare(tmp_path / "log.csv", tmp_path / "data", ties="file-order")
    assert len(log) == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"engine": "spark"}, "only the engine duckdb"), ({"label": "label"}, "4 rows are no positives")],
)
def test_where_the_order_is_not_known(settings: dict[str, str], message: str, tmp_path: Path) -> None:
    lines = [f"{line},{place % 2}" for place, line in enumerate(ROWS.split()[1:])]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,timestamp,label", *lines]))
    with pytest.raises(unskew.BadInput, match=message):
        unskew.prepare(tmp_path / "log.csv", tmp_path / "data", ties="file-order", **settings)
