"""The service over HTTP: shapes, limits, who may come in, what is logged, and many at once."""

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from tests.helpers.processes import GUARD
from tests.helpers.serving import ITEMS, click, client_of, run_fixture, serving
from unskew.core.errors import BadInput, UnskewError
from unskew.serve import open_store
from unskew.serve.http.logs import JsonLines
from unskew.serve.http.middleware import Limits
from unskew.serve.http.service import Service
from unskew.serve.http.tokens import Tokens, read_tokens

served_run = run_fixture
READ, WRITE, RECORD = "r" * 20, "w" * 20, "c" * 20


@pytest.fixture
def service(served_run: Path, tmp_path: Path) -> Iterator[Service]:
    with serving(served_run, tmp_path / "e.db") as made:
        yield made


@pytest.fixture
def client(service: Service) -> TestClient:
    return client_of(service)


def wrong(answer: Any, status: int) -> tuple[str | None, str]:
    """The field and the reason of an answer that is not a success."""
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert set(document) == {"error", "request_id"}
    assert "Traceback" not in answer.text
    return document["error"]["field"], document["error"]["reason"]


def test_a_impression(client: TestClient) -> None:
    asked = {"user_id": "ann", "k": 3, "include_seen": False}
    first = client.post("/v1/recommendations", json=asked).json()
    assert (first["source"], len(first["items"]), first["items"][0]["rank"]) == ("fallback", 3, 1)
    best = first["items"][0]
    assert (best["propensity"], best["exposed"], "ea" in best["title"]) == (1.0, False, True)
    event = click(1, "ann", best["item_id"], recommendation_id=first["recommendation_id"])
    assert client.post("/v1/events", json={"events": [event]}).json()["accepted"] == 1
    second = client.post("/v1/recommendations", json=asked).json()
    assert (second["source"], best["item_id"] in {item["item_id"] for item in second["items"]}) == (
        "model",
        False,
    )
    preview = client.get("/v1/recommendations", params={"user_id": "ann", "k": 2}).json()
    assert (len(preview["items"]), preview["recommendation_id"]) == (2, None)  # GET records nothing
    user = client.get("/v1/users/ann").json()
    assert (user["positives"], user["stored_recommendations"]) == (1, 2)
    assert client.delete("/v1/users/ann").json()["events"] == 1
    assert wrong(client.get("/v1/users/ann"), 404) == ("user_id", "no such user")
    bare = client.post("/v1/recommendations", json={"history": ["i1", {"item_id": "i2", "timestamp": 1.7e9}]})
    assert bare.json()["recommendation_id"] is None
    assert client.get("/v1/model").json()["model"] == "itemknn"
    measured = client.get("/v1/monitor").json()
    assert measured["verdict"]["finding"]
    assert client.get("/v1/monitor").json() == measured  # it was made once
    assert client.post("/v1/model/reload", params={"wait": 20}).json()["state"] == "done"


