"""The recipe of DEPS, and what its weights do: trials on the validation set, each trained to the end.

    python benchmarks/deps.py search [--sets ...] [--random N]   trials of settings     results/deps.jsonl
    python benchmarks/deps.py scale [--sets ...]                 softmax and min-max propensities, and none
    python benchmarks/deps.py cost                               CPU time of training  results/deps_cost.jsonl
    python benchmarks/deps.py page                               the tables of docs/deps.md

A trial trains until neither validation metric, ordinary or balanced, has risen for five epochs and for 300
steps: with large batches, an epoch has few steps. The whole catalogue is ranked after each epoch; at the end,
the validation set is also ranked by the paper's protocols (`uni100` and `authors`, in the paper's split
50/20/30). The test set is not read. One thread. A line is written when a trial has stopped; a trial that is
stored and finished is not run again; one that was interrupted, or had less patience, goes on where it was.
"""

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from pages import replace_between
from sets import DATA, SETS

import unskew
from unskew.core.progress import shown
from unskew.data.log.held_out import Protocol, held_out
from unskew.evaluation.evaluate import evaluation, rank
from unskew.models.base import build, model_named
from unskew.report.table import Table
from unskew.training.epoch_record import EpochRecord
from unskew.training.trainer import Trainer

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "deps.jsonl", ROOT / "docs" / "deps.md"
COSTS = ROOT / "results" / "deps_cost.jsonl"
METRIC, TESTS = "ndcg@10", ("ordinary", "balanced")
EXAMPLES = 2000  # positives of the validation set that are ranked
EPOCHS, PATIENT_EPOCHS, PATIENT_STEPS = 300, 5, 300
# The variant that reads each sequence once (docs/deps.md says what it costs), with its own batches.
BASE: dict[str, Any] = {
    "propensity": "none",
    "audience": 200,
    "hidden_ids": 0.8,
    "learning_rate": 2e-3,
    "batch_size": 4096,
    "dropout": 0.2,
    "width": 64,
    "loss": "softmax",
    "negatives": 32,
    "unsupervised_epochs": 2,
}
# The paper's loss, with and without weights.
POINTWISE: dict[str, Any] = {"loss": "pointwise", "negatives": 1, "unsupervised_epochs": 5}
WEIGHTS: dict[str, dict[str, Any]] = {
    "none": POINTWISE,
    "min-max": POINTWISE | {"propensity": "dual", "propensity_scale": "min-max"},
    "softmax": POINTWISE | {"propensity": "dual", "propensity_scale": "softmax"},
}
# The trials of the search: those that are expected to matter most come first.
CHANGES: tuple[dict[str, Any], ...] = (
    {"hidden_ids": 0.3},
    POINTWISE,
    {},
    {"audience": 500},
    {"audience": 30},
    {"hidden_ids": 0.0},
    POINTWISE | {"hidden_ids": 0.0, "audience": 30, "dropout": 0.5},
    {"learning_rate": 5e-4},
    {"dropout": 0.5},
    {"negatives": 8},
    {"width": 128},
    POINTWISE | {"negatives": 8},
)
DRAWN: dict[str, tuple[Any, ...]] = {
    "audience": (30, 50, 100, 200, 500),
    "hidden_ids": (0.0, 0.1, 0.3, 0.5, 0.8),
    "learning_rate": (3e-4, 1e-3, 2e-3, 5e-3),
    "batch_size": (1024, 2048, 4096),
    "dropout": (0.1, 0.2, 0.35, 0.5),
    "width": (32, 64, 128),
    "loss": ("pointwise", "softmax"),
    "negatives": (1, 4, 16, 64),
}
PAPER_PROTOCOLS: dict[str, tuple[Protocol, ...]] = {
    "ordinary": ("uni100", "authors"),
    "balanced": ("uni100",),
}
STATISTICS = ("item_view", "item_view_clipped", "user_view", "user_view_clipped", "weight_effective")


@dataclass(frozen=True)
class Trial:
    """Settings of a model on a data set."""

    set: str
    settings: str  # as JSON, sorted by name
    model: str = "deps-causal"
    seed: int = 0

    @property
    def key(self) -> str:
        """What is short enough for the name of a folder."""
        text = json.dumps([self.set, self.settings, self.model, self.seed])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def trial(name: str, change: dict[str, Any]) -> Trial:
    """A trial on a data set whose settings differ from BASE by this."""
    return Trial(name, json.dumps(BASE | change, sort_keys=True))


