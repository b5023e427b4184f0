"""Our models against RecBole's, on the same split of ml-100k, under the same full ranking, stopped by the same rows; then docs/recbole.md.

    benchmarks/recbole/setup.sh
    python benchmarks/recbole/run.py throughput [--models GRU4Rec ...]
    python benchmarks/recbole/run.py run [--models GRU4Rec ...] [--seeds 0 1 2] [--sides recbole ours] [--minutes 60]
    python benchmarks/recbole/run.py page

Every finished run is a line of results/recbole.jsonl; what is there already is not done again. A run of RecBole's that is
killed, or has used up the minutes, goes on where it was. Both sides: one thread, width 64, Adam at 1e-3, the newest 50 items, and
the same batches, patience, epochs at most and validation rows; everything else is each side's default. Throughput is measured apart,
with large batches.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal
from unittest.mock import patch

import numpy as np
import torch
import tyro
from export import ENVIRONMENT, exported, training_rows
from torch import Tensor

from unskew.catalog import Catalog, Scorer
from unskew.data.batches import Batch
from unskew.data.log import Log
from unskew.data.sequences import SequenceSampler
from unskew.data.split import Split
from unskew.errors import BadInput, UnskewError
from unskew.evaluate import evaluation, positives, rank
from unskew.models.base import MODELS as REGISTERED
from unskew.models.base import Phase, Stage
from unskew.run import train
from unskew.train import Trainer, Training

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "recbole.jsonl", ROOT / "docs" / "recbole.md"
PAUSED = 3  # exit code of reference.py when its minutes are used up

# From cheap to dear, so that a budget buys as many finished runs as it can.
MODELS = ("FPMC", "STAMP", "GRU4Rec", "DIN", "LightSANs", "SASRec", "BERT4Rec")
PATIENCE = 3
EPOCHS = {"FPMC": 100}  # at most; BPR with one negative learns little in each of its cheap epochs
USUAL_EPOCHS = 30
VALID_ROWS = {"DIN": 400}  # ranked after each epoch; DIN scores pair by pair, and the rest of the budget is for training
USUAL_VALID_ROWS = 2000

# Ours: the registered name and what differs from the model's defaults, to be as RecBole's is.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "GRU4Rec": ("gru4rec", {"loss": "cross-entropy", "optimizer": "adam", "width": 64, "hidden": 128, "dropout": 0.3}),
    "BERT4Rec": ("bert4rec", {}),
    "SASRec": ("sasrec", {"heads": 2, "dropout": 0.5}),
    "LightSANs": ("lightsans", {}),
    "STAMP": ("stamp", {"width": 64}),
    "FPMC": ("fpmc", {}),
    "DIN": ("din", {}),
}
ROWS_OF_WINDOW = 32  # about as many targets as a whole history has: batches of these are as large as those of pairs
BATCH = 256  # rows in a batch: with small ones few epochs do, and an epoch of RecBole's costs minutes
TIMED_BATCH = 2048  # where only throughput is measured: what both sides are fastest with

# Rows per CPU-second of RecBole, measured before on this kind of machine: what ours are held against, beside the fresh figure.
BEFORE = {"GRU4Rec": 770, "BERT4Rec": 236, "SASRec": 276, "LightSANs": 300, "STAMP": 3413, "FPMC": 48937, "DIN": 900}

Side = Literal["recbole", "ours"]


@dataclass(frozen=True)
class Stored:
    """A matrix of scores as a scorer: one row per ranked row, in the order in which `rank` asks for them."""

    matrix: np.ndarray[Any, np.dtype[np.float32]]
    history: int = 0

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        return _StoredCatalog(self.matrix)


class _StoredCatalog:
    def __init__(self, matrix: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        self.matrix, self.at = matrix, 0

    def scores(self, context: Batch) -> Tensor:
        rows = slice(self.at, self.at + len(context.user_B))
        self.at = rows.stop
        return torch.from_numpy(np.array(self.matrix[rows]))  # a copy: `rank` writes into it


def epochs_of(model: str) -> int:
    return EPOCHS.get(model, USUAL_EPOCHS)


def valid_rows_of(model: str) -> int:
    return VALID_ROWS.get(model, USUAL_VALID_ROWS)


# RecBole's side


def reference(model: str, data: Path, out: Path, *more: str) -> int:
    """Call reference.py in RecBole's environment; its exit code, if that is a code it means."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.is_file():
        raise BadInput(f"{ENVIRONMENT}: no RecBole there; make it with benchmarks/recbole/setup.sh")
    script = Path(__file__).with_name("reference.py")
    done = subprocess.run([python, script, model, "--data", data, "--out", out, *more], check=False)
    if done.returncode not in (0, PAUSED):
        raise UnskewError(f"reference.py {model} failed with exit code {done.returncode}")
    return done.returncode


