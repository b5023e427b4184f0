"""Our models against RecBole's, on the same split of ml-100k, under the same full ranking, stopped by the
same rows. page.py shows them.

    benchmarks/recbole/setup.sh
    python benchmarks/recbole/run.py throughput [--models GRU4Rec ...]
    python benchmarks/recbole/run.py run [--models GRU4Rec ...] [--seeds 0 1 2] [--sides recbole ours]
    [--minutes 60] python benchmarks/recbole/page.py

Every finished run is a line of results/recbole.jsonl; what is there already is not done again. A run of
RecBole's that is killed, or has used up the minutes, goes on where it was. Both sides: one thread, width 64,
Adam at 1e-3, the newest 50 items, and the same batches, patience, epochs at most and validation rows;
everything else is each side's default. Throughput is measured apart, with large batches.
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

from unskew.core.errors import BadInput, UnskewError
from unskew.data.batches.batch import Batch
from unskew.data.batches.samplers import SequenceSampler
from unskew.data.log.held_out import held_out
from unskew.data.log.log import LogView
from unskew.data.log.split import Split
from unskew.evaluation.evaluate import evaluation, rank
from unskew.models.base import MODELS as REGISTERED
from unskew.models.base import Training
from unskew.nn.phases import Phase, Stage
from unskew.nn.scoring import Catalog, Scorer
from unskew.training.run import train
from unskew.training.run_config import RunSettings
from unskew.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "recbole.jsonl"
PAUSED = 3  # exit code of reference.py when its minutes are used up

# From cheap to dear, so that a budget buys as many finished runs as it can.
MODELS = ("FPMC", "STAMP", "GRU4Rec", "DIN", "LightSANs", "SASRec", "BERT4Rec")
PATIENCE = 3
EPOCHS = {"FPMC": 100}  # at most; BPR with one negative learns little in each of its cheap epochs
USUAL_EPOCHS = 30
VALID_ROWS = {
    "DIN": 400
}  # ranked after each epoch; DIN scores pair by pair, and the rest of the budget is for training
USUAL_VALID_ROWS = 2000

# Ours: the registered name and what differs from the model's defaults, to be as RecBole's is.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "GRU4Rec": (
        "gru4rec",
        {"loss": "cross-entropy", "optimizer": "adam", "width": 64, "hidden": 128, "dropout": 0.3},
    ),
    "BERT4Rec": ("bert4rec", {}),
    "SASRec": ("sasrec", {"heads": 2, "dropout": 0.5}),
    "LightSANs": ("lightsans", {}),
    "STAMP": ("stamp", {"width": 64}),
    "FPMC": ("fpmc", {}),
    "DIN": ("din", {}),
}
ROWS_OF_WINDOW = (
    32  # about as many targets as a whole history has: batches of these are as large as those of pairs
)
BATCH = 256  # rows in a batch: with small ones few epochs do, and an epoch of RecBole's costs minutes
TIMED_BATCH = 2048  # where only throughput is measured: what both sides are fastest with

Side = Literal["recbole", "ours"]


@dataclass(frozen=True)
class Stored:
    """A matrix of scores as a scorer: one row per ranked row, in the order in which `rank` asks for them."""

    matrix: np.ndarray[Any, np.dtype[np.float32]]
    history: int = 0

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
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
    everything = held_out(split, "valid").rows
    chosen = held_out(split, "valid", "ordinary", valid_rows_of(model), seed).rows
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
        if (
            reference(model, data, out, *more, *([] if minutes is None else ["--minutes", str(minutes)]))
            == PAUSED
        ):
            return None
    facts: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    measured = ranked(split, Stored(np.load(out / "scores.npy", mmap_mode="r")))
    again = facts.pop("test_ndcg@10")
    if abs(again - measured["ndcg@10"]) > 1e-6:
        raise UnskewError(
            f"{model}: reference.py ranks differently ({again}) from us ({measured['ndcg@10']}): validation "
            "is not the same"
        )
    return measured | {"valid_ndcg@10": max(facts.pop("valid"))} | facts


# Ours


def training(model: str, seed: int, batch: int, epochs: int, valid_examples: int) -> Training:
    return Training(
        epochs=epochs,
        patience=PATIENCE,
        batch_size=batch,
        sequences=batch // ROWS_OF_WINDOW,
        learning_rate=1e-3,
        valid_examples=valid_examples,
        seed=seed,
    )


def ours(split: Split, model: str, seed: int) -> dict[str, Any]:
    """The same of one of our models. An epoch of ours impressions every row that RecBole's does: each
    training positive with a past."""
    name, settings = OURS[model]
    started = time.process_time()
    made = training(model, seed, BATCH, epochs_of(model), valid_rows_of(model))
    config = REGISTERED[name].Config(**settings)
    trainer = train(split, RunSettings(model=name, config=config, training=made))
    network = trainer.model
    trained = time.process_time()
    measured = ranked(split, network.eval())
    epochs = [record.valid["ordinary"]["ndcg@10"] for record in trainer.records if record.valid]
    return measured | {
        "valid_ndcg@10": trainer.progress.best["ordinary"],
        "batch": BATCH,
        "epochs": made.epochs,
        "patience": PATIENCE,
        "valid_examples": len(trainer.valid.rows),
        "rows": len(training_rows(split)),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "epochs_run": len(epochs),
        "best_epoch": trainer.progress.best_epoch["ordinary"],
        "capped": len(epochs) == made.epochs,
        "cpu_s": round(trained - started),
        "test_cpu_s": round(time.process_time() - trained),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }


def throughput_of_ours(split: Split, model: str) -> dict[str, Any]:
    """Rows per CPU-second of the second epoch on."""
    name, settings = OURS[model]
    with clock() as spent:
        config, timed = REGISTERED[name].Config(**settings), training(model, 0, TIMED_BATCH, 3, 10)
        trainer = train(split, RunSettings(model=name, config=config, training=timed))
    network = trainer.model
    size = len(training_rows(split))
    if (
        model == "BERT4Rec"
    ):  # a pass over a sequence predicts a fraction of its places, so here a row is a pass, on both sides
        windows = trainer.samplers["cloze"]
        assert isinstance(windows, SequenceSampler)
        size = len(windows.windows[0][0])
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return {
        "rows": size,
        "parameters": parameters,
        "rows_per_cpu_s": round(size * len(spent[1:]) / sum(spent[1:]), 1),
    }


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
    tested = held_out(split, "test")
    found = evaluation(split, rank(scorer, split, tested.rows), "full", tested)
    known = found.by_segment()["user and item"]["both known"]
    return {
        "units": len(found.user),
        "known_units": int(known["units"]),
        **{metric: found.mean(metric) for metric in ("ndcg@10", "hr@10")},
        **{f"known_{metric}": known.get(metric, float("nan")) for metric in ("ndcg@10", "hr@10")},
    }


def records(what: str, fractions: str) -> list[dict[str, Any]]:
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return [line for line in map(json.loads, lines) if (line["what"], line["fractions"]) == (what, fractions)]


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
    fractions: str = "80-10-10"
    minutes: float | None = None
    """CPU minutes for RecBole's side of this call; what is not finished then goes on in the next call."""

    def run(self) -> None:
        torch.set_num_threads(1)
        split, data = exported(self.fractions)
        for seed in self.seeds:
            for model in self.models:
                for side in self.sides:
                    self._one(split, data, side, model, seed)

    def _one(self, split: Split, data: Path, side: Side, model: str, seed: int) -> None:
        if any(
            (line["side"], line["model"], line["seed"]) == (side, model, seed)
            for line in records("run", self.fractions)
        ):
            return
        if side == "ours" and OURS[model][0] not in REGISTERED:
            print(f"{model}: ours is not registered yet", file=sys.stderr)
            return
        left = None if self.minutes is None else self.minutes - _used_by_children() / 60
        if side == "recbole" and left is not None and left <= 0:
            return
        found = ours(split, model, seed) if side == "ours" else recbole(split, data, model, seed, left)
        if found is not None:
            store(
                {"what": "run", "side": side, "model": model, "seed": seed, "fractions": self.fractions}
                | found
            )


