"""Which defaults should Pulse have, so that training never leaves it worse than its rivals, live and frozen?

    python benchmarks/pulse_defaults.py run [--sets NAME ...] [--models NAME ...]
    python benchmarks/pulse_defaults.py page

The first verb fills results/pulse_defaults.jsonl, the second one writes a table of docs/pulse.md.

No test set is looked at. The log is cut where its test set begins (after 70 % of the rows); of the rest, the
first 70 % of the rows train, 15 % validate, and all is evaluated on the last 15 %:

    live      1,500 positives, each ranked at its own time: `ordinary`, `balanced`
    frozen    one list for each of 1,500 users, made at one of eight moments of the last part: all later
              positives as targets (`all`), or the next one (`next`, `balanced`)

Every figure is that of the weights, and of the debiasing strength, that the validation metric of this kind
chose. One thread; what is stored already is not done again.
"""

import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from pages import replace_between
from pulse import METRIC, PAGE, ROOT
from sets import DATA, SETS

import unskew
from unskew.api.model import Model
from unskew.data.log.held_out import FROZEN, FROZEN_MOMENTS, Targets, held_out
from unskew.data.log.split import cut_log
from unskew.evaluation.evaluate import evaluation, rank_each
from unskew.report.table import Table

RESULTS = ROOT / "results" / "pulse_defaults.jsonl"
BEGIN, END = "<!-- defaults: made by benchmarks/pulse_defaults.py -->", "<!-- end -->"
UNITS, VALID_EXAMPLES = 1500, 800
FRACTIONS = (70.0, 15.0, 15.0)  # of what is before the test set
LOGS = {**SETS, "Sports": ("amazon_sports_5core", {})}
SMALL = ", every 20th user"  # after the name of a log: what a young service has
ALL = (*LOGS, *(f"{name}{SMALL}" for name in ("Beauty", "Sports", "Digital Music 2018")))
PULSE: dict[str, dict[str, Any]] = {
    "random, next": {"start": "random", "horizon": "next"},
    "random, all": {"start": "random", "horizon": "all"},
    "shipped, next": {"start": "shipped", "horizon": "next"},
    "shipped, all": {"start": "shipped", "horizon": "all"},
    "shipped, all, pull 0.01": {"start": "shipped", "horizon": "all", "pull": 0.01},
    "shipped, all, 30 epochs": {"start": "shipped", "horizon": "all", "epochs": 30},
}
DEFAULT = "shipped, all"
RIVALS = {"pulse-zero": "pulse-zero", "UserKNN": "userknn", "neighbours by hand": "neighbours-by-hand"}
KINDS = ("live ordinary", "live balanced", "frozen all", "frozen next", "frozen balanced")


