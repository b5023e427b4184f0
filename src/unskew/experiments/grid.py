"""The grid of a bench: every data set, arm and seed of some suites is a planned cell, which is one run.

Two suites that ask for the same cell share it, because the key of a cell depends on what is run and not on
the suite.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from unskew.api.create import create_model
from unskew.core.config import names_of
from unskew.core.errors import BadInput
from unskew.data.log.split import Splitting
from unskew.experiments.suite import Arm, Rolling, Suite
from unskew.models.base import Training, model_named
from unskew.models.pulse.model import ZERO, PulseZero
from unskew.training.run_card import training_identity
from unskew.world.equations import Simulation

FORMAT = 1  # of a stored cell; a cell of another format is measured again
SAMPLE = 5000  # test positives that are ranked: the same ones for every model
# The settings that `--smoke` changes, where a model has them: enough to see that everything works.
SMOKE: dict[str, Any] = {"epochs": 1, "unsupervised_epochs": 1, "width": 8, "place_width": 4, "layers": 1}
SMOKE |= {"heads": 1, "inner": 16, "hidden": 8, "history": 5, "audience": 5, "sample": 300}
SMOKE |= {"valid_examples": 60}
SMOKE_SAMPLE = 60
SMOKE_WORLD = Simulation(users=60, items=24, steps=40, seed=3)
CLICKED = 0.3  # roughly the fraction of what a world shows that is clicked, for the estimate of the time


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set of a bench: a prepared folder, or a simulated world.

    name: its name in tables.
    data: the hash of the log with the borders of its split, or of the settings of the world.
    folder: where it is prepared; empty for a world.
    world: the settings of a world.
    positives: the number of positives of the log, for the estimate of the time.
    """

    name: str
    data: str
    folder: str = ""
    world: Simulation | None = None
    positives: int = 0


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """One run of a grid: a data set, a model with all its settings, a seed, and how it is tested."""

    source: Source
    splitting: Splitting
    model: str
    config: Mapping[str, Any]  # all settings, and not only the given ones: a new default makes another cell
    training: Mapping[str, Any]
    sample: int
    rolling: Rolling | None = None
    label: str = ""  # for messages; no part of the key

    @property
    def key(self) -> str:
        """The key under which the cell is stored: the same for runs that give the same result, wherever the
        data is."""
        parts: dict[str, Any] = {"format": FORMAT, "data": self.source.data, "model": self.model}
        parts |= {"splitting": asdict(self.splitting), "config": self.config}
        parts |= {"training": training_identity(dict(self.training))}
        parts |= {"sample": self.sample, "rolling": self.rolling and asdict(self.rolling)}
        if issubclass(model_named(self.model), PulseZero):  # its weights are no setting
            parts["weights"] = hashlib.sha256(ZERO.read_bytes()).hexdigest()
        return _digest(json.dumps(parts, sort_keys=True, default=str))


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The position of a cell in the tables: the suite, the column, the row, and the seed."""

    suite: str
    source: str
    arm: str
    seed: int
    key: str
    at_most: Mapping[str, float] = field(default_factory=dict)  # the settings that were limited, and to what


def world_source(name: str, world: Simulation) -> Source:
    """A simulated data set. It follows from its settings, so they are its hash."""
    data = f"simulated:{_digest(json.dumps(asdict(world), sort_keys=True))}"
    shown = world.users * world.steps * world.impressions * world.shown
    return Source(name=name, data=data, world=world, positives=round(CLICKED * shown))


def plan_cells(
    suites: Iterable[Suite],
    sources: Sequence[Source],
    splitting: Splitting | None = None,
    seeds: int | None = None,
    sample: int = SAMPLE,
    smoke: bool = False,
    at_most: Mapping[str, float] | None = None,
) -> tuple[dict[str, PlannedCell], list[Placement]]:
    """All cells of some suites, each once, and their placements. Every first seed comes before any second
    one, so that a bench that is stopped has a value in each of its tables.

    sources: the data for suites without worlds of their own.
    splitting: how each log is split; by default as it was prepared for, or else as usual.
    seeds: the number of seeds of each arm; by default that of the suite.
    smoke: make everything as small as it can be.
    at_most: upper limits of settings such as `epochs`, or `deps.epochs` for one model, for data that would
        take hours.
    """
    limits, cells, placements = dict(at_most or {}), dict[str, PlannedCell](), list[Placement]()
    suites = list(suites)
    for suite in suites:
        if not suite.worlds and not sources:
            raise BadInput(
                f"suite {suite.name}: expected DATA, one or more folders of `unskew prepare`", field="suite"
            )
    for seed in range(max((seeds or suite.seeds for suite in suites), default=0)):
        for suite in suites:
            if seed >= (seeds or suite.seeds):
                continue
            for source in _sources_of(suite, sources, seed, smoke):
                for arm in suite.arms:
                    cell = _plan_cell(arm, source, splitting or Splitting(), seed, sample, smoke, limits)
                    cells.setdefault(cell.key, cell)
                    names = {"suite": suite.name, "source": source.name, "arm": arm.name}
                    placements.append(Placement(**names, seed=seed, key=cell.key, at_most=limits))
    for name in limits:
        models = cells.values()
        if not any({*_limits_of({name: 0}, cell.model)} & {*cell.config, *cell.training} for cell in models):
            raise BadInput(f"at most {name}: none of these models has such a setting")
    return cells, placements


def _sources_of(suite: Suite, sources: Sequence[Source], seed: int, smoke: bool) -> list[Source]:
    """The data of a suite. A world has a seed of its own for each seed of the training."""
    if not suite.worlds:
        return list(sources)
    size = {name: getattr(SMOKE_WORLD, name) for name in ("users", "items", "steps")} if smoke else {}
    return [
        world_source(name, replace(world, seed=world.seed + seed, **size))
        for name, world in suite.worlds.items()
    ]


def _plan_cell(
    arm: Arm,
    source: Source,
    splitting: Splitting,
    seed: int,
    sample: int,
    smoke: bool,
    at_most: Mapping[str, float],
) -> PlannedCell:
    settings, rolling = dict(arm.settings), arm.rolling
    if smoke:
        names = [*names_of(model_named(arm.model).Config), *names_of(Training)]
        settings |= {name: value for name, value in SMOKE.items() if names.count(name) == 1}
        sample, rolling = SMOKE_SAMPLE, rolling and replace(rolling, windows=2)
    settings |= {"seed": seed}
    model = create_model(arm.model, settings, arm.preset)
    limits = _limits_of(at_most, arm.model)
    for name, value in (asdict(model.config) | asdict(model.training)).items():
        if name in limits:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadInput(
                    f"at most {name}={limits[name]:g}: {name} is {value!r} here, which is no number"
                )
            settings |= {name: type(value)(limits[name])} if value > limits[name] else {}
    model = create_model(arm.model, settings, arm.preset)
    return PlannedCell(
        source=source,
        splitting=splitting,
        model=arm.model,
        config=asdict(model.config),
        training=asdict(model.training),
        sample=sample,
        rolling=rolling,
        label=f"{arm.name} on {source.name}, seed {seed}",
    )


def _limits_of(at_most: Mapping[str, float], model: str) -> dict[str, float]:
    """The limits of a model: those of all models, and MODEL.SETTING of its own, which goes first."""
    general = {name: most for name, most in at_most.items() if "." not in name}
    own = {name: most for name, most in at_most.items() if name.startswith(f"{model}.")}
    return general | {name.removeprefix(f"{model}."): most for name, most in own.items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
