"""Places for stores: an SQLite file, and a schema in a real PostgreSQL server that is started for the tests.

A plugin of the tests that name it in `pytest_plugins`.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import GUARD
from tests.helpers.stores import Place, Server

NUMBERS = count(1)


def binary(name: str) -> str | None:
    """A program of PostgreSQL; Debian keeps them out of the path."""
    own = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(own[-1]) if own else shutil.which(name)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server on a socket of its own, without any port. It is stopped by its process id."""
    pytest.importorskip("psycopg", reason="needs the extra `postgres`")
    initdb, postgres = binary("initdb"), binary("postgres")
    if initdb is None or postgres is None:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="unskew-pg-", dir="/tmp"))
    as_owner: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        try:
            owner = pwd.getpwnam("postgres")
        except KeyError:
            folder.rmdir()
            pytest.skip("no user `postgres` to run the server as")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        as_owner |= {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    data = folder / "data"
    running = None
    try:
        made = [initdb, "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(made, check=True, capture_output=True, timeout=GUARD, **as_owner)
        with (folder / "log").open("wb") as log:
            settings = ["-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-c", "max_connections=40"]
            started = [postgres, "-D", data, "-k", folder, *settings]
            running = subprocess.Popen(started, stdout=log, stderr=log, **as_owner)
        found = Server(f"postgresql://postgres@/postgres?host={folder}", data)
        _wait_for(found, running)
        yield found
    finally:
        if running is not None:
            running.send_signal(signal.SIGQUIT)  # at once: nobody needs its data any more
            try:
                running.wait(GUARD)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(server: Server, running: "subprocess.Popen[bytes]") -> None:
    import psycopg

    end = time.monotonic() + GUARD
    while True:
        try:
            server.run("SELECT 1")
            return
        except psycopg.OperationalError:
            assert running.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.05)


@pytest.fixture
def in_file(tmp_path: Path) -> Place:
    """A store in a file."""
    folder = tmp_path / "store"
    folder.mkdir()
    return Place(str(folder / "events.db"), folder / "events.db-segments", tmp_path, folder)


@pytest.fixture
def in_server(server: Server, tmp_path: Path) -> Place:
    """A store in PostgreSQL."""
    schema = f"store_{next(NUMBERS)}"
    server.run(f"CREATE SCHEMA {schema}")
    url = f"{server.url}&options=-csearch_path%3D{schema}"
    return Place(url, tmp_path / "segments", tmp_path, server.data)


@pytest.fixture(params=["in_file", "in_server"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each place, one after the other: every test with this fixture is part of the contract."""
    return request.getfixturevalue(request.param)
