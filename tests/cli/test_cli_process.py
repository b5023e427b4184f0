"""The command as a process of its own: installed, stopped, and quick to start."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import random_table


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_nothing_is_left(tmp_path: Path, number: int) -> None:
    big = tmp_path / "big.parquet"
    pq.write_table(random_table(rows=600_000, users=50_000, items=9_000, times=10**6), big)
    command = [sys.executable, "-m", "unskew", "prepare", big, "--out", tmp_path / "out"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) == 1:  # until there is something to leave behind
        assert time.monotonic() < until
        time.sleep(0.005)
    time.sleep(0.2)
    started.send_signal(number)
    _, err = started.communicate(timeout=60)
    assert (started.returncode, err.decode()) == (130, "unskew: stopped\n")
    assert [path.name for path in tmp_path.iterdir()] == ["big.parquet"]


def test_the_installed_command(data: Path) -> None:
    command = Path(sys.executable).parent / "unskew"
    done = subprocess.run(
        [command, "audit", data, "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, json.loads(done.stdout)["leak_free"]) == (0, True)
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == f"unskew {unskew.__version__}\n"


WITHOUT_TORCH = """
import sys
import unskew, unskew.cli as cli

assert "DEPS" in dir(unskew)
world = "simulate --out w --users 20 --items 20 --steps 9"
for command in ("--version", "--help", "prepare log.parquet --out d", "inspect d", world):
    try:
        assert cli.main(command.split()) == 0, command
    except SystemExit as left:
        assert left.code == 0, command
    assert "torch" not in sys.modules, command
assert unskew.DEPS is not None and "torch" in sys.modules
"""


def test_torch_is_imported_only_where_it_is_needed(source: Path) -> None:
    """It takes seconds, which nobody should wait who only prepares data."""
    command = [sys.executable, "-c", WITHOUT_TORCH]
    where = source.parent
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("rows have label 0: they count as shown and not clicked") == 1


def test_a_name_that_the_package_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = unskew.nothing
