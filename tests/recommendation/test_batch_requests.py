"""Files of requests: lists for each row, block by block, the same as one by one; bad rows are named."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.helpers.command import run
from unskew.api.model import Model
from unskew.recommendation.ranker import BLOCK


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        names = list(rows[0])
        cells = [
            [json.dumps(row[name]) if isinstance(row[name], list) else str(row[name]) for name in names]
            for row in rows
        ]
        quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells]
        file.write_text("\n".join([",".join(names), *quoted]) + "\n")
    return file


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".jsonl"])
def test_each_row_gets_its_list(kind: str, model: Model, tmp_path: Path) -> None:
    """More rows than a block has; users, and histories with ids and times."""
    users = [f"u{number % 45}" for number in range(BLOCK + 20)]
    file = write(tmp_path / f"users{kind}", [{"user_id": user} for user in users])
    saved = model.save_recommendations(tmp_path / "out.parquet", file, k=3, show_progress=False)
    found = pq.read_table(tmp_path / "out.parquet")
    assert saved.lists == len(users)
    assert found["user_id"].to_pylist() == [user for user in users for _ in range(3)]
    one = model.recommend(["u7"], k=3).table["item_id"].to_pylist()
    assert found["item_id"].to_pylist()[21:24] == one

    now = model.known_log.now
    rows = [
        {
            "id": f"row {number}",
            "history": ["i1", f"i{number % 9}", "nothing"],
            "times": [now - 2, now - 9, now],
        }
        for number in range(BLOCK + 3)
    ]
    file = write(tmp_path / f"histories{kind}", rows)
    saved = model.save_recommendations(tmp_path / "more.parquet", file, k=2, show_progress=False)
    assert (saved.lists, saved.skipped_items) == (len(rows), len(rows))
    found = pq.read_table(tmp_path / "more.parquet")
    assert found["id"].to_pylist() == [row["id"] for row in rows for _ in range(2)]
    timed = model.recommend(histories=[[("i4", now - 9), ("i1", now - 2)]], k=2).table
    assert found["score"].to_pylist()[8:10] == pytest.approx(timed["score"].to_pylist(), abs=1e-5)
    untimed = model.recommend(histories=[["i1", "i4"]], k=2).table
    assert untimed["score"].to_pylist() != pytest.approx(timed["score"].to_pylist(), abs=1e-5)

    file = write(tmp_path / f"bare{kind}", [{"history": row["history"]} for row in rows])
    model.save_recommendations(tmp_path / "bare-out.parquet", file, k=2, show_progress=False)
    numbers = pq.read_table(tmp_path / "bare-out.parquet")["history"].to_pylist()
    assert numbers == [number for number in range(len(rows)) for _ in range(2)]


def test_times_of_a_history_decide_its_order(model: Model) -> None:
    now = model.known_log.now
    forward, backward, plain = (
        model.recommend(histories=[history], k=9).table
        for history in (
            [("i1", now - 9), ("i2", now - 5)],
            [("i2", now - 5), ("i1", now - 9)],
            ["i1", "i2"],
        )
    )
    assert forward.equals(backward)
    assert plain["item_id"].equals(forward["item_id"])  # this model reads the order alone
    later = model.recommend(histories=[[("i1", now - 9), ("i2", now + 5)]], k=9).table
    alone = model.recommend(histories=[[("i1", now - 9)]], k=9).table
    assert later["score"].equals(alone["score"])  # what is not past yet does not count


def test_a_moment_is_a_date_or_a_number() -> None:
    two = {"user": ["a", "b"], "item": ["x", "y"]}
    clock = unskew.read(pa.table(two | {"time": [1_700_000_000, 1_700_000_100]})).clock
    assert clock.moment("2023-11-14T22:13:20Z") == clock.moment("2023-11-14 22:13:20") == 1_700_000_000
    assert clock.moment("1700000000") == clock.moment(1_700_000_000) == 1_700_000_000
    with pytest.raises(unskew.BadInput, match="ISO date"):
        clock.moment("yesterday")
    order = unskew.read(pa.table(two | {"time": [1, 2]})).clock
    with pytest.raises(unskew.BadInput, match="only an order"):
        order.moment("2023-11-14")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("r.txt", "user_id\nu1\n", "expected a name that ends with"),
        ("r.csv", "user\nu1\n", "expected a column user_id or a column history"),
        ("r.csv", 'history\n"i1 i2"\n', r"row 1: expected history as a JSON list"),
        (
            "r.jsonl",
            '{"history": ["i1"]}\n{"history": ["i1"], "times": [1, 2]}\n',
            "row 2: 1 items and 2 times",
        ),
        ("r.jsonl", '{"user_id": "u1"}\n{"user_id": null}\n', "row 2: no user_id"),
        ("r.jsonl", '{"user_id": "u1"}\n{"user_id"', "cannot be read"),
    ],
)
def test_a_bad_file_is_one_error_and_writes_nothing(
    name: str, text: str, said: str, model: Model, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    out = tmp_path / "out.parquet"
    with pytest.raises(unskew.BadInput, match=said):
        model.save_recommendations(out, tmp_path / name, show_progress=False)
    assert not out.exists()
    with pytest.raises(unskew.BadInput, match="no such file"):
        model.save_recommendations(out, tmp_path / "gone.csv", show_progress=False)


def test_the_command(capsys, model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "run")
    file = write(tmp_path / "users.csv", [{"user_id": "u1"}, {"user_id": "nobody"}])
    arguments = ["recommend", str(tmp_path / "run"), "--input", str(file), "--out", str(tmp_path / "o.jsonl")]
    code, out, said = run(capsys, *arguments, "--k", "2", "--at", "300", "--diverse", "0.5", "--json")
    assert code == 0, said
    document = json.loads(out)
    assert (document["lists"], document["unknown_users"], document["by_fallback"]) == (2, 1, 0)
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    expected = model.recommend(["u1", "nobody"], k=2, at=300, diverse=0.5).table["item_id"].to_pylist()
    assert [row["item_id"] for row in rows] == expected
