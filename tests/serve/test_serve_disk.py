"""The service on a disk that is really full, and in a folder that is really read-only: a small file system of
its own, which only root can mount. Without that right these tests are skipped; `test_store_bad.py` has
the same for the store alone, by other means."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from uuid import uuid4

import pytest

from tests.helpers.command import run as command
from tests.helpers.serving import run_fixture
from tests.serve.test_serve_process import ask, process
from unskew.serve import open_store

served_run = run_fixture


def mount(folder: Path, options: str) -> bool:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False
    )
    return done.returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or not mount(folder, "size=2m"):
        pytest.skip("only root can mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def events(begin: int, many: int = 20) -> dict[str, Any]:
    return {
        "events": [
            {"event_id": f"{n}-{uuid4()}", "user_id": f"{uuid4()}{uuid4()}", "item_id": "i1", "type": "click"}
            for n in range(begin, begin + many)
        ]
    }


def test_a_full_disk_is_told_and_what_was_acknowledged_is_kept(served_run: Path, disk: Path) -> None:
    acknowledged = 0
    with process(served_run, disk / "e.db") as (server, base):
        full = None
        while full is None and acknowledged < 50_000:
            try:
                acknowledged += ask(f"{base}/v1/events", events(acknowledged))["accepted"]
            except HTTPError as error:
                full = error
        assert full is not None
        assert full.code == 503
        assert b"what was acknowledged before is safe, so try again" in full.read()
        assert acknowledged > 100
        listed = ask(f"{base}/v1/recommendations", {"history": [{"item_id": "i1"}], "k": 3})
        assert len(listed["items"]) == 3  # reading goes on
        assert mount(disk, "remount,size=8m")
        acknowledged += ask(f"{base}/v1/events", events(acknowledged))["accepted"]
        server.kill()
    with open_store(disk / "e.db", "write") as store:
        assert store.counts()["events"] == acknowledged


def test_a_read_only_folder_is_one_line_and_nothing_is_changed(
    served_run: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(disk / "e.db"):
        pass
    assert mount(disk, "remount,ro")
    before = {path.name: path.read_bytes() for path in disk.iterdir()}
    for name in ("e.db", "new.db"):
        code, out, err = command(capsys, "serve", served_run, "--store", disk / name, "--port", 0)
        assert (code, out, len(err.splitlines())) == (2, "", 1), err
        assert f"{disk}: cannot write there (Read-only file system)" in err
    assert {path.name: path.read_bytes() for path in disk.iterdir()} == before
    with open_store(disk / "e.db", "read") as store:
        assert store.counts()["events"] == 0
