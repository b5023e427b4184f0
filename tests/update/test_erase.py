"""A user who was erased never comes back: not by an update, a refit, a reload, a restored copy or a file."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
import unskew.cli.serve
from tests.helpers.serving import serving
from tests.helpers.updated import BEGIN, SPAN, add, drawn, everything_below, prepared, stored, trained
from unskew.cli import main
from unskew.core.errors import BadInput
from unskew.data.log.erasures import IN_RUN, add_erasures, read_erasures
from unskew.serve import Event, export_log, open_store
from unskew.serve.http.request import Refused
from unskew.training.run import load
from unskew.update import Updating
from unskew.update.erase import erase
from unskew.update.update import update

QUICK = Updating(least=40)
WHO = "u39"  # no other id begins with it


def users_of(log: unskew.Log) -> set[str]:
    """The users with an event, and the ids of all others."""
    return {*log.users.ids.drop_null().to_pylist(), *log.table()["user"].to_pylist()}


def has_bytes(folder: Path, text: str) -> list[str]:
    """The files that hold a text, in their bytes or in their rows."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            rows = str(pq.read_table(path).to_pydict()) if path.suffix == ".parquet" else ""
            if f"'{text}'" in rows or text.encode() in path.read_bytes():
                found.append(path.name)
    return found


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A prepared log, a run of it, a store, and a copy of the data from before."""
    data = prepared(tmp_path / "data", 300)
    shutil.copytree(data, tmp_path / "backup")
    trained(data, tmp_path / "run", "popularity")
    stored(tmp_path / "e.db")
    assert WHO in users_of(unskew.Log.open(data)) & users_of(load(tmp_path / "run").log)
    return tmp_path


def service_erases(shop: Path) -> dict[str, Any]:
    with serving(shop / "run", shop / "e.db") as service:
        return dict(service.erase(WHO))


def test_a_user_who_was_erased_by_the_service_is_in_no_update(shop: Path) -> None:
    """Not from the prepared log, which still has the rows, nor in the update of the update."""
    said = service_erases(shop)
    assert (said["run_events"] > 0, said["events"] > 0) == (True, True)
    assert WHO in users_of(unskew.Log.open(shop / "data"))
    update(shop / "run", shop / "e.db", shop / "next", QUICK)
    assert WHO not in users_of(load(shop / "next").log)
    assert has_bytes(shop / "next", WHO) == []
    assert list(read_erasures(shop / "next" / IN_RUN).among(["u1", WHO])) == [WHO]
    assert (shop / "next" / IN_RUN).stat().st_mode & 0o777 == 0o600
    add(shop / "e.db", drawn(250, 2, BEGIN + 2 * SPAN), "later")  # the events of this user are refused
    update(shop / "next", shop / "e.db", shop / "twice", QUICK)
    assert WHO not in users_of(load(shop / "twice").log)
    assert read_erasures(shop / "twice" / IN_RUN).among([WHO])


def test_a_run_from_before_and_a_log_from_before_do_not_bring_the_user_back(shop: Path) -> None:
    """A roll-back to a run that still remembers the user, and a service without a run."""
    shutil.copytree(shop / "run", shop / "older")
    service_erases(shop)
    for run, more in ((shop / "older", {}), ("pulse-zero", {"data": shop / "data"})):
        with serving(run, shop / "e.db", **more) as service:
            with pytest.raises(Refused, match="no such user"):
                service.user(WHO)
            assert service.user("u1")["positives"]
            assert service.reload(20)["state"] == "done"
            with pytest.raises(Refused, match="no such user"):
                service.user(WHO)
    update(shop / "older", shop / "e.db", shop / "next", QUICK)
    assert has_bytes(shop / "next", WHO) == []


def test_a_refit_leaves_an_erased_user_out(shop: Path) -> None:
    service_erases(shop)
    model = unskew.load(shop / "run")
    model.refit(unskew.Log.open(shop / "data"), shop / "refitted", show_progress=False)
    assert has_bytes(shop / "refitted", WHO) == []
    assert read_erasures(shop / "refitted" / IN_RUN).among([WHO])
    other = unskew.load(trained(shop / "data", shop / "other", "popularity"))
    other.refit(unskew.Log.open(shop / "data"), shop / "whole", show_progress=False)
    assert WHO in users_of(load(shop / "whole").log)


def test_a_prepared_folder_is_written_again_without_the_user(shop: Path) -> None:
    before = unskew.Log.open(shop / "data")
    erased = erase([WHO], data=[shop / "data"])
    after = unskew.Log.open(shop / "data")
    lost = before.table()["user"].to_pylist().count(WHO)
    assert [(place.kind, place.rows) for place in erased.places] == [("data", lost)]
    assert len(after) == after.metadata.rows == len(before) - lost
    assert has_bytes(shop / "data", WHO) == []
    assert after.metadata.settings == before.metadata.settings
    expected = sorted(row for row in zip(*before.table().to_pydict().values(), strict=True) if row[0] != WHO)
    assert sorted(zip(*after.table().to_pydict().values(), strict=True)) == expected
    # Runs that were trained on it are still updated from it; another log is refused as before.
    update(shop / "run", shop / "e.db", shop / "next", QUICK)
    left = [row["time"] for row in load(shop / "next").log.table().to_pylist() if row["user"] == WHO]
    assert min(left) >= BEGIN + SPAN  # from the store, where the user was not erased
    assert erase([], data=[shop / "data"]).places[0].rows == 0


def test_a_restored_copy_of_the_data_is_refused_until_it_is_erased_again(shop: Path) -> None:
    erase([WHO], data=[shop / "data"], store=shop / "e.db")
    shutil.rmtree(shop / "data")
    shutil.copytree(shop / "backup", shop / "data")
    with pytest.raises(BadInput, match="holds rows of users who were erased from it"):
        unskew.Log.open(shop / "data")
    with pytest.raises(BadInput, match="unskew erase --data"):
        update(shop / "run", shop / "e.db", shop / "no", QUICK)
    assert erase([], data=[shop / "data"]).users == 1
    update(shop / "run", shop / "e.db", shop / "next", QUICK)
    assert has_bytes(shop / "next", WHO) == []
    # Elsewhere the folder has no list, and the update knows that of the store.
    update(shop / "run", shop / "e.db", shop / "moved", QUICK, data=shop / "backup")
    assert has_bytes(shop / "moved", WHO) == []


def test_the_log_that_a_run_keeps_of_its_first_run_is_erased_too(shop: Path) -> None:
    shutil.rmtree(shop / "data")
    update(shop / "run", shop / "e.db", shop / "next", QUICK)
    assert "base.parquet" in has_bytes(shop / "next", WHO)
    erased = erase([WHO], runs=[shop / "next"])
    assert erased.places[0].rows > 0
    assert has_bytes(shop / "next", WHO) == []
    assert len(load(shop / "next").log.users) > 0
    assert erase([WHO], runs=[shop / "next"]).places[0].rows == 0


def test_a_run_without_a_user_recommends_to_everyone_else(shop: Path) -> None:
    erase([WHO], runs=[shop / "run"])
    unskew.load(shop / "run").save_recommendations(shop / "lists.jsonl", k=2)
    lists = [json.loads(line)["user_id"] for line in (shop / "lists.jsonl").read_text().splitlines()]
    assert "u1" in lists
    assert WHO not in lists
    assert None not in lists


def test_one_verb_for_all_places_says_what_it_covers(shop: Path, capsys: Any) -> None:
    from unskew.cli import main

    where = ["--store", shop / "e.db", "--run", shop / "run", "--data", shop / "data"]
    events = 0
    with open_store(shop / "e.db", "read") as store:
        events = len(store.of_user(WHO)) + len(store.of_user("u5"))
    assert main(["erase", WHO, "u5", *map(str, where), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [place["kind"] for place in said["places"]] == ["store", "run", "data"]
    assert said["places"][0]["rows"] == events
    assert all(place["rows"] > 0 for place in said["places"])
    assert (len(said["covered"]), len(said["not_covered"])) == (3, 2)
    assert has_bytes(shop / "run", WHO) == has_bytes(shop / "data", WHO) == has_bytes(shop, f"{WHO}'") == []
    assert main(["erase", WHO, "--run", str(shop / "run")]) == 0
    words = capsys.readouterr().out
    assert "Covered: the memory of the runs" in words
    assert "--store STORE" in words
    before = everything_below(shop / "run")
    for wrong, part in (
        ([WHO], "at least one place"),
        ([WHO, "--run", str(shop / "none"), "--store", str(shop / "e.db")], "no such folder"),
        ([WHO, "--data", str(shop / "run")], "not a prepared folder"),
        (["", "--run", str(shop / "run")], "user"),
    ):
        assert main(["erase", *wrong]) == 2
        assert part in capsys.readouterr().err
    assert everything_below(shop / "run") == before


def test_lists_are_joined_without_a_user(shop: Path) -> None:
    """As after a deletion by the service: it is not allowed to write the prepared data."""
    service_erases(shop)
    erased = erase([], store=shop / "e.db", runs=[shop / "run"], data=[shop / "data"])
    assert (erased.users, erased.places[2].rows > 0) == (1, True)
    assert has_bytes(shop / "data", WHO) == []


def test_a_store_that_a_service_uses_is_erased_by_the_service(shop: Path) -> None:
    with serving(shop / "run", shop / "e.db") as service:
        stored_events = len(service.store.of_user(WHO))
        erased = erase([WHO], store=shop / "e.db")
        assert erased.places[0].rows == stored_events > 0
        assert service.store.of_user(WHO) == []
        with pytest.raises(Refused, match="no such user"):  # nor in what the run remembers
            service.user(WHO)
        late = {"event_id": "late", "user_id": WHO, "item_id": "i1", "type": "click"}
        refused = service.append([late | {"timestamp": BEGIN + SPAN}])["rejected"]
        assert [(each["field"], each["reason"]) for each in refused] == [
            ("timestamp", "is before the erasure of this user")
        ]
        assert service.append([late | {"timestamp": time.time()}])["accepted"] == 1
        assert service.user(WHO)["positives"] == 1


def test_who_comes_back_is_a_new_user(shop: Path) -> None:
    """What the user did after the erasure counts, in the service and in updates."""
    service_erases(shop)
    now = int(time.time()) + 1
    with serving(shop / "run", shop / "e.db") as service:
        event = {"event_id": "back", "user_id": WHO, "item_id": "i1", "type": "click", "timestamp": now}
        assert service.append([event])["accepted"] == 1
    update(shop / "run", shop / "e.db", shop / "next", QUICK)
    rows = load(shop / "next").log.table().to_pylist()
    assert [(row["item"], row["time"]) for row in rows if row["user"] == WHO] == [("i1", now)]
    with serving(shop / "next", shop / "e.db") as service:
        assert service.user(WHO)["positives"] == 1


def test_an_export_from_before_is_prepared_without_the_user(shop: Path) -> None:
    """The file names the list of its store, and what the user does after the erasure stays."""
    with open_store(shop / "e.db") as store:
        export_log(store, shop / "log.parquet", store.types)
        before = len(store.of_user(WHO))
        store.erase(WHO)
        now = int(time.time()) + 1
        store.append([Event("back", WHO, "i1", "click", now * 10**6)])
        export_log(store, shop / "later.parquet", store.types)
    assert before > 1
    assert WHO in users_of(unskew.read(pq.read_table(shop / "log.parquet")))
    unskew.prepare(shop / "log.parquet", shop / "prepared")
    assert has_bytes(shop / "prepared", WHO) == []
    assert WHO not in users_of(unskew.read(shop / "log.parquet"))
    log = unskew.read(str(shop / "*.parquet"))
    times = [row["time"] for row in log.table().to_pylist() if row["user"] == WHO]
    assert [time // log.clock.ticks for time in times] == [now]


def test_a_folder_is_prepared_again_without_the_users_on_its_list(shop: Path) -> None:
    """Also if the source still has them; context events are covered as well."""
    rows = [{"user": u, "item": i, "time": t, "type": "purchase"} for u, i, t in drawn(200, 0, BEGIN)]
    rows += [{"user": u, "item": i, "time": t, "type": "view"} for u, i, t in drawn(200, 3, BEGIN)]
    source, how = pa.Table.from_pylist(rows), {"type": "type", "target": "purchase", "context": "view"}
    unskew.prepare(source, shop / "typed", **how)
    erased = erase([WHO], data=[shop / "typed"])
    assert erased.places[0].rows == sum(row["user"] == WHO for row in rows)
    smaller = unskew.Log.open(shop / "typed").table().to_pylist()
    unskew.prepare(source, shop / "typed", **how)
    assert unskew.Log.open(shop / "typed").table().to_pylist() == smaller
    assert WHO not in {row["user"] for row in smaller}


def restore(backup: Path, store: Path) -> None:
    """The files of a store and the list beside it, as they were."""
    for path in store.parent.glob(f"{store.name}*"):
        path.unlink()
    for path in backup.iterdir():
        shutil.copy(path, store.parent / path.name)


@pytest.mark.parametrize("way", ["serve", "erase"])
def test_a_store_that_is_restored_with_its_list_is_erased_by_the_list_of_the_run(
    shop: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup from before the erasure has neither the erasure nor the list."""
    backup = shop / "copies"
    backup.mkdir()
    for path in shop.glob("e.db*"):
        shutil.copy(path, backup / path.name)
    events = service_erases(shop)["events"]
    restore(backup, shop / "e.db")
    add(shop / "e.db", [(WHO, "i1", int(time.time()) + 60)], "late")  # after the erasure: as a new user
    if way == "erase":
        place = erase([], store=shop / "e.db", runs=[shop / "run"]).places[0]
        assert (place.kind, place.rows) == ("store", events)
    else:
        monkeypatch.setattr(unskew.cli.serve, "_serve_here", lambda *_: None)
        assert main(["serve", str(shop / "run"), "--store", str(shop / "e.db"), "--port", "0"]) == 0
    with open_store(shop / "e.db", "read") as store:
        assert [event.event_id for event in store.of_user(WHO)] == ["late0"]
        assert store.erasures().among([WHO])


def test_a_store_in_use_is_erased_by_the_list_of_a_run(shop: Path) -> None:
    with open_store(shop / "e.db", "read") as store:
        listed = store.erasures().with_users({WHO: time.time_ns() // 1000})
    add_erasures(shop / "run" / IN_RUN, listed)
    with open_store(shop / "e.db") as store:
        assert store.of_user(WHO)
        erase([], store=shop / "e.db", runs=[shop / "run"])
        assert store.of_user(WHO) == []
