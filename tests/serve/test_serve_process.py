"""`unskew serve` as a process: starting, killing, stopping, the example client, and one line per error."""

import json
import shutil
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.helpers.command import run as command
from tests.helpers.processes import GUARD, run_python, wait_until
from tests.helpers.serving import click, process, run_fixture, serving
from unskew.serve import open_store
from unskew.serve.http.schemas import RecommendationRequest

served_run = run_fixture
ROOT = Path(__file__).parents[2]


def ask(address: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(address, data, {"content-type": "application/json"}), timeout=GUARD) as answer:
        return json.load(answer)


def test_killed_and_started_again(served_run: Path, tmp_path: Path) -> None:
    """What was acknowledged is there, and the answers are those of a store that was built from nothing."""
    events = [click(n, f"new{n % 3}", f"i{n * 7 % 33}", 1_720_000_000 + n % 10) for n in range(40)]
    strange = click(99, "50%2F🐸", "a?b#c%2Fd")
    asked = [{"user_id": f"new{n}", "k": 8, "log": False} for n in range(3)]
    with process(served_run, tmp_path / "e.db") as (server, base):
        for event in events:
            assert ask(f"{base}/v1/events", {"events": [event]})["accepted"] == 1
        server.send_signal(signal.SIGKILL)
        server.wait(GUARD)
    with process(served_run, tmp_path / "e.db") as (server, base):
        again = [ask(f"{base}/v1/recommendations", body)["items"] for body in asked]
        assert ask(f"{base}/v1/events", {"events": [*events, strange]})["duplicates"] == len(events)
        assert ask(f"{base}/v1/items/{quote('a?b#c%2Fd', safe='')}")["positives"] == 1
        assert ask(f"{base}/v1/users/{quote('50%2F🐸', safe='')}")["positives"] == 1
        done = run_python(ROOT / "examples" / "client.py", base, "ann")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("shown with probability 1.00") == 5
        assert "'accepted': 1" in done.stdout
        server.send_signal(signal.SIGTERM)
        assert server.wait(GUARD) == 0
    with serving(served_run, tmp_path / "new.db") as fresh:
        fresh.append(events)
        expected = [fresh.recommend(RecommendationRequest(**body))["items"] for body in asked]
    assert again == expected
    with open_store(tmp_path / "e.db", "read") as store:
        assert store.counts()["events"] == len(events) + 2


def answers(host: str, port: int) -> bool:
    """Whether anybody accepts connections."""
    try:
        socket.create_connection((host, port), timeout=GUARD).close()
    except ConnectionRefusedError:
        return False
    return True


LOAD = """
import sys
from unskew.serve.http.process import Serving, Service
from unskew.serve import open_store

run, store = sys.argv[1:]
with open_store(store) as opened:
    Serving(run=run, store=store).service(opened, Service).load()
print({"pandas", "scipy.stats", "matplotlib"} & set(sys.modules))
"""


def test_a_start_imports_nothing_that_it_does_not_need(served_run: Path, tmp_path: Path) -> None:
    """After a crash nothing is answered until everything is imported."""
    done = run_python("-c", LOAD, served_run, tmp_path / "e.db")
    assert done.stdout == "set()\n", done.stderr


def test_a_request_finishes_when_the_server_is_stopped(served_run: Path, tmp_path: Path) -> None:
    with process(served_run, tmp_path / "e.db") as (server, base):
        host, port = base.removeprefix("http://").split(":")
        body = json.dumps({"events": [click(1, "ann", "i1")]}).encode()
        with socket.create_connection((host, int(port)), timeout=GUARD) as line:
            head = f"POST /v1/events HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            head += "Expect: 100-continue\r\n"
            line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
            assert b"100 Continue" in line.recv(10_000)  # the request has begun
            line.sendall(body[:10])
            server.send_signal(signal.SIGTERM)
            wait_until(lambda: not answers(host, int(port)))
            line.sendall(body[10:])
            assert b"200 OK" in line.recv(10_000)
        assert server.wait(GUARD) == 0
    with open_store(tmp_path / "e.db", "read") as store:
        assert store.counts()["events"] == 1


def test_errors_are_one_line(served_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def failed(*arguments: object, code: int = 2) -> str:
        found, out, err = command(capsys, "serve", *arguments)
        lines = [line for line in err.splitlines() if not line.startswith(("unskew: loading", "{"))]
        assert (found, out, len(lines)) == (code, "", 1), err
        return lines[0]

    store = tmp_path / "e.db"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "another program listens" in failed(served_run, "--store", store, "--port", port, code=1)
    free = ("--port", 0)
    assert "no such folder" in failed(tmp_path / "none", "--store", store, *free)
    assert not store.exists()
    damaged = shutil.copytree(served_run, tmp_path / "damaged")
    memory = damaged / "memory.safetensors"
    memory.write_bytes(memory.read_bytes()[:100])
    assert "the run is damaged" in failed(damaged, "--store", store, *free)
    with open_store(tmp_path / "held.db"):
        assert "only one may" in failed(served_run, "--store", tmp_path / "held.db", *free)
    cut = tmp_path / "cut.db"
    cut.write_bytes(b"")
    assert "was it cut off" in failed(served_run, "--store", cut, *free)
    assert "cannot write there" in failed(
        served_run, "--store", "/proc/e.db", *free
    )  # nobody may write there
    assert "--token-file" in failed(served_run, "--store", store, "--host", "0.0.0.0", *free)
    assert "no address of this machine" in failed(
        served_run, "--store", store, "--host", "no.such.invalid", "--token-file", tokens(tmp_path), *free
    )
    assert "say --data" in failed("pulse-zero", "--store", store, *free)
    assert "--data is for pulse-zero" in failed(served_run, "--store", store, "--data", tmp_path, *free)
    assert "expected from 0 to 1" in failed(served_run, "--store", store, "--explore", 2, *free)
    assert "expected from 0 to 65535" in failed(served_run, "--store", store, "--port", 70_000)
    assert "no such report" in failed(served_run, "--store", store, "--report", tmp_path / "x.html", *free)
    signal.signal(signal.SIGTERM, before)


def tokens(folder: Path) -> Path:
    file = folder / "tokens"
    file.write_text(f"read: {'r' * 20}\nwrite: {'w' * 20}\n")
    file.chmod(0o600)
    return file
