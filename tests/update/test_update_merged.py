"""The log of a run and of a store as one: rows, ids, times, what is fresh, and what is counted once."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import unskew
from tests.helpers.errors import refused
from tests.helpers.updated import (
    BEGIN,
    SPAN,
    add,
    card,
    drawn,
    events_of,
    prepared,
    stored,
    table_of,
    trained,
)
from unskew.serve import Event, Recommendation, Shown, open_store
from unskew.training.run import load, read_card, read_config
from unskew.update.merged import Base, Merged, StorePosition, base_of, merged


def base_from(log: unskew.Log) -> Base:
    return Base(log.table(), log.now, log.clock, {}, False, [])


def joined(base: Base, store: Path, after: StorePosition | None = None, **more: Any) -> Merged:
    with open_store(store, "read") as opened:
        return merged(base, opened, after or StorePosition(), **more)


def fresh_of(found: Merged) -> set[tuple[Any, Any, int]]:
    table = found.log.table().filter(pa.array(found.fresh))
    return set(zip(*(table[name].to_pylist() for name in ("user", "item", "time")), strict=True))


@pytest.fixture
def own() -> unskew.Log:
    return unskew.read(table_of(drawn(200, 0, BEGIN)))


def test_it_is_the_log_of_all_rows(own: unskew.Log, tmp_path: Path) -> None:
    more = drawn(60, 1, BEGIN + SPAN, 3)
    add(tmp_path / "e.db", more)
    found = joined(base_from(own), tmp_path / "e.db")
    assert found.log.fingerprint() == unskew.read(table_of([*drawn(200, 0, BEGIN), *more])).fingerprint()
    assert not found.log.marks
    assert found.log.clock == own.clock
    assert fresh_of(found) == set(more)
    assert found.newest == StorePosition(60, 0)
    assert found.learned_until == 0


@pytest.mark.parametrize("ticks", [1, 10**3, 10**6, 10**9])
def test_times_are_in_the_ticks_of_the_runs_log(ticks: int, tmp_path: Path) -> None:
    rows = [(user, item, time * ticks) for user, item, time in drawn(50, 0, BEGIN)]
    add(tmp_path / "e.db", [("u1", "i1", BEGIN + SPAN + 7)])
    found = joined(base_from(unskew.read(table_of(rows))), tmp_path / "e.db")
    assert fresh_of(found) == {("u1", "i1", (BEGIN + SPAN + 7) * ticks)}
    assert found.log.clock.ticks == ticks


def test_where_times_are_an_order_events_come_behind_the_log(tmp_path: Path) -> None:
    own = unskew.read(table_of([("a", "x", 3), ("b", "y", 5)]))
    rows = [("a", "y", BEGIN + 50), ("c", "x", BEGIN), ("d", "z", BEGIN + 50)]
    add(tmp_path / "e.db", rows)
    found = joined(base_from(own), tmp_path / "e.db")
    assert fresh_of(found) == {("c", "x", 6), ("a", "y", 7), ("d", "z", 7)}
    assert found.log.clock.ticks is None


def test_fresh_is_what_came_after_the_sequence_number_also_if_it_is_late(
    own: unskew.Log, tmp_path: Path
) -> None:
    first, late = drawn(40, 1, BEGIN + SPAN), [("late", "i1", BEGIN + 5)]
    add(tmp_path / "e.db", first)
    add(tmp_path / "e.db", late, "late")
    found = joined(base_from(own), tmp_path / "e.db", StorePosition(40))
    assert fresh_of(found) == set(late)
    assert found.newest.events == 41
    assert found.learned_until == max(time for *_, time in first) + 1
    assert set(events_of(found.log)) == {*drawn(200, 0, BEGIN), *first, *late}


def test_whole_numbers_stay_numbers_if_all_ids_are_such(tmp_path: Path) -> None:
    own = unskew.read(table_of([(1, 10, BEGIN), (2, 11, BEGIN + 1), (30, 11, BEGIN + 2)]))
    add(tmp_path / "whole.db", [(30, 12, BEGIN + SPAN), (4, 10, BEGIN + SPAN)])
    found = joined(base_from(own), tmp_path / "whole.db")
    assert fresh_of(found) == {(30, 12, BEGIN + SPAN), (4, 10, BEGIN + SPAN)}
    assert len(found.log.users) == 4
    add(tmp_path / "text.db", [("030", 12, BEGIN + SPAN), ("30", 10, BEGIN + SPAN)])
    found = joined(base_from(own), tmp_path / "text.db")
    assert fresh_of(found) == {("030", 12, BEGIN + SPAN), ("30", 10, BEGIN + SPAN)}
    assert set(found.log.users.ids.to_pylist()) == {"1", "2", "30", "030"}


def test_what_both_have_counts_once(own: unskew.Log, tmp_path: Path) -> None:
    """A run may have been trained on an export of the same store."""
    rows, more = drawn(200, 0, BEGIN), drawn(30, 1, BEGIN + SPAN)
    add(tmp_path / "e.db", [*rows, *more, more[0]])
    found = joined(base_from(own), tmp_path / "e.db")
    assert events_of(found.log) == sorted([*rows, *more], key=lambda row: (row[2], str(row)))
    assert fresh_of(found) == set(more)


def test_what_was_shown_comes_along(own: unskew.Log, tmp_path: Path) -> None:
    with open_store(tmp_path / "e.db") as store:
        at = (BEGIN + SPAN) * 10**6
        shown = Shown("i1", propensity=0.5), Shown("i2", propensity=0.25, exposed=True)
        store.record([Recommendation("r1", "u1", at, "pulse", "1", shown)])
        store.append([Event("e1", "u1", "i2", "click", at + 10**6, recommendation_id="r1")])
        store.record([Recommendation("r2", "u2", at + 5 * 10**6, "pulse", "1", shown[:1])])
        store.append([Event("e2", "u3", "i3", "click", at + 9 * 10**6)])
    found = joined(base_from(own), tmp_path / "e.db")
    log, t = found.log, BEGIN + SPAN
    rows = {(row["user"], row["item"], row["time"]): row for row in log.table().to_pylist()}
    assert fresh_of(found) == {("u1", "i2", t + 1), ("u1", "i1", t), ("u2", "i1", t + 5), ("u3", "i3", t + 9)}
    click, passed, bare = rows["u1", "i2", t + 1], rows["u1", "i1", t], rows["u3", "i3", t + 9]
    assert (click["label"], click["propensity"], click["exposed"], click["position"]) == (1, 0.25, 1, 2)
    assert (passed["label"], passed["propensity"], passed["test:logged"]) == (0, 0.5, 1)
    assert click["impression_id"] == passed["impression_id"] is not None
    old = rows[events_of(own)[0]]
    for row in (bare, old):
        assert (row["propensity"], row["exposed"], row["position"], row["impression_id"]) == (1, 0, 0, None)
        assert row["test:logged"] == 0
    later = joined(base_from(own), tmp_path / "e.db", StorePosition(1, 1))
    assert fresh_of(later) == {("u2", "i1", t + 5), ("u3", "i3", t + 9)}
    assert later.newest == StorePosition(2, 2)


def test_extras_titles_and_features_of_the_runs_log_stay(tmp_path: Path) -> None:
    table = table_of(drawn(50, 0, BEGIN))
    item = table["item"].to_pylist()
    table = table.append_column("propensity", pa.array([0.5] * 50)).append_column(
        "impression_id", [[*range(50)]]
    )
    table = table.append_column("title", [[f"title of {name}" for name in item]])
    table = table.append_column("item_feature:kind", [[f"kind of {name}" for name in item]])
    add(tmp_path / "e.db", [("u1", item[0], BEGIN + SPAN), ("u1", "new", BEGIN + SPAN + 1)])
    log = joined(base_from(unskew.read(table)), tmp_path / "e.db").log
    rows = {(row["item"], row["time"]): row for row in log.table().to_pylist()}
    known, new = rows[item[0], BEGIN + SPAN], rows["new", BEGIN + SPAN + 1]
    assert known["title"] == f"title of {item[0]}"
    assert known["item_feature:kind"] == f"kind of {item[0]}"
    assert (new["title"], new["item_feature:kind"], new["impression_id"], new["propensity"]) == (
        None,
        None,
        None,
        1,
    )
    assert [(row["test:logged"], row["propensity"]) for row in rows.values()].count((1, 0.5)) == len(rows) - 2
    assert (known["test:logged"], new["test:logged"]) == (0, 0)


def test_a_store_is_read_up_to_the_newest_event_of_the_beginning(own: unskew.Log, tmp_path: Path) -> None:
    add(tmp_path / "e.db", drawn(30, 1, BEGIN + SPAN))
    with open_store(tmp_path / "e.db", "read") as store:
        real = store.state
        store.state = lambda: real()._replace(newest=real().newest - 10)  # as if ten came while it is read
        found = merged(base_from(own), store, StorePosition())
    assert found.newest.events == 20
    assert len(found.log) == 220


# Where the run's own log comes from


def test_the_prepared_folder_or_else_the_memory(tmp_path: Path) -> None:
    data = prepared(tmp_path / "data", 200)
    run = trained(data, tmp_path / "run", "popularity")
    found = load(run)
    asked = run, read_config(run), read_card(run), found.log
    whole = base_of(*asked)
    assert not whole.remembered
    assert whole.table.equals(unskew.Log.open(data).table())
    shutil.move(data, tmp_path / "moved")
    moved = base_of(*asked, tmp_path / "moved")
    assert not moved.remembered
    assert moved.own.data == str((tmp_path / "moved").resolve())
    gone = base_of(*asked)
    assert gone.remembered
    assert set(events_of(unskew.read(gone.table))) == set(drawn(200, 0, BEGIN))
    assert gone.now == whole.now
    prepared(tmp_path / "other", 100)
    with refused("data"):
        base_of(*asked, tmp_path / "other")


def test_an_updated_run_goes_on_from_the_first_log(tmp_path: Path) -> None:
    """Also if it has only a memory, so that whoever is erased from the store is not in the next log."""
    from unskew.update import Updating
    from unskew.update.update import update

    data, store, quick = prepared(tmp_path / "data", 200), stored(tmp_path / "e.db"), Updating(least=40)
    trained(data, tmp_path / "0", "popularity")
    update(tmp_path / "0", store, tmp_path / "with", quick)
    shutil.rmtree(data)
    outcome = update(tmp_path / "0", store, tmp_path / "without", quick)
    assert "memory is used" in outcome.notes[0]
    rows = drawn(250, 1, BEGIN + SPAN, 4)
    for name in ("with", "without"):
        assert set(events_of(load(tmp_path / name).log)) == {*drawn(200, 0, BEGIN), *rows}
    erased = rows[0][0]
    with open_store(store, "write") as opened:
        opened.erase(erased)
    add(store, drawn(250, 2, BEGIN + 2 * SPAN), "later")
    with refused("data"):
        update(tmp_path / "with", store, tmp_path / "no", quick)
    update(tmp_path / "without", store, tmp_path / "next", quick)
    # Neither what the run remembers of the user, nor what came later and happened before the erasure.
    expected = {*drawn(200, 0, BEGIN), *rows, *drawn(250, 2, BEGIN + 2 * SPAN)}
    assert set(events_of(load(tmp_path / "next").log)) == {row for row in expected if row[0] != erased}
    assert card(tmp_path / "next")["updated"]["times"] == 2
