"""The tools for language models: what they answer, and that they record nothing. The last tests are with the
real client of the protocol, over HTTP (make test-integrations)."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unskew
from tests.helpers.command import run
from tests.helpers.processes import GUARD
from tests.helpers.serving import click, client_of, dated_table, process, run_fixture, serving
from unskew.serve import open_store
from unskew.serve.http.bias import bias_answer
from unskew.serve.http.mcp import Tools
from unskew.serve.http.request import Refused
from unskew.serve.http.service import Service
from unskew.serve.http.tokens import Tokens

served_run = run_fixture
READ, WRITE, RECORD = "r" * 20, "w" * 20, "c" * 20


@pytest.fixture(scope="module")
def pulse_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that can explain its lists."""
    folder = tmp_path_factory.mktemp("mcp") / "run"
    settings = {"epochs": 1, "sample": 200, "valid_examples": 20}
    model = unskew.create_model("pulse", settings)
    model.fit(unskew.split(unskew.read(dated_table())), show_progress=False).save(folder)
    return folder


@pytest.fixture
def service(pulse_run: Path, tmp_path: Path) -> Iterator[Service]:
    with serving(pulse_run, tmp_path / "e.db") as made:
        yield made


def ids(answer: Any) -> list[str]:
    return [item["item_id"] for item in answer["items"]]


def test_the_tools_answer_as_the_service_and_record_nothing(service: Service) -> None:
    tools, client = Tools(service), client_of(service)
    asked = client.get("/v1/recommendations", params={"user_id": "u1", "k": 4, "debias": 0.5}).json()
    listed = tools.recommend("u1", k=4, debias=0.5)
    assert ids(listed) == ids(asked)
    assert listed["recommendation_id"] is None
    near = tools.similar("i3", k=4)
    body = {"history": ["i3"], "exclude": ["i3"], "k": 4}
    assert ids(near) == ids(client.post("/v1/recommendations", json=body).json())
    assert "i3" not in ids(near)
    reasons = tools.explain("u1", k=3)
    assert all(item["because"] for item in reasons["items"])
    assert set(ids(tools.explain("u1", ["i1", "i2"]))) == {"i1", "i2"}
    assert service.store.info()["recommendations"] == 0


def test_what_is_wrong_is_refused(service: Service) -> None:
    tools = Tools(service)
    with pytest.raises(Refused, match="user_id: expected a user_id or a history"):
        tools.recommend()
    with pytest.raises(Refused) as refused:
        tools.similar("nothing")
    assert refused.value.status == 404


def test_bias_of_the_log_and_of_what_was_shown(service: Service) -> None:
    before = service.bias()
    counts: dict[str, int] = {}
    for item in dated_table().column("item").to_pylist():
        counts[item] = counts.get(item, 0) + 1
    top = sorted(counts.values(), reverse=True)[:3]  # a tenth of 30 items
    assert before["top_tenth"] == pytest.approx(sum(top) / sum(counts.values()))
    assert before["positives"] == sum(counts.values())
    assert 0.2 < (before["gini"] or 0) < 0.9
    assert before["windows"] == []
    assert "Nothing is known of what was shown lately." in before["summary"]
    client = client_of(service)
    for number in range(5):
        shown = client.post("/v1/recommendations", json={"user_id": f"u{number}", "k": 3}).json()
        client.post(
            "/v1/events", json={"events": [click(number, f"u{number}", shown["items"][0]["item_id"])]}
        )
    service._monitor = None
    (window, *_) = service.bias()["windows"]
    assert window["positives"] == 5
    assert window["gini_shown"] is not None


@pytest.mark.parametrize(("lift", "word"), [(1.5, "more"), (0.5, "less")])
def test_the_sentence_of_the_popularity_lift(service: Service, lift: float, word: str) -> None:
    import numpy as np

    names = "start positives gini_shown gini_clicked coverage_shown"
    window = dict.fromkeys(names.split()) | {"lift": lift}
    answer = bias_answer(np.array([3, 2, 1]), [window], service.about())
    assert any(
        f"{word} popular than what was chosen, by a factor of {lift:.2f}" in line
        for line in answer["summary"]
    )


def test_a_token_that_reads_may_use_the_tools(served_run: Path, tmp_path: Path) -> None:
    """Without the package there is no endpoint, but the gate decides first."""
    with serving(served_run, tmp_path / "e.db") as made:
        client = client_of(made, tokens=Tokens(READ, WRITE, RECORD))
        assert client.post("/mcp", json={}).status_code == 401
        allowed = client.post("/mcp", json={}, headers={"authorization": f"Bearer {READ}"})
        assert allowed.status_code == 404
        other_site = {"authorization": f"Bearer {READ}", "origin": "http://other.example"}
        assert client.post("/mcp", json={}, headers=other_site).status_code == 403


def test_without_the_package_nothing_is_opened(
    served_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    code, _, err = run(capsys, "serve", served_run, "--store", tmp_path / "e.db", "--mcp")
    assert code == 2
    assert "--mcp needs the extra" in err
    assert not (tmp_path / "e.db").exists()


# The real client


async def call(address: str, token: str, *calls: tuple[str, dict[str, Any]], mode: Any = "auto") -> list[Any]:
    """The names of the tools, and the results of some calls."""
    from httpx2 import AsyncClient
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async with AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=GUARD) as http:
        transport = streamable_http_client(f"{address}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            tools = sorted(tool.name for tool in (await client.list_tools()).tools)
            return [tools, *[await client.call_tool(name, arguments) for name, arguments in calls]]


@pytest.mark.integration
@pytest.mark.parametrize(("mode", "workers"), [("auto", 2), ("legacy", 1)])
def test_a_real_client_over_http(pulse_run: Path, tmp_path: Path, mode: str, workers: int) -> None:
    pytest.importorskip("mcp")
    store, tokens = tmp_path / "e.db", tmp_path / "tokens"
    tokens.write_text(f"read: {READ}\nwrite: {WRITE}\n")
    tokens.chmod(0o600)
    more = ("--token-file", str(tokens), "--mcp", "--workers", str(workers))
    with process(pulse_run, store, *more) as (_, address):
        names, listed, near, why, bias, wrong, unknown = asyncio.run(
            call(
                *(address, WRITE),
                ("recommend", {"user_id": "u1", "k": 4}),
                ("similar", {"item_id": "i3", "k": 4}),
                ("explain", {"user_id": "u1", "k": 2}),
                ("inspect_bias", {}),
                ("recommend", {"user_id": "u1", "k": 0}),
                ("similar", {"item_id": "nothing"}),
                mode=mode,
            )
        )
        assert names == ["explain", "inspect_bias", "recommend", "similar"]
        assert len(ids(listed.structured_content)) == len(ids(near.structured_content)) == 4
        assert all(item["because"] for item in why.structured_content["items"])
        assert "most popular tenth" in bias.structured_content["summary"][0]
        assert wrong.is_error
        assert unknown.is_error
        assert "no such item" in unknown.content[0].text
        with pytest.raises(ExceptionGroup) as refused:
            asyncio.run(call(address, "nobody", mode=mode))
        assert "Server returned an error response" in repr(refused.value)
    with open_store(store, "read") as kept:
        assert kept.info()["recommendations"] == 0  # although the token may record
