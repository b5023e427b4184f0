"""Run the cells of some suites: each once, each stored as soon as it is done.

A bench that is stopped goes on where it was, also in the middle of a training run, and does nothing twice. A
cell that fails is reported, does not stop the others, and is tried again next time.
"""

import math
import multiprocessing
import runpy
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from unskew.core.errors import BadInput, UnskewError
from unskew.core.progress import shown_on
from unskew.data.log.log import Log
from unskew.data.log.split import Splitting, split
from unskew.experiments.cell_store import Results
from unskew.experiments.registry import suites
from unskew.experiments.runner import measured
from unskew.experiments.suite import SAMPLE, Cell, Source, Suite, cells_of

# CPU-seconds for each thousand training positives, as measured on one core; what is not here is guessed. They
# only serve the estimate before a bench has measured anything itself.
SECONDS: dict[str, float] = {
    "popularity": 0.4,
    "itemknn": 0.3,
    "userknn": 0.3,
    "pulse": 2.5,
    "pulse-zero": 1.0,
}
SECONDS |= {"sasrec": 2.0, "gru4rec": 2.0, "fpmc": 2.0, "deps": 9.0, "din": 12.0, "bst": 60.0}
UNKNOWN = 3.0
TRAINED = 0.5  # the fraction of a log that is the training set
LEAST = 1.0  # seconds that any cell takes

Outcome = tuple[dict[str, Any], dict[str, dict[str, Any]]]


@dataclass
class State:
    """How far a bench is."""

    total: int
    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)  # when each cell under way was begun, by its key
    left: float = 0.0  # CPU-seconds that the rest will take, estimated
    last: str = ""  # what happened last, for people to read
    began: float = 0.0  # when


