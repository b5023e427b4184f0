"""What a bench stores, as frozen dataclasses: the plan of its suites, the result of every cell, and the units
of every test; and how they are read from JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from unskew.diagnostics.propensity.verdicts import WeightVerdict
from unskew.experiments.grid import Placement
from unskew.experiments.suite import Rolling, Suite

T = TypeVar("T")
METRIC = "ndcg@10"  # by which arms are compared
MIN_PATIENCE = 5  # epochs without a gain after which training counts as finished


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """The data set of a cell."""

    name: str
    hash: str
    world: Mapping[str, Any] | None  # the settings of a simulated world
    splitting: Mapping[str, Any] = field(default_factory=dict)
    train_before: str
    test_from: str
    dated: bool = True  # whether its times are real, or only give an order
    repeats: bool
    rows: int
    positives: int
    users: int
    items: int


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the training of a cell cost; the memory is that of the process."""

    cpu_s: float
    wall_s: float = 0.0
    parameters: int
    memory_mb: int = 0


@dataclass(frozen=True, kw_only=True)
class StoredHealth:
    """What the propensities of a model do to its loss."""

    clip: float
    kind: str  # a `WeightVerdict`
    verdict: str
    effective_fraction: float | None = None
    clipped: float | None = None
    spread: tuple[float, ...] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether all weights are nearly the same, so that they do nothing."""
        return WeightVerdict(self.kind).does_nothing


@dataclass(frozen=True, kw_only=True)
class StoredTest:
    """The result of one test under one protocol.

    units: the key of the units that were ranked, which are stored once for all cells.
    segments: by kind of segment and group, the number of units and the mean.
    values: the result of each unit, packed: its rank, or its metrics.
    """

    units: str
    size: int
    whole_test: int | None
    effective_sample_size: float
    left_out: Mapping[str, int] = field(default_factory=dict)
    chosen_by: str | None
    debias: float | None = None
    metrics: Mapping[str, float | None]
    interval: tuple[float, ...] = ()
    segments: Mapping[str, Mapping[str, tuple[Any, ...]]]
    beyond: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class StoredEpoch:
    """The losses and validation metrics of one epoch."""

    epoch: int
    stage: str
    losses: Mapping[str, float]
    valid: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class StoredWindow:
    """The metric in one window of a time line."""

    start: str
    trained_until: str
    value: float | None


@dataclass(frozen=True, kw_only=True)
class BenchCell:
    """Everything that one run of a bench gave.

    finished: whether training ended because no validation metric rose for `patience` epochs, at least
        MIN_PATIENCE. A model that is not trained in epochs is finished. No verdict uses any other cell.
    strengths: by test and debiasing strength the metric, where the model has a strength.
    windows: the metric along the time line, where the suite is about that.
    """

    key: str
    format: int
    model: str
    config: Mapping[str, Any]
    training: Mapping[str, Any]
    settings_key: str
    sample: int
    rolling: Rolling | None
    data: DataSummary
    cost: Cost
    records: tuple[StoredEpoch, ...]
    finished: bool
    tests: Mapping[str, StoredTest]
    strengths: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    windows: tuple[StoredWindow, ...] = ()
    health: StoredHealth | None
    versions: Mapping[str, str]

    @property
    def seed(self) -> int:
        """The seed of the training."""
        return int(self.training["seed"])


@dataclass(frozen=True, kw_only=True)
class Units:
    """What was ranked in a test of a data set: the user and the weight of each unit, packed."""

    key: str
    test: str
    protocol: str
    size: int
    repeats: str
    data: str = ""
    user: str
    weight: str


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a cell failed the last time."""

    key: str
    why: str


@dataclass(frozen=True, kw_only=True)
class About:
    """The last command line of a bench, and whether it was a smoke test."""

    command: str = ""
    smoke: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The suites of a bench, and where every cell stands in their tables."""

    suites: Mapping[str, Suite]
    places: tuple[Placement, ...]
    about: About = field(default_factory=About)


class IncompleteError(Exception):
    """A stored value lacks something, which the message names by its path."""


def from_json(kind: type[T], value: Any, path: tuple[str, ...] = ()) -> T:
    """A value that was read from JSON as its dataclass. A field without a default must be there."""
    return _parsed(kind, value, path)


def _parsed(kind: Any, value: Any, path: tuple[str, ...]) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None else _parsed(arguments[0], value, path)
    if origin in (tuple, Sequence) and isinstance(value, list):
        return tuple(_parsed(arguments[0], part, (*path, str(at))) for at, part in enumerate(value, 1))
    if origin is Mapping and isinstance(value, dict):
        return {name: _parsed(arguments[1], part, (*path, name)) for name, part in value.items()}
    if not is_dataclass(kind) and origin not in (tuple, Sequence, Mapping):
        return value
    if not isinstance(value, dict) or not isinstance(kind, type):
        raise IncompleteError(" > ".join(path))
    hints, parts = get_type_hints(kind), {}
    for each in fields(kind):
        if each.name in value:
            parts[each.name] = _parsed(hints[each.name], value[each.name], (*path, each.name))
        elif each.default is MISSING and each.default_factory is MISSING:
            raise IncompleteError(" > ".join((*path, each.name)))
    return kind(**parts)
