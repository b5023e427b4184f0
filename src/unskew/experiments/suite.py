"""What a suite is: the arms that answer one question, each a model with its settings.

A suite of your own is a Python file with one or more `Suite`s in it: `unskew bench --suite FILE DATA`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unskew.core.errors import BadInput
from unskew.world.equations import Simulation


@dataclass(frozen=True, kw_only=True)
class Rolling:
    """Test, then train, along the time line: see `unskew.evaluation.rolling`.

    Parameters
    ----------
    refresh
        How often the model is trained again: `never`, or a time such as `1d` or `1w`.
    window
        The length of time that is tested at once.
    windows
        The number of windows that are tested at the end of the log.
    """

    refresh: str
    window: str = "1d"
    windows: int = 14


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One row of a table: a model with its settings.

    Parameters
    ----------
    name
        The name in the table.
    model
        The name of a registered model.
    settings
        The settings that differ from the model's defaults.
    preset
        A named set of settings to start from.
    twin
        The name of the arm that this one is compared with; by default the suite's first arm.
    x
        The position of this arm on the axis of a curve, where the arms are its points.
    rolling
        How it is tested along the time line, where the suite does that.
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

    Parameters
    ----------
    name
        The name in `unskew bench NAME`.
    title
        The heading of its table.
    question
        The question, as a sentence.
    arms
        The rows. The others are compared with the first one, unless they name a twin.
    of
        The table or figure of the paper that it repeats; empty if it is not from the paper.
    axis
        The name of the axis on which `x` of the arms lies, where they are points of a curve.
    worlds
        Simulated data sets that belong to the suite, by name; their ground truth is measured as well. A suite
        without any needs data.
    rivals
        The arms among which the best rival is looked for; by default all but the first.
    seeds
        The number of seeds of each arm by default.
    file
        The Python file that it comes from; empty if it belongs to the package.
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
        for name in (*self.rivals, *(arm.twin for arm in self.arms if arm.twin is not None)):
            if name not in names:
                raise BadInput(f"suite {self.name}: no arm {name!r}; there are {', '.join(names)}")
