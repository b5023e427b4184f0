"""What many recommendations cost: a file of histories, read in blocks, and lists that an index proposes.

    python benchmarks/many.py            measures (about ten minutes), stores results/many.jsonl, and writes
                                         the figures into docs/recommending.md
    python benchmarks/many.py --page     writes the figures only

SASRec, trained for an epoch on a log in which users move along chains of items, so that its vectors have
learned something. One thread. The file is written and read by `unskew recommend RUN --input FILE --out FILE`
in a process of its own, whose memory is its peak.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import tyro
from pages import replace_between

import unskew
from unskew.report.table import Table

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "many.jsonl", ROOT / "docs" / "recommending.md"
MARKS = "<!-- made by benchmarks/many.py -->", "<!-- end -->"
CHAIN, STEPS = 20, 15  # items of a chain, and events of a user
SIZES = {10_000: 20_000, 100_000: 40_000}  # items, and users
ROWS = (20_000, 200_000)  # of the files
ASKED = 300  # histories that are timed one by one
LENGTH = 10


def chains(random: np.random.Generator, items: int, many: int, steps: int) -> np.ndarray:
    """Walks along chains: mostly the next item of the chain, and now and then another chain."""
    chain = random.integers(0, items // CHAIN, (many, 1)).repeat(steps, 1)
    other = random.random((many, steps)) < 0.1
    chain[other] = random.integers(0, items // CHAIN, other.sum())
    place = (random.integers(0, CHAIN, (many, 1)) + np.arange(steps)) % CHAIN
    return chain * CHAIN + place


def trained(folder: Path, items: int, users: int) -> unskew.Model:
    """A model that has learned an epoch, saved in a folder."""
    random = np.random.default_rng(0)
    walks = chains(random, items, users, STEPS)
    everything = np.arange(items)  # each item once, so that all are known
    columns = {
        "user": np.r_[everything % users, np.arange(users).repeat(STEPS)],
        "item": np.r_[everything, walks.ravel()],
        "time": np.r_[np.zeros(items, int), 10**6 + random.permutation(users * STEPS)],
    }
    log = unskew.read(pa.table(columns))
    settings = {"epochs": 1, "valid_examples": 200, "width": 64}
    return unskew.create_model("sasrec", settings).fit(unskew.split(log), folder, show_progress=False)


def one_by_one(model: unskew.Model, items: int) -> dict[str, Any]:
    """Exact lists and lists that an index proposes, for the same histories."""
    asked = chains(np.random.default_rng(1), items, ASKED, LENGTH).tolist()
    found: dict[str, Any] = {}
    for name, approximate in (("exact", False), ("index", True)):
        begin = time.process_time()
        made = model.recommend(histories=asked[:1], approximate=approximate)
        found[f"{name}_first_s"] = time.process_time() - begin
        begin = time.process_time()
        for history in asked:
            model.recommend(histories=[history], approximate=approximate)
        found[f"{name}_ms"] = 1000 * (time.process_time() - begin) / ASKED
        if approximate:
            assert made.recall is not None
            found["recall"] = made.recall.fraction
    return found


def file_of(rows: int, items: int, run: Path, folder: Path) -> dict[str, Any]:
    """What a file of histories costs."""
    file, out = folder / f"{rows}.parquet", folder / f"{rows}-lists.parquet"
    walks = chains(np.random.default_rng(2), items, rows, LENGTH)
    pq.write_table(pa.table({"history": list(walks)}), file)
    command = [
        sys.executable,
        "-m",
        "unskew",
        "recommend",
        str(run),
        "--input",
        str(file),
        "--out",
        str(out),
    ]
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    child = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    peak = 0
    while child.poll() is None:  # the peak that a child reports at its end may be that of its parent
        with suppress(OSError, IndexError):
            said = Path(f"/proc/{child.pid}/status").read_text().split("VmHWM:")[1]
            peak = int(said.split()[0])
        time.sleep(0.1)
    assert child.returncode == 0
    wall = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert pq.read_metadata(out).num_rows == 10 * rows
    spent = {"wall_s": wall, "cpu_s": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime}
    return {"rows": rows, "items": items, **spent, "peak_mb": peak / 1024}


TEXT = """## Many at once, and with an index

Made by `python benchmarks/many.py` from [results/many.jsonl](../results/many.jsonl): SASRec, trained for a
epoch on users who move along chains of items; histories of 10, lists of 10, one core. `unskew recommend RUN
--input FILE` reads a file in blocks, so its memory does not grow with the file:

{files}

One history at a time, exactly and with `--approximate` (faiss), which measures its recall on histories of
the log:

{singly}
"""


def page(lines: list[dict[str, Any]]) -> str:
    """The figures as text."""
    files = Table(
        ["histories in the file", "items", "CPU-s", "CPU-ms each", "peak memory, MB"],
        [
            [
                f"{line['rows']:,}",
                f"{line['items']:,}",
                f"{line['cpu_s']:,.0f}",
                f"{1000 * line['cpu_s'] / line['rows']:.2f}",
                f"{line['peak_mb']:,.0f}",
            ]
            for line in lines
            if "rows" in line
        ],
    )
    singly = Table(
        ["items", "exact, CPU-ms", "index, CPU-ms", "to build the index, CPU-s", "recall"],
        [
            [
                f"{line['items']:,}",
                f"{line['exact_ms']:.1f}",
                f"{line['index_ms']:.1f}",
                f"{line['index_first_s']:.1f}",
                f"{line['recall']:.2f}",
            ]
            for line in lines
            if "recall" in line
        ],
    )
    return TEXT.format(files=files.markdown(), singly=singly.markdown())


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured."""

    page: bool = False
    """Write the figures from what is stored, and measure nothing."""


def main(settings: Settings) -> None:
    """Measure, store, write."""
    torch.set_num_threads(1)
    if not settings.page:
        lines: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for items, users in SIZES.items():
                model = trained(folder / str(items), items, users)
                lines.append({"items": items} | one_by_one(model, items))
                print(lines[-1], flush=True)
            for rows in ROWS:
                lines.append(file_of(rows, min(SIZES), folder / str(min(SIZES)), folder))
                print(lines[-1], flush=True)
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    stored = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    replace_between(PAGE, *MARKS, page(stored))


if __name__ == "__main__":
    main(tyro.cli(Settings))
