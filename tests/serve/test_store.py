"""The contract of the store, in a file and in PostgreSQL: what was appended is there, once and in order."""

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import pytest

from tests.helpers.processes import run_python
from tests.helpers.stores import BEGIN, Place, click, ids_of, rows_of, shown
from unskew.core.errors import BadInput, UnskewError
from unskew.serve import BadEvent, Event, Store, open_store
from unskew.serve.store import maintenance as maintenance_module
from unskew.serve.store.tables import SCHEMA, Kind

pytest_plugins = ("tests.helpers.store_places",)

STRANGE = ("a/b?c=d#e%2F", "🍵" * 300, "%s ? ' \" ; --", " spaced ", "\t\n x", "é", "e\u0301", "-x", "ａ")
WAIT = 20  # seconds after which a test that hangs fails


def test_what_was_appended_is_there_after_opening_again(place: Place) -> None:
    full = Event("e1", "ann", "tea", "click", BEGIN, "r1", ("tea", "mate"), 0.125, 2)
    with place.open() as store:
        assert store.state().newest == 0
        assert rows_of(store) == []
        assert store.append([full, click(2)]) == (2, 0, (1, 2))
        assert store.append([]) == (0, 0, ())
    with place.open("read") as store:
        expected = {name: getattr(full, name) for name in full.__slots__}
        first, second = rows_of(store)
        assert first == {"sequence": 1, **expected, "impression": ["tea", "mate"]}
        assert (second["sequence"], second["event_id"], second["timestamp"]) == (2, "e2", BEGIN + 2 * 10**6)
        assert [second[name] for name in ("recommendation_id", "impression", "propensity", "position")] == [
            None
        ] * 4
        assert store.of_user("ann") == [full, click(2)]
        assert store.state().newest == 2
        assert store.counts() == {"events": 2, "recommendations": 0}


def test_ids_of_any_text_come_back_as_they_were(place: Place) -> None:
    events = [
        Event(f"{name}{number}", name, name, name, BEGIN, name, (name,))
        for number, name in enumerate(STRANGE)
    ]
    with place.open() as store:
        assert store.append(events).accepted == len(STRANGE)
        assert store.append(events).duplicates == len(STRANGE)
        store.compact(BEGIN + 1)
        assert store.append(events).duplicates == len(STRANGE)
        for event in events:  # among them two texts that look similar
            assert store.of_user(event.user_id) == [event]
        assert store.erase(STRANGE[2]).events == 1
        assert [row["user_id"] for row in rows_of(store)] == [*STRANGE[:2], *STRANGE[3:]]


def test_a_second_copy_is_counted_and_the_first_one_wins(place: Place) -> None:
    with place.open() as store:
        in_one_batch = [click(1), click(2), click(1, item="mate"), click(2)]
        assert store.append(in_one_batch) == (2, 2, (1, 2, None, None))
        assert store.append([click(2, user="bob"), click(3)]) == (1, 1, (None, 3))
        store.compact(BEGIN + 10**12)
        assert store.append([click(1, item="milk"), click(4)]) == (1, 1, (None, 4))
        assert [(row["event_id"], row["user_id"], row["item_id"]) for row in rows_of(store)] == [
            (f"e{number}", "ann", "tea") for number in (1, 2, 3, 4)
        ]
        assert store.record([shown("r1"), shown("r1", "bob"), shown("e1")]) == (2, 1, (1, None, 2))
        assert store.recommendation("r1") == shown("r1")