@pytest.mark.parametrize(
    "name", ["a/b", "/", "..", "ü €", "🐸" * 150, "x" * 500, "a?b#c", "end\n", "new\nline", "."]
)
def test_ids_of_any_text(client: TestClient, name: str) -> None:
    path = quote(name, safe="").replace(".", "%2E")  # clients fold dots
    said = client.post("/v1/events", json={"events": [click(1, name, name)]})
    assert said.json() == {"accepted": 1, "duplicates": 0, "rejected": []}
    assert client.get(f"/v1/items/{path}").json()["item_id"] == name
    assert client.get(f"/v1/users/{path}").json()["newest"][0]["item_id"] == name
    assert client.post("/v1/recommendations", json={"user_id": name, "k": 1}).json()["recommendation_id"]
    assert client.delete(f"/v1/users/{path}").json()["events"] == 1


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 422, "body"),
        ({"user_id": "a", "k": 0}, 422, "k"),
        ({"user_id": "a", "k": 1001}, 422, "k"),
        ({"user_id": "a", "k": "3"}, 422, "k"),
        ({"user_id": "", "k": 3}, 422, "user_id"),
        ({"user_id": "x" * 501}, 422, "user_id"),
        ({"user_id": "a\0b"}, 422, "user_id"),
        ({"user_id": 7}, 422, "user_id"),
        ({"user_id": "a", "kk": 3}, 422, "kk"),
        ({"user_id": "a", "debias": 1.5}, 422, "debias"),
        ({"user_id": "a", "debias": 0.5}, 409, "debias"),
        ({"user_id": "a", "explore": 0.5}, 409, "explore"),
        ({"user_id": "a", "at": "yesterday"}, 422, "at"),
        ({"user_id": "a", "at": 1_700_000_000_000}, 422, "at"),
        ({"user_id": "a", "at": 10**400}, 422, "at"),
        ({"user_id": "a", "at": -1.5e308}, 422, "at"),
        ({"user_id": "a", "at": "9999-01-01"}, 409, "at"),
        ({"history": ["i1"] * 1001}, 422, "history"),
        ({"history": "i1"}, 422, "history"),
        ({"user_id": "a", "exclude": ["i1"] * 10_001}, 422, "exclude"),
    ],
)
def test_bad_requests_say_field_and_reason(client: TestClient, body: dict, status: int, field: str) -> None:
    found, reason = wrong(client.post("/v1/recommendations", content=json.dumps(body), headers=JSON), status)
    assert found == field
    assert reason


JSON = {"content-type": "application/json"}


def test_bodies_that_are_no_requests(client: TestClient) -> None:
    for body in (b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"user_id": "\\ud800"}'):
        answer = client.post("/v1/recommendations", content=body, headers=JSON)
        assert answer.status_code in (400, 422), body[:20]
        wrong(answer, answer.status_code)
    assert wrong(
        client.post(
            "/v1/recommendations", content=b'{"user_id": "a"}', headers={"content-type": "text/plain"}
        ),
        422,
    )
    bad = client.post("/v1/events", content=b'{"events": [{"\\ud800": 1}]}', headers=JSON)
    assert bad.json()["rejected"][0]["field"] == "?"
    assert wrong(client.post("/v1/events", json={"events": []}), 422)[0] == "events"
    assert wrong(client.post("/v1/events", json={"events": [click(1, "a", "b")] * 1001}), 422)[0] == "events"
    assert wrong(client.post("/v1/events", content=b" " * (4 * 2**20 + 1), headers=JSON), 413)[0] == "body"
    chunks = (b" " * 2**20 for _ in range(5))
    assert wrong(client.post("/v1/events", content=chunks, headers=JSON), 413)[0] == "body"
    assert wrong(client.get("/v1/nothing"), 404)[0] == "path"
    assert wrong(client.put("/v1/events"), 405)[0] == "method"