Watch = Callable[[State], None]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Some suites on some data, and how they are run.

    suites: the recipes.
    sources: the data sets for suites that have no worlds of their own.
    splitting: how logs are split; by default as they were prepared for, or else as usual.
    seeds: how many seeds each arm has; by default as its suite says.
    sample: how many test positives are ranked, the same ones for every model.
    at_most: settings of which no model is to have more, such as `epochs`, or one model, such as
        `deps.epochs`, for data that would take hours.
    models: only these models are run, and what is stored of the others stays; all models if there are none.
    smoke: make everything as small as it can be: to see that it works, not to learn anything.
    workers: how many cells run at the same time, each on one core.
    budget: in minutes; once it is used up no further cell is begun.
    keep_runs: keep the run of each cell, to recommend from it; it is removed otherwise.
    files: Python files that the workers have to read, because they define models or suites.
    """

    suites: Sequence[Suite]
    sources: Sequence[Source] = ()
    splitting: Splitting = field(default_factory=Splitting)
    seeds: int | None = None
    sample: int = SAMPLE
    at_most: Mapping[str, float] = field(default_factory=dict)
    models: Sequence[str] = ()
    smoke: bool = False
    workers: int = 1
    budget: float | None = None
    keep_runs: bool = False
    files: Sequence[Path] = ()

    def run(self, out: Path, watch: Watch | None = None, command: str = "") -> State:
        """Run what is not stored in the folder `out` yet.

        watch: called whenever something has changed.
        command: the command line that asked for it, which the report repeats.
        """
        if self.workers < 1:
            raise BadInput(f"workers {self.workers}: expected at least 1")
        if self.budget is not None and not self.budget > 0:
            raise BadInput(f"budget {self.budget}: expected more than 0 minutes")
        cells, places = cells_of(
            self.suites, self.sources, self.splitting, self.seeds, self.sample, self.smoke, self.at_most
        )
        for name in self.models:
            if not any(cell.model == name for cell in cells.values()):
                there = ", ".join(sorted({cell.model for cell in cells.values()}))
                raise BadInput(f"models {name}: the suite has no such model; it has {there}")
        cells = {key: cell for key, cell in cells.items() if not self.models or cell.model in self.models}
        places = [place for place in places if place.key in cells]
        results, threads = Results(out), torch.get_num_threads()
        results.begin()
        torch.set_num_threads(1)
        try:
            results.plan(self.suites, places, {"command": command, "smoke": self.smoke})
            return self._go(results, cells, watch or (lambda state: None))
        finally:
            torch.set_num_threads(threads)
            results.end()

    def _go(self, results: Results, cells: dict[str, Cell], watch: Watch) -> State:
        waiting = [cell for key, cell in cells.items() if key not in results.cells]
        expected = estimate(results)
        # The cheapest first, so that what is stopped early has most of its figures; but no second seed early.
        waiting.sort(key=lambda cell: (cell.training["seed"], expected(cell)))
        state = State(total=len(cells), done=len(cells) - len(waiting), began=time.monotonic())
        state.left = math.fsum(map(expected, waiting))
        earlier = {key: why for key, why in results.failures.items() if key not in cells}
        watch(state)
        begun = self._within_budget(waiting, state)
        try:
            for cell, outcome in self._outcomes(begun, results.folder / "runs", state, watch):
                waiting.remove(cell)
                if isinstance(outcome, str):
                    state.failed[cell.key] = outcome
                    state.last = f"failed: {cell.label}: {outcome}"
                else:
                    results.add(*outcome)
                    state.done += 1
                    state.last = _told(cell, outcome[0])
                    if not self.keep_runs:
                        shutil.rmtree(results.folder / "runs" / cell.key, ignore_errors=True)
                state.left = math.fsum(map(estimate(results), waiting))
                watch(state)
        finally:
            results.failed(earlier | state.failed)
        return state

    def _within_budget(self, cells: Sequence[Cell], state: State) -> Iterator[Cell]:
        for cell in list(cells):
            if self.budget is not None and time.monotonic() - state.began >= 60 * self.budget:
                state.last = f"the budget of {self.budget:g} minutes is used up; call it again to go on"
                return
            yield cell

    def _outcomes(
        self, cells: Iterator[Cell], runs: Path, state: State, watch: Watch
    ) -> Iterator[tuple[Cell, Outcome | str]]:
        """What each cell found, or why it failed, in the order in which they end."""
        if self.workers == 1:
            for cell in cells:
                state.running = {cell.key: time.monotonic()}
                watch(state)
                found = attempted(cell, runs)
                state.running = {}
                yield cell, found
            return
        pool = self._pool()
        under_way: dict[Future[Outcome | str], Cell] = {}
        try:
            while True:
                while len(under_way) < self.workers and (begun := next(cells, None)) is not None:
                    try:
                        future = pool.submit(attempted, begun, runs)
                    except BrokenProcessPool:  # a worker has just died; its own cell says so below
                        pool.shutdown(wait=False)
                        pool = self._pool()
                        future = pool.submit(attempted, begun, runs)
                    under_way[future] = begun
                    state.running[begun.key] = time.monotonic()
                    watch(state)
                if not under_way:
                    return
                for future in wait(under_way, timeout=1.0, return_when=FIRST_COMPLETED).done:
                    cell = under_way.pop(future)
                    state.running.pop(cell.key, None)
                    try:
                        yield cell, future.result()
                    except BrokenProcessPool:
                        yield cell, "its process was ended from outside (out of memory?)"
                watch(state)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _pool(self) -> ProcessPoolExecutor:
        # A new process and no fork: torch's threads do not survive a fork.
        return ProcessPoolExecutor(
            self.workers, multiprocessing.get_context("spawn"), _ready, (tuple(self.files),)
        )


def attempted(cell: Cell, runs: Path) -> Outcome | str:
    """What a cell found, or why it failed."""
    try:
        with shown_on(None):
            return measured(cell, runs / cell.key)
    except UnskewError as error:
        return str(error)
    except Exception as error:  # a model of one's own may raise anything; the other cells are not its fault
        return f"{type(error).__name__}: {error}"


def estimate(results: Results) -> Callable[[Cell], float]:
    """How many CPU-seconds a cell will take: as long as other seeds of the same cell did, or as long as
    the same model did elsewhere, by the number of positives; and otherwise a guess."""
    of_model: dict[str, list[float]] = {}
    of_cell: dict[tuple[str, str], list[float]] = {}
    for line in results.cells.values():
        cost, data = line["cost"]["cpu_s"], line["data"]
        per_thousand = cost / max(TRAINED * data["positives"] / 1000, 1e-9)
        of_model.setdefault(line["model"], []).append(per_thousand)
        of_cell.setdefault((line["model"], data["name"]), []).append(cost)

    def seconds(cell: Cell) -> float:
        if same := of_cell.get((cell.model, cell.source.name)):
            return fmean(same)
        guess = SECONDS.get(cell.model.removeprefix("debiased-"), UNKNOWN)
        times = 3.0 if cell.rolling is not None and cell.rolling.refresh != "never" else 1.0
        rate = fmean(of_model.get(cell.model, [guess]))
        return max(LEAST, times * rate * TRAINED * cell.source.positives / 1000)

    return seconds


def source_of(given: str, splitting: Splitting) -> Source:
    """A prepared folder as a data set: `FOLDER`, or `NAME=FOLDER` to call it something else."""
    name, _, folder = given.rpartition("=")
    path = Path(folder)
    log = Log.open(path)
    cut = split(log, **{name: getattr(splitting, name) for name in splitting.__dataclass_fields__})
    return Source(
        name=name or path.resolve().name,
        data=f"{log.fingerprint()}:{cut.train_end}:{cut.valid_end}",
        folder=str(path),
        positives=log.positives,
    )


def suites_in(file: Path) -> dict[str, Suite]:
    """The suites that a Python file defines, by their names. Models that it defines are registered. A suite
    of this package that it imports, to take arms or worlds from, is not its own."""
    if not file.is_file():
        raise BadInput(f"{file}: no such file; expected a Python file that defines a `Suite`")
    try:
        defined = runpy.run_path(str(file), run_name=file.stem).values()
    except UnskewError:
        raise
    except Exception as error:
        raise BadInput(f"{file}: could not be read ({type(error).__name__}: {error})") from error
    theirs = list(suites().values())
    found = [value for value in defined if isinstance(value, Suite) and value not in theirs]
    if not found:
        raise BadInput(f"{file}: defines no `Suite`; see `unskew.experiments.suite`")
    return {suite.name: replace(suite, file=str(file)) for suite in found}


def _ready(files: Sequence[Path]) -> None:
    """Prepare a worker: one core for each, and the models of the caller's files."""
    torch.set_num_threads(1)
    for file in files:
        suites_in(file)


def _told(cell: Cell, found: Mapping[str, Any]) -> str:
    figures = [
        f"{name.removesuffix(', full')} {part['metrics']['ndcg@10']:.4f}"
        for name, part in found["tests"].items()
        if name.endswith(", full")
    ]
    return f"{cell.label}: {', '.join(figures)} ({found['cost']['cpu_s']:.0f} CPU-s)"