def recbole(split: Split, data: Path, model: str, seed: int, minutes: float | None) -> dict[str, Any] | None:
    """A run of RecBole's, ranked by us; nothing if it is not finished yet."""
    out = data / "runs" / f"{model}-{seed}"
    out.mkdir(parents=True, exist_ok=True)
    everything = positives(split, "valid", "ordinary")
    chosen = positives(split, "valid", "ordinary", valid_rows_of(model), seed)
    np.save(out / "valid.npy", np.flatnonzero(np.isin(everything, chosen)))
    if not (out / "result.json").is_file():
        more = [
            "--seed",
            str(seed),
            "--batch",
            str(BATCH),
            "--epochs",
            str(epochs_of(model)),
            "--patience",
            str(PATIENCE),
            "--valid",
            str(out / "valid.npy"),
        ]
        if reference(model, data, out, *more, *([] if minutes is None else ["--minutes", str(minutes)])) == PAUSED:
            return None
    facts: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    measured = ranked(split, Stored(np.load(out / "scores.npy", mmap_mode="r")))
    again = facts.pop("test_ndcg@10")
    if abs(again - measured["ndcg@10"]) > 1e-6:
        raise UnskewError(f"{model}: reference.py ranks differently ({again}) from us ({measured['ndcg@10']}): validation is not the same")
    return measured | {"valid_ndcg@10": max(facts.pop("valid"))} | facts


# Ours


def training(model: str, seed: int, batch: int, rounds: int, valid_rows: int) -> Training:
    return Training(
        rounds=rounds,
        patience=PATIENCE,
        batch_size=batch,
        sequences=batch // ROWS_OF_WINDOW,
        learning_rate=1e-3,
        valid_rows=valid_rows,
        seed=seed,
    )


def ours(split: Split, model: str, seed: int) -> dict[str, Any]:
    """The same of one of our models. An epoch of ours visits every row that RecBole's does: each training positive with a past."""
    name, settings = OURS[model]
    started = time.process_time()
    made = training(model, seed, BATCH, epochs_of(model), valid_rows_of(model))
    network, trainer = train(split, name, REGISTERED[name].Config(**settings), made)
    trained = time.process_time()
    measured = ranked(split, network.eval())
    rounds = [record["valid"]["ndcg@10"] for record in trainer.records if "valid" in record]
    return measured | {
        "valid_ndcg@10": trainer.progress.best,
        "batch": BATCH,
        "epochs": made.rounds,
        "patience": PATIENCE,
        "valid_rows": len(trainer.valid),
        "rows": len(training_rows(split)),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "epochs_run": len(rounds),
        "best_epoch": trainer.progress.best_round + 1,
        "capped": len(rounds) == made.rounds,
        "cpu_s": round(trained - started),
        "test_cpu_s": round(time.process_time() - trained),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }


def throughput_of_ours(split: Split, model: str) -> dict[str, Any]:
    """Rows per CPU-second of the second epoch on."""
    name, settings = OURS[model]
    with clock() as spent:
        network, trainer = train(split, name, REGISTERED[name].Config(**settings), training(model, 0, TIMED_BATCH, 3, 10))
    size = len(training_rows(split))
    if model == "BERT4Rec":  # a pass over a sequence predicts a share of its places, so here a row is a pass, on both sides
        windows = trainer.samplers["cloze"]
        assert isinstance(windows, SequenceSampler)
        size = len(windows.windows[0][0])
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return {"rows": size, "parameters": parameters, "rows_per_cpu_s": round(size * len(spent[1:]) / sum(spent[1:]), 1)}