def test_only_this_machine_by_its_own_name(client: TestClient) -> None:
    assert wrong(client.get("/v1/model", headers={"host": "evil.example"}), 421)[0] == "Host"
    assert client.get("/v1/model", headers={"host": "127.0.0.1:8000"}).status_code == 200
    assert wrong(client.get("/v1/model", headers={"origin": "http://evil.example"}), 403)[0] == "Origin"
    assert wrong(client.get("/v1/model", headers={"sec-fetch-site": "cross-site"}), 403)[0] == "Origin"
    answer = client.get("/v1/model", headers={"origin": "http://localhost"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert client.get("/v1/model", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert client.get("/v1/model", headers={"x-request-id": "bad id"}).headers["x-request-id"] != "bad id"


def test_tokens(service: Service, tmp_path: Path) -> None:
    client = client_of(service, tokens=Tokens(READ, WRITE), hosts=None)
    events = {"events": [click(1, "a", "i1")]}
    asked = {"user_id": "a"}

    def by(token: str) -> dict[str, str]:
        return {"authorization": f"Bearer {token}"}

    assert wrong(client.get("/v1/model"), 401)[0] == "Authorization"
    assert wrong(client.get("/v1/model", headers=by("x" * 20)), 401)
    assert wrong(client.get("/metrics"), 401)
    assert client.get("/v1/model", headers=by(READ)).status_code == 200
    unrecorded = client.post("/v1/recommendations", json=asked, headers=by(READ)).json()
    assert (len(unrecorded["items"]), unrecorded["recommendation_id"]) == (10, None)
    insisting = client.post("/v1/recommendations", json=asked | {"log": True}, headers=by(READ))
    assert wrong(insisting, 403)[0] == "log"
    assert client.get("/v1/recommendations", params=asked, headers=by(READ)).status_code == 200
    assert service.store.counts() == {"events": 0, "recommendations": 0}
    for method, path in (("POST", "/v1/events"), ("DELETE", "/v1/users/a"), ("POST", "/v1/model/reload")):
        assert wrong(client.request(method, path, headers=by(READ)), 403)[0] == "Authorization"
    assert service.store.counts() == {"events": 0, "recommendations": 0}
    assert client.post("/v1/events", json=events, headers=by(WRITE)).json()["accepted"] == 1
    assert client.get("/v1/model", headers=by(WRITE)).status_code == 200
    for path in ("/health/live", "/health/ready", "/", "/docs"):
        assert client.get(path).status_code == 200
    assert client.get("/openapi.json").json()["paths"]["/v1/model"]["get"]["security"]


def test_a_token_may_record_lists_and_nothing_else(service: Service) -> None:
    client = client_of(service, tokens=Tokens(READ, WRITE, RECORD), hosts=None)
    by = {"authorization": f"Bearer {RECORD}"}
    assert client.get("/v1/model", headers=by).status_code == 200
    answer = client.post("/v1/recommendations", json={"user_id": "a", "log": True}, headers=by).json()
    assert service.store.recommendation(answer["recommendation_id"]) is not None
    client.get("/v1/recommendations", params={"user_id": "a"}, headers={"authorization": f"Bearer {WRITE}"})
    assert service.store.counts()["recommendations"] == 1
    for method, path in (("POST", "/v1/events"), ("DELETE", "/v1/users/a"), ("POST", "/v1/model/reload")):
        assert wrong(client.request(method, path, headers=by), 403)[0] == "Authorization"


@pytest.mark.parametrize(
    ("more", "field"),
    [({"at": "2024-01-01"}, "at"), ({"candidates": ["i1", "i2"]}, "candidates"), ({}, "user_id")],
)
def test_a_list_of_the_callers_own_making_is_never_recorded(
    client: TestClient, service: Service, more: dict, field: str
) -> None:
    """A propensity of 1 among two candidates, or last year, is none of this service."""
    asked = ({"user_id": "ann"} if more else {"history": ["i1"]}) | more
    answer = client.post("/v1/recommendations", json=asked).json()
    assert answer["items"]
    assert answer["recommendation_id"] is None
    assert wrong(client.post("/v1/recommendations", json=asked | {"log": True}), 409)[0] == field
    assert service.store.counts()["recommendations"] == 0


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/v1/recommendations?user_id=u1&exclude=i3", "exclude"),
        ("GET", "/v1/recommendations?user_id=u1&log=true", "log"),
        ("GET", "/v1/recommendations?user_id=u1&k=3&k=4", "k"),
        ("POST", "/v1/recommendations?k=3", "k"),
        ("POST", "/v1/events?dry=1", "dry"),
        ("GET", "/v1/items?q=sea", "q"),
        ("GET", "/v1/items/i1?k=1", "k"),
        ("GET", "/v1/users/u1?limit=1", "limit"),
        ("DELETE", "/v1/users/u1?dry=1", "dry"),
        ("GET", "/v1/model?x=", "x"),
        ("POST", "/v1/model/reload?Wait=1", "Wait"),
        ("GET", "/v1/monitor?every=1d", "every"),
        ("GET", "/metrics?x=1", "x"),
        ("GET", "/health/live?x=1", "x"),
        ("GET", "/health/ready?x=1", "x"),
    ],
)
def test_unknown_parameters_are_refused(client: TestClient, method: str, path: str, field: str) -> None:
    """What would be ignored, such as an item to exclude, is an error on every endpoint."""
    body = {"json": {"user_id": "u1", "events": []}} if method == "POST" else {}
    assert wrong(client.request(method, path, **body), 422)[0] == field
    assert client.get("/v1/users/u1").status_code == 200


def test_files_of_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"read: {READ}\nwrite: {WRITE}\n")
    file.chmod(0o600)
    assert read_tokens(file) == (Tokens(READ, WRITE), [])
    file.chmod(0o644)
    assert "chmod 600" in read_tokens(file)[1][0]
    file.write_text(json.dumps({"read": READ, "write": WRITE}))
    assert read_tokens(file)[0] == Tokens(READ, WRITE)
    assert READ not in repr(Tokens(READ, WRITE))
    for text in (
        "",
        f"read: {READ}",
        f"read: {READ}\nwrite: {READ}",
        "read: a\nwrite: b",
        "{",
        "[]",
        '{"read": 1}',
    ):
        file.write_text(text)
        with pytest.raises(BadInput, match="tokens: "):
            read_tokens(file)
    with pytest.raises(BadInput, match="cannot be read"):
        read_tokens(tmp_path / "none")


