"""Our models in the protocols of two groups of papers, beside the figures that were published.

    python benchmarks/published.py run [--protocols ...] [--sets ...] [--models ...]   results/published.jsonl
    python benchmarks/published.py page                                                docs/published.md

leave-one-out   the last item of each user is the test set; the order of the file breaks ties inside a day;
                the whole catalogue is ranked without the user's past items; no event of the validation or
                test set of another user is visible
time-to-split   the test set is what happened after the 90 % quantile of all times; lists are frozen at that
                moment; all later items of a user are the targets; means over the users with a history

One thread. A cell that is stored is not computed again, and a run that was stopped goes on where it was.
Settings of networks are the published ones, or were chosen by the validation set.
"""

import csv
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from pages import replace_between
from sets import DATA

import unskew
from unskew.evaluation.evaluate import Evaluation
from unskew.report.table import Table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "published.jsonl"
FIGURES = ROOT / "benchmarks" / "published_figures.csv"
PAGE = ROOT / "docs" / "published.md"
METRIC = "ndcg@10"
Protocol = Literal["leave-one-out", "time-to-split"]
SETS = {"Beauty": "amazon_beauty_5core", "Sports": "amazon_sports_5core"}
# Trained to the end: the validation metric has not risen for `patience` epochs.
LONG: dict[str, Any] = {"epochs": 300, "patience": 10}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "popularity": ("popularity", {}),
    "UserKNN": ("userknn", {}),
    "ItemKNN": ("itemknn", {}),
    "EASE": ("ease", {}),
    "pulse-zero": ("pulse-zero", {}),
    "pulse": ("pulse", {"patience": 5, "epochs": 40}),
    "SASRec": ("sasrec", {"dropout": 0.5, "learning_rate": 2e-3, **LONG}),
    "GRU4Rec": ("gru4rec", LONG),
    "gSASRec": ("gsasrec", LONG),
}
HEAVY = ("SASRec", "GRU4Rec", "gSASRec")  # trained in a folder, so that they can go on


