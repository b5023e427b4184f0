"""The same job with RecTools: its TF-IDF, BM25, EASE and ALS beside our models, on the same rows.

    benchmarks/rectools/setup.sh
    python benchmarks/against_rectools.py run [--logs ...] [--worlds ...] [--models ...]
    python benchmarks/against_rectools.py page

The first verb fills results/rectools.jsonl, a line per log, world and model; what is stored is not computed
again. The second one writes the tables of docs/rectools.md. One thread.

Splits are by time (50, 20, 30). The task is the next purchase of each user, with one list per user, made when
the test set begins from what happened before (frozen). Past items are candidates. RecTools makes its lists in
an environment of its own (rectools/top_lists.py) from rows that are exported here; the lists come back and
are ranked by the same code as ours.

Each model of RecTools has TRIALS settings, drawn at random. Each is fitted on the training set and judged by
lists that are made when the validation set begins; the best one by each test is fitted again on training and
validation set. Our models have their default settings and learn from the training set alone; they read what
happened until the lists are made. Validation chooses their epoch and their debiasing strength.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import tyro
from cells import ROOT, CellFile, Line, Setup, metrics
from numpy.typing import NDArray
from pages import replace_between
from sets import DATA
from torch import Tensor

import unskew
from unskew.core.errors import BadInput
from unskew.core.statistics import estimate_over_worlds
from unskew.data.batches.batch import Batch
from unskew.data.log.held_out import Protocol, held_out
from unskew.data.log.log import Log, LogView
from unskew.data.log.split import Part, Split
from unskew.data.log.views import Ints
from unskew.evaluation.evaluate import Evaluation, evaluation, rank_each
from unskew.nn.scoring import Catalog
from unskew.report.table import Table
from unskew.world.shop import ShopWorld, simulate_shop

FILE = CellFile(ROOT / "results" / "rectools.jsonl", ("log", "world", "model"))
PAGE, BEGIN, END = (
    ROOT / "docs" / "rectools.md",
    "<!-- made by benchmarks/against_rectools.py -->",
    "<!-- end -->",
)
PYTHON = ROOT / "build" / "rectools-env" / "bin" / "python"
SHOP, RETAIL = "shop", "Online Retail"
TESTS = ("ordinary", "balanced")
SIZE = {"users": 600, "items": 300, "days": 90}
TRIALS = 12
FEWEST = 3  # worlds that have an interval
LIVE = 1000  # test positives that are ranked live

# Of a view, a cart and a purchase.
WEIGHTS = ([0.0, 0.0, 1.0], [1.0, 2.0, 3.0], [1.0, 3.0, 9.0], [0.0, 1.0, 2.0])
NEIGHBOURS = (10, 20, 50, 100, 200, 500)
SEARCHED: dict[str, dict[str, Sequence[float]]] = {
    "TF-IDF": {"K": NEIGHBOURS},
    "BM25": {"K": NEIGHBOURS, "K1": (0.5, 1.2, 5.0, 20.0, 100.0), "B": (0.0, 0.25, 0.5, 0.75, 1.0)},
    "EASE": {
        "regularization": (1.0, 5.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 3000.0, 1e4, 3e4, 1e5, 3e5)
    },
    "ALS": {
        "factors": (8, 16, 32, 64, 128),
        "regularization": (0.001, 0.01, 0.1, 1.0, 10.0),
        "alpha": (0.5, 1.0, 5.0, 20.0, 50.0),
        "iterations": (5, 15, 30),
    },
}
OURS = {
    "popularity": Setup(model="popularity"),
    "personal": Setup(model="personal"),
    "UserKNN": Setup(model="userknn"),
    "pulse-zero": Setup(model="pulse-zero"),
    "Pulse": Setup(model="pulse", settings={"epochs": 60, "patience": 5}, in_folder=True),
}
MODELS = (*SEARCHED, *OURS)
BY_GROUP = "NDCG@10 of the ordinary test by what the user had done with the item when the list was made:"
Settings = dict[str, Any]


class TopLists:
    """Lists that were made elsewhere as a scorer: the first item has the largest score, and what is not in
    the list has none."""

    history = 0

    def __init__(self, users: Ints, lists: Ints) -> None:
        self.users, self.lists = users, lists

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        """The scores of all items."""
        return _ListedCatalog(self, len(log.items))


class _ListedCatalog:
    def __init__(self, given: TopLists, items: int) -> None:
        self.given, self.items = given, items

    def scores(self, context: Batch) -> Tensor:
        lists = self.given.lists[np.searchsorted(self.given.users, context.user_B.numpy())]
        scores = np.zeros((len(lists), self.items), np.float32)
        places = np.broadcast_to(np.arange(lists.shape[1], 0, -1, dtype=np.float32), lists.shape)
        np.put_along_axis(scores, lists, places, axis=1)
        return torch.from_numpy(scores)


# RecTools


def trials_of(model: str, types: int) -> list[Settings]:
    """The settings that are tried, in a random order that depends on the model alone."""
    weights = [list(each) for each in WEIGHTS] if types == len(WEIGHTS[0]) else [[1.0]]
    searched = SEARCHED[model]
    every = [
        {"model": model, "weights": weight} | dict(zip(searched, values, strict=True))
        for weight, *values in product(weights, *searched.values())
    ]
    order = np.random.default_rng([len(model), *map(ord, model)]).permutation(len(every))
    return [every[place] for place in order[:TRIALS]]


def rows_before(log: Log, moment: int) -> dict[str, Any]:
    """All events before a moment: context types in the order of the funnel, and targets last."""
    views = [log.context[name].events() for name in sorted(log.context, key=lambda name: name != "view")]
    positive = log.label == 1
    columns = [*views, tuple(np.asarray(column)[positive] for column in (log.user, log.item, log.time))]
    kinds = np.repeat(np.arange(len(columns)), [len(user) for user, _, _ in columns])
    user, item, moments = (np.concatenate(column).astype(np.int64) for column in zip(*columns, strict=True))
    kept = moments < moment
    return {"user": user[kept], "item": item[kept], "time": moments[kept], "type": kinds[kept]}


def top_lists(split: Split, part: Part, trials: list[Settings]) -> tuple[list[TopLists], list[float]]:
    """What RecTools recommends at the beginning of a part in some trials, and the CPU-seconds of each."""
    if not PYTHON.is_file():
        raise BadInput(f"{PYTHON}: no RecTools there; make it with benchmarks/rectools/setup.sh")
    moment = split.train_end if part == "valid" else split.valid_end
    users = np.unique(split.log.user[held_out(split, part, frozen="next").rows]).astype(np.int64)
    rows = rows_before(split.log, moment)
    rows |= {"users": users, "items": np.arange(split.candidates([moment])[0]), "hide": not split.repeats}
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / name for name in ("rows.npz", "trials.json", "lists.npz")]
        np.savez(files[0], allow_pickle=False, **rows)
        files[1].write_text(json.dumps(trials), encoding="utf-8")
        subprocess.run([PYTHON, Path(__file__).parent / "rectools" / "top_lists.py", *files], check=True)
        with np.load(files[2]) as made:
            return [TopLists(users, lists) for lists in made["lists"]], made["cpu"].tolist()


def judged(split: Split, part: Part, lists: TopLists) -> dict[str, Evaluation]:
    """The evaluations of frozen lists by each test."""
    tested = {test: held_out(split, part, test, frozen="next") for test in TESTS}
    ranked = rank_each(lists, split, tested["ordinary"].rows, (None,), part=part, frozen=True)[0]
    return {
        test: evaluation(split, ranked, "full", each, segmented=False, frozen="next")
        for test, each in tested.items()
    }


def of_rectools(split: Split, model: str) -> tuple[Line, dict[str, Evaluation]]:
    """Settings chosen by validation, and the evaluations of their lists."""
    trials = trials_of(model, len(split.log.context) + 1)
    lists, cpu = top_lists(split, "valid", trials)
    valid = [
        {test: each.mean("ndcg@10") for test, each in judged(split, "valid", one).items()} for one in lists
    ]
    best = {test: max(range(len(trials)), key=lambda place: valid[place][test]) for test in TESTS}
    chosen, _ = top_lists(split, "test", [trials[best[test]] for test in TESTS])
    line = {
        "trials": len(trials),
        "settings": {test: trials[best[test]] for test in TESTS},
        "valid": {test: round(valid[best[test]][test], 6) for test in TESTS},
        "cpu_training": round(fmean(cpu), 2),
    }
    return line, {test: judged(split, "test", one)[test] for test, one in zip(TESTS, chosen, strict=True)}


# Ours


def of_ours(job: "Job", split: Split, name: str, seed: int) -> tuple[Line, dict[str, Evaluation]]:
    """One of our models: its frozen evaluations, and what a line says of it, live metrics included."""
    model, line = OURS[name].train(seed, split, ROOT / "build" / "rectools", job.name, name)
    both: dict[str, tuple[Protocol, ...]] = dict.fromkeys(TESTS, ("full",))
    frozen = model.evaluate_each(split, both, frozen=True, show_progress=False)
    live = model.evaluate_each(split, both, sample=LIVE, show_progress=False)
    for test in TESTS:
        line[f"live {test}"] = metrics(live[test][0], ~np.isin(live[test][0].user, job.robots))
    line |= {"trials": 1, "settings": dict(OURS[name].settings)}
    return line, {test: frozen[test][0] for test in TESTS}


# Both


@dataclass(frozen=True)
class Job:
    """A log, and what is known of it: users who are no customers, and items of the promotion."""

    name: str
    log: Log
    robots: Ints
    promoted: Ints

    @classmethod
    def of(cls, name: str, world: int, data: Path) -> "Job":
        """One of the logs."""
        if name == RETAIL:
            nothing = np.zeros(0, np.int64)
            return cls(name, unskew.read(data / "online_retail"), nothing, nothing)
        made: ShopWorld = simulate_shop(**SIZE, seed=world)
        log = unskew.read(made.events, type="event_type", target="purchase", context="view,cart")
        robots = log.users.codes([*made.bots, *made.test_accounts]).astype(np.int64)
        return cls(name, log, robots, log.items.codes(made.promoted).astype(np.int64))

    def groups(self, split: Split, found: Evaluation) -> dict[str, NDArray[np.bool_]]:
        """Groups of targets of frozen lists, by what the user had done with the item by then."""
        assert found.rows is not None
        user, item = found.user, self.log.item[found.rows].astype(np.int64)
        before = rows_before(self.log, split.valid_end)
        key, targets = user * len(self.log.items) + item, before["type"] == before["type"].max()
        keys = before["user"] * len(self.log.items) + before["item"]
        bought, touched = np.isin(key, keys[targets]), np.isin(key, keys[~targets])
        return {
            "bought before": bought,
            "seen before": touched & ~bought,
            "neither": ~touched & ~bought,
            "promoted items": np.isin(item, self.promoted),
            "bots and test accounts": np.isin(user, self.robots),
        }


@dataclass(frozen=True, kw_only=True)
class Run:
    """Compute what is not stored yet."""

    logs: tuple[str, ...] = (SHOP, RETAIL)
    """The logs."""
    worlds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """The seeds of simulated shops; a real log has the first one alone."""
    models: tuple[str, ...] = MODELS
    """The models."""
    data: Path = DATA
    """The folder of the raw data."""

    def __call__(self) -> None:
        """Go through the cells."""
        torch.set_num_threads(1)
        for log, world in product(self.logs, self.worlds):
            if log == RETAIL and world != self.worlds[0]:
                continue
            missing = [name for name in self.models if not FILE.has((log, world, name), setup_of(name))]
            job = Job.of(log, world, self.data) if missing else None
            for name in missing:
                assert job is not None
                FILE.append((log, world, name), measured(job, name, world))


def setup_of(name: str) -> Setup:
    """Of a model of RecTools, whose lines have no digest, any."""
    return OURS.get(name, OURS["popularity"])


def measured(job: Job, name: str, world: int) -> Line:
    """The line of a cell, without what names it."""
    split, began = unskew.split(job.log), time.process_time()
    line, found = of_rectools(split, name) if name in SEARCHED else of_ours(job, split, name, world)
    for test, each in found.items():
        line[test] = metrics(each)
        line[f"{test} groups"] = {
            group: metrics(each, among)
            | {"fraction": round(float(each.weights[among].sum() / each.weights.sum()), 6)}
            for group, among in job.groups(split, each).items()
            if among.any()
        }
    return line | {"cpu": round(time.process_time() - began, 1)}


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the tables of docs/rectools.md."""

    def __call__(self) -> None:
        """Replace what stands between the marks."""
        lines = FILE.lines()
        made = []
        for log in (SHOP, RETAIL):
            results = Results(
                log, {(world, name): line for (of, world, name), line in lines.items() if of == log}
            )
            if results.worlds:
                made.append(results.text())
        replace_between(PAGE, BEGIN, END, "\n\n".join(made) + "\n")


