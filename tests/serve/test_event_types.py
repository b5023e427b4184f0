"""The types of events of a store: what is not declared is rejected, and context reaches lists and logs."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.helpers.serving import client_of, dated_table, serving
from unskew.serve import Event, open_store
from unskew.serve.store.export import export_log
from unskew.update.merged import Base, StorePosition, merged

TYPES = {"type": "type", "target": "purchase", "context": "cart,view"}


@pytest.fixture(scope="module")
def typed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a log with views, of the items before them."""
    table = dated_table()
    kinds = pa.array(["view" if number % 3 == 0 else "purchase" for number in range(len(table))])
    log = unskew.read(table.append_column("type", kinds), **TYPES)
    folder = tmp_path_factory.mktemp("typed") / "run"
    unskew.create_model("popularity").fit(unskew.split(log), folder, show_progress=False)
    return folder


def event(number: int, kind: str, user: str = "ann", item: str = "tea") -> Event:
    return Event(f"e{number}", user, item, kind, 1_700_000_000_000_000 + number * 1_000_000)


def test_an_undeclared_type_is_rejected_with_field_and_reason(typed_run: Path, tmp_path: Path) -> None:
    with serving(typed_run, tmp_path / "events.db") as service, client_of(service) as client:
        events = [
            {"event_id": name, "user_id": "u1", "item_id": "i1", "type": kind}
            for name, kind in (("a", "purchase"), ("b", "buy"), ("c", "view"), ("d", "impression"))
        ]
        answer = client.post("/v1/events", json={"events": events}).json()
    assert answer["accepted"] == 3
    (rejected,) = answer["rejected"]
    assert (rejected["index"], rejected["field"]) == (1, "type")
    assert "'buy' is not declared" in rejected["reason"]


def test_context_reaches_the_live_log_of_a_run_that_reads_it(typed_run: Path, tmp_path: Path) -> None:
    with serving(typed_run, tmp_path / "events.db") as service:
        run = service._loaded
        before = len(run.live.context["view"].events()[0])
        positives = run.live.positives
        service.append(
            [
                {"event_id": kind, "user_id": "new", "item_id": "shelf", "type": kind}
                for kind in ("view", "purchase", "cart")
            ]
        )
        assert len(run.live.context["view"].events()[0]) == before + 1
        assert run.live.positives == positives + 1


def test_declared_types_are_kept_and_do_not_overlap(tmp_path: Path) -> None:
    with open_store(tmp_path / "e.db", positive=["purchase"], context=["view", "wish"]) as store:
        assert store.types.context == ("view", "wish")
    with open_store(tmp_path / "e.db", positive=["purchase", "view"]) as store:
        assert store.types.context == ("wish",)
        with pytest.raises(unskew.BadInput, match="'purchase'"):
            store.configure(context=["purchase"])


def test_an_export_has_context_and_prepare_reads_it(tmp_path: Path) -> None:
    with open_store(tmp_path / "e.db") as store:
        kinds = [("view", "tea"), ("click", "tea"), ("cart", "mate"), ("click", "mate")]
        store.append([event(number, kind, "ann", item) for number, (kind, item) in enumerate(kinds)])
        store.append([event(9, "click", "bob", "tea"), event(10, "view", "bob", "mate")])
        exported = export_log(store, tmp_path / "log.parquet", store.types)
    assert (exported.rows, exported.positives, exported.context) == (3, 3, 3)
    assert pq.read_table(tmp_path / "log.parquet").num_rows == 6
    log = unskew.prepare(tmp_path / "log.parquet", tmp_path / "data")
    assert log.metadata.types.context == {"cart": 1, "view": 2}
    assert len(log) == 3


def test_an_update_joins_the_context_of_run_and_store(tmp_path: Path) -> None:
    rows = {
        "user": ["ann", "bob", "ann"],
        "item": ["tea", "mate", "tea"],
        "type": ["purchase", "purchase", "view"],
    }
    begin = 1_700_000_000
    log = unskew.read(rows | {"time": [begin, begin + 1, begin + 2]}, **TYPES)
    base = Base(log.table(), log.now, log.clock, {}, False, [])
    with open_store(tmp_path / "e.db", positive=["purchase"], context=["view", "cart"]) as store:
        events = [event(2, "view"), event(50, "view"), event(51, "cart"), event(51, "purchase")]
        renamed = [replace(each, event_id=str(n)) for n, each in enumerate(events)]
        store.append(renamed)
        found = merged(base, store, StorePosition())
    assert found.log.metadata.types.context == {"cart": 1, "view": 2}  # the view at 2 is the same one
    assert len(found.log) == 3
    assert int(found.fresh.sum()) == 1
