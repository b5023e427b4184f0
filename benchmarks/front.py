"""The table of the README: thirteen models on four logs with real times, frozen and live.

    python benchmarks/front.py run [--models ...] [--sets ...] [--seeds ...]   results/front.jsonl
    python benchmarks/front.py refresh                                         results/front_refreshed.jsonl
    python benchmarks/front.py page                                            README.md, docs/four-logs.md

Each log is split 50/20/30 by time. frozen: all lists are made at the beginning of the test set, and nothing
later is read by any model. live: a list for each test positive, from everything strictly before it. Models
are trained once, on the training set; `refresh` trains those again that are cheap to train, before each tenth
of the test set, on everything before it.

One thread. Cells that are stored are not computed again, and a network that was stopped goes on where it was.
Every model is trained until no validation metric has risen for `patience` epochs.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import torch
import tyro
from cells import ROOT, CellFile, Key, Line, Setup, metrics
from pages import replace_between
from sets import DATA, SETS

import unskew
from unskew.data.log.held_out import Protocol
from unskew.report.table import Table

FILE = CellFile(ROOT / "results" / "front.jsonl", ("set", "model", "seed"))
REFRESHED = CellFile(ROOT / "results" / "front_refreshed.jsonl", ("set", "model", "seed"))
WINDOWS, TEST = 10, 0.7  # of the test set, and the quantile at which it begins
CHEAP = ("ItemKNN", "EASE")  # popularity, UserKNN and others read the newest events anyway
README, PAGE = ROOT / "README.md", ROOT / "docs" / "four-logs.md"
BEGIN, END = "<!-- made by benchmarks/front.py page -->", "<!-- end -->"
LOGS = ("MovieTweetings", "Online Retail", "Beauty", "Sports")
SEEDS = (0, 1, 2)
UNFINISHED, NONE, AGAIN = "‡", "–", "†"
LONG = {"epochs": 300, "patience": 5}  # trained to the end
# The settings of the networks were chosen by validation sets (docs/four-logs.md says of which logs).
MODELS: dict[str, Setup] = {
    "popularity": Setup(model="popularity"),
    "personal": Setup(model="personal"),
    "ItemKNN": Setup(model="itemknn"),
    "UserKNN": Setup(model="userknn"),
    "EASE": Setup(model="ease"),
    "neighbours by hand": Setup(model="neighbours-by-hand"),
    "pulse-zero": Setup(model="pulse-zero"),
    "SASRec": Setup(model="sasrec", settings={"dropout": 0.5, "learning_rate": 2e-3, **LONG}, in_folder=True),
    "pulse": Setup(model="pulse", settings=LONG, in_folder=True),
    "SASRec, sampled softmax": Setup(model="sasrec", preset="sampled", settings=LONG, in_folder=True),
    "GRU4Rec": Setup(model="gru4rec", settings=LONG, in_folder=True),
    "LightSANs": Setup(model="lightsans", settings={"dropout": 0.5, **LONG}, in_folder=True),
    "DEPS": Setup(
        model="deps",
        settings={"audience": 50, "hidden_ids": 0.1, "learning_rate": 1e-3, "batch_size": 256, **LONG},
        in_folder=True,
    ),
}


class Column(NamedTuple):
    """Evaluations of a model on a log, of which one metric is shown."""

    name: str
    stored: str


FROZEN, LIVE = Column("frozen", "frozen next"), Column("live", "live")
COLUMNS = (
    FROZEN,
    Column("frozen, all later items", "frozen all"),
    LIVE,
    Column("live, balanced", "live balanced"),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and evaluate what is not stored yet: for one seed after the other all models, on all logs."""

    models: tuple[str, ...] = tuple(MODELS)
    """The models, in the order in which they are run."""
    sets: tuple[str, ...] = LOGS
    """The logs."""
    seeds: tuple[int, ...] = SEEDS
    """The seeds of training."""
    since: str | None = None
    """A commit; cells that were computed before it are computed again."""
    data: Path = DATA
    """The folder of the raw data."""
    work: Path = ROOT / "build" / "front"
    """Where prepared logs and runs are stored."""

    def __call__(self) -> None:
        """Go through the cells."""
        torch.set_num_threads(1)
        for seed in self.seeds:
            for model in self.models:
                for name in self.sets:
                    key = (name, model, seed)
                    if not FILE.has(key, MODELS[model], self.since):
                        FILE.append(key, self.measured(*key))

    def measured(self, name: str, model: str, seed: int) -> Line:
        """The line of a cell."""
        split = unskew.split(self.log(name))
        trained, line = MODELS[model].train(seed, split, self.work, name, model)
        began = time.process_time()
        both: dict[str, tuple[Protocol, ...]] = {"ordinary": ("full",), "balanced": ("full",)}
        for mode, tests in (
            ("frozen next", trained.evaluate_each(split, both, frozen=True, show_progress=False)),
            ("live", trained.evaluate_each(split, both, show_progress=False)),
        ):
            line[mode] = metrics(tests["ordinary"][0])
            line[f"{mode} balanced"] = metrics(tests["balanced"][0])
        every = trained.evaluate(split, frozen=True, targets="all", show_progress=False)
        line["frozen all"] = metrics(every)
        return line | {"cpu_evaluation": round(time.process_time() - began, 1)}

    def log(self, name: str) -> unskew.Log:
        """A log, prepared once."""
        folder = self.work / name.replace(" ", "_")
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            path, settings = SETS[name]
            unskew.prepare(self.data / path, folder, **settings)
        return unskew.Log.open(folder)


