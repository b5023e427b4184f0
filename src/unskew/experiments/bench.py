"""Run the cells of some suites: each once, each stored as soon as it is done.

A bench that is stopped goes on where it was, also in the middle of a training run, and does nothing twice. A
cell that fails is reported, does not stop the others, and is tried again next time.
"""

import math
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import torch

from unskew.core.errors import BadInput, UnskewError
from unskew.core.progress import shown_on
from unskew.data.log.log import Log
from unskew.data.log.split import Splitting, split
from unskew.experiments.bench_cell import METRIC, About, BenchCell, Units
from unskew.experiments.cell_store import CellStore
from unskew.experiments.grid import SAMPLE, PlannedCell, Source, plan_cells
from unskew.experiments.registry import suites_in
from unskew.experiments.runner import run_cell
from unskew.experiments.suite import Suite

# CPU-seconds for each thousand training positives, as measured on one core; what is not here is guessed. They
# only serve the estimate before a bench has measured anything itself.
SECONDS = {"popularity": 0.4, "itemknn": 0.3, "userknn": 0.3, "pulse": 2.5, "pulse-zero": 1.0}
SECONDS |= {"sasrec": 2.0, "gru4rec": 2.0, "fpmc": 2.0, "deps": 9.0, "din": 12.0, "bst": 60.0}
UNKNOWN = 3.0
TRAINED = 0.5  # the fraction of a log that is the training set
MIN_SECONDS = 1.0  # that any cell takes

Outcome = tuple[BenchCell, dict[str, Units]] | str  # the result of a cell, or why it failed


@dataclass
class State:
    """How far a bench is."""

    total: int
    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)  # when each cell under way was begun, by its key
    left: float = 0.0  # CPU-seconds that the rest will take, estimated
    message: str = ""  # what happened last
    began: float = 0.0


Watch = Callable[[State], None]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Some suites on some data, and how they are run.

    suites: the recipes.
    sources: the data sets for suites that have no worlds of their own.
    splitting: how logs are split; by default as they were prepared for, or else as usual.
    seeds: the number of seeds of each arm; by default that of its suite.
    sample: the number of test positives that are ranked, the same ones for every model.
    at_most: upper limits of settings such as `epochs`, or `deps.epochs` for one model, for data that would
        take hours.
    models: only these models are run, and what is stored of the others stays; all models if there are none.
    smoke: make everything as small as it can be: to see that it works, not to learn anything.
    workers: the number of cells that run at the same time, each on one core.
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
            raise BadInput(f"workers {self.workers}: expected at least 1", field="workers")
        if self.budget is not None and not self.budget > 0:
            raise BadInput(f"budget {self.budget}: expected more than 0 minutes", field="budget")
        cells, placements = plan_cells(
            self.suites, self.sources, self.splitting, self.seeds, self.sample, self.smoke, self.at_most
        )
        models = sorted({cell.model for cell in cells.values()})
        for name in self.models:
            if name not in models:
                raise BadInput(f"models {name}: the suite has no such model; it has {', '.join(models)}")
        cells = {key: cell for key, cell in cells.items() if not self.models or cell.model in self.models}
        placements = [placement for placement in placements if placement.key in cells]
        store, threads = CellStore(out), torch.get_num_threads()
        store.lock()
        torch.set_num_threads(1)
        try:
            store.add_to_plan(self.suites, placements, About(command=command, smoke=self.smoke))
            return self._run_cells(store, cells, watch or (lambda state: None))
        finally:
            torch.set_num_threads(threads)
            store.unlock()

    def _run_cells(self, store: CellStore, cells: dict[str, PlannedCell], watch: Watch) -> State:
        waiting = [cell for key, cell in cells.items() if key not in store.cells]
        seconds = estimate_seconds(store)
        # The cheapest first, so that what is stopped early has most of its cells; but no second seed early.
        waiting.sort(key=lambda cell: (cell.training["seed"], seconds(cell)))
        state = State(total=len(cells), done=len(cells) - len(waiting), began=time.monotonic())
        state.left = math.fsum(map(seconds, waiting))
        earlier = {key: why for key, why in store.failures.items() if key not in cells}
        watch(state)
        begun = self._within_budget(waiting, state)
        try:
            for cell, outcome in self._outcomes(begun, store.folder / "runs", state, watch):
                waiting.remove(cell)
                if isinstance(outcome, str):
                    state.failed[cell.key] = outcome
                    state.message = f"failed: {cell.label}: {outcome}"
                else:
                    store.add_cell(*outcome)
                    state.done += 1
                    state.message = _message(cell, outcome[0])
                    if not self.keep_runs:
                        shutil.rmtree(store.folder / "runs" / cell.key, ignore_errors=True)
                state.left = math.fsum(map(estimate_seconds(store), waiting))
                watch(state)
        finally:
            store.replace_failures(earlier | state.failed)
        return state

    def _within_budget(self, cells: Sequence[PlannedCell], state: State) -> Iterator[PlannedCell]:
        for cell in list(cells):
            if self.budget is not None and time.monotonic() - state.began >= 60 * self.budget:
                state.message = f"the budget of {self.budget:g} minutes is used up; call it again to go on"
                return
            yield cell

    def _outcomes(
        self, cells: Iterator[PlannedCell], runs: Path, state: State, watch: Watch
    ) -> Iterator[tuple[PlannedCell, Outcome]]:
        """The outcome of each cell, in the order in which they end."""
        if self.workers == 1:
            for cell in cells:
                state.running = {cell.key: time.monotonic()}
                watch(state)
                outcome = try_cell(cell, runs)
                state.running = {}
                yield cell, outcome
            return
        pool = self._pool()
        under_way: dict[Future[Outcome], PlannedCell] = {}
        try:
            while True:
                while len(under_way) < self.workers and (begun := next(cells, None)) is not None:
                    try:
                        future = pool.submit(try_cell, begun, runs)
                    except BrokenProcessPool:  # a worker has just died; its own cell says so below
                        pool.shutdown(wait=False)
                        pool = self._pool()
                        future = pool.submit(try_cell, begun, runs)
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
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, context, _prepare_worker, (tuple(self.files),))