@dataclass(frozen=True)
class Cell:
    """One model in one protocol on one data set."""

    protocol: Protocol
    set: str
    model: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and evaluate what is not stored yet."""

    protocols: tuple[Protocol, ...] = ("leave-one-out", "time-to-split")
    sets: tuple[str, ...] = tuple(SETS)
    models: tuple[str, ...] = tuple(MODELS)
    seeds: tuple[int, ...] = (0,)
    data: Path = DATA
    work: Path = ROOT / "build" / "published"

    def __call__(self) -> None:
        """Go through the cells, the cheap models first."""
        torch.set_num_threads(1)
        for seed in self.seeds:
            for model in self.models:
                for name in self.sets:
                    for protocol in self.protocols:
                        cell = Cell(protocol, name, model, seed)
                        if cell not in stored():
                            line = asdict(cell) | self.measured(cell)
                            print(json.dumps(line), flush=True)
                            with RESULTS.open("a", encoding="utf-8") as file:
                                file.write(json.dumps(line) + "\n")

    def measured(self, cell: Cell) -> dict[str, Any]:
        """The metrics of a cell."""
        began, split = time.process_time(), self.split(cell)
        kind, settings = MODELS[cell.model]
        asked = settings | ({} if kind in ("pulse-zero",) else {"seed": cell.seed})
        if cell.model in HEAVY:
            folder = self.work / f"{cell.protocol}-{cell.set}-{cell.model}-{cell.seed}"
            model = (
                unskew.resume(folder, split, show_progress=False)
                if folder.exists()
                else unskew.create_model(kind, asked).fit(split, folder, show_progress=False)
            )
        else:
            model = unskew.create_model(kind, asked).fit(split, show_progress=False)
        trained = round(time.process_time() - began, 1)
        made = {
            "settings": settings,
            "epochs": max((record.epoch for record in model.records), default=0),
            "best_epoch": model.best_epoch(),
        }
        made |= {"finished": model.is_finished, "cpu_training": trained}
        if cell.protocol == "leave-one-out":
            return made | {"live": metrics(model.evaluate(split, show_progress=False))}
        for targets in ("next", "all"):
            evaluation = model.evaluate(split, frozen=True, targets=targets, show_progress=False)
            made |= {f"frozen {targets}": metrics(evaluation)}
            warm = evaluation.segments["history length"].of > 0
            made |= {f"frozen {targets}, warm users": metrics(evaluation, warm)}
        return made | {"live": metrics(model.evaluate(split, show_progress=False))}

    def split(self, cell: Cell) -> unskew.Split:
        """The split of a protocol; a data set is prepared once."""
        ordered = cell.protocol == "leave-one-out"
        folder = self.work / f"{SETS[cell.set]}-{'file-order' if ordered else 'strict'}"
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            source = self.data / SETS[cell.set] / "interactions.csv.gz"
            unskew.prepare(source, folder, ties="file-order" if ordered else "strict")
        log = unskew.Log.open(folder)
        if ordered:
            return unskew.split(log, kind="leave-one-out")
        # pulse-zero needs no validation set; the others have one of the same length of the time line.
        if cell.model == "pulse-zero":
            return unskew.split(log, fractions=(100, 0, 0), at="0.9", repeats="hide")
        return unskew.split(log, at="0.81,0.9", repeats="hide")


def metrics(evaluation: Evaluation, among: Any = None) -> dict[str, Any]:
    """What is stored of an evaluation."""
    units = len(evaluation.user) if among is None else int(among.sum())
    values = evaluation.metrics(among)
    return {"units": units} | {
        name: round(values[f"{name}@10"], 6) for name in ("ndcg", "hr", "recall", "mrr")
    }


def stored() -> dict[Cell, dict[str, Any]]:
    """The lines of the results by their cells."""
    if not RESULTS.exists():
        return {}
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    return {Cell(line["protocol"], line["set"], line["model"], line["seed"]): line for line in lines}


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the tables into docs/published.md."""

    def __call__(self) -> None:
        """Replace what stands between the marks."""
        for protocol, column in (("leave-one-out", "live"), ("time-to-split", "frozen all, warm users")):
            mark = f"<!-- {protocol}: made by benchmarks/published.py page -->"
            replace_between(PAGE, mark, "<!-- end -->", table(protocol, column) + "\n")


def table(protocol: str, column: str) -> str:
    """Ours and the published ones in one table, the best first on the first data set."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    order: dict[tuple[str, str], float] = {}
    for cell in stored():
        if cell.protocol == protocol and cell.seed == 0:
            seeds = [of for other, of in stored().items() if asdict(other) | {"seed": 0} == asdict(cell)]
            values = [of[column]["ndcg"] for of in seeds]
            mark = "" if all(of["finished"] for of in seeds) else " (not finished)"
            spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
            text = f"{np.mean(values):.4f}{spread} / {np.mean([of[column]['hr'] for of in seeds]):.4f}{mark}"
            rows.setdefault((cell.model, "ours"), {})[cell.set] = text
            order[(cell.model, "ours")] = max(order.get((cell.model, "ours"), 0), float(np.mean(values)))
    for figure in csv.DictReader(FIGURES.open(encoding="utf-8")):
        if figure["protocol"] == protocol:
            key = (figure["model"], figure["source"])
            rows.setdefault(key, {})[figure["set"]] = f"{figure['ndcg10']} / {figure['hr10'] or '–'}"
            order[key] = max(order.get(key, 0), float(figure["ndcg10"]))
    ordered = sorted(rows, key=lambda key: -order[key])
    lines = [
        [model, source, *(rows[(model, source)].get(name, "") for name in SETS)] for model, source in ordered
    ]
    return Table(
        ["model", "figures of", *(f"{name}: NDCG@10 / HR@10" for name in SETS)], lines, text=(0, 1)
    ).markdown()


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "page": Page})()
