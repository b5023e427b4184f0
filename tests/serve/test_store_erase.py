"""Erasing is looked at in the raw bytes of all files; compacting keeps the database small."""

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.helpers.processes import wait_until
from tests.helpers.stores import BEGIN, DAY, Place, Server, click, ids_of, shown
from unskew.core.errors import BadInput, UnskewError
from unskew.data.log.erasures import Erasures, add_erasures, list_beside, read_erasures
from unskew.serve import Event, Store
from unskew.serve.store import sqlite

pytest_plugins = ("tests.helpers.store_places",)

WHO = "erika-mustermann-7f3a9"
THING = "a-thing-that-only-she-took"
NEXT_DAY = time.time_ns() // 1000 + DAY  # after any erasure of now


def fill(store: Store, first: int = 0, count: int = 400) -> None:
    """Every fourth event is hers, with her name also in the ids."""
    numbers = range(first, first + count)
    store.append(
        [
            Event(f"{WHO}/{n}", WHO, THING, "click", BEGIN + n, f"{WHO}:{n}", (THING, WHO + " list"))
            if n % 4 == 0
            else click(n, f"u{n % 5}", timestamp=BEGIN + n)
            for n in numbers
        ]
    )
    store.record(
        [shown(f"{WHO}:{n}" if n % 4 == 0 else f"r{n}", WHO if n % 4 == 0 else "bob") for n in numbers]
    )


def files_of(place: Place) -> Iterator[Path]:
    """All files in which the store might leave something. PostgreSQL's own WAL is not covered."""
    for folder in (place.data, place.segments):
        for path in folder.rglob("*"):
            if path.is_file() and "pg_wal" not in path.parts:
                yield path


def traces(place: Place, *texts: str) -> list[str]:
    """The files whose raw bytes, or whose rows, have one of these texts."""
    found = []
    for path in files_of(place):
        raw = path.read_bytes()
        rows = str(pq.read_table(path).to_pydict()).encode() if path.suffix == ".parquet" else b""
        if any(text.encode() in raw or text.encode() in rows for text in texts):
            found.append(path.name)
    return found


@pytest.fixture
def on_disk(place: Place, request: pytest.FixtureRequest):
    """A function that writes PostgreSQL's pages to its disk."""
    if not place.in_postgres:
        return lambda: None
    server: Server = request.getfixturevalue("server")
    return lambda: server.run("CHECKPOINT")


def test_of_an_erased_user_no_file_has_a_byte(place: Place, on_disk, request: pytest.FixtureRequest) -> None:
    with place.open() as store:
        fill(store)
        store.compact(BEGIN + 200)  # half of the events, and all recommendations
        fill(store, 1000)
        store.append([click(5000, "u1", WHO)])  # another user has an item of this name
        if place.in_postgres:  # the planner looks at the values of all columns
            schema = place.where.rpartition("%3D")[2]
            for table in ("events", "recommendations"):
                request.getfixturevalue("server").run(f"ANALYZE {schema}.unskew_{table}")
        on_disk()
        segments = {path.name for path in place.segments.iterdir()}
        assert segments < {*traces(place, WHO), *traces(place, THING)}
        before = store.info()
        assert store.erase("u1", "nobody") == (121, 0)
        others = [name for name in ids_of(store) if WHO not in name]
        assert store.erase(WHO) == (200, 200)
        on_disk()
        assert traces(place, WHO, THING) == []
        assert store.of_user(WHO) == []
        assert store.recommended_to(WHO) == []
        assert store.recommendation(f"{WHO}:0") is None
        assert ids_of(store) == others
        assert store.state().newest == before["newest"]
        assert store.state().erasures == 2
    assert traces(place, WHO, THING) == []