@contextmanager
def clock() -> Iterator[list[float]]:
    """CPU-seconds of every training epoch while this is open, batches included, validation not."""
    spent: list[float] = []
    epoch = Trainer._epoch

    def timed(trainer: Trainer, stage: Stage, phase: Phase) -> int:
        started = time.process_time()
        rows = epoch(trainer, stage, phase)
        spent.append(time.process_time() - started)
        return rows

    with patch.object(Trainer, "_epoch", timed):
        yield spent


# Both


def ranked(split: Split, scorer: Scorer) -> dict[str, Any]:
    found = evaluation(split, rank(scorer, split, positives(split, "test", "ordinary")), "full", "ordinary")
    known = found.metrics_of_known()
    return {
        "units": len(found.user),
        "known_units": int(found.known.sum()),
        **{metric: found.mean(metric) for metric in ("ndcg@10", "hr@10")},
        **{f"known_{metric}": known[metric] for metric in ("ndcg@10", "hr@10")},
    }


def records(what: str, shares: str) -> list[dict[str, Any]]:
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return [line for line in map(json.loads, lines) if (line["what"], line["shares"]) == (what, shares)]


def store(line: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"date": time.strftime("%Y-%m-%d"), **line}) + "\n")
    print(json.dumps(line), flush=True)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and evaluate what is not stored yet."""

    models: tuple[str, ...] = MODELS
    seeds: tuple[int, ...] = (0, 1, 2)
    sides: tuple[Side, ...] = ("recbole", "ours")
    shares: str = "80-10-10"
    minutes: float | None = None
    """CPU minutes for RecBole's side of this call; what is not finished then goes on in the next call."""

    def run(self) -> None:
        torch.set_num_threads(1)
        split, data = exported(self.shares)
        for seed in self.seeds:
            for model in self.models:
                for side in self.sides:
                    self._one(split, data, side, model, seed)

    def _one(self, split: Split, data: Path, side: Side, model: str, seed: int) -> None:
        if any((line["side"], line["model"], line["seed"]) == (side, model, seed) for line in records("run", self.shares)):
            return
        if side == "ours" and OURS[model][0] not in REGISTERED:
            print(f"{model}: ours is not registered yet", file=sys.stderr)
            return
        left = None if self.minutes is None else self.minutes - _used_by_children() / 60
        if side == "recbole" and left is not None and left <= 0:
            return
        found = ours(split, model, seed) if side == "ours" else recbole(split, data, model, seed, left)
        if found is not None:
            store({"what": "run", "side": side, "model": model, "seed": seed, "shares": self.shares} | found)


def _used_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Time training epochs of both sides, after a few batches or an epoch to warm up."""

    models: tuple[str, ...] = MODELS
    sides: tuple[Side, ...] = ("recbole", "ours")
    shares: str = "80-10-10"

    def run(self) -> None:
        torch.set_num_threads(1)
        split, data = exported(self.shares)
        for model, side in product(self.models, self.sides):
            if any((line["side"], line["model"]) == (side, model) for line in records("throughput", self.shares)):
                continue
            facts = throughput_of_ours(split, model) if side == "ours" else self._of_recbole(data, model)
            store({"what": "throughput", "side": side, "model": model, "shares": self.shares} | facts)

    def _of_recbole(self, data: Path, model: str) -> dict[str, Any]:
        out = data / "throughput" / model
        if not (out / "throughput.json").is_file():
            reference(model, data, out, "--throughput", "--batch", str(TIMED_BATCH))
        facts = json.loads((out / "throughput.json").read_text(encoding="utf-8"))
        return {name: facts[name] for name in ("rows", "parameters", "rows_per_cpu_s")}


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write docs/recbole.md from the stored runs."""

    shares: str = "80-10-10"

    def run(self) -> None:
        runs = records("run", self.shares)
        parts = [
            HEAD.format(batch=BATCH, patience=PATIENCE, epochs=limits(EPOCHS, USUAL_EPOCHS), valid=limits(VALID_ROWS, USUAL_VALID_ROWS))
        ]
        if runs:
            one = runs[0]
            counts = f"{one['rows']:,} training rows; {one['units']:,} test positives, {one['known_units']:,} of them known"
            parts += [f"## Accuracy, ml-100k, split {self.shares.replace('-', ' / ')}\n\n{counts}.\n", accuracy(runs)]
        parts += ["## Training throughput\n", throughput(records("throughput", self.shares))]
        PAGE.write_text("\n".join(parts), encoding="utf-8")


