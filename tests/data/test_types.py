"""Types of events: targets are predicted, context is read, and whatever is not declared is an error."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import unskew
from unskew.data.log.erasures import Erasures
from unskew.data.log.split import cut_log, leave_one_out
from unskew.data.log.views import Views
from unskew.data.reading.erase import erase_from_folder
from unskew.training.run_config import KnownShape
from unskew.training.run_log import load_memory, save_memory

TYPES = {"type": "event_type", "target": "purchase", "context": "view,cart"}
ROWS = [
    ("ann", "tea", 1, "view"),
    ("ann", "tea", 3, "purchase"),
    ("ann", "mate", 4, "cart"),
    ("ann", "mate", 4, "cart"),  # the same event again
    ("ann", "mate", 4, "view"),
    ("bob", "mate", 6, "purchase"),
    ("bob", "milk", 7, "view"),
    ("cat", "tea", 9, "purchase"),
    ("cat", "rice", 8, "purchase"),
    ("dan", "soap", 5, "view"),
    ("ann", "rice", 11, "purchase"),
    ("ann", "milk", 12, "purchase"),
    ("ann", "milk", 11, "view"),
]


def table(rows: list[tuple[str, str, int, str]] = ROWS) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(("user", "item", "time", "event_type"), map(list, columns), strict=True)))


def triples(log: unskew.Log, views: Views) -> list[tuple[str, str, int]]:
    user, item, time = views.events()
    return sorted(
        zip(log.users.of(user).to_pylist(), log.items.of(item).to_pylist(), time.tolist(), strict=True)
    )


def expected(kind: str, rows: list[tuple[str, str, int, str]] = ROWS) -> list[tuple[str, str, int]]:
    return sorted({row[:3] for row in rows if row[3] == kind})


@pytest.fixture
def log(tmp_path: Path) -> unskew.Log:
    return unskew.prepare(table(), tmp_path / "log", **TYPES)


def test_targets_are_rows_and_context_is_not(log: unskew.Log) -> None:
    assert len(log) == log.positives == len(expected("purchase"))
    assert list(log.context) == ["cart", "view"]
    for kind, views in log.context.items():
        assert triples(log, views) == expected(kind)
        user, item, time = views.events()
        owner, place = views.audiences.everything()
        assert sorted(zip(views.audiences.ids[place], owner, views.audiences.times[place], strict=True)) == (
            sorted(zip(user, item, time, strict=True))
        )
    assert log.metadata.types.target == ("purchase",)
    assert log.metadata.types.context == {"cart": 1, "view": 5}
    assert log.metadata.removed.context == 1


def test_items_and_users_exist_from_their_first_event_on(log: unskew.Log) -> None:
    since = dict(zip(log.items.ids.to_pylist(), log.audiences.since.tolist(), strict=True))
    assert since == {"tea": 1, "mate": 4, "soap": 5, "milk": 7, "rice": 8}
    assert list(since.values()) == sorted(since.values())
    assert dict(zip(log.users.ids.to_pylist(), log.histories.since.tolist(), strict=True)) == {
        "ann": 1,
        "dan": 5,
        "bob": 6,
        "cat": 8,
    }


def test_now_is_after_the_newest_event() -> None:
    rows = [*ROWS, ("bob", "tea", 40, "view")]
    assert unskew.read(table(rows), **TYPES).now == 41


def test_reading_again_gives_the_same_log(log: unskew.Log, tmp_path: Path) -> None:
    again = unskew.read(log)
    assert again.fingerprint() == log.fingerprint() == unskew.prepare(log, tmp_path / "b").fingerprint()
    assert again.metadata.types == log.metadata.types
    assert unskew.read(log.table()).fingerprint() == log.fingerprint()
    other = unskew.read(table([*ROWS[:-1], ("ann", "milk", 10, "view")]), **TYPES)
    assert other.fingerprint() != log.fingerprint()


def test_a_file_gives_what_a_table_gives(log: unskew.Log, tmp_path: Path) -> None:
    pa.csv.write_csv(table(), tmp_path / "log.csv")
    assert unskew.read(tmp_path / "log.csv", **TYPES, name="x").fingerprint() != ""
    from_file = unskew.prepare(tmp_path / "log.csv", tmp_path / "other", **TYPES)
    assert from_file.fingerprint() == log.fingerprint()


def test_an_undeclared_type_is_an_error_that_counts_it() -> None:
    with pytest.raises(unskew.BadInput, match="2 events of the type 'buy'") as error:
        unskew.read(table([*ROWS, ("a", "b", 1, "buy"), ("a", "c", 1, "buy")]), **TYPES)
    assert error.value.field == "type"


def test_ignored_types_are_counted_and_not_checked() -> None:
    rows = [*ROWS, ("", "", 50, "page"), ("ann", "never", 60, "page")]
    log = unskew.read(table(rows), **TYPES, ignore="page,scroll")
    assert log.metadata.types.ignored == {"page": 2, "scroll": 0}
    assert log.fingerprint() == unskew.read(table(), **TYPES).fingerprint()


def test_shown_types_are_rows_without_a_click() -> None:
    rows = [*ROWS, ("bob", "tea", 6, "impression"), ("bob", "mate", 6, "impression")]
    log = unskew.read(table(rows), **TYPES, shown="impression")
    assert len(log) == log.positives + 2
    assert log.metadata.types.shown == ("impression",)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"type": "event_type"}, "type"),
        ({"type": "nothing", "target": "purchase"}, None),
        ({"target": "purchase"}, "type"),
        ({**TYPES, "ignore": "cart"}, "type"),
        ({**TYPES, "positive": "purchase"}, "type"),
        ({**TYPES, "label": "event_type"}, "type"),
    ],
)
def test_declarations_that_contradict_themselves(settings: dict[str, str], field: str | None) -> None:
    with pytest.raises(unskew.BadInput) as error:
        unskew.read(table(), **settings)
    assert error.value.field == field


def test_an_event_without_a_type_is_a_bad_row(tmp_path: Path) -> None:
    rows = "user,item,time,event_type\na,x,1,purchase\nb,y,2,\na,y,3,view\nb,x,4,purchase\n"
    (tmp_path / "log.csv").write_text(rows)
    with pytest.raises(unskew.BadInput, match="line 3, column 'event_type'"):
        unskew.read(tmp_path / "log.csv", **TYPES)
    log = unskew.read(tmp_path / "log.csv", **TYPES, skip_bad_rows=True)
    assert (len(log), log.metadata.removed.bad_rows) == (2, 1)


def test_a_column_of_types_that_nothing_reads_is_named() -> None:
    assert unskew.read(table()).metadata.untyped == "event_type"
    assert unskew.read(table(), item_features="event_type").metadata.untyped is None
    assert unskew.read(table(), **TYPES).metadata.untyped is None


def test_a_core_takes_the_context_of_what_it_removes(tmp_path: Path) -> None:
    rows = [(user, item, time, "purchase") for time, (user, item) in enumerate(["ax", "ay", "bx", "by"])]
    rows += [("a", "z", 1, "view"), ("c", "x", 2, "view"), ("b", "x", 3, "view")]
    log = unskew.prepare(table(rows), tmp_path / "core", **TYPES, k_core=2)
    assert triples(log, log.context["view"]) == [("a", "z", 1), ("b", "x", 3), ("c", "x", 2)]
    rows += [("d", "w", 9, "purchase")]
    log = unskew.prepare(table(rows), tmp_path / "other", **TYPES, k_core=2)
    assert triples(log, log.context["view"]) == [("b", "x", 3)]


def test_a_cut_log_has_the_context_before_the_cut(log: unskew.Log) -> None:
    cut = cut_log(log, 5)
    early = [row for row in expected("view") if row[2] < 5]
    assert triples(cut, cut.context["view"]) == early
    assert cut.audiences.existing(100) == 2


def test_leave_one_out_hides_the_context_of_what_is_held_out(log: unskew.Log) -> None:
    split = leave_one_out(log, unskew.split(log).settings)
    held_from = 11  # ann's last two purchases
    kept = [row for row in expected("view") if row[0] != "ann" or row[2] < held_from]
    assert triples(split.log, split.log.context["view"]) == kept
    assert (np.diff(split.log.audiences.since) >= 0).all()


def test_a_live_log_takes_context_events(log: unskew.Log) -> None:
    live = unskew.Live(log)
    events = (["eve", "ann", "ann"], ["tea", "new", "tea"], [20, 21, 1], ["view", "purchase", "view"])
    assert live.append(*events) == 2  # the last is there already
    rows = [*ROWS, ("eve", "tea", 20, "view"), ("ann", "new", 21, "purchase")]
    again, whole = unskew.read(live), unskew.read(table(rows), **TYPES)
    for kind in whole.context:
        assert triples(again, again.context[kind]) == expected(kind, rows)
        assert triples(live.frozen(), live.frozen().context[kind]) == expected(kind, rows)
    assert live.now == again.now == 22
    assert again.users.ids.to_pylist() == whole.users.ids.to_pylist()
    assert live.histories.since[live.users.codes(["eve"])].tolist() == [20]
    live.append(["ann"], ["cola"], [22], ["view"])
    assert live.audiences.existing([22, 23]).tolist() == [6, 7]
    with pytest.raises(unskew.BadInput, match="'buy'"):
        live.append(["a"], ["b"], [30], ["buy"])


def test_a_user_who_is_forgotten_has_no_context(log: unskew.Log) -> None:
    live = unskew.Live(log)
    live.append(["ann"], ["soap"], [30], ["view"])
    live.forget("ann")
    assert all(row[0] != "ann" for row in triples(live.frozen(), live.frozen().context["view"]))
    assert live.table()["user"].to_pylist().count("ann") == 0


def test_a_run_remembers_context(log: unskew.Log, tmp_path: Path) -> None:
    split = unskew.split(log)
    save_memory(lambda name, write: write(tmp_path / name), split)
    there, known = load_memory(tmp_path, KnownShape.of(split.known))
    for kind in log.context:
        assert triples(there, there.context[kind]) == expected(kind)
    assert known.types == ("cart", "view")
    assert there.now == log.now


def test_erasing_takes_context_out_of_prepared_data(log: unskew.Log) -> None:
    erasures = Erasures().with_users({"ann": 10**15, "dan": 10**15})  # dan has a view and nothing else
    of_them = {row for row in ROWS if row[0] in ("ann", "dan")}
    assert erase_from_folder(Path(log.folder or ""), erasures) == len(of_them)
    rest = unskew.Log.open(log.folder or "")
    rows = [row for row in ROWS if row not in of_them]
    for kind in log.metadata.types.context:
        assert triples(rest, rest.context[kind]) == expected(kind, rows) if kind in rest.context else True
    assert {"ann", "dan"}.isdisjoint(rest.users.ids.to_pylist())
    assert rest.metadata.types.target == ("purchase",)


def test_an_item_feed_keeps_the_context(log: unskew.Log, tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item,from,price\nmilk,2,1.0\nsalt,3,2.0\n")
    settings = {**TYPES, "items": str(tmp_path / "items.csv"), "items_time": "from"}
    for made in (unskew.read(table(), **settings), unskew.prepare(table(), tmp_path / "feed", **settings)):
        assert made.items.ids.to_pylist() == ["tea", "milk", "salt", "mate", "soap", "rice"]
        for kind, views in made.context.items():
            assert sorted(set(triples(made, views))) == expected(kind)
            assert len(views.audiences) == len(made.items)