def random_changes(number: int) -> Iterator[dict[str, Any]]:
    """Settings that are drawn one by one, always the same ones in the same order."""
    random = np.random.default_rng(0)
    for _ in range(number):
        yield {name: values[int(random.integers(len(values)))] for name, values in DRAWN.items()}


@dataclass(frozen=True, kw_only=True)
class Trials(ABC):
    """Run the trials that are not stored yet."""

    sets: tuple[str, ...] = ("MovieTweetings",)
    data: Path = DATA
    work: Path = ROOT / "build" / "deps"

    @abstractmethod
    def trials(self, name: str) -> Iterator[Trial]:
        """The trials of a data set, in their order."""

    def __call__(self) -> None:
        """Go through the data sets one by one."""
        torch.set_num_threads(1)
        for name in self.sets:
            for wanted in self.trials(name):
                if not stored().get(wanted, {}).get("finished"):
                    line = {**vars(wanted), "settings": json.loads(wanted.settings), **self.whole(wanted)}
                    print(json.dumps({key: line[key] for key in line if key != "curve"}), flush=True)
                    with RESULTS.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")

    def whole(self, wanted: Trial) -> dict[str, Any]:
        """Train a trial to the end, and rank its validation set."""
        split = self.split(wanted.set)
        folder, clock = self.work / wanted.key, self.work / f"{wanted.key}.cpu"
        spent = float(clock.read_text()) if clock.exists() else 0.0
        began = time.process_time()

        def note(record: EpochRecord) -> None:
            clock.write_text(str(spent + time.process_time() - began))
            best = {test: metrics[METRIC] for test, metrics in record.valid.items()}
            print(wanted.key, record.stage, record.epoch, best, flush=True)

        if (folder / "config.json").exists():
            limits = limits_of(split, json.loads(wanted.settings))
            model = unskew.resume(folder, split, **limits, show_progress=False, on_record=note)
        else:
            asked = json.loads(wanted.settings)
            settings = limits_of(split, asked) | asked | {"seed": wanted.seed, "valid_examples": EXAMPLES}
            model = unskew.create_model(wanted.model, settings)
            model.fit(split, folder, show_progress=False, on_record=note)
        learned = [record for record in model.records if record.valid]
        return {
            "cpu": round(spent + time.process_time() - began, 1),
            "finished": is_whole(learned),
            "epochs": len(learned),
            "steps": learned[-1].step,
            "best_epoch": {test: best_of(learned, test).epoch for test in TESTS},
            "valid": {test: best_of(learned, test).valid[test][METRIC] for test in TESTS},
            "paper": ranked_as_in_the_paper(model, split),
            "curve": [point(record) for record in model.records],
        }

    def split(self, name: str) -> unskew.Split:
        """The split of a data set, which is prepared once."""
        path, settings = SETS[name]
        folder = self.work / name.replace(" ", "-")
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            unskew.prepare(self.data / path, folder, **settings)
        return unskew.split(unskew.Log.open(folder))


