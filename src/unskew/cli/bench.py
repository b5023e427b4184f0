"""The verb of benchmark suites: bench."""

import math
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Group
from rich.live import Live
from rich.text import Text
from tyro.conf import OmitArgPrefixes, Positional

from unskew.cli.shared import Verb, command_line, messages, notify, pairs, table
from unskew.core.errors import BadInput, UnskewError
from unskew.data.log.split import Splitting

if TYPE_CHECKING:
    from unskew.experiments.bench import Bench as Runner
    from unskew.experiments.bench import State
    from unskew.experiments.suite import Suite

LONGEST = 8  # failures that are printed


@dataclass(frozen=True, kw_only=True)
class Bench(Verb):
    """Run a suite of experiments on prepared data, and store every result: the tables and figures of the
    paper (main, views, parts, frequency, agnostic, clip), worlds whose ground truth is known (ground-truth,
    industry), and models that grow old (rolling). `all` is all of them.

    What is stored already is not done again, so a bench can be stopped and called again at any time.
    `unskew report DIR` shows what it found.
    """

    words: Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="SUITE [DATA ...]")]]
    """The name of a suite, and folders that `unskew prepare` made. NAME=FOLDER gives a folder the name that
    tables call it."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """The folder of the results: a new one, or that of an earlier bench, which is continued."""
    suite: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A Python file with a suite of your own, and with models of your own if it has any. Then SUITE may be
    left away."""
    seeds: int | None = None
    """How many seeds each model is trained with; by default what the suite says, which is 3 for most."""
    sample: int = 5000
    """How many test positives are ranked: a seeded sample, the same for every model."""
    at_most: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[MODEL.]SETTING=NUMBER")] = ()
    """Settings of which no model is to have more, such as epochs=10 or audience=100, for data on which the
    suite would take hours; deps.epochs=2 limits one model alone. Tables say so."""
    models: Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODEL")] = ()
    """Run only these models of the suite, such as pulse, because they have changed or because the others take
    too long. What is stored of the others stays."""
    workers: int = 1
    """How many runs are made at the same time, each on one core."""
    budget: float | None = None
    """After so many minutes no further run is begun. Every first seed comes before any second one."""
    smoke: bool = False
    """Make everything tiny, on a simulated world: to see in two minutes that it works."""
    keep_runs: bool = False
    """Keep the folder of each run in DIR/runs, to recommend from it or to look at its propensities."""
    splitting: OmitArgPrefixes[Splitting] = field(default_factory=Splitting)

    def run(self) -> None:
        runner = self._runner()
        shown = _Shown(runner)
        with shown.live():
            state = runner.run(self.out, shown, command_line())
        document = {"dir": str(self.out), "cells": state.total, "done": state.done}
        document |= {"failed": len(state.failed), "minutes": round((time.monotonic() - state.began) / 60, 1)}
        self.show(document | {"failures": state.failed}, pairs(f"bench -> {self.out}", document))
        for why in list(state.failed.values())[:LONGEST]:
            notify(f"failed: {why}")
        notify(f"see it with `unskew report {self.out} --html FILE`")
        if state.failed:
            raise UnskewError(
                f"{len(state.failed)} of {state.total} runs failed; the same command tries them again"
            )

    def _runner(self) -> "Runner":
        from unskew.experiments.bench import Bench as Runner
        from unskew.experiments.bench import open_source_named
        from unskew.experiments.grid import SMOKE_WORLD, world_source
        from unskew.experiments.registry import suites_in

        suites, data = self._asked(suites_in(self.suite) if self.suite is not None else {})
        sources: list[Any] = [open_source_named(word, self.splitting) for word in data]
        for name, count in Counter(source.name for source in sources).items():
            if count > 1:
                raise BadInput(
                    f"two data sets are named {name!r}; call one of them something else: NAME=DATA"
                )
        if self.smoke and not sources:
            sources = [world_source("the simulated world", SMOKE_WORLD)]
        return Runner(
            suites=suites,
            sources=sources,
            splitting=self.splitting,
            seeds=1 if self.smoke and self.seeds is None else self.seeds,
            sample=self.sample,
            at_most=dict(_limit(word) for word in self.at_most),
            models=self.models,
            smoke=self.smoke,
            workers=self.workers,
            budget=self.budget,
            keep_runs=self.keep_runs,
            files=() if self.suite is None else (self.suite,),
        )

    def _asked(self, own: "dict[str, Suite]") -> "tuple[list[Suite], list[str]]":
        """The suites and the data that the words name. With a file of suites, all words may be data."""
        from unskew.experiments.registry import suites, suites_named

        first, *rest = self.words or ("",)
        if own and first not in own:
            return list(own.values()), [word for word in self.words if word]
        if not first:
            raise BadInput("expected a SUITE, such as main; `unskew bench --help` lists them")
        return suites_named(first, suites() | own), rest


def _limit(word: str) -> tuple[str, float]:
    name, _, number = word.partition("=")
    try:
        most = float(number)
    except ValueError:
        most = math.nan
    if not name or not math.isfinite(most):
        raise BadInput(f"--at-most {word}: expected SETTING=NUMBER, such as epochs=10 or deps.epochs=2")
    model, dot, setting = name.rpartition(".")
    return f"{model}{dot}{setting.replace('-', '_')}", most


class _Shown:
    """The state of a bench: a line for each cell and, on a terminal, a live table."""

    def __init__(self, runner: "Runner") -> None:
        self.runner = runner
        self.message: str | None = None  # the last one
        self._live = Live(console=messages, refresh_per_second=2) if messages.is_terminal else None

    def live(self) -> Any:
        return self._live if self._live is not None else nullcontext()

    def __call__(self, state: "State") -> None:
        left, budget = state.left / self.runner.workers, self.runner.budget
        if self.message is None:
            words = f"{state.total} runs, {state.done} of them done; the rest will take about {_time(left)}"
            limited = budget is not None and left > 60 * budget
            notify(f"{words}, of which {budget:g} min are asked for now" if limited else words)
        if state.message != (self.message or ""):
            notify(f"[{state.done}/{state.total}] {state.message}")
        self.message = state.message
        if self._live is not None:
            now = time.monotonic()
            rows = [(key, _time(now - began)) for key, began in state.running.items()]
            words = (
                f"{state.done} of {state.total} done, {len(state.failed)} failed, about {_time(left)} left"
            )
            self._live.update(Group(Text(words), table("", ("under way", "for"), rows)))


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
