"""The command as a process of its own: installed, stopped, and quick to start."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.processes import GUARD, run_program, run_python, start_python, wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_nothing_is_left(tmp_path: Path, number: int) -> None:
    big = tmp_path / "big.parquet"
    pq.write_table(random_table(rows=600_000, users=50_000, items=9_000, times=10**6), big)
    child = start_python("-m", "unskew", "prepare", big, "--out", tmp_path / "out", stderr=subprocess.PIPE)
    wait_until(lambda: len(list(tmp_path.iterdir())) > 1, child)  # there is something to leave behind
    child.send_signal(number)
    _, err = child.communicate(timeout=GUARD)
    assert (child.returncode, err) == (130, "unskew: stopped\n")
    assert [path.name for path in tmp_path.iterdir()] == ["big.parquet"]


def test_the_installed_command(data: Path) -> None:
    command = Path(sys.executable).parent / "unskew"
    done = run_program(command, "audit", data, "--json")
    assert (done.returncode, json.loads(done.stdout)["leak_free"]) == (0, True)
    done = run_program(command, "--version")
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
    assert not {"torch", "scipy.stats"} & set(sys.modules), command
assert unskew.DEPS is not None and "torch" in sys.modules
"""


def test_torch_is_imported_only_where_it_is_needed(source: Path) -> None:
    """It takes seconds, which nobody should wait who only prepares data."""
    done = run_python("-c", WITHOUT_TORCH, cwd=source.parent)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("rows have label 0: they count as shown and not clicked") == 1


def test_a_name_that_the_package_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = unskew.nothing