def limits_of(split: unskew.Split, settings: dict[str, Any]) -> dict[str, int]:
    """The largest number of epochs, and the patience in epochs."""
    steps = max(int(split.targets("train", reads_audiences=True).sum()) // settings["batch_size"], 1)
    return {"epochs": EPOCHS, "patience": max(PATIENT_EPOCHS, math.ceil(PATIENT_STEPS / steps))}


def is_whole(learned: list[EpochRecord]) -> bool:
    """Whether neither metric has risen for long enough."""
    best = max((best_of(learned, test) for test in TESTS), key=lambda record: record.epoch)
    last = learned[-1]
    return last.epoch - best.epoch >= PATIENT_EPOCHS and last.step - best.step >= PATIENT_STEPS


def point(record: EpochRecord) -> dict[str, Any]:
    """What is stored of an epoch."""
    metrics = {test: values[METRIC] for test, values in record.valid.items()}
    statistics = {name: record.statistics[name] for name in STATISTICS if name in record.statistics}
    return {"stage": record.stage, "epoch": record.epoch, "step": record.step} | metrics | statistics


def best_of(records: list[EpochRecord], test: str) -> EpochRecord:
    """The epoch with the best metric."""
    return max(records, key=lambda record: record.valid[test][METRIC])


def ranked_as_in_the_paper(model: unskew.Model, split: unskew.Split) -> dict[str, float]:
    """The validation set by the protocols of the paper, with the weights that each test chose."""
    values = {}
    with torch.no_grad(), shown(False):
        for test, protocols in PAPER_PROTOCOLS.items():
            tested = held_out(split, "valid", test, EXAMPLES)
            with model.weights_chosen_for(test, None) as (network, _):
                ranked = rank(network, split, tested.rows, part="valid")
            for protocol in protocols:
                metrics = evaluation(split, ranked, protocol, tested, segmented=False).metrics()
                values[f"{protocol} {test}"] = round(metrics[METRIC], 6)
    return values


@dataclass(frozen=True, kw_only=True)
class Search(Trials):
    """Look for the settings that the validation set finds best."""

    limit: int = len(CHANGES)
    """How many of the listed trials are run."""
    random: int = 0
    """How many drawn trials follow them."""

    def trials(self, name: str) -> Iterator[Trial]:
        for change in (*CHANGES[: self.limit], *random_changes(self.random)):
            yield trial(name, change)


@dataclass(frozen=True, kw_only=True)
class Scale(Trials):
    """Train with softmax propensities, with min-max propensities and without weights."""

    def trials(self, name: str) -> Iterator[Trial]:
        for change in WEIGHTS.values():
            yield trial(name, change)


def stored() -> dict[Trial, dict[str, Any]]:
    """The lines of the results by their trials."""
    if not RESULTS.exists():
        return {}
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    return {
        Trial(line["set"], json.dumps(line["settings"], sort_keys=True), line["model"], line["seed"]): line
        for line in lines
    }


# What is timed: a model with some settings, after so many epochs of stage 1.
SMALL: dict[str, Any] = {"audience": 30, "batch_size": 512, "negatives": 1, "loss": "pointwise"}
MANY: dict[str, Any] = {"audience": 30, "batch_size": 512, "negatives": 32, "loss": "softmax"}
TIMED: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("deps", SMALL | {"propensity": "none"}, 0),
    ("deps", SMALL | {"propensity": "dual"}, 0),
    ("deps", SMALL | {"propensity": "dual"}, 3),
    ("deps", SMALL | {"propensity": "dual", "propensity_scale": "min-max"}, 0),
    ("deps", MANY | {"propensity": "none"}, 0),
    ("deps-causal", SMALL | {"propensity": "none"}, 0),
    ("deps-causal", SMALL | {"propensity": "none", "batch_size": 4096}, 0),
    ("deps-causal", MANY | {"propensity": "none", "batch_size": 4096}, 0),
)