def _used_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Time training epochs of both sides, after a few batches or an epoch to warm up."""

    models: tuple[str, ...] = MODELS
    sides: tuple[Side, ...] = ("recbole", "ours")
    fractions: str = "80-10-10"

    def run(self) -> None:
        torch.set_num_threads(1)
        split, data = exported(self.fractions)
        for model, side in product(self.models, self.sides):
            if any(
                (line["side"], line["model"]) == (side, model)
                for line in records("throughput", self.fractions)
            ):
                continue
            facts = throughput_of_ours(split, model) if side == "ours" else self._of_recbole(data, model)
            store({"what": "throughput", "side": side, "model": model, "fractions": self.fractions} | facts)

    def _of_recbole(self, data: Path, model: str) -> dict[str, Any]:
        out = data / "throughput" / model
        if not (out / "throughput.json").is_file():
            reference(model, data, out, "--throughput", "--batch", str(TIMED_BATCH))
        facts = json.loads((out / "throughput.json").read_text(encoding="utf-8"))
        return {name: facts[name] for name in ("rows", "parameters", "rows_per_cpu_s")}


if __name__ == "__main__":
    tyro.cli(
        Annotated[Run, tyro.conf.subcommand(name="run")]
        | Annotated[Throughput, tyro.conf.subcommand(name="throughput")],
        description=__doc__,
    ).run()
