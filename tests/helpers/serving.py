"""What the tests of the service share: a run, a service over a store, and a client without a network."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

import unskew
from tests.helpers.processes import GUARD, start_python
from unskew.serve import open_store
from unskew.serve.http.app import create_app
from unskew.serve.http.service import Service

BEGIN = 1_700_000_000  # seconds; the log of the run has the hundred days after it
ITEMS = 30


def dated_table(rows: int = 900, users: int = 40, items: int = ITEMS, seed: int = 0) -> pa.Table:
    """A log with dates and titles, in which a few items have most of the clicks."""
    random = np.random.default_rng(seed)
    item = np.minimum((items * random.random(rows) ** 2).astype(int), items - 1)
    return pa.table(
        {
            "user": [f"u{code}" for code in random.integers(0, users, rows)],
            "item": [f"i{code}" for code in item],
            "time": BEGIN + np.sort(random.integers(0, 100 * 86_400, rows)),
            "title": [f"Film {code} of the sea" if code % 2 else f"The sea {code}" for code in item],
        }
    )


@pytest.fixture(scope="session")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no test may change."""
    return saved_run(tmp_path_factory.mktemp("served") / "run")


def saved_run(folder: Path, name: str = "itemknn", seed: int = 0) -> Path:
    """A trained run, in a moment."""
    unskew.create_model(name).fit(
        unskew.split(unskew.read(dated_table(seed=seed))), show_progress=False
    ).save(folder)
    return folder


@contextmanager
def serving(run: Path | str, where: Path, **more: Any) -> Iterator[Service]:
    """A loaded service over a store in a file, which need not outlive a power cut here."""
    with open_store(where, synchronous="normal") as store:
        service = Service(str(run), store, **more)
        service.load()
        try:
            yield service
        finally:
            service.close()


def client_of(service: Service, **more: Any) -> TestClient:
    """A client that calls the service by localhost."""
    return TestClient(create_app(service, **more), base_url="http://localhost", raise_server_exceptions=False)


def click(number: int, user: str, item: str, seconds: float | None = None, **more: Any) -> dict[str, Any]:
    """An event as a document."""
    made = {"event_id": f"e{number}", "user_id": user, "item_id": item, "type": "click"} | more
    return made if seconds is None else made | {"timestamp": seconds}


@contextmanager
def process(run: Path, store: Path | str, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server on a free port, and its address when it is ready. It is killed at the end."""
    arguments = ["serve", str(run), "--store", str(store), "--port", "0", "--timeout", "600", *more]
    started = start_python("-m", "unskew", *arguments, stderr=subprocess.PIPE)
    try:
        assert started.stderr is not None
        lines = []
        for line in started.stderr:
            lines.append(line)
            found = re.search(r"ready: (http://\S+)", line)
            if found:
                yield started, found[1]
                break
        else:
            pytest.fail("".join(lines))
    finally:
        started.kill()
        started.wait(GUARD)
        assert started.stderr is not None
        started.stderr.close()