@dataclass(frozen=True)
class Cell:
    """One model on one log."""

    set: str
    model: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and evaluate what is not stored yet."""

    sets: tuple[str, ...] = ALL
    models: tuple[str, ...] = (*RIVALS, *PULSE)
    seeds: tuple[int, ...] = (0,)
    data: Path = DATA

    def __call__(self) -> None:
        """Go through the logs, and all models of each."""
        torch.set_num_threads(1)
        for name in self.sets:
            cells = [Cell(name, model, seed) for seed in self.seeds for model in self.models]
            cells = [
                cell for cell in cells if cell not in stored() and (cell.model in PULSE or not cell.seed)
            ]
            if not cells:
                continue
            with tempfile.TemporaryDirectory() as scratch:
                split = split_before_test(name, self.data, Path(scratch) / "log")
                for cell in cells:
                    line = asdict(cell) | measured(cell, split)
                    print(json.dumps(line), flush=True)
                    with RESULTS.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")


def split_before_test(name: str, data: Path, folder: Path) -> unskew.Split:
    """A split of what happened before the test set."""
    path, settings = LOGS[name.removesuffix(SMALL)]
    log = unskew.prepare(data / path, folder, **settings)
    if name.endswith(SMALL):
        log = unskew.read(log.table().filter(np.asarray(log.user) % 20 == 0))
    return unskew.split(cut_log(log, unskew.split(log).valid_end), fractions=FRACTIONS)


def measured(cell: Cell, split: unskew.Split) -> dict[str, Any]:
    """NDCG@10 of each kind, and what the training cost."""
    began = time.process_time()
    settings: dict[str, Any] = {"seed": cell.seed, "valid_examples": VALID_EXAMPLES}
    settings |= PULSE.get(cell.model, {})
    kind = RIVALS.get(cell.model, "pulse")
    model = unskew.create_model(kind, settings).fit(split, show_progress=False)
    cpu = round(time.process_time() - began, 1)
    values = live(model, split) | frozen(model, split)
    return {name: round(value, 5) for name, value in values.items()} | {
        "chosen": chosen(model),
        "epochs": max((record.epoch for record in model.records), default=0),
        "cpu": cpu,
    }


def live(model: Model, split: unskew.Split) -> dict[str, float]:
    """A list for each positive."""
    rows = held_out(split, "test", "ordinary", UNITS).rows
    values = {}
    for test in ("ordinary", "balanced"):
        model.network.load_state_dict(model.trained.weights[test])
        ranked = rank_each(model.network, split, rows, (None,))[0]
        tested = held_out(split, "test", test)
        values[f"live {test}"] = evaluation(split, ranked, "full", tested, segmented=False).mean(METRIC)
    return values


def frozen(model: Model, split: unskew.Split) -> dict[str, float]:
    """A list for each user, with the targets and the weights of three kinds."""
    rows = held_out(split, "test", "ordinary", UNITS, frozen="all", moments=FROZEN_MOMENTS).rows
    kinds: dict[str, tuple[str, str, Targets]] = {
        "frozen all": (FROZEN, "ordinary", "all"),
        "frozen next": (FROZEN, "ordinary", "next"),
        "frozen balanced": ("balanced", "balanced", "next"),
    }
    values = {}
    for name, (criterion, test, targets) in kinds.items():
        model.network.load_state_dict(model.trained.weights[criterion])
        ranked = rank_each(model.network, split, rows, (None,), frozen=True, moments=FROZEN_MOMENTS)[0]
        tested = held_out(split, "test", test, frozen=targets, moments=FROZEN_MOMENTS)
        result = evaluation(split, ranked, "full", tested, segmented=False, frozen=targets)
        values[name] = result.mean(METRIC)
    return values


def chosen(model: Model) -> dict[str, Any]:
    """What each validation metric chose: the epoch, or the settings that no gradient learns."""
    if model.records:
        return {
            criterion: max(model.records, key=lambda record: record.valid[criterion][METRIC]).epoch
            for criterion in model.trained.weights
        }
    return {
        criterion: {
            name: round(float(value), 3)
            for name, value in weights.items()
            if not value.ndim and value.is_floating_point() and name != "horizon_ticks"
        }
        for criterion, weights in model.trained.weights.items()
    }


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the table into docs/pulse.md."""

    def __call__(self) -> None:
        """Replace what stands between the marks."""
        replace_between(PAGE, BEGIN, END, table(stored()) + "\n")


def table(lines: dict[Cell, dict[str, Any]]) -> str:
    """Means over the seeds, with what a training costs."""
    rows = []
    for name in ALL:
        for model in (*RIVALS, *PULSE):
            of = [line for cell, line in lines.items() if (cell.set, cell.model) == (name, model)]
            if of:
                means = [f"{np.mean([line[kind] for line in of]):.4f}" for kind in KINDS]
                label = model if model in RIVALS else f"Pulse: {model}{' (default)' * (model == DEFAULT)}"
                rows.append(
                    [name, label, *means, str(len(of)), f"{np.mean([line['cpu'] for line in of]):.0f}"]
                )
    return Table(["log", "model", *KINDS, "seeds", "CPU-seconds"], rows, text=(0, 1)).markdown()


def stored() -> dict[Cell, dict[str, Any]]:
    """The lines of the results by their cells."""
    if not RESULTS.exists():
        return {}
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    return {Cell(line["set"], line["model"], line["seed"]): line for line in lines}


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "page": Page})()