@dataclass(frozen=True)
class Results:
    """The stored lines of one log, by world and model."""

    log: str
    lines: Mapping[tuple[int, str], Line]

    @property
    def worlds(self) -> list[int]:
        """The worlds in which all models were measured."""
        every = {world for world, _ in self.lines}
        return sorted(world for world in every if all((world, name) in self.lines for name in MODELS))

    def values(self, name: str, test: str, metric: str) -> list[float]:
        """A metric of a model in each world."""
        return [self.lines[world, name][test][metric] for world in self.worlds]

    def cell(self, name: str, test: str, metric: str) -> str:
        """The mean over the worlds, from FEWEST on with half of its 95 % interval; the best one is bold."""
        if test not in self.lines[self.worlds[0], name]:
            return "–"
        means = {
            other: fmean(self.values(other, test, metric))
            for other in MODELS
            if test in self.lines[self.worlds[0], other]
        }
        text = f"{means[name]:.4f}"
        text = f"**{text}**" if means[name] == max(means.values()) else text
        if len(self.worlds) < FEWEST:
            return text
        found = estimate_over_worlds(self.values(name, test, metric))
        return f"{text} ± {found.high - found.value:.4f}"

    def text(self) -> str:
        """All tables, below a heading."""
        worlds, units = self.worlds, self.lines[self.worlds[0], "Pulse"]["ordinary"]["units"]
        about = f"{units:,} lists" + (f" in the first of {len(worlds)} worlds" if len(worlds) > 1 else "")
        parts = [f"## {self.log[0].upper() + self.log[1:]}", f"{about}.", self.models().markdown()]
        parts += [self.differences(), BY_GROUP]
        return "\n\n".join([*parts, self.groups().markdown()])

    def models(self) -> Table:
        """A row for each model."""
        columns = [(test, metric) for test in TESTS for metric in ("ndcg", "hr")]
        columns += [(f"live {test}", "ndcg") for test in TESTS]
        names = {"ndcg": "NDCG@10", "hr": "HR@10"}
        titles = [test if test.startswith("live") else f"frozen {test}" for test, _ in columns]
        titles = [f"{title}, {names[metric]}" for title, (_, metric) in zip(titles, columns, strict=True)]
        rows = []
        for name in MODELS:
            cpu = fmean(self.lines[world, name]["cpu_training"] for world in self.worlds)
            label = f"RecTools: {name}" if name in SEARCHED else name
            rows.append((label, *(self.cell(name, *column) for column in columns), f"{cpu:.1f}"))
        return Table(("", *titles, "CPU-s"), rows)

    def differences(self) -> str:
        """Pulse against the best model of RecTools by each test."""
        said = []
        for test in TESTS:
            means = {name: fmean(self.values(name, test, "ndcg")) for name in SEARCHED}
            best = max(means, key=lambda name: means[name])
            pairs = zip(self.values("Pulse", test, "ndcg"), self.values(best, test, "ndcg"), strict=True)
            apart = [one - other for one, other in pairs]
            text = (
                f"{test}: {fmean(apart):+.4f} (world by world {', '.join(f'{each:+.4f}' for each in apart)})"
            )
            if len(apart) >= FEWEST:
                found = estimate_over_worlds(apart)
                text += f" (95 % interval over worlds {found.low:+.4f} to {found.high:+.4f})"
            said.append(f"{text} against {best}")
        return f"Frozen NDCG@10 of Pulse minus that of the best model of RecTools, {'; '.join(said)}."

    def groups(self) -> Table:
        """NDCG@10 of the ordinary frozen test by groups of targets."""
        first = self.lines[self.worlds[0], MODELS[0]]["ordinary groups"]
        fractions = {group: self._of_group(MODELS[0], group, "fraction") for group in first}
        head = ("", *(f"{group} ({fraction:.0%})" for group, fraction in fractions.items()))
        rows = [(name, *(f"{self._of_group(name, group, 'ndcg'):.4f}" for group in first)) for name in MODELS]
        return Table(head, rows)

    def _of_group(self, name: str, group: str, metric: str) -> float:
        groups = [self.lines[world, name]["ordinary groups"] for world in self.worlds]
        return fmean(each[group][metric] for each in groups if group in each)


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "page": Page})()