def test_an_erased_user_may_come_back_as_a_new_user(place: Place) -> None:
    with place.open() as store:
        store.append([click(1), click(2), click(3, "bob")])
        store.compact(BEGIN + 2 * 10**6)
        assert store.erase("ann").events == 2
        # What happened before the erasure never comes back, be it a late copy or not.
        late, back = [click(2), click(5)], [click(n, timestamp=NEXT_DAY + n) for n in (2, 4)]
        assert store.append([*late, click(3, "bob"), *back]) == (2, 3, (None, None, None, 4, 5))
        assert store.record([shown("r1"), shown("r2", at=(NEXT_DAY - BEGIN) // 10**6)]) == (1, 1, (None, 1))
        assert [event.event_id for event in store.of_user("ann")] == ["e2", "e4"]
        assert store.erase("ann", "bob") == (3, 1)
        assert ids_of(store) == []
        assert store.info()["segments"] == 0
        for wrong in ("", "a\0b"):
            with pytest.raises(BadInput, match="user_id"):
                store.erase(wrong)


def test_the_list_of_erased_users_names_nobody(in_file: Place) -> None:
    with in_file.open() as store:
        store.append([click(1), click(2, WHO)])
        store.erase(WHO, "bob")
        erasures = store.erasures()
        assert len(erasures) == 2
        assert set(erasures.among(["ann", WHO, "bob"])) == {WHO, "bob"}
        file = list_beside(Path(in_file.where))
        assert read_erasures(file) == erasures
        assert file.stat().st_mode & 0o777 == 0o600
        assert WHO not in file.read_text()
        (salt,) = erasures.by_salt
        other = Erasures({"00" * 16: erasures.by_salt[salt]})
        assert other.among([WHO]) == {}  # the hashes say nothing without their salt


def test_a_restored_copy_of_the_database_is_erased_again(in_file: Place, tmp_path: Path) -> None:
    with in_file.open() as store:
        fill(store)
        store.compact(BEGIN + 200)
    names = [Path(in_file.where), in_file.segments]
    shutil.copytree(in_file.segments, tmp_path / "segments")
    shutil.copy2(in_file.where, tmp_path / "copy.db")
    with in_file.open() as store:
        store.erase(WHO)
    shutil.copy2(tmp_path / "copy.db", names[0])
    shutil.rmtree(names[1])
    shutil.copytree(tmp_path / "segments", names[1])
    assert traces(in_file, WHO)
    with in_file.open() as store:
        assert len(ids_of(store)) == 300
        assert set(store.erasures().among([WHO, "u1"])) == {WHO}
    assert traces(in_file, WHO) == []


def test_an_open_store_erases_whom_another_process_lists(in_file: Place) -> None:
    with in_file.open() as store:
        fill(store)
        asked = Erasures().with_users({WHO: BEGIN + 300})
        add_erasures(list_beside(Path(in_file.where)), asked)
        wait_until(lambda: store.state().erasures == 1)
        left = [event.timestamp for event in store.of_user(WHO)]
        assert left == [BEGIN + n for n in range(304, 400, 4)]  # what came after the erasure stays


def test_a_damaged_list_of_erased_users_is_one_line(in_file: Place) -> None:
    with in_file.open() as store:
        store.append([click(1)])
    file = list_beside(Path(in_file.where))
    for text in ("", "[]", "{}", '{"format": 1, "by_salt": {"zz": {}}}', "[" * 100_000, '{"format": 2}'):
        file.write_text(text)
        with pytest.raises(BadInput, match="the list of erased users cannot be read"):
            in_file.open()


def test_erasing_says_when_a_reader_holds_an_older_state(in_file: Place, monkeypatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    with in_file.open() as store:
        fill(store)
        with closing(sqlite3.connect(in_file.where, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM unskew_events").fetchall()
            with pytest.raises(UnskewError, match="another process is reading an older state"):
                store.erase(WHO)
            assert store.of_user(WHO) == []
            assert traces(in_file, WHO) != []
        store.append([click(2001)])
    with in_file.open() as store:  # what was begun is finished
        assert traces(in_file, WHO) == []
        assert "e2001" in ids_of(store)


def test_a_reader_that_began_before_an_erasure_goes_on(place: Place, monkeypatch) -> None:
    """Segments that it has listed may be gone when it opens them."""
    with place.open() as store:
        fill(store)
        store.compact(BEGIN + 1000)
        listed = store._reader._segments.after
        erased = []

        def late(*arguments: object) -> object:
            if not erased:
                erased.append(store.erase(WHO))
            return listed(*arguments)

        monkeypatch.setattr(store._reader._segments, "after", late)
        assert len(ids_of(store, batch=50)) == 300
        assert erased == [(100, 100)]


def test_compacting_gives_the_space_back(in_file: Place) -> None:
    with in_file.open() as store:
        for first in range(0, 12_000, 4000):
            store.append(
                [click(n, f"user {n % 50}", f"item {n % 90}" * 9) for n in range(first, first + 4000)]
            )
        store._writer.run(store._database.forget)
        before = Path(in_file.where).stat().st_size
        assert store.compact(BEGIN + 10**13).events == 12_000
        store._writer.run(
            lambda: store._database._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        )
        after = Path(in_file.where).stat().st_size
        # What stays is a hash of each key and its sequence number.
        assert before > 12_000 * 100
        assert 16 * 12_000 < after < 45 * 12_000
        assert sum(path.stat().st_size for path in in_file.segments.iterdir()) < before / 4
        assert store.append([click(n) for n in range(12_000)]).duplicates == 12_000


def test_keys_of_compacted_rows_cost_what_is_said_in_postgres(in_server: Place) -> None:
    with in_server.open() as store:
        empty = store._database.size()
        store.append([click(n) for n in range(5000)])
        store.compact(BEGIN + 10**13)
        store._writer.run(store._database.forget)
        assert (store._database.size() - empty) / 5000 < 170  # docs/store.md