def test_reading_the_table_and_the_segments_is_reading_one_list(place: Place, monkeypatch) -> None:
    """Random appends, copies, compactions, erasures and openings against a plain list."""
    monkeypatch.setattr(maintenance_module, "SEGMENT_ROWS", 7)
    monkeypatch.setattr(maintenance_module, "READ_ROWS", 3)
    random, expected, newest, users = Random(3), {}, 0, list("abc")
    store = place.open()
    try:
        for _ in range(40):
            what = random.random()
            if what < 0.55:
                batch = []
                for _ in range(random.randint(1, 9)):
                    user, number = random.choice(users), random.randint(0, 250)
                    # Times do not follow the order of arrival, so segments and the table overlap.
                    batch.append(click(number, user, timestamp=BEGIN + random.randint(0, 99)))
                found = store.append(batch)
                for event, sequence in zip(batch, found.sequences, strict=True):
                    assert (event.event_id in {known.event_id for known in expected.values()}) == (
                        sequence is None
                    )
                    if sequence is not None:
                        newest += 1
                        assert sequence == newest
                        expected[sequence] = event
            elif what < 0.75:
                store.compact(BEGIN + random.randint(0, 99))
            elif what < 0.85:
                user = random.choice(users)
                gone = [sequence for sequence, event in expected.items() if event.user_id == user]
                assert store.erase(user) == (len(gone), 0)
                for sequence in gone:
                    del expected[sequence]
                assert store.append([click(999, user, timestamp=BEGIN)]).sequences == (None,)
                users[users.index(user)] += "'"  # of an erased user, nothing from before is accepted
            else:
                store.close()
                store = place.open()
            after, batch_size = random.randint(0, newest), random.choice((1, 2, 5, 1000))
            assert [(row["sequence"], row["event_id"]) for row in rows_of(store, after, batch_size)] == [
                (sequence, event.event_id) for sequence, event in expected.items() if sequence > after
            ]
            assert all(len(frame) <= batch_size for frame in store.events(after, batch_size))
            for user in [*users, "a", "d"]:
                own = sorted(
                    (event.timestamp, sequence, event)
                    for sequence, event in expected.items()
                    if event.user_id == user
                )
                assert store.of_user(user) == [event for _, _, event in own]
            assert store.counts()["events"] == len(expected)
            assert store.state().newest == newest
        assert store.info()["segments"] > 3
    finally:
        store.close()


def test_what_threads_append_meanwhile_is_committed_together(place: Place) -> None:
    with place.open() as store:
        commits, hold, held = [], threading.Event(), threading.Event()
        writing = store._database.writing

        def counted():
            commits.append(1)
            return writing()

        store._database.writing = counted

        def wait() -> None:
            held.set()
            assert hold.wait(WAIT)

        with ThreadPoolExecutor(62) as pool:
            busy = pool.submit(store._writer.run, wait)
            assert held.wait(WAIT)
            batches = [[click(2 * n), click(2 * n + 1)] for n in range(50)]
            asked = [store.append_later(batch) for batch in batches]
            asked += [store.append_later(batch[:1]) for batch in batches[:5]]  # copies of what waits
            recorded = store.record_later([shown("r1")])
            assert not any(future.done() for future in asked)
            hold.set()
            found = [future.result(WAIT) for future in asked]
            busy.result(WAIT)
        assert recorded.result(WAIT) == (1, 0, (1,))
        assert len(commits) == 1
        assert [one.sequences for one in found[:50]] == [(2 * n + 1, 2 * n + 2) for n in range(50)]
        assert found[50:] == [(0, 1, (None,))] * 5


def test_threads_that_append_and_wait_lose_and_double_nothing(place: Place) -> None:
    with place.open() as store, ThreadPoolExecutor(8) as pool:

        def some(thread: int) -> int:
            accepted = 0
            for number in range(10):
                accepted += store.append([click(1000 * thread + number), click(number)]).accepted
                assert f"e{number}" in {event.event_id for event in store.of_user("ann")}
            return accepted

        assert sum(pool.map(some, range(1, 9))) == 90
        assert sorted(ids_of(store)) == sorted(
            f"e{1000 * thread + number}" for thread in range(9) for number in range(10)
        )
        assert [row["sequence"] for row in rows_of(store)] == list(range(1, 91))


def test_a_reader_waits_for_no_commit_and_sees_only_what_is_committed(place: Place) -> None:
    with place.open() as store, ThreadPoolExecutor(2) as pool:
        store.append([click(1)])
        store.record([shown("r1")])
        begun, hold = threading.Event(), threading.Event()

        def slow() -> None:
            with store._database.writing() as cursor:
                cursor.run("UPDATE unskew_meta SET value = '7' WHERE name = 'newest_events'")
                begun.set()
                assert hold.wait(WAIT)

        writing = pool.submit(store._writer.run, slow)
        assert begun.wait(WAIT)
        try:
            read = pool.submit(
                lambda: (
                    ids_of(store),
                    store.of_user("ann"),
                    store.state().newest,
                    store.recommendation("r1"),
                )
            )
            assert read.result(WAIT) == (["e1"], [click(1)], 1, shown("r1"))
            with place.open("read") as other:  # as another process would
                assert other.state().newest == 1
        finally:
            hold.set()
        writing.result(WAIT)
        assert store.state().newest == 7