def test_not_ready(served_run: Path, tmp_path: Path) -> None:
    with open_store(tmp_path / "e.db") as store:
        service = Service(str(served_run), store)
        client = client_of(service)
        assert client.get("/health/live").status_code == 200
        for path in ("/health/ready", "/v1/model", "/v1/items", "/v1/monitor", "/v1/users/u1"):
            answer = client.get(path)
            assert wrong(answer, 503)[0] == "service"
            assert answer.headers["retry-after"]
        assert wrong(client.post("/v1/events", json={"events": [click(1, "a", "b")]}), 503)
        assert "unskew_ready 0.0" in client.get("/metrics").text
        service.load()
        assert client.get("/health/ready").json() == {"status": "ready"}
        service.close()
        assert "stopping" in wrong(client.get("/v1/model"), 503)[1]


def test_metrics(client: TestClient) -> None:
    client.post("/v1/events", json={"events": [click(1, "ann", "i1"), click(1, "ann", "i1"), {}]})
    client.post("/v1/recommendations", json={"user_id": "ann"})
    client.get("/v1/users/ann")
    client.get("/nothing/ann")
    text = client.get("/metrics").text
    for line in (
        'unskew_requests_total{method="POST",route="/v1/events",status="200"} 1.0',
        'unskew_requests_total{method="GET",route="other",status="404"} 1.0',
        'unskew_request_seconds_bucket{le="+Inf",route="/v1/events"} 1.0',
        'unskew_request_seconds_count{route="/v1/events"} 1.0',
        'unskew_events_total{result="accepted"} 1.0',
        'unskew_events_total{result="duplicate"} 1.0',
        'unskew_events_total{result="rejected"} 1.0',
        'unskew_lists_total{source="model"} 1.0',
        "unskew_store_sequence 1.0",
        f"unskew_items {float(ITEMS)}",
    ):
        assert line in text.splitlines()
    assert 'unskew_model_info{model="itemknn",version="run-' in text
    assert "ann" not in text