@dataclass(frozen=True, kw_only=True)
class Refresh(Run):
    """Train models again before each tenth of the test set, with what the validation set chose."""

    models: tuple[str, ...] = CHEAP
    """The models, in the order in which they are run."""
    seeds: tuple[int, ...] = (0,)
    """The seeds of training."""

    def __call__(self) -> None:
        """Go through the cells."""
        torch.set_num_threads(1)
        for key in product(self.sets, self.models, self.seeds):
            name, model, seed = key
            if not REFRESHED.has(key, MODELS[model], self.since):
                REFRESHED.append(key, self.refreshed(name, model, seed))

    def refreshed(self, name: str, model: str, seed: int) -> Line:
        """NDCG@10 over all windows. A window is a tenth of the rows of the test set."""
        split = unskew.split(self.log(name))
        trained, line = MODELS[model].train(seed, split, self.work, name, model)
        began = time.process_time()
        quantiles = [TEST + (1 - TEST) * window / WINDOWS for window in range(WINDOWS)]
        models = [trained] + [
            trained.refit(split.log, until=f"{quantile:.4f}", show_progress=False)
            for quantile in quantiles[1:]
        ]
        splits = [split, *(each.split for each in models[1:])]
        ends = [each.valid_end for each in splits[1:]] + [None]
        total = units = 0.0
        for each, here, end in zip(models, splits, ends, strict=True):
            evaluation = each.evaluate(here, until=end, show_progress=False)
            total += evaluation.mean("ndcg@10") * len(evaluation.user)
            units += len(evaluation.user)
        cost = round(time.process_time() - began, 1)
        return line | {"windows": WINDOWS, "units": int(units), "live": round(total / units, 6), "cpu": cost}


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the tables into README.md and docs/four-logs.md."""

    def __call__(self) -> None:
        """Replace what stands between the marks."""
        results = Results(FILE.lines(), REFRESHED.lines())
        front = results.table([(log, column) for log in LOGS for column in (FROZEN, LIVE)], pairs=True)
        replace_between(README, BEGIN, END, f"{front.markdown()}\n\n{results.status()}\n")
        parts = [results.status()]
        for column in COLUMNS:
            table = results.table([(log, column) for log in LOGS])
            parts.append(f"### NDCG@10, {column.name}\n\n{table.markdown()}")
        parts.append(f"### Live, trained again\n\n{results.trained_again().markdown()}")
        parts.append(f"### Training\n\n{results.training().markdown()}")
        replace_between(PAGE, BEGIN, END, "\n\n".join(parts) + "\n")


@dataclass(frozen=True)
class Results:
    """The stored lines, by log, model and seed."""

    lines: Mapping[Key, Line]
    refreshed: Mapping[Key, Line]  # of models that were trained again during the test

    def seeds(self, log: str, model: str) -> list[Line]:
        """The lines of a model on a log."""
        return [line for (of, name, _), line in sorted(self.lines.items()) if (of, name) == (log, model)]

    @property
    def models(self) -> list[str]:
        """The models that have a cell."""
        return [model for model in MODELS if any(self.seeds(log, model) for log in LOGS)]

    def is_finished(self, log: str, model: str) -> bool:
        """Whether all seeds were trained until no validation metric rose any more."""
        return all(line["finished"] for line in self.seeds(log, model))

    def values(self, log: str, model: str, column: Column) -> list[float]:
        """NDCG@10 of each seed."""
        return [line[column.stored]["ndcg"] for line in self.seeds(log, model)]

    def best(self, log: str, column: Column) -> str | None:
        """The best model, among those that are finished; None until all models are there."""
        if any(not self.seeds(log, model) for model in MODELS):
            return None
        means = {
            model: fmean(values)
            for model in MODELS
            if (values := self.values(log, model, column)) and self.is_finished(log, model)
        }
        return max(means, key=lambda model: means[model]) if means else None

    def table(self, columns: Sequence[tuple[str, Column]], pairs: bool = False) -> Table:
        """A row for each model that has a cell. `pairs`: two columns stand in one, without the spread."""
        rows = [
            [model, *(self.cell(log, model, column, spread=not pairs) for log, column in columns)]
            for model in self.models
        ]
        if not pairs:
            return Table(["", *(log for log, _ in columns)], rows)
        paired = [
            [
                row[0],
                *(
                    NONE if one == NONE else f"{one} / {other}"
                    for one, other in zip(row[1::2], row[2::2], strict=True)
                ),
            ]
            for row in rows
        ]
        head = "NDCG@10, " + " / ".join(column.name for _, column in columns[:2])
        return Table([head, *dict.fromkeys(log for log, _ in columns)], paired)

    def cell(self, log: str, model: str, column: Column, spread: bool) -> str:
        """The mean over the seeds, in Markdown; the best one is bold. Without the spread, a live metric is
        that of the model that was trained again, if it was."""
        values = self.values(log, model, column)
        if not values:
            return NONE
        if column == LIVE and not spread and (log, model, 0) in self.refreshed:
            return f"{self.refreshed[log, model, 0]['live']:.4f} {AGAIN}"
        text = f"{fmean(values):.4f}"
        if model == self.best(log, column):
            text = f"**{text}**"
        if spread and len(values) > 1:
            text += f" ± {stdev(values):.4f}"
        return text if self.is_finished(log, model) else f"{text} {UNFINISHED}"

    def status(self) -> str:
        """What is not finished, and what is not run yet."""
        whole = len(MODELS) * len(LOGS)
        counts = {(log, model): len(self.seeds(log, model)) for model in MODELS for log in LOGS}
        unfinished = [cell for cell, seeds in counts.items() if seeds and not self.is_finished(*cell)]
        missing = [cell for cell, seeds in counts.items() if not seeds]
        short = [cell for cell, seeds in counts.items() if 0 < seeds < len(SEEDS)]
        digests = {model: setup.digest for model, setup in MODELS.items()}
        older = [
            (log, model)
            for log, model in counts
            if any(line.get("digest") != digests[model] for line in self.seeds(log, model))
        ]
        parts = [f"{whole - len(missing)} of {whole} cells are computed"]
        parts.append(f"not run yet: {listed(missing)}" if missing else "")
        again = f"{AGAIN} trained again before each tenth of the test set, with all before it"
        parts.append(again if self.refreshed else "")
        parts.append(f"{len(short)} have fewer than {len(SEEDS)} seeds" if short else "")
        parts.append(f"with settings of an older version: {listed(older)}" if older else "")
        parts.append(f"not finished ({UNFINISHED}, never bold): {listed(unfinished)}" if unfinished else "")
        return "; ".join(part for part in parts if part) + "."

    def trained_again(self) -> Table:
        """NDCG@10 of models that were trained once, and before each tenth of the test set."""

        def text(log: str, model: str) -> str:
            once, again = self.seeds(log, model), self.refreshed.get((log, model, 0))
            if again is None or not once:
                return NONE
            return f"{once[0][LIVE.stored]['ndcg']:.4f} / {again['live']:.4f}"

        models = [model for model in MODELS if any((log, model, 0) in self.refreshed for log in LOGS)]
        rows = [[model, *(text(log, model) for log in LOGS)] for model in models]
        return Table(["NDCG@10, live: trained once / ten times", *LOGS], rows)

    def training(self) -> Table:
        """What training cost: the mean over the seeds."""

        def text(log: str, model: str) -> str:
            lines = self.seeds(log, model)
            if not lines:
                return NONE
            seconds = fmean(line["cpu_training"] for line in lines)
            best = ", ".join(f"{line['best_epoch']} of {line['epochs']}" for line in lines if line["epochs"])
            return f"{seconds:,.0f} s" + (f" ({best})" if best else "")

        rows = [[model, *(text(log, model) for log in LOGS)] for model in self.models]
        return Table(["CPU-seconds (best epoch of each seed)", *LOGS], rows)


def listed(cells: Iterable[tuple[str, str]]) -> str:
    """Logs and models as text, by model."""

    def texts() -> Iterator[str]:
        by_model: dict[str, list[str]] = {}
        for log, model in cells:
            by_model.setdefault(model, []).append(log)
        for model, logs in by_model.items():
            yield model if len(logs) == len(LOGS) else f"{model} ({', '.join(logs)})"

    return ", ".join(texts())


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "refresh": Refresh, "page": Page})()