def test_nobody_can_cancel_what_will_be_written(place: Place) -> None:
    with place.open() as store:
        future = store.append_later([click(1)])
        assert not future.cancel()
        assert future.result(WAIT).accepted == 1
        assert store.append([click(2)]).accepted == 1


def test_a_closed_store_and_one_for_reading_refuse_to_write(place: Place) -> None:
    store = place.open()
    store.close()
    store.close()
    for call in (lambda: store.append([click(1)]), store.state, lambda: store.compact(1)):
        with pytest.raises(UnskewError, match="the store is closed"):
            call()
    with place.open("read") as store:
        for call in (
            lambda: store.append([click(1)]),
            lambda: store.record([shown("r")]),
            lambda: store.erase("ann"),
            lambda: store.compact(1),
            lambda: store.configure(positive=["like"]),
        ):
            with pytest.raises(UnskewError, match="for reading only"):
                call()
        assert store.counts() == {"events": 0, "recommendations": 0}


def test_recommendations_are_found_compacted_or_not(place: Place) -> None:
    made = [shown(f"r{n}", "ann" if n % 2 else "bob", at=n) for n in range(6)]
    with place.open() as store:
        store.record(made)
        assert store.compact(made[4].timestamp) == (0, 4, 1)
        for one in made:
            assert store.recommendation(one.recommendation_id) == one
        assert store.recommendation("r9") is None
        assert store.recommended_to("ann") == made[1::2]
        assert [row["sequence"] for frame in store.recommendations(2, 3) for row in frame.to_pylist()] == [
            *range(3, 7)
        ]
        assert store.erase("ann") == (0, 3)
        assert store.recommended_to("ann") == []
        assert [store.recommendation(one.recommendation_id) for one in made] == [
            one if one.user_id == "bob" else None for one in made
        ]


def test_an_error_in_the_middle_of_a_group_stores_nothing_of_it(place: Place, monkeypatch) -> None:
    with place.open() as store:
        monkeypatch.setattr(Kind, "inserting", "INSERT INTO unskew_nowhere VALUES (?)")
        with pytest.raises((UnskewError, sqlite3.Error)):
            store.append([click(1)])
        monkeypatch.undo()
        assert store.append([click(1)]) == (1, 0, (1,))
        assert ids_of(store) == ["e1"]


def test_the_store_keeps_which_types_are_positive(place: Place) -> None:
    with place.open() as store:
        assert store.types == (("click", "purchase"), ("impression",), ("view", "cart"))
    with place.open(positive=["like", "buy", "like"]) as store:
        assert store.types == (("like", "buy"), ("impression",), ("view", "cart"))
        with pytest.raises(BadInput, match="'like': positive, or shown, but not both"):
            store.configure(shown=["seen", "like"])
        with pytest.raises(BadInput, match="positive: expected a list"):
            store.configure(positive="like")
    with place.open("read") as store:
        assert store.types == (("like", "buy"), ("impression",), ("view", "cart"))


def test_info_counts_both_parts(place: Place) -> None:
    with place.open() as store:
        empty = store.info()
        assert (empty["events"], empty["first"], empty["schema"]) == (0, None, SCHEMA)
        store.append([click(n, f"u{n % 3}", f"i{n % 4}") for n in range(10)])
        store.record([shown("r1"), shown("r2", at=50)])
        before = store.info()
        assert store.compact(BEGIN + 5 * 10**6) == (5, 1, 2)
        assert store.compact(BEGIN + 5 * 10**6) == (0, 0, 0)
        after = store.info()
    same = ("events", "users", "items", "recommendations", "first", "last", "newest", "positive", "shown")
    assert [after[name] for name in same] == [before[name] for name in same]
    assert [after[name] for name in same[:6]] == [10, 3, 4, 2, "2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"]
    assert (before["segments"], after["segments"], after["compacted"]) == (0, 2, 6)
    assert after["bytes"] > sum(path.stat().st_size for path in place.segments.iterdir()) > 0


