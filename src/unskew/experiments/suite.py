"""What a suite is: a grid of data sets, models and seeds that answers one question.

A `Suite` is a recipe, and its `Arm`s are the rows of its table. A `Cell` is one run of the grid. Two suites
that ask for the same cell share it, because a cell is known by what it does and not by who asked for it.

A suite of your own is a Python file with one or more `Suite`s in it: `unskew bench --suite FILE DATA`.
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
from unskew.models.base import Training, model_named
from unskew.models.pulse.model import ZERO, PulseZero
from unskew.world.equations import Simulation

FORMAT = 1  # of a stored cell; a cell of another format is measured again
SAMPLE = 5000  # test positives that are ranked: the same ones for every model
# What `--smoke` changes, where a model has such a setting: enough to see that everything works.
SMOKE: dict[str, Any] = {
    "epochs": 1,
    "unsupervised_epochs": 1,
    "width": 8,
    "place_width": 4,
    "layers": 1,
    "heads": 1,
    "inner": 16,
    "hidden": 8,
    "history": 5,
    "audience": 5,
    "sample": 300,
    "valid_examples": 60,
}
SMOKE_SAMPLE = 60
CLICKED = 0.3  # roughly the fraction of what a world shows that is clicked, for the estimate of the time
SMOKE_WORLD = Simulation(users=60, items=24, steps=40, seed=3)


@dataclass(frozen=True, kw_only=True)
class Rolling:
    """Test, then train, along the time line: see `unskew.evaluation.rolling`.

    refresh: how often the model is trained again: `never`, or a time such as `1d` or `1w`.
    window: how much time is tested at once.
    windows: how many windows are tested at the end of the log.
    """

    refresh: str
    window: str = "1d"
    windows: int = 14


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One row of a table: a model with its settings.

    name: what the table calls it.
    model: the name of a registered model.
    settings: what differs from the model's defaults.
    preset: a named set of settings to start from.
    twin: the name of the arm that this one is compared with; by default the suite's first arm.
    x: the place of this arm on the axis of a curve, where the arms are its points.
    rolling: how it is tested along the time line, where the suite does that.
    """

    name: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    twin: str | None = None
    x: float | None = None
    rolling: Rolling | None = None


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A question and the arms that answer it.

    name: what `unskew bench NAME` is called with.
    title: the heading of its table.
    question: what it asks, in a sentence.
    arms: the rows. The others are compared with the first one, unless they name a twin.
    of: the table or figure of the paper that it repeats, or nothing.
    axis: what `x` of the arms is, where they are points of a curve.
    worlds: simulated data sets that belong to the suite; their ground truth is measured as well. A suite
        without any needs data.
    rivals: the arms among which the best rival is looked for; by default all but the first.
    seeds: how many seeds each arm has by default.
    file: the Python file that it comes from; none if it belongs to the package.
    """

    name: str
    title: str
    question: str
    arms: Sequence[Arm]
    of: str = ""
    axis: str = ""
    worlds: Mapping[str, Simulation] = field(default_factory=dict)
    rivals: Sequence[str] = ()
    seeds: int = 3
    file: str = ""

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if not names:
            raise BadInput(f"suite {self.name}: has no arms")
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"suite {self.name}: two arms are named {name!r}")
        for wanted in (*self.rivals, *(arm.twin for arm in self.arms if arm.twin is not None)):
            if wanted not in names:
                raise BadInput(f"suite {self.name}: no arm {wanted!r}; there are {', '.join(names)}")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set of a bench: a prepared folder, or a world that is simulated.

    name: what tables call it.
    folder: where it is prepared; empty for a world.
    world: the settings of a world.
    data: the hash of the log with the borders of its split, or of the settings of the world.
    positives: how many positives the log has, for the estimate of the time.
    """

    name: str
    data: str
    folder: str = ""
    world: Simulation | None = None
    positives: int = 0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a grid: a data set, a model with all its settings, a seed, and how it is tested."""

    source: Source
    splitting: Splitting
    model: str
    config: Mapping[str, Any]  # all of it, and not only what was given: a new default makes another cell
    training: Mapping[str, Any]
    sample: int
    rolling: Rolling | None = None
    label: str = ""  # for people to read; no part of the key

    @property
    def key(self) -> str:
        """What the cell is stored by: the same for whatever gives the same result, wherever the data is."""
        parts: dict[str, Any] = {"format": FORMAT, "data": self.source.data, "model": self.model}
        parts |= {"splitting": asdict(self.splitting), "config": self.config, "training": self.training}
        parts |= {"sample": self.sample, "rolling": self.rolling and asdict(self.rolling)}
        if issubclass(model_named(self.model), PulseZero):  # its weights are no setting
            parts["weights"] = hashlib.sha256(ZERO.read_bytes()).hexdigest()
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a cell stands: in which suite's table, in which column of data, as which arm."""

    suite: str
    source: str
    arm: str
    seed: int
    key: str
    at_most: Mapping[str, float] = field(default_factory=dict)  # what was limited, and to what