def try_cell(cell: PlannedCell, runs: Path) -> Outcome:
    """The result of a cell, or why it failed."""
    try:
        with shown_on(None):
            return run_cell(cell, runs / cell.key)
    except UnskewError as error:
        return str(error)
    except Exception as error:  # a model of one's own may raise anything; the other cells are not its fault
        return f"{type(error).__name__}: {error}"


def estimate_seconds(store: CellStore) -> Callable[[PlannedCell], float]:
    """Estimate the CPU-seconds of a cell: those of other seeds of the same cell, or of the same model
    elsewhere, by the number of positives; and otherwise a guess."""
    of_model: dict[str, list[float]] = {}
    of_cell: dict[tuple[str, str], list[float]] = {}
    for cell in store.cells.values():
        thousands = max(TRAINED * cell.data.positives / 1000, 1e-9)
        of_model.setdefault(cell.model, []).append(cell.cost.cpu_s / thousands)
        of_cell.setdefault((cell.model, cell.data.name), []).append(cell.cost.cpu_s)

    def seconds(cell: PlannedCell) -> float:
        if same := of_cell.get((cell.model, cell.source.name)):
            return fmean(same)
        guess = SECONDS.get(cell.model.removeprefix("debiased-"), UNKNOWN)
        trainings = 3.0 if cell.rolling is not None and cell.rolling.refresh != "never" else 1.0
        rate = fmean(of_model.get(cell.model, [guess]))
        return max(MIN_SECONDS, trainings * rate * TRAINED * cell.source.positives / 1000)

    return seconds


def open_source_named(text: str, splitting: Splitting) -> Source:
    """A prepared folder as a data set: `FOLDER`, or `NAME=FOLDER` to call it something else."""
    name, _, folder = text.rpartition("=")
    path = Path(folder)
    log = Log.open(path)
    cut = split(log, **{field: getattr(splitting, field) for field in splitting.__dataclass_fields__})
    return Source(
        name=name or path.resolve().name,
        data=f"{log.fingerprint()}:{cut.train_end}:{cut.valid_end}",
        folder=str(path),
        positives=log.positives,
    )


def _prepare_worker(files: Sequence[Path]) -> None:
    """One core for each worker, and the models of the caller's files."""
    torch.set_num_threads(1)
    for file in files:
        suites_in(file)


def _message(cell: PlannedCell, result: BenchCell) -> str:
    metrics = [
        f"{name.removesuffix(', full')} {test.metrics[METRIC]:.4f}"
        for name, test in result.tests.items()
        if name.endswith(", full")
    ]
    return f"{cell.label}: {', '.join(metrics)} ({result.cost.cpu_s:.0f} CPU-s)"
