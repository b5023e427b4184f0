"""Tuning: search the settings of a model on the validation set (Optuna, extra `tune`).

    found = unskew.tune("sasrec", unskew.BeforeTest(split), trials=20, out="best.json")
    model = found.create().fit(split)

A trial trains the model with some of its settings, on the training set, and its value is the best validation
metric of all epochs. The first trial has the model's own settings, so the best is never below them. A trial
whose metric is below the median of the others after as many epochs is given up.

Everything that is drawn is a function of the seed and of how many trials there were before: a study that was
stopped continues as if it had not been.
"""

import io
import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from rich.console import Console

from unskew.api.create import create_model
from unskew.api.model import Model
from unskew.core.config import Document, Settings
from unskew.core.errors import BadInput, UnskewError, check_is
from unskew.core.interrupts import Interrupts
from unskew.core.progress import Job, progress, shown, shown_on
from unskew.data.log.held_out import criteria_of
from unskew.evaluation.evaluate import evaluation, rank
from unskew.models.base import model_named
from unskew.training.epoch_record import EpochRecord
from unskew.training.run import train
from unskew.training.run_config import RunSettings
from unskew.training.trainer import METRIC, Trainer
from unskew.tuning.search_space import BeforeTest, Space
from unskew.tuning.tuning_study import FORMAT, address_of, open_study, without_password, write_best

TRIALS = 20  # where neither a number nor a budget is given
HOPELESS = 10  # trials that fail before the study is given up, if none has succeeded
TYPES = {"value": pa.float64(), "epochs": pa.int64(), "seconds": pa.float64(), "reason": pa.string()}
OnTrial = Callable[[dict[str, Any]], None]
FAULTS = (UnskewError, ArithmeticError, MemoryError, RuntimeError, ValueError)  # of a trial's own settings


@dataclass(frozen=True, eq=False)
class Tuned:
    """The result of a study.

    Attributes
    ----------
    model
        The name of the model.
    best, value
        The best settings, as `create_model` takes them, and their validation metric.
    select_by
        Which validation metric that is.
    trials
        A row per trial: number, state, value, epochs, seconds, reason, and the settings that were searched.
    document
        All of it as it is written into a file.
    """

    model: str
    best: Settings
    value: float
    select_by: str
    trials: pa.Table
    document: Document

    def create(self) -> Model:
        """A new model with the best settings, not trained yet."""
        return create_model(self.model, self.best)


def tune(
    model: str,
    data: BeforeTest,
    settings: Settings | None = None,
    *,
    preset: str | None = None,
    trials: int | None = None,
    budget: float | None = None,
    storage: str | None = None,
    out: str | os.PathLike[str] | None = None,
    study: str | None = None,
    on_trial: OnTrial | None = None,
    show_progress: bool = True,
    command: str = "",
) -> Tuned:
    """Search the settings of a registered model on the validation set.

    Parameters
    ----------
    model
        The name of the model.
    data
        `BeforeTest(split)`, which has no test set.
    settings
        Settings that are fixed, `seed` and `select_by` (whose validation metric counts) among them; all
        others that have a range to search are searched.
    preset
        Named settings to begin with, as for `create_model`.
    trials
        How many trials the study has in all, those of earlier calls included; by default 20 where there is
        no budget.
    budget
        The minutes after which this call ends. The trial that is under way ends with its epoch.
    storage
        The address of the study, any that Optuna knows, so that several machines can share it. By default an
        SQLite file beside `out`, and without `out` the memory.
    out
        The file that the best settings so far are written to, as JSON, after each trial.
    study
        The name of the study in its storage; by default that of the model.
    on_trial
        Called with the row of each trial that ends.
    show_progress
        Whether progress is shown on standard error.
    command
        The command line that the file names as its origin.

    Returns
    -------
    Tuned
        The best settings and all trials.
    """
    check_is(data, BeforeTest, "`unskew.BeforeTest(split)`, a split without its test set")
    for name, number in (("trials", trials), ("budget", budget)):
        if number is not None and not 0 < number < math.inf:
            raise BadInput(f"{name} {number}: expected above 0", field=name)
    if find_spec("optuna") is None:
        raise BadInput("Optuna is not installed: pip install '.[tune]' in a clone of unskew")
    first, kind = create_model(model, settings, preset), model_named(model)
    by = kind.select_by if first.training.select_by == "auto" else first.training.select_by
    if by not in criteria_of(data.split):
        there = ", ".join(criteria_of(data.split))
        raise BadInput(f"select_by {by}: this log's validation set has only {there}", field="select_by")
    space = Space(model, data, (settings or {}) | {"select_by": by}, preset)
    parts = asdict(data.splitting) | {"fractions": list(data.splitting.fractions)}
    about = {"format": FORMAT, "model": model, "split": parts, "hash": data.fingerprint}
    about |= {"train_end": data.split.train_end, "seed": first.training.seed}
    about |= {"fixed": space.fixed, "searched": space.document()}
    target = None if out is None else Path(out)
    url = address_of(storage, target)
    shown_command = command if storage is None else command.replace(storage, without_password(storage))
    with open_study(about, url, target, study or model, space) as stored, shown(show_progress):
        search = _Search(data, space, about, stored, target, shown_command)
        search.run(TRIALS if trials is None and budget is None else trials, budget, on_trial)
    return search.result()


