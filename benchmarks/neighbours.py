"""How many neighbours should Pulse read? By the validation set of real logs.

    python benchmarks/neighbours.py run [--sets NAME ...]   results/neighbours.jsonl
    python benchmarks/neighbours.py page                    the table of docs/pulse.md

One thread; what is stored already is not done again. No test set is looked at.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from pages import replace_between
from pulse import METRIC, PAGE, ROOT
from sets import DATA, SETS, split_of

import unskew
from unskew.report.table import Table

RESULTS = ROOT / "results" / "neighbours.jsonl"
BEGIN, END = "<!-- neighbours: made by benchmarks/neighbours.py -->", "<!-- end -->"
NEIGHBOURS, SEEDS, ROWS = (100, 300, 1000), (0, 1), 4000
TESTS = ("ordinary", "balanced")


@dataclass(frozen=True)
class Job:
    """One training."""

    set: str
    neighbours: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and validate what is not stored yet."""

    sets: tuple[str, ...] = tuple(SETS)
    data: Path = DATA

    def __call__(self) -> None:
        """Go through the logs, all numbers of neighbours with the first seed first."""
        torch.set_num_threads(1)
        for name in self.sets:
            jobs = [Job(name, neighbours, seed) for seed in SEEDS for neighbours in NEIGHBOURS]
            jobs = [job for job in jobs if job not in _stored()]
            with split_of(name, self.data) as split:
                for job in jobs:
                    line = asdict(job) | validated(job, split)
                    print(json.dumps(line), flush=True)
                    with RESULTS.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")


def validated(job: Job, split: unskew.Split) -> dict[str, Any]:
    """The best epoch and debias of each validation metric."""
    began = time.process_time()
    asked = {"neighbours": job.neighbours, "seed": job.seed, "valid_examples": ROWS}
    model = unskew.create_model("pulse", asked).fit(split, show_progress=False)
    best = {test: max(record.valid[test][METRIC] for record in model.records) for test in TESTS}
    return best | {"cpu": round(time.process_time() - began, 1)}


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the table into docs/pulse.md."""

    def __call__(self) -> None:
        """Replace what stands between the marks."""
        replace_between(PAGE, BEGIN, END, table(_stored()) + "\n")


def table(lines: dict[Job, dict[str, Any]]) -> str:
    """Means over the seeds, and what a training costs."""
    rows = []
    for name in SETS:
        cells = []
        for neighbours in NEIGHBOURS:
            found = [line for job, line in lines.items() if (job.set, job.neighbours) == (name, neighbours)]
            means = [float(np.mean([line[test] for line in found])) for test in (*TESTS, "cpu")]
            cells.append(f"{means[0]:.4f} / {means[1]:.4f} ({means[2]:.0f} s)" if found else "")
        if any(cells):
            rows.append([name, *cells])
    return Table(["ordinary / balanced", *(f"{number} neighbours" for number in NEIGHBOURS)], rows).markdown()


def _stored() -> dict[Job, dict[str, Any]]:
    if not RESULTS.exists():
        return {}
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    return {Job(line["set"], line["neighbours"], line["seed"]): line for line in lines}


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "page": Page})()
