"""What training and evaluating a large log hold in private memory does not grow as the log does: its columns
and all that is derived of them are mapped from files, so the log may be larger than memory."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import unskew
from tests.helpers.processes import run_python
from unskew.data.log.derived import LARGE

SIZES = LARGE, 3 * LARGE
BYTES = 29  # of an event in the columns of a prepared folder; what is derived of them has as many again

# RssAnon is what a process holds without a file behind it; limits of address space (RLIMIT_AS, RLIMIT_DATA)
# would count what libraries only reserve.
CHILD = """
import re, sys, threading, time
import pyarrow, torch
import unskew.api.create, unskew.evaluation.evaluate_many, unskew.training.run
from unskew.cli import main
torch.set_num_threads(1)
pyarrow.set_cpu_count(1)

def private():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read()).group(1))

begun = most = private()

def watch():
    global most
    while True:
        most = max(most, private())
        time.sleep(0.005)

threading.Thread(target=watch, daemon=True).start()
code = main(sys.argv[1:])
print("kilobytes", max(most, private()) - begun)
raise SystemExit(code)
"""

FEW = ["--epochs", 1, "--sample", 300, "--valid-examples", 30, "--neighbours", 30]


def made_up(events: int) -> pa.Table:
    random = np.random.default_rng(0)
    user, item = random.integers(0, events // 20, events), (500 * random.random(events) ** 2).astype(int)
    return pa.table({"user": user, "item": item, "time": 1_500_000_000 + random.integers(0, 10**8, events)})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("large")
    for size in SIZES:
        unskew.prepare(made_up(size), place / f"data-{size}")
    return [place / f"data-{size}" for size in SIZES]


def held(*arguments: object) -> int:
    """The bytes that a verb holds at most, beyond those of its libraries."""
    done: subprocess.CompletedProcess[str] = run_python("-c", CHILD, *arguments)
    assert done.returncode == 0, done.stderr
    found = re.search(r"kilobytes (\d+)", done.stdout)
    assert found is not None
    return 1000 * int(found.group(1))


@pytest.mark.slow
def test_private_memory_grows_less_than_the_log(folders: list[Path]) -> None:
    more, runs = SIZES[1] - SIZES[0], [data.with_name(f"run-{data.name}") for data in folders]
    trained = [held("train", data, "--out", run, *FEW) for data, run in zip(folders, runs, strict=True)]
    assert trained[1] - trained[0] < 0.8 * BYTES * more
    # A test set is a part of the log, and which rows it has is in memory.
    evaluated = [held("evaluate", run, "--sample", 30) for run in runs]
    assert evaluated[1] - evaluated[0] < 1.4 * BYTES * more
