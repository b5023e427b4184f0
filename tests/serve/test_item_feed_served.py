"""The item feed of a store: kept as it came, used by the service at once and by one that is started again,
exported and learned from."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.helpers.command import run
from tests.helpers.serving import click, client_of
from tests.helpers.shops import BEGIN, shop_table
from unskew.serve import open_store
from unskew.serve.http.schemas import RecommendationRequest
from unskew.serve.http.service import Service
from unskew.serve.store.events import BadEvent, parse_time
from unskew.serve.store.items import ItemRow, feed_of_frames
from unskew.serve.store.store import Store

LATER = BEGIN + 60 * 86_400  # seconds, after the log
NOW = 1_800_000_000 * 10**6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop") / "data"
    unskew.prepare(shop_table(), folder, item_features="category,price,in_stock")
    return folder


@pytest.fixture
def service(data: Path, tmp_path: Path) -> Iterator[Service]:
    with open_store(tmp_path / "events.db", synchronous="normal") as store:
        made = Service("pulse-zero", store, data=data)
        made.load()
        yield made
        made.close()


def item(
    name: str, seconds: float | None = LATER, title: str | None = None, **features: Any
) -> dict[str, Any]:
    made = {"item_id": name, "title": title, "features": features}
    return made if seconds is None else made | {"timestamp": seconds}


def listed(service: Service, *rules: str, user: str = "u1", **more: Any) -> dict[str, float]:
    """The items of a list with their scores."""
    request = RecommendationRequest(
        user_id=user, k=99, include_seen=True, log=False, rules=list(rules), **more
    )
    return {row["item_id"]: row["score"] for row in service.recommend(request)["items"]}


def test_a_new_item_counts_at_once(service: Service) -> None:
    before = listed(service)
    assert "new" not in before
    answer = service.put_items(
        [item("new", LATER, "Blue boots", category=["boots", "sale"], price=15, in_stock=True)]
    )
    assert answer == {"accepted": 1, "unchanged": 0, "rejected": []}
    assert before.keys() | {"new"} == listed(service).keys()
    assert listed(service, "category = sale").keys() == {"new"}
    assert "new" in listed(service, "price < 20", "in_stock = true")
    known = service.item("new")
    assert (known["title"], known["positives"], known["in_training"]) == ("Blue boots", 0, False)
    assert known["features"] == {"category": "boots|sale", "price": 15.0, "in_stock": True}
    assert [found["item_id"] for found in service.items("boots")["items"]] == ["new"]


def test_a_value_stays_until_another_one_comes(service: Service) -> None:
    service.put_items([item("i3", LATER, price=1)])
    assert listed(service, "price < 5").keys() == {"i0", "i3"}  # i0 costs nothing
    assert "i3" in listed(service, "category = shoes")  # as before
    service.put_items([item("i3", LATER + 10, in_stock=False), item("i3", LATER + 20, price=500)])
    assert listed(service, "price < 5").keys() == {"i0"}
    # At an earlier moment, what was known then counts.
    assert "i3" in listed(service, "price < 5", at=LATER + 5)
    assert "i3" not in listed(service, "price < 5", at=LATER - 5)
    assert "new" not in listed(service, at=LATER)


def test_rows_that_say_nothing_new_are_not_stored(service: Service) -> None:
    rows = [item("a", LATER, "A", price=1.0), item("b", LATER, price=2.0)]
    assert service.put_items(rows)["accepted"] == 2
    assert service.put_items([item("a", LATER + 5, "A", price=1), item("b", LATER + 5)]) == {
        "accepted": 0,
        "unchanged": 2,
        "rejected": [],
    }
    assert service.put_items([item("a", LATER + 5, "A", price=1.5)])["accepted"] == 1
    assert service.put_items([item("a", LATER + 9, "A", price=1.0)])["accepted"] == 1  # back again
    assert service.put_items([item("a", LATER - 9, "A", price=1.0)])["accepted"] == 1  # known earlier
    assert service.store.info()["item_rows"] == 5


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"title": "no id"}, "item_id"),
        ({"item_id": " "}, "item_id"),
        ({"item_id": "x", "colour": "red"}, "colour"),
        ({"item_id": "x", "timestamp": "soon"}, "timestamp"),
        ({"item_id": "x", "timestamp": 4e9}, "timestamp"),
        ({"item_id": "x", "features": ["red"]}, "features"),
        ({"item_id": "x", "features": {"tags": [1]}}, "features.tags"),
        ({"item_id": "x", "features": {"size": {"cm": 1}}}, "features.size"),
        ({"item_id": "x", "features": {"size": float("nan")}}, "features.size"),
        ({"item_id": "x", "features": {"text": "x" * 10_001}}, "features.text"),
        ({"item_id": "x", "features": {"text": "a\0b"}}, "features.text"),
        ({"item_id": "x", "features": {str(n): n for n in range(101)}}, "features"),
        ({"item_id": "x", "title": 5}, "title"),
        ({"item_id": "x", "features": {"price": "cheap"}}, "features.price"),
        ({"item_id": "x", "features": {"in_stock": 5}}, "features.in_stock"),
        ({"item_id": "x", "features": {"price": 10**400}}, "features.price"),
        ({"item_id": "x", "features": {"item_id": "y"}}, "features.item_id"),
        ({"item_id": "x", "features": {"Title": "y"}}, "features.Title"),
    ],
)
def test_wrong_rows_are_named_and_the_others_stored(service: Service, wrong: dict, field: str) -> None:
    answer = service.put_items([wrong, item("good", LATER, price=5)])
    assert (answer["accepted"], answer["unchanged"]) == (1, 0)
    (rejected,) = answer["rejected"]
    assert (rejected["index"], rejected["field"]) == (0, field)
    assert {"good"} == {name for name in listed(service) if not name.startswith("i")}


def test_features_are_columns_and_so_they_are_limited(service: Service) -> None:
    rows = [item(f"n{row}", LATER, **{f"f{row}-{column}": 1 for column in range(100)}) for row in range(11)]
    answer = service.put_items(rows)
    assert answer["accepted"] == 9  # beside the three features of the log, 1,000 in all
    assert {rejected["field"] for rejected in answer["rejected"]} == {"features"}


def test_over_http(service: Service) -> None:
    with client_of(service) as client:
        body = {"items": [item("new", LATER, "New", category="boots"), {"item_id": ""}]}
        answer = client.put("/v1/items", json=body)
        assert answer.status_code == 200
        assert answer.json()["accepted"] == 1
        assert answer.json()["rejected"][0]["field"] == "item_id"
        assert client.get("/v1/items/new").json()["features"] == {"category": "boots"}
        assert client.put("/v1/items", json={"items": []}).status_code == 422
        assert client.put("/v1/items", json={"item": []}).status_code == 422
        schema = client.get("/openapi.json").json()
        assert "ItemRow" in json.dumps(schema["paths"]["/v1/items"]["put"]) + json.dumps(schema["components"])


def test_a_service_started_again_answers_the_same(data: Path, tmp_path: Path) -> None:
    answers = []
    for _ in range(2):
        with open_store(tmp_path / "events.db", synchronous="normal") as store:
            service = Service("pulse-zero", store, data=data)
            service.load()
            if not answers:
                service.put_items(
                    [item("new", LATER, "New", category="boots", price=5), item("i4", LATER, price=1)]
                )
                service.append([click(1, "u1", "new", LATER + 50), click(2, "u2", "i4", LATER + 60)])
                service.put_items(
                    [item("new", LATER + 70, price=9), item("late", LATER + 80, category="hats")]
                )
            answers.append((listed(service), listed(service, "price < 10"), service.item("new")))
            service.close()
    assert answers[0][0].keys() >= {"new", "late"}
    for one, other in zip(answers[0][:2], answers[1][:2], strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert answers[0][2] == answers[1][2]


def test_a_feature_that_does_not_fit_the_log_is_left_out(service: Service) -> None:
    """Another process may store what the service would have refused."""
    service.store.put_items([ItemRow("new", LATER * 10**6, None, {"price": "cheap", "category": "boots"})])
    assert listed(service, "category = boots").keys() == {"new"}
    assert service.item("new")["features"] == {"category": "boots"}


# Rows


def test_what_two_rows_say_together() -> None:
    first = ItemRow("a", 5, "A", {"x": 1.0, "y": True})
    second = ItemRow("a", 9, None, {"x": 2.0})
    for both in (first.after(second), second.after(first)):
        assert both == ItemRow("a", 9, "A", {"x": 2.0, "y": True})
    assert not second.adds_to(both)
    assert first.adds_to(both)  # it is known earlier
    with pytest.raises(BadEvent):
        ItemRow.of({"item_id": None}, NOW)
    assert ItemRow.of({"item_id": "a"}, NOW).timestamp == NOW
    assert ItemRow.of(
        {"item_id": "a", "features": {"tags": ["x", "y"], "n": 3, "z": None}}, NOW
    ).features == {
        "tags": "x|y",
        "n": 3.0,
    }


def test_kinds_of_values(tmp_path: Path) -> None:
    with open_store(tmp_path / "events.db") as store:
        store.put_items(
            [
                ItemRow("a", 1, None, {"flag": True, "number": 1.0, "mixed": 2.0}),
                ItemRow("b", 2, "B", {"flag": False, "mixed": "two"}),
                ItemRow("c", 3, None, {"mixed": True}),
            ]
        )
        feed = feed_of_frames(store.items(), lambda times: times)
    assert feed.ids.to_pylist() == ["a", "b", "c"]
    assert feed.time.tolist() == [1, 2, 3]
    columns = {name: column.to_pylist() for name, column in feed.features.items()}
    assert columns == {
        "flag": [True, False, None],
        "number": [1.0, None, None],
        "mixed": ["2", "two", "true"],
    }


def test_a_number_among_texts_is_the_same_text_after_a_new_start(service: Service, data: Path) -> None:
    service.put_items([item("a", LATER, size="large"), item("b", LATER, size=38)])
    before = listed(service, "size = 38")
    other = Service("pulse-zero", service.store, data=data)
    other.load()
    assert before == listed(other, "size = 38")
    assert set(before) == {"b"}


# Import, export, update


def test_import_from_a_file(capsys, tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text(
        "sku,known,title,kind,price,in_stock\n007,2026-01-31,Bond,film|spy,9.5,true\n7,2026-02-01,,film,3,\n"
    )
    command = [
        "items",
        "import",
        tmp_path / "items.csv",
        "--store",
        tmp_path / "events.db",
        "--time",
        "known",
        "--json",
    ]
    for accepted in (2, 0):
        code, out, err = run(capsys, *command)
        assert code == 0, err
        found = json.loads(out)
        assert (found["accepted"], found["unchanged"]) == (accepted, 2 - accepted)
    with open_store(tmp_path / "events.db", "read") as store:
        (frame,) = store.items()
    assert frame["item_id"].to_pylist() == ["007", "7"]
    assert frame["timestamp"].to_pylist() == [parse_time("2026-01-31"), parse_time("2026-02-01")]
    first = json.loads(frame["document"][0].as_py())
    assert first == {"title": "Bond", "features": {"kind": "film|spy", "price": 9.5, "in_stock": "true"}}
    for flags, text in ((["--time", "when"], "no column 'when'"), (["--item", "nr"], "no column 'nr'")):
        code, _, err = run(
            capsys, "items", "import", tmp_path / "items.csv", "--store", tmp_path / "e.db", *flags
        )
        assert code == 2
        assert text in " ".join(err.split())
    (tmp_path / "late.csv").write_text("item_id,known\na,9000-01-01\n")
    code, _, err = run(
        capsys, "items", "import", tmp_path / "late.csv", "--store", tmp_path / "e.db", "--time", "known"
    )
    assert (code, "after now" in err) == (2, True)
    assert not (tmp_path / "e.db").exists()


def fill(store: Store, days: int = 30) -> None:
    """A shop that sells new items, and says of them what they are."""
    random = np.random.default_rng(2)
    rows, events = [], []
    for number in range(600):
        seconds = LATER + int(number * days * 86_400 / 600)
        name = f"n{number // 60}"
        if number % 60 == 0:
            kind = ["boots", "hats"][number // 60 % 2]
            rows.append(
                ItemRow(name, (seconds - 5) * 10**6, f"New {name}", {"category": kind, "price": 1.0 + number})
            )
        chosen = name if random.random() < 0.5 else f"i{random.integers(24)}"
        events.append(click(number, f"u{random.integers(40)}", chosen, seconds))
    store.put_items(rows)
    store.append([unskew.serve.Event.of(event) for event in events])


def test_export_and_prepare(capsys, tmp_path: Path) -> None:
    with open_store(tmp_path / "events.db", synchronous="normal") as store:
        fill(store)
    code, _, err = run(capsys, "store", "export", tmp_path / "events.db", "--out", tmp_path / "out.parquet")
    assert code == 0, err
    assert "--items-time known_since" in " ".join(err.split())
    log = unskew.prepare(
        str(tmp_path / "out.parquet"),
        tmp_path / "data",
        items=str(tmp_path / "items.parquet"),
        items_time="known_since",
    )
    names = log.items.ids.to_pylist()
    code_of = names.index("n3")
    moment = LATER + int(180 * 30 * 86_400 / 600) - 5
    assert log.audiences.since[code_of] == moment * (log.clock.ticks or 1)
    features = log.items.features_at(None)
    assert features["category"].values[code_of].as_py() == "hats"
    assert features["price"].values[code_of].as_py() == 181.0
    assert log.items.title_of(code_of) == "New n3"


@pytest.mark.parametrize("features", ["category,price,in_stock", None])
def test_an_update_learns_what_the_feed_says(tmp_path: Path, features: str | None) -> None:
    """Also a run whose log had no features at all."""
    from unskew.update import Updating
    from unskew.update.update import update

    unskew.prepare(shop_table(), tmp_path / "data", item_features=features)
    split = unskew.split(unskew.Log.open(tmp_path / "data"))
    unskew.create_model("pulse", {"epochs": 1, "sample": 200}).fit(
        split, tmp_path / "run", show_progress=False
    )
    with open_store(tmp_path / "events.db", synchronous="normal") as store:
        fill(store)
    outcome = update(
        tmp_path / "run",
        tmp_path / "events.db",
        tmp_path / "new",
        Updating(least=20, epochs=1),
        force=True,
        show_progress=False,
    )
    assert outcome.verdict == "forced"
    log = unskew.load(tmp_path / "new").known_log
    code = log.items.ids.to_pylist().index("n3")
    assert log.items.features_at(None)["category"].values[code].as_py() == "hats"
    since = (LATER + int(180 * 30 * 86_400 / 600) - 5) * (log.clock.ticks or 1)
    assert log.audiences.since[code] == since
    assert log.items.features_at(since)["category"].values[code].as_py() is None
    table = pq.read_table(tmp_path / "new" / "items.parquet")
    assert isinstance(table, pa.Table)
    assert "changes:category" in table.column_names
