"""The verbs of a store as a script sees them."""

import json
from pathlib import Path

import pytest

import unskew
from tests.helpers.command import run
from tests.helpers.stores import BEGIN, Place, click, ids_of, shown
from unskew.serve import open_store
from unskew.serve.store.tables import SCHEMA

pytest_plugins = ("tests.helpers.store_places",)


@pytest.fixture
def filled(place: Place) -> Place:
    with place.open() as store:
        store.record([shown("r1", at=1), shown("r2", "bob", at=100)])
        store.append([click(n, "ann" if n % 2 else "bob", "tea" if n % 3 else "mate") for n in range(30)])
        store.append([click(200, "ann", "tea", recommendation_id="r1")])
    return place


def flags(place: Place) -> list[object]:
    return ["--segments", place.segments] if place.in_postgres else []


@pytest.mark.slow
def test_the_verbs_in_their_order(capsys, filled: Place, tmp_path: Path) -> None:
    where = [filled.where, *flags(filled)]
    code, out, err = run(capsys, "store", "compact", *where, "--before", "2026-01-01T00:00:20Z", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["events"], document["recommendations"], document["segments"]) == (20, 1, 2)
    assert document["before"] == "2026-01-01T00:00:20Z"

    code, out, _ = run(capsys, "store", "info", *where, "--json")
    document = json.loads(out)
    assert code == 0
    assert [document[name] for name in ("events", "users", "items", "segments", "schema")] == [
        31,
        2,
        2,
        2,
        SCHEMA,
    ]
    assert (document["first"], document["last"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:03:20Z")
    code, out, _ = run(capsys, "store", "info", *where)
    assert code == 0
    assert "click, purchase" in out

    code, out, err = run(capsys, "store", "export", *where, "--out", tmp_path / "log.parquet", "--json")
    assert code == 0
    assert json.loads(out) == {
        "file": str(tmp_path / "log.parquet"),
        "rows": 34,
        "positives": 31,
        "shown": 4,
        "logged": 4,
        "unmatched": 0,
        "context": 0,
    }
    assert "30 rows have no logged propensity and count with 1" in err
    log = unskew.read(tmp_path / "log.parquet")
    assert (len(log), log.positives) == (34, 31)

    code, out, _ = run(capsys, "erase", "ann", "nobody", "eve", "--store", *where, "--json")
    document = json.loads(out)
    (place,) = document["places"]
    assert (code, document["users"], place["rows"], place["recommendations"]) == (0, 3, 16, 1)
    with filled.open("read") as store:
        assert set(ids_of(store)) == {f"e{n}" for n in range(0, 30, 2)}
    code, out, _ = run(capsys, "erase", "bob", "--store", *where)
    assert code == 0
    assert "erased" in out
    code, _, err = run(capsys, "store", "export", *where, "--out", tmp_path / "again.parquet")
    assert code == 2
    assert "not one positive event (click, purchase)" in err


def test_compacting_what_is_older_than_a_span(capsys, in_file: Place) -> None:
    with in_file.open() as store:
        store.append([click(1), click(2, timestamp=4_000_000_000 * 10**6)])
    code, out, _ = run(capsys, "store", "compact", in_file.where, "--older-than", "1d", "--json")
    assert (code, json.loads(out)["events"]) == (0, 1)


def test_positives_that_name_the_recommendation_of_another_user_are_said(capsys, in_file: Place) -> None:
    with in_file.open() as store:
        store.record([shown("r1", "bob")])
        store.append([click(1, recommendation_id="r1")])
    out = in_file.folder / "log.jsonl"
    code, _, err = run(capsys, "store", "export", in_file.where, "--out", out, "--positive", "click, like")
    assert code == 0
    assert "1 positives name a recommendation that was made to another user" in err
    assert len(out.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["info", "none.db"], "none.db: no such store"),
        (["compact", "none.db", "--older-than", "9d"], "none.db: no such store"),
        (["compact", "none.db"], "expected one of --before TIME and --older-than SPAN"),
        (["compact", "x", "--before", "soon"], "--before soon: expected seconds since 1970, or ISO text"),
        (["compact", "x", "--older-than", "9"], "expected a unit"),
        (["export", "none.db", "--out", "x", "--positve", "a"], "did you mean '--positive'?"),
        (["info", "mysql://me:s3cret@host/db"], "expected a file or a URL of PostgreSQL"),
        (["info", "postgresql://me:s3cret@127.0.0.1:1/db"], "cannot be opened"),
    ],
)
def test_wrong_use_is_one_line_and_2(capsys, tmp_path: Path, monkeypatch, words, said: str) -> None:
    if "cannot be opened" in said:
        pytest.importorskip("psycopg", reason="needs the extra `postgres`")
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "store", *words)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert "s3cret" not in err
    assert not list(tmp_path.iterdir())


def test_looking_at_a_store_that_is_being_written(capsys, in_file: Place) -> None:
    with open_store(in_file.where) as store:
        store.append([click(n, f"u{n % 2}", f"i{n % 2}") for n in range(4)])
        assert run(capsys, "store", "info", in_file.where)[0] == 0
        assert run(capsys, "store", "export", in_file.where, "--out", in_file.folder / "x.parquet")[0] == 0
        code, _, err = run(capsys, "store", "compact", in_file.where, "--before", BEGIN // 10**6)
        assert code == 2
        assert "another process is writing into this store" in err
