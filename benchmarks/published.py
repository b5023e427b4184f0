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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple, get_args

import torch
import tyro
from cells import ROOT, CellFile, Line, Setup, metrics
from pages import replace_between
from sets import DATA

import unskew
from unskew.data.log.held_out import Targets
from unskew.report.table import Table

FILE = CellFile(ROOT / "results" / "published.jsonl", ("protocol", "set", "model", "seed"))
FIGURES = ROOT / "benchmarks" / "published_figures.csv"
PAGE = ROOT / "docs" / "published.md"
Protocol = Literal["leave-one-out", "time-to-split"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
SPLIT_FLAGS: dict[Protocol, str] = {
    "leave-one-out": "--split leave-one-out",
    "time-to-split": "--at 0.81,0.9 --repeats hide",
}
REFIT = (
    "unskew train beauty --refit run --until test --out late && unskew evaluate late --frozen --targets all"
)
TARGETS: tuple[Targets, ...] = get_args(Targets)
OURS = "ours"
REFITTED = ", refitted"
UNTIMED = ", times of requests hidden"
SETS = {"Beauty": "amazon_beauty_5core", "Sports": "amazon_sports_5core"}
# Trained to the end: the validation metric has not risen for `patience` epochs.
LONG: dict[str, Any] = {"epochs": 300, "patience": 10}
MODELS: dict[str, Setup] = {
    "popularity": Setup(model="popularity"),
    "UserKNN": Setup(model="userknn"),
    "ItemKNN": Setup(model="itemknn"),
    "EASE": Setup(model="ease"),
    "pulse-zero": Setup(model="pulse-zero"),
    "pulse": Setup(model="pulse", settings={"patience": 5, "epochs": 40}),
    "SASRec": Setup(model="sasrec", settings={"dropout": 0.5, "learning_rate": 2e-3, **LONG}, in_folder=True),
    "SASRec, sampled softmax": Setup(
        model="sasrec", preset="sampled", settings={**LONG, "valid_examples": 30_000}, in_folder=True
    ),
    "GRU4Rec": Setup(model="gru4rec", settings=LONG, in_folder=True),
    "eSASRec": Setup(model="esasrec", settings={**LONG, "valid_examples": 30_000}, in_folder=True),
    # What is known of a request is who asks, as in most of the papers, and not when.
    f"UserKNN{UNTIMED}": Setup(model="userknn"),
    f"pulse-zero{UNTIMED}": Setup(model="pulse-zero"),
    f"pulse{UNTIMED}": Setup(model="pulse", settings={"patience": 5, "epochs": 40}),
    "gSASRec": Setup(model="gsasrec", settings=LONG, in_folder=True),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and evaluate what is not stored yet."""

    protocols: tuple[Protocol, ...] = PROTOCOLS
    """The protocols."""
    sets: tuple[str, ...] = tuple(SETS)
    """The data sets."""
    models: tuple[str, ...] = tuple(MODELS)
    """The models."""
    seeds: tuple[int, ...] = (0,)
    """The seeds of training."""
    since: str | None = None
    """A commit; cells that were computed before it are computed again."""
    data: Path = DATA
    """The folder of the raw data."""
    work: Path = ROOT / "build" / "published"
    """Where prepared logs and runs are stored."""

    def __call__(self) -> None:
        """Go through the cells, the cheap models first."""
        torch.set_num_threads(1)
        for key in product(self.seeds, self.models, self.sets, self.protocols):
            seed, model, name, protocol = key
            if model.endswith(UNTIMED) and protocol != "leave-one-out":
                continue
            if not FILE.has((protocol, name, model, seed), MODELS[model], self.since):
                FILE.append((protocol, name, model, seed), self.measured(protocol, name, model, seed))

    def measured(self, protocol: Protocol, name: str, model: str, seed: int) -> Line:
        """The line of a cell."""
        split = self.split(protocol, name, model)
        trained, line = MODELS[model].train(seed, split, self.work, protocol, name, model)
        if protocol == "time-to-split":
            line |= frozen_lists(trained, split)
            if trained.records and trained.best_epoch():
                again = trained.refit(split.log, until="test", show_progress=False)
                line["refitted"] = frozen_lists(again, again.split)
        return line | {"live": metrics(trained.evaluate(split, show_progress=False))}

    def split(self, protocol: Protocol, name: str, model: str) -> unskew.Split:
        """The split of a protocol; a data set is prepared once."""
        ordered = protocol == "leave-one-out"
        folder = self.work / f"{SETS[name]}-{'file-order' if ordered else 'strict'}"
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            source = self.data / SETS[name] / "interactions.csv.gz"
            unskew.prepare(source, folder, ties="file-order" if ordered else "strict")
        log = unskew.Log.open(folder)
        if ordered:
            split = unskew.split(log, kind="leave-one-out")
            return without_request_times(split) if model.endswith(UNTIMED) else split
        # pulse-zero needs no validation set; the others have one of the same length of the time line.
        if model == "pulse-zero":
            return unskew.split(log, fractions=(100, 0, 0), at="0.9", repeats="hide")
        return unskew.split(log, at="0.81,0.9", repeats="hide")


def without_request_times(split: unskew.Split) -> unskew.Split:
    """A leave-one-out split whose requests, those that are learned from included, are all at the end of the
    log. The times of the past events stay as they are."""
    time = split.log.time.copy()
    time[~split.mask("train")] = split.log.now
    time[split.list_targets()[1]] = split.log.now
    return replace(split, log=replace(split.log, time=time))


def frozen_lists(model: unskew.Model, split: unskew.Split) -> Line:
    """The metrics of lists that are made when the test set begins."""
    line: Line = {}
    for targets in TARGETS:
        evaluation = model.evaluate(split, frozen=True, targets=targets, show_progress=False)
        line[f"frozen {targets}"] = metrics(evaluation)
        warm = evaluation.segments["history length"].of > 0
        line[f"frozen {targets}, warm users"] = metrics(evaluation, warm)
    return line


class Row(NamedTuple):
    """A model of a table.

    ndcg, text: by data set, NDCG@10 and what the table shows.
    finished: whether all runs of ours were trained to the end.
    """

    model: str
    source: str
    ndcg: dict[str, float]
    text: dict[str, str]
    finished: bool = True


def our_rows(protocol: Protocol, column: str, refitted: bool = False) -> Iterator[Row]:
    """Our models, as means over the seeds.

    refitted: those that were trained once more, on training and validation set.
    """
    lines = FILE.lines()
    for model in MODELS:
        row = Row(model + REFITTED if refitted else model, OURS, {}, {})
        for name in SETS:
            seeds = [line for key, line in lines.items() if key[:3] == (protocol, name, model)]
            if refitted:
                seeds = [line | line["refitted"] for line in seeds if "refitted" in line]
            if seeds:
                values, hits = ([line[column][metric] for line in seeds] for metric in ("ndcg", "hr"))
                spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
                row.ndcg[name] = fmean(values)
                row.text[name] = f"{fmean(values):.4f}{spread} / {fmean(hits):.4f}"
                if not all(line["finished"] for line in seeds):
                    row.text[name] += " (not finished)"
                    row = row._replace(finished=False)
        if row.ndcg:
            yield row


def published_rows(protocol: Protocol) -> list[Row]:
    """The published figures."""
    rows: dict[tuple[str, str], Row] = {}
    for figure in csv.DictReader(FIGURES.read_text(encoding="utf-8").splitlines()):
        if figure["protocol"] == protocol:
            key = figure["model"], figure["source"]
            row = rows.setdefault(key, Row(*key, {}, {}))
            row.ndcg[figure["set"]] = float(figure["ndcg10"])
            row.text[figure["set"]] = f"{figure['ndcg10']} / {figure['hr10'] or '–'}"
    return list(rows.values())


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the tables into docs/published.md."""

    def __call__(self) -> None:
        """Replace what stands between the marks."""
        for protocol in PROTOCOLS:
            column = "live" if protocol == "leave-one-out" else "frozen all, warm users"
            rows = [*our_rows(protocol, column), *our_rows(protocol, column, refitted=True)]
            rows += published_rows(protocol)
            rows.sort(key=lambda row: -max(row.ndcg.values()))
            lines = [[row.model, row.source, *(row.text.get(name, "") for name in SETS)] for row in rows]
            head = ["model", "figures of", *(f"{name}: NDCG@10 / HR@10" for name in SETS)]
            parts = [Table(head, lines, text=(0, 1)).markdown()]
            parts += [" ".join(standing(rows, name) for name in SETS) + missing(rows)]
            whole = [row.model for row in rows if row.source == OURS and not row.model.endswith(UNTIMED)]
            ours = [MODELS[model] for model in whole if model in MODELS]
            commands = [f"unskew train beauty {SPLIT_FLAGS[protocol]} {of.flags} --out run" for of in ours]
            parts += [
                "Our rows, one by one (for Sports with the other folder):",
                "\n".join(f"    {command}" for command in commands),
            ]
            if any(row.model.endswith(REFITTED) for row in rows):
                parts += [f"Rows of refitted models: then\n\n    {REFIT}"]
            mark = f"<!-- {protocol}: made by benchmarks/published.py page -->"
            replace_between(PAGE, mark, "<!-- end -->", "\n\n".join(parts) + "\n")


def standing(rows: Sequence[Row], name: str) -> str:
    """How our best finished model stands beside the best published one on a data set."""
    here = [row for row in rows if name in row.ndcg and row.finished]
    ours, theirs = (
        max((row for row in here if (row.source == OURS) == mine), key=lambda row: row.ndcg[name])
        for mine in (True, False)
    )
    ratio = ours.ndcg[name] / theirs.ndcg[name]
    place = "ours is first" if ratio > 1 else "**ours is not first**"
    return (
        f"{name}: our best is {ours.model} with {ours.ndcg[name]:.4f}, the best published one "
        f"{theirs.model} with {theirs.ndcg[name]:.4f}: {place} ({ratio:.2f} times)."
    )


def missing(rows: Sequence[Row]) -> str:
    """Our models that are not computed yet, in a sentence."""
    there = {row.model: row.ndcg for row in rows if row.source == OURS}
    asked = [model for model in MODELS if not model.endswith(UNTIMED) or model in there]
    absent = [f"{model} ({name})" for model in asked for name in SETS if name not in there.get(model, {})]
    return f" Not computed yet: {', '.join(absent)}." if absent else ""


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "page": Page})()
