"""Why an item is in a list, over HTTP."""

from pathlib import Path

import pytest

import unskew
from tests.helpers.serving import BEGIN, click, client_of, dated_table, saved_run, serving


@pytest.fixture(scope="module")
def pulse_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained") / "run"
    model = unskew.create_model("pulse", {"sample": 300, "epochs": 1})
    model.fit(unskew.split(unskew.read(dated_table())), show_progress=False).save(folder)
    return folder


def test_the_parts_of_a_served_score_add_up_to_it(pulse_run: Path, tmp_path: Path) -> None:
    """After events that came a moment ago, too, and for random items."""
    with serving(pulse_run, tmp_path / "e.db", explore=0.5, seed=3) as service:
        client = client_of(service)
        body = {"user_id": "u1", "k": 6, "explain": True, "log": False}
        events = [
            click(n, user, item, BEGIN + 101 * 86_400)
            for n, (user, item) in enumerate((("u1", "i7"), ("u2", "i7"), ("u2", "i3"), ("new", "i3")))
        ]
        for user in ("u1", "new", "u1"):
            answer = client.post("/v1/recommendations", json=body | {"user_id": user}).json()
            assert answer["items"]
            for item in answer["items"]:
                assert item["because"][0]["kind"] == "base"
                parts = sum(part["part"] for part in item["because"])
                assert parts == pytest.approx(item["score"], abs=2e-4)
            client.post("/v1/events", json={"events": events})
        assert client.get("/v1/model").json()["explains"] is True
        named = {part["item_id"] for item in answer["items"] for part in item["because"]}
        assert "i7" in named  # which u1 took a moment ago
        plain = client.post("/v1/recommendations", json=body | {"explain": False}).json()
        assert all(item["because"] is None for item in plain["items"])
        history = {"history": ["i2", "i5"], "k": 3, "explain": True, "explore": 0}
        answer = client.post("/v1/recommendations", json=history).json()
        assert {part["item_id"] for item in answer["items"] for part in item["because"]} <= {"i2", "i5", None}
        empty = client.post("/v1/recommendations", json=history | {"at": 0})  # before the first item
        assert (empty.status_code, empty.json()["items"]) == (200, [])


def test_a_model_without_reasons_is_a_conflict(tmp_path: Path) -> None:
    with serving(saved_run(tmp_path / "run"), tmp_path / "e.db") as service:
        answer = client_of(service).post("/v1/recommendations", json={"user_id": "u1", "explain": True})
        assert answer.status_code == 409
        assert answer.json()["error"]["field"] == "explain"
        assert client_of(service).get("/v1/model").json()["explains"] is False