def world_source(name: str, world: Simulation) -> Source:
    """A simulated data set. Its settings say all about it, so they are its hash."""
    said = json.dumps(asdict(world), sort_keys=True)
    data = f"simulated:{hashlib.sha256(said.encode()).hexdigest()[:16]}"
    shown = world.users * world.steps * world.impressions * world.shown
    return Source(name=name, data=data, world=world, positives=round(CLICKED * shown))


def cells_of(
    suites: Iterable[Suite],
    sources: Sequence[Source],
    splitting: Splitting | None = None,
    seeds: int | None = None,
    sample: int = SAMPLE,
    smoke: bool = False,
    at_most: Mapping[str, float] | None = None,
) -> tuple[dict[str, Cell], list[Place]]:
    """All cells of some suites, each once, and the places where they stand. Every first seed comes before any
    second one, so that a bench that is stopped has a figure in each of its tables.

    sources: the data for suites without worlds of their own.
    splitting: how each log is split; by default as it was prepared for, or else as usual.
    seeds: how many seeds each arm has; by default as the suite says.
    smoke: make everything as small as it can be.
    at_most: settings of which no model is to have more, such as `epochs`, or one model, such as
        `deps.epochs`, for data that would take hours.
    """
    limits = dict(at_most or {})
    cells: dict[str, Cell] = {}
    places: list[Place] = []
    asked = list(suites)
    for suite in asked:
        if not suite.worlds and not sources:
            raise BadInput(f"suite {suite.name}: expected DATA, one or more folders of `unskew prepare`")
    most = max((seeds or suite.seeds for suite in asked), default=0)
    for seed in range(most):
        for suite in asked:
            if seed >= (seeds or suite.seeds):
                continue
            for source in sources_of(suite, sources, seed, smoke):
                for arm in suite.arms:
                    cell = _cell(arm, source, splitting or Splitting(), seed, sample, smoke, limits)
                    cells.setdefault(cell.key, cell)
                    at = Place(suite=suite.name, source=source.name, arm=arm.name, seed=seed, key=cell.key)
                    places.append(replace(at, at_most=limits))
    for name in limits:
        if not any({*_meant({name: 0}, one.model)} & {*one.config, *one.training} for one in cells.values()):
            raise BadInput(f"at most {name}: none of these models has such a setting")
    return cells, places


def sources_of(suite: Suite, sources: Sequence[Source], seed: int, smoke: bool) -> list[Source]:
    """The data of a suite. A world has a seed of its own for each seed of the training."""
    if not suite.worlds:
        return list(sources)
    size = {name: getattr(SMOKE_WORLD, name) for name in ("users", "items", "steps")} if smoke else {}
    return [
        world_source(name, replace(world, seed=world.seed + seed, **size))
        for name, world in suite.worlds.items()
    ]


def _cell(
    arm: Arm,
    source: Source,
    splitting: Splitting,
    seed: int,
    sample: int,
    smoke: bool,
    at_most: Mapping[str, float],
) -> Cell:
    kind = model_named(arm.model)
    given = dict(arm.settings)
    rolling = arm.rolling
    if smoke:
        known = [*names_of(kind.Config), *names_of(Training)]
        given |= {name: value for name, value in SMOKE.items() if known.count(name) == 1}
        sample = SMOKE_SAMPLE
        rolling = rolling and replace(rolling, windows=2)
    made = create_model(arm.model, given | {"seed": seed}, arm.preset)
    if more := _more_than(_meant(at_most, arm.model), asdict(made.config) | asdict(made.training)):
        made = create_model(arm.model, given | {"seed": seed} | more, arm.preset)
    return Cell(
        source=source,
        splitting=splitting,
        model=arm.model,
        config=asdict(made.config),
        training=asdict(made.training),
        sample=sample,
        rolling=rolling,
        label=f"{arm.name} on {source.name}, seed {seed}",
    )


def _meant(at_most: Mapping[str, float], model: str) -> dict[str, float]:
    """The limits that are meant for a model: those of all, and MODEL.SETTING of its own, which goes first."""
    every = {name: most for name, most in at_most.items() if "." not in name}
    return every | {
        name.removeprefix(f"{model}."): most for name, most in at_most.items() if name.startswith(f"{model}.")
    }


def _more_than(at_most: Mapping[str, float], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The limits that some settings exceed."""
    found: dict[str, Any] = {}
    for name, most in at_most.items():
        value = settings.get(name, most)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInput(f"at most {name}={most:g}: {name} is {value!r} here, which is no number")
        if value > most:
            found[name] = type(value)(most)
    return found