@dataclass(frozen=True, kw_only=True)
class Cost(Trials):
    """Measure the CPU time of training steps of stage 2."""

    steps: int = 6
    """How many steps are timed; the first one is not."""

    def __call__(self) -> None:
        """Time one case after the other."""
        torch.set_num_threads(1)
        split = self.split(self.sets[0])
        for model, settings, epochs in TIMED:
            case = {"set": self.sets[0], "model": model, "settings": settings, "stage_1": epochs}
            line = case | self.timed(split, model, settings, epochs)
            print(json.dumps(line), flush=True)
            with COSTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def timed(
        self, split: unskew.Split, model: str, settings: dict[str, Any], epochs: int
    ) -> dict[str, float]:
        """CPU milliseconds of a step and of its weights, and CPU seconds of an epoch."""
        made = unskew.create_model(model, settings | {"hidden_ids": 0.1, "learning_rate": 1e-3})
        torch.manual_seed(0)
        network = build(model_named(model), split, made.config)
        trainer = Trainer(network, split, made.training)
        first, second = trainer.stages
        for _ in range(epochs):
            for phase in first.phases:
                trainer._epoch(first, phase)
        phase = second.phases[-1]
        batches = trainer.samplers[phase.name].epoch()
        optimizer = trainer.optimizers[phase.name]
        network.train()
        spent = weights = 0.0
        for step in range(self.steps + 1):
            began = time.process_time()
            batch = next(batches)
            optimizer.zero_grad(set_to_none=True)
            phase.loss(batch).backward()
            optimizer.step()
            if step:
                spent += time.process_time() - began
                began = time.process_time()
                if network.correction is not None and settings["propensity"] != "none":
                    network.correction.of_pairs(batch, separate=True)
                weights += time.process_time() - began
        return {
            "step_ms": round(1000 * spent / self.steps, 1),
            "weights_ms": round(1000 * weights / self.steps, 1),
            "epoch_s": round(spent / self.steps * len(trainer.samplers[phase.name]), 1),
        }


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the tables into docs/deps.md."""

    def __call__(self) -> None:
        """Replace what stands between the marks."""
        lines = list(stored().values())
        costs = [json.loads(line) for line in COSTS.read_text(encoding="utf-8").splitlines()]
        tables = {"search": search_table(lines), "scale": scale_table(lines), "curve": curve_table(lines)}
        for name, table in (tables | {"cost": cost_table(costs)}).items():
            mark = f"<!-- {name}: made by benchmarks/deps.py page -->"
            replace_between(PAGE, mark, "<!-- end -->", table + "\n")


def search_table(lines: list[dict[str, Any]]) -> str:
    """All trials without weights: what differs between them, and their validation metrics."""
    shown_lines = [line for line in lines if line["settings"]["propensity"] == "none"]
    columns = [
        name
        for name in BASE
        if name != "propensity" and len({line["settings"][name] for line in shown_lines}) > 1
    ]
    rows = [
        [line["set"], *(str(line["settings"][name]) for name in columns), *results_of(line)]
        for line in sorted(shown_lines, key=lambda line: (line["set"], -line["valid"]["ordinary"]))
    ]
    return Table(["data", *columns, *RESULT_COLUMNS], rows, text=(0,)).markdown()


def scale_table(lines: list[dict[str, Any]]) -> str:
    """The same network with each kind of weights."""
    rows = [
        [line["set"], name, *results_of(line)]
        for line in lines
        for name, change in WEIGHTS.items()
        if line["settings"] == BASE | change
    ]
    return Table(["data", "weights", *RESULT_COLUMNS], rows, text=(0, 1)).markdown()


def curve_table(lines: list[dict[str, Any]]) -> str:
    """The propensities of the weighted trials against the length of training."""
    rows = []
    for line in lines:
        for name, change in WEIGHTS.items():
            if line["settings"] != BASE | change or name == "none":
                continue
            for at in line["curve"]:
                figures = [
                    f"{at['item_view']:.4f}",
                    f"{at['user_view']:.4f}",
                    f"{100 * at['item_view_clipped']:.1f} %",
                    f"{100 * at['user_view_clipped']:.1f} %",
                    f"{100 * at['weight_effective']:.1f} %",
                ]
                metrics = [f"{at[test]:.4f}" if test in at else "" for test in TESTS]
                epoch = f"{'stage 1' if at['stage'] == 'unsupervised' else 'stage 2'}, {at['epoch']}"
                rows.append([line["set"], name, epoch, str(at["step"]), *figures, *metrics])
    header = ["data", "scale", "epoch", "steps", "median P(i)", "median P(u)", "clipped P(i)", "clipped P(u)"]
    return Table([*header, "effective size", "ordinary", "balanced"], rows, text=(0, 1, 2)).markdown()


def cost_table(lines: list[dict[str, Any]]) -> str:
    """The CPU time of steps and of weights."""
    rows = [
        [
            line["model"],
            line["settings"]["loss"],
            *(str(line["settings"][name]) for name in ("negatives", "batch_size")),
            line["settings"].get("propensity_scale", "softmax" if line["weights_ms"] else "none"),
            str(line["stage_1"]),
            *(f"{line[name]:.0f}" for name in ("step_ms", "weights_ms")),
            f"{line['epoch_s']:.1f}",
        ]
        for line in lines
    ]
    header = ["model", "loss", "negatives", "batch", "weights", "epochs before", "step, ms", "weights, ms"]
    return Table([*header, "epoch, s"], rows, text=(0, 1, 4)).markdown()


RESULT_COLUMNS = ("ordinary", "balanced", "uni100", "uni100 balanced", "authors", "epochs", "CPU-s")


def results_of(line: dict[str, Any]) -> list[str]:
    """The validation metrics of a trial, and what it took."""
    best = line["best_epoch"]
    epochs = f"{best['ordinary']} / {best['balanced']} of {line['epochs']}"
    return [
        *(f"{line['valid'][test]:.4f}" for test in TESTS),
        *(
            f"{line['paper'][name]:.3f}"
            for name in ("uni100 ordinary", "uni100 balanced", "authors ordinary")
        ),
        epochs if line["finished"] else f"{epochs} (not finished)",
        f"{line['cpu']:.0f}",
    ]


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"search": Search, "scale": Scale, "cost": Cost, "page": Page})()
