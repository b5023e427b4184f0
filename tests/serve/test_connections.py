"""Connections that send nothing, or half a request: they end in time, and never keep health checks away."""

import asyncio
import json
import re
import resource
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
import uvicorn

from tests.helpers.processes import GUARD, start_python, wait_until
from tests.helpers.serving import run_fixture
from unskew.serve.http import connections
from unskew.serve.http.connections import (
    ConnectionLimits,
    LimitedProtocol,
    limited_protocol,
    most_connections,
)

served_run = run_fixture
HALF = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nx-slow: "
WHOLE = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
SLOW = WHOLE.replace(b"/ ", b"/slow ")


@contextmanager
def answering(limits: ConnectionLimits) -> Iterator[tuple[int, type[LimitedProtocol]]]:
    """A server with these limits; it answers after three seconds if it is asked to."""

    async def app(scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/slow":
            await asyncio.sleep(3)
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    listener = socket.create_server(("127.0.0.1", 0))
    protocol = limited_protocol(limits)
    config = uvicorn.Config(app, http=protocol, log_config=None, ws="none", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield listener.getsockname()[1], protocol
    finally:
        server.should_exit = True
        thread.join(GUARD)
        listener.close()


def connected(port: int, data: bytes = b"") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=GUARD)
    if data:
        found.sendall(data)
    return found


def answered(connection: socket.socket) -> bool:
    """Whether a whole answer comes."""
    answer = b""
    while not answer.endswith(b"\r\n\r\nok") and (more := connection.recv(1000)):
        answer += more
    return b"200 OK" in answer


def has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("sent", [b"", HALF])
def test_a_connection_without_a_whole_request_is_ended(sent: bytes) -> None:
    with answering(ConnectionLimits(10, 0.3)) as (port, _), connected(port, sent) as slow:
        assert has_ended(slow)


def test_one_that_waits_for_its_answer_is_kept() -> None:
    with answering(ConnectionLimits(10, 2)) as (port, _), connected(port, SLOW) as kept:
        assert answered(kept)  # after three seconds, longer than the headers may take
        kept.sendall(WHOLE)
        assert answered(kept)


def test_a_kept_connection_is_ended_if_the_next_request_does_not_come(monkeypatch) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE", 0.3)
    with answering(ConnectionLimits(10, 60)) as (port, _), connected(port, WHOLE) as kept:
        assert answered(kept)
        kept.sendall(HALF)  # data alone is no request
        assert has_ended(kept)


def test_at_the_limit_the_connection_that_has_waited_longest_gives_way() -> None:
    with answering(ConnectionLimits(4, 60)) as (port, protocol), ExitStack() as stack:
        busy = stack.enter_context(connected(port, SLOW))
        wait_until(lambda: any(each.has_whole_request for each in list(protocol.open)))
        idle = [stack.enter_context(connected(port)) for _ in range(3)]
        for _ in range(3):
            assert answered(stack.enter_context(connected(port, WHOLE)))
        assert len(protocol.open) == 4
        assert all(map(has_ended, idle))
        assert answered(busy)  # a request that is being answered is never ended


def test_as_many_files_as_the_system_allows(monkeypatch) -> None:
    limits = [(256, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: limits.append(to))
    assert most_connections(1000) == 1024 - connections.OTHER_FILES
    assert limits[-1] == (1024, 1024)
    assert most_connections(50) == 50
    limits.append((64, 64))
    assert most_connections(1000) == connections.FEWEST


def test_health_checks_are_answered_beside_hundreds_of_idle_connections(
    served_run: Path, tmp_path: Path
) -> None:
    """With 256 descriptors, 300 connections that send nothing or half a request, before any token."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"read: {'r' * 20}\nwrite: {'w' * 20}\n")
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); "
        "from unskew.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["serve", served_run, "--store", tmp_path / "e.db", "--port", "0", "--token-file", tokens]
    server = start_python("-c", limited, *words, stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        found = (re.search(r"ready: (http://\S+)", line) for line in server.stderr)
        address = next(match[1] for match in found if match)
        port = int(address.rpartition(":")[2])
        with ExitStack() as stack:
            for number in range(300):
                stack.enter_context(connected(port, HALF if number % 2 else b""))
                if number % 50 == 49:
                    with urlopen(f"{address}/health/live", timeout=GUARD) as answer:
                        assert json.load(answer) == {"status": "live"}
            with urlopen(f"{address}/health/ready", timeout=GUARD) as answer:
                assert json.load(answer) == {"status": "ready"}
    finally:
        server.kill()
        server.wait(GUARD)
        assert server.stderr is not None
        server.stderr.close()