class _Outcome(NamedTuple):
    """How a trial ended. One that was stopped has neither a value nor a reason."""

    state: str
    value: float | None = None
    epochs: int = 0
    reason: str | None = None


class _GivenUp(Exception):  # noqa: N818
    """A trial is not worth continuing."""


class _Search:
    """A study under way. It knows nothing but what is before the test set."""

    def __init__(
        self, data: BeforeTest, space: Space, about: Document, study: Any, target: Path | None, command: str
    ) -> None:
        self.data, self.space, self.about, self.study = data, space, about, study
        self.model, self.by, self.seed = about["model"], space.fixed["select_by"], about["seed"]
        self.target, self.command = target, command
        self.process = f"{socket.gethostname()} {os.getpid()}"
        self.interrupts = Interrupts()
        self.deadline = math.inf
        self.rows: list[dict[str, Any]] = []

    def run(self, trials: int | None, budget: float | None, on_trial: OnTrial | None) -> None:
        """Try settings until there are enough trials, the time is over, or all were tried."""
        import optuna

        self.deadline = math.inf if budget is None else time.monotonic() + 60 * budget
        grid = self.space.grid(self.seed)
        total = min((number for number in (trials, len(grid)) if number), default=None)
        self._fail_dead_trials()
        self._refresh()
        with self.interrupts.deferred(), progress("tune", total) as job:
            job.advance(len(self._counted()))
            begun = False
            while total is None or len(self._counted()) < total:
                if time.monotonic() >= self.deadline and (begun or self._counted()):
                    break
                sampler = np.random.SeedSequence([self.seed, len(self._counted())]).generate_state(1)
                self.study.sampler = optuna.samplers.TPESampler(seed=int(sampler[0]))
                number, begun = self._run_trial(grid, total, job), True
                if number is None:  # another machine has just begun the last one
                    break
                if on_trial is not None:
                    on_trial(self.rows[number])
                failed = [row for row in self.rows if row["state"] == "failed"]
                if self.best() is None and len(failed) >= HOPELESS:
                    break

    def _run_trial(self, grid: list[Settings], total: int | None, job: Job) -> int | None:
        """Make one trial. However it ends, it is not left running."""
        trial, started = None, time.monotonic()
        try:
            with self.interrupts.step():
                if (fixed := self._next_settings(grid)) is not None:
                    self.study.enqueue_trial(fixed)
                trial = self.study.ask(self.space.distributions())
                trial.set_user_attr("process", self.process)
            stopped = [row["number"] for row in self.rows if row["state"] == "stopped"]
            late = total is not None and trial.number - len(stopped) >= total
            ended = _Outcome("stopped") if late else self._train_trial(trial, job)
        except BaseException:
            if trial is not None:
                with suppress(Exception):  # what is raised here is not why it ends
                    self._tell(trial, _Outcome("stopped"), started)
            raise
        with self.interrupts.step():
            self._tell(trial, ended, started)
            self._refresh()
        job.advance(1)
        return None if late else int(trial.number)

    def _next_settings(self, grid: list[Settings]) -> Settings | None:
        """The settings of the next trial, where they are not for Optuna to choose."""
        if any(row["state"] == "waiting" for row in self.rows):
            return None
        tried = [row["settings"] for row in self._counted()]
        return next((settings for settings in grid or [self.space.defaults] if settings not in tried), None)

    def _train_trial(self, trial: Any, job: Job) -> _Outcome:
        """Train with the settings of a trial. What is wrong with them is the trial's own fault."""
        reached: list[float] = []

        def report(record: EpochRecord) -> None:
            if self.by in record.valid:
                reached.append(record.valid[self.by][METRIC])
                trial.report(reached[-1], len(reached))
                job.advance(0, f"trial {trial.number}, epoch {len(reached)}: {reached[-1]:.4f}")
                if trial.should_prune():
                    raise _GivenUp("below the median of the other trials")
            if time.monotonic() >= self.deadline and (reached or self.best() is not None):
                raise _GivenUp("the budget ended")

        try:
            model = create_model(self.model, self.space.fixed | trial.params)
            settings = RunSettings(model=model.name, config=model.config, training=model.training)
            with shown_on(Console(file=io.StringIO(), quiet=True)):
                trainer = train(self.data.split, settings, on_record=report)
                value = trainer.progress.best.get(self.by)
                value = _validate(trainer, self.by) if value is None else value
        except _GivenUp as why:
            state = "pruned" if reached else "stopped"
            return _Outcome(state, max(reached, default=None), len(reached), str(why) if reached else None)
        except FAULTS as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            return _Outcome("failed", None, len(reached), reason)
        if not math.isfinite(value):
            return _Outcome("failed", None, len(reached), f"{METRIC} is {value}")
        return _Outcome("complete", value, len(reached))

    def _tell(self, trial: Any, ended: _Outcome, started: float) -> None:
        from optuna.trial import TrialState

        result = ended._asdict() | {"seconds": round(time.monotonic() - started, 2)}
        trial.set_user_attr("result", result)
        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
        value = ended.value if ended.state == "complete" else None
        self.study.tell(trial, value, state=states.get(ended.state, TrialState.FAIL))

    def _fail_dead_trials(self) -> None:
        """Trials of processes of this machine that were killed are not running any more."""
        from optuna.trial import TrialState

        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            host, _, number = trial.user_attrs.get("process", "").partition(" ")
            if host == socket.gethostname() and not _is_alive(int(number)):
                self.study.tell(trial.number, state=TrialState.FAIL)

    def _refresh(self) -> None:
        """Read all trials, those of other machines included, and write the best one."""
        self.rows = [_row(trial) for trial in self.study.get_trials(deepcopy=False)]
        if self.target is not None and self.best() is not None:
            write_best(self.target, self.document())

    def _counted(self) -> list[dict[str, Any]]:
        """All trials but those that were stopped, which are made again, and those that have not begun."""
        return [row for row in self.rows if row["state"] not in ("stopped", "waiting")]

    def best(self) -> dict[str, Any] | None:
        """The row with the best value; of equal ones the first, so that the defaults stay unless something is
        better."""
        some = [row for row in self.rows if row["value"] is not None]
        return max(some, key=lambda row: (row["value"], -row["number"]), default=None)

    def document(self) -> Document:
        """The best settings so far, as they are written into the file."""
        best, states = self.best(), [row["state"] for row in self.rows]
        assert best is not None
        defaults = [row["value"] for row in self.rows if row["settings"] == self.space.defaults]
        log, end = self.data.split.log, self.data.split.valid_end
        return {
            "format": FORMAT,
            "model": self.model,
            "settings": self.space.fixed | best["settings"],
            "split": self.about["split"],
            "select_by": self.by,
            "metric": METRIC,
            "value": best["value"],
            "defaults": next((value for value in defaults if value is not None), None),
            "trial": best["number"],
            "trials": {state: states.count(state) for state in dict.fromkeys(states)},
            "study": self.about,
            "finished_trials": [
                {name: value for name, value in row.items() if name != "seconds"}
                for row in self._counted()
                if row["state"] != "running"
            ],
            "searched": self.about["searched"],
            "data": {"hash": self.about["hash"], "rows": len(log), "before": log.clock.date(end)},
            "command": self.command,
            "threads": torch.get_num_threads(),
            "versions": {name: version(name) for name in ("unskew", "torch", "optuna")},
        }

    def result(self) -> Tuned:
        """The best settings and all trials."""
        if self.best() is None:
            reasons = [row["reason"] for row in self.rows if row["state"] == "failed"]
            why = f"the first one failed: {reasons[0]}" if reasons else "none was finished"
            raise UnskewError(f"no trial of {self.model} has a value; {why}")
        about = {"number": pa.int64(), "state": pa.string(), **TYPES}
        columns = {name: pa.array([row[name] for row in self.rows], kind) for name, kind in about.items()}
        for name in self.space.notes:
            columns[name] = pa.array([row["settings"].get(name) for row in self.rows])
        document, table = self.document(), pa.table(columns)
        return Tuned(self.model, document["settings"], document["value"], self.by, table, document)


def _row(trial: Any) -> dict[str, Any]:
    """A trial as a row of the table. One that was killed has left no result, and one of another machine not
    yet."""
    result = trial.user_attrs.get("result", {})
    unknown = {"FAIL": "stopped"}.get(trial.state.name, trial.state.name.lower())
    row = {"number": trial.number, "state": result.get("state", unknown)}
    row |= {name: result.get(name) for name in TYPES}
    curve = [value for _, value in sorted(trial.intermediate_values.items())]
    return row | {"settings": dict(trial.params), "curve": curve}


def _validate(trainer: Trainer, by: str) -> float:
    """The validation metric of a model that has nothing to learn and nothing to choose."""
    network, seed = trainer.model.eval(), trainer.settings.seed
    ranked = rank(network, trainer.split, trainer.valid.rows, seed, part="valid")
    tested = trainer.criteria[by]  # type: ignore[index]
    metrics = evaluation(trainer.split, ranked, "full", tested, segmented=False).metrics()
    return round(metrics[METRIC], 6)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # of another user
    return True