def test_a_list_says_which_variant_made_it_and_how_long_it_took(place: Place) -> None:
    plain, made = shown("r1"), replace(shown("r2"), variant="B", took_ms=12.5)
    with place.open() as store:
        store.record([plain, made])
        assert store.variants == {}
        store.declare_variants({"A": 0.8, "B": 0.2})
    with place.open("write") as store:
        assert store.variants == {"A": 0.8, "B": 0.2}
        assert [store.recommendation(name) for name in ("r1", "r2")] == [plain, made]
        store.compact(BEGIN + 10**12)
        assert [store.recommendation(name) for name in ("r1", "r2")] == [plain, made]
    for wrong in ({"variant": ""}, {"took_ms": -1.0}, {"took_ms": float("nan")}):
        with pytest.raises(BadEvent) as error:
            replace(made, **wrong)
        assert error.value.field in wrong


def test_of_two_that_make_the_same_store_one_makes_it(place: Place) -> None:
    """In PostgreSQL both may write then; in a file the second one is refused."""

    def opened(number: int) -> str:
        try:
            with place.open() as store:
                return str(store.append([click(number)]).accepted)
        except BadInput as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        said = [future.result(WAIT) for future in [pool.submit(opened, number) for number in range(4)]]
    refused = [text for text in said if text != "1"]
    assert [text for text in refused if "another process is writing" not in text] == []
    if place.in_postgres:
        assert not refused
    with place.open("read") as store:
        assert store.counts()["events"] == len(said) - len(refused)


def test_commits_are_as_durable_as_the_store_says(place: Place) -> None:
    def setting(store: Store) -> object:
        def ask() -> object:
            with store._database.writing() as cursor:
                sql = "SHOW synchronous_commit" if place.in_postgres else "PRAGMA synchronous"
                return cursor.rows(sql)[0][0]

        return store._writer.run(ask)

    with place.open() as store:
        assert setting(store) == ("on" if place.in_postgres else 2)
    with place.open(synchronous="normal") as store:
        assert setting(store) == ("off" if place.in_postgres else 1)
        assert store.append([click(1)]).accepted == 1


def test_a_store_needs_neither_torch_nor_a_server_nor_psycopg() -> None:
    said = "import sys, unskew.serve; print({'torch', 'fastapi', 'psycopg'} & set(sys.modules))"
    found = run_python("-c", said)
    assert found.stdout == "set()\n"


def test_only_events_are_appended_and_only_recommendations_recorded(in_file: Place) -> None:
    with in_file.open() as store:
        for call, said in (
            (lambda: store.append([click(1), shown("r1")]), "expected Event, found Recommendation"),
            (lambda: store.append([{"event_id": "e1"}]), "expected Event, found dict$"),
            (lambda: store.record([click(1)]), "expected Recommendation, found Event"),
            (lambda: store.compact("2026-01-01"), "expected whole microseconds"),
            (store.erase, "at least one user"),
            (lambda: store.events(batch=0), "batch 0: expected at least 1"),
        ):
            with pytest.raises(BadInput, match=said):
                call()
        assert store.counts() == {"events": 0, "recommendations": 0}


def test_wrong_words_get_one_line(tmp_path) -> None:
    for options, said in (
        ({"mode": "append"}, "mode 'append': expected one of create, write, read"),
        ({"synchronous": "off"}, "synchronous 'off': expected one of full, normal"),
        ({"segments": "x"}, "leave the folder away"),
    ):
        with pytest.raises(BadInput, match=said):
            open_store(tmp_path / "events.db", **options)
    with pytest.raises(BadInput, match=r"a store at mysql://\.\.\.: expected a file or a URL"):
        open_store("mysql://me:secret@host/db")
    assert not list(tmp_path.iterdir())


def test_only_the_owner_can_read_the_files_of_a_store(in_file: Place) -> None:
    before = os.umask(0)  # which takes no permission away
    try:
        with in_file.open() as store:
            store.append([click(1), click(2)])
            store.compact(BEGIN + 2 * 10**6)
            store.erase("nobody")
            files = [path for path in in_file.folder.rglob("*") if path.is_file()]
            assert {path.suffix for path in files} >= {".db", ".parquet", ".db-wal", ".db-shm", ".db-lock"}
            assert {path.name: path.stat().st_mode & 0o077 for path in files} == dict.fromkeys(
                (path.name for path in files), 0
            )
            assert in_file.segments.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