def test_logs_say_nothing_about_users(
    client: TestClient, service: Service, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("secret-user had secret-item")

    caplog.set_level(logging.INFO, "unskew.serve")
    client.post("/v1/events", json={"events": [click(1, "secret-user", "secret-item")]})
    client.get("/v1/users/secret-user")
    client.get("/v1/items", params={"query": "secret-item"})
    client.get("/secret-user")
    monkeypatch.setattr(service, "item", broken)
    field, reason = wrong(client.get("/v1/items/secret-item"), 500)
    assert field is None
    assert "secret" not in reason
    lines = [JsonLines().format(record) for record in caplog.records]
    assert len(lines) >= 6
    assert not [line for line in lines if "secret" in line]
    first = json.loads(lines[0])
    assert (first["method"], first["route"], first["status"]) == ("POST", "/v1/events", 200)
    assert first["ms"] > 0
    assert first["request_id"]
    assert any(json.loads(line).get("exception") == "ValueError" for line in lines)


def test_a_store_that_fails_is_said(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UnskewError("/secret/path: writing or reading failed (database or disk is full)")

    monkeypatch.setattr(service.store, "append", full)
    answer = client.post("/v1/events", json={"events": [click(1, "a", "i1")]})
    assert "what was acknowledged before is safe" in wrong(answer, 503)[1]
    assert "/secret" not in answer.text
    monkeypatch.setattr(service.store, "record", full)
    assert wrong(client.post("/v1/recommendations", json={"user_id": "a"}), 503)
    assert client.post("/v1/recommendations", json={"user_id": "a", "log": False}).status_code == 200


def test_a_request_that_takes_too_long_is_answered(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(service, limits=Limits(seconds=0.2))
    go_on = threading.Event()
    monkeypatch.setattr(service, "about", lambda has_report: go_on.wait(GUARD) and {})
    assert "0.2 seconds" in wrong(client.get("/v1/model"), 503)[1]
    go_on.set()
    assert client.get("/health/live").status_code == 200


def test_many_at_once(client: TestClient, service: Service) -> None:
    """No answer is a fault, and every acknowledged event is in the store once."""
    bad, acknowledged = list[str](), list[str]()

    def impression(number: int) -> None:
        for step in range(6):
            user, name = f"v{number % 7}", f"{number}-{step}"
            listed = client.post("/v1/recommendations", json={"user_id": user, "k": 3})
            event = click(0, user, f"i{(number + step) % 40}", event_id=name)
            said = client.post("/v1/events", json={"events": [event, event]})
            found = client.get("/v1/items", params={"query": "sea"})
            bad.extend(answer.text for answer in (listed, said, found) if answer.status_code != 200)
            if said.status_code == 200 and said.json()["accepted"] + said.json()["duplicates"] == 2:
                acknowledged.append(name)
            if step == 3 and number == 0:
                client.post("/v1/model/reload")

    threads = [threading.Thread(target=impression, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not bad
    stored = [name for frame in service.store.events() for name in frame["event_id"].to_pylist()]
    assert sorted(stored) == sorted(acknowledged)
    assert len(stored) == 120
    assert service.about()["since_training"] == len(
        {
            (row["user_id"], row["item_id"], row["timestamp"] // 10**6)
            for f in service.store.events()
            for row in f.to_pylist()
        }
    )


def test_pages(client: TestClient, service: Service, tmp_path: Path) -> None:
    assert client.get("/").headers["content-type"].startswith("text/html")
    docs = client.get("/docs").text
    for path in client.get("/openapi.json").json()["paths"]:
        assert path.replace("{", "{") in docs
    assert "http://" not in docs.replace("http://localhost", "")  # nothing is loaded from elsewhere
    assert "https://" not in docs
    assert client.get("/favicon.ico").headers["content-type"].startswith("image/")  # browsers ask for it
    assert client.get("/docs/style.css").headers["content-type"].startswith("text/css")
    assert wrong(client.get("/static/%2e%2e/service.py"), 404)
    assert wrong(client.get("/report"), 404)
    page = tmp_path / "report.html"
    page.write_text("<p>figures</p>")
    with_report = client_of(service, report=page)
    answer = with_report.get("/report")
    assert (answer.text, answer.headers["content-security-policy"][:7]) == ("<p>figures</p>", "sandbox")
    assert with_report.get("/v1/model").json()["report"]