HEAD = """# Against RecBole

Generated by `python benchmarks/recbole/run.py page` from `results/recbole.jsonl`, which `python benchmarks/recbole/run.py run` fills and
`benchmarks/recbole/setup.sh` prepares. RecBole 1.2.1, in an environment of its own, is the reference: its trainer and its models learn from
our prepared split, one row per training positive with a past (the newest 50 items strictly before). Both sides are tuned
equally, that is, hardly: width 64, Adam at 1e-3, batches of {batch} rows (or of whole histories with about as many), everything
else each side's own default; at most {epochs} epochs, stopped after {patience} without a better NDCG@10 of {valid} validation
positives.

Every figure is the mean over seeds (± the standard deviation between seeds). Protocol `full`: each test positive among all items that
existed before, without the user's own past ones, ranked by the same code for both sides. *known*: test positives whose user and
item training saw; in global time most test users are new. Of ids that training never saw, RecBole has vectors that
were at most pushed down as negatives (and for FPMC users that were never touched); ours read one learned or average vector. RecBole
cannot read an empty history, so it is given one padding item there. *capped*: seeds that the limit of epochs stopped.
"""


WHY = """Rows per CPU-second of whole training epochs, one thread, batches of 2048 rows; a row is one prefix with its next
item, and for BERT4Rec a sequence that is passed through the network. The machine is shared: single figures move by a fifth or more.

Where the factor comes from, and where it ends: GRU4Rec, SASRec and STAMP read a history once and have a state after each of its
items, where RecBole reads every prefix anew; then the softmax over all items takes most of the time, in chunks that stay in the
cache and make their gradient at once. STAMP's attention is triangular, one sigmoid per pair of items, whatever is done. FPMC
has nothing to compute: looking vectors up and adding gradients to them is all, and RecBole does that well. BERT4Rec and
LightSANs must pass through each sequence anew; what helps is not padding to 50 and asking the last layer only for the places
that are read. DIN's activation unit runs for every pair of a past item and a candidate; its first layer is split, so that only
the product of the two is per pair.
"""


def limits(special: dict[str, int], usual: int) -> str:
    return ", ".join([f"{usual:,}", *(f"{number:,} ({model})" for model, number in special.items())])


def spread(values: list[float], form: str = ".4f") -> str:
    return f"{np.mean(values):{form}}" + (f" ± {np.std(values, ddof=1):{form}}" if len(values) > 1 else "")


def of(runs: list[dict[str, Any]], model: str, side: str) -> list[dict[str, Any]]:
    return [run for run in runs if (run["model"], run["side"]) == (model, side)]


def table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---", "---", *["---:"] * (len(head) - 2)], *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def accuracy(runs: list[dict[str, Any]]) -> str:
    metrics = ("ndcg@10", "hr@10", "known_ndcg@10", "known_hr@10")
    lines = []
    for model in MODELS:
        for side in ("recbole", "ours"):
            found = of(runs, model, side)
            if found:
                cells = [spread([run[metric] for run in found]) for metric in metrics]
                effort = [spread([run[name] for run in found], ".0f") for name in ("best_epoch", "epochs_run", "cpu_s")]
                lines.append([model, side, *cells, *effort, str(sum(run["capped"] for run in found)), str(len(found))])
    return table(
        ["model", "side", *(metric.replace("_", " ") for metric in metrics), "best epoch", "epochs", "CPU-s", "capped", "seeds"], lines
    )


def throughput(lines: list[dict[str, Any]]) -> str:
    rows = []
    for model in MODELS:
        theirs, mine = ([line["rows_per_cpu_s"] for line in of(lines, model, side)] for side in ("recbole", "ours"))
        ratio = f"{np.mean(mine) / np.mean(theirs):.1f}" if mine and theirs else "–"
        rows.append([model, f"{BEFORE[model]:,}", *(spread(values, ",.0f") if values else "–" for values in (theirs, mine)), ratio])
    return WHY + "\n" + table(["model", "RecBole, measured before", "RecBole, here", "ours", "ratio"], rows)


if __name__ == "__main__":
    tyro.cli(
        Annotated[Run, tyro.conf.subcommand(name="run")]
        | Annotated[Throughput, tyro.conf.subcommand(name="throughput")]
        | Annotated[Page, tyro.conf.subcommand(name="page")],
        description=__doc__,
    ).run()
