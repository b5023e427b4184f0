"""Unbiased next-item recommendation from biased interaction logs."""

from typing import TYPE_CHECKING, Any

from unskew.data.log import Log
from unskew.data.prepare import prepare, read
from unskew.data.simulate import World, simulate
from unskew.data.split import Split, split
from unskew.errors import BadInput, Leak, UnskewError

if TYPE_CHECKING:
    from unskew.evaluate import Evaluation
    from unskew.model import DEPS, Debiased, Model, load, recommender
    from unskew.significance import Comparison, compare
    from unskew.timeline import Rolling, rolling

__version__ = "0.2.0"
__all__ = [
    "DEPS",
    "BadInput",
    "Comparison",
    "Debiased",
    "Evaluation",
    "Leak",
    "Log",
    "Model",
    "Rolling",
    "Split",
    "UnskewError",
    "World",
    "compare",
    "load",
    "prepare",
    "read",
    "recommender",
    "rolling",
    "simulate",
    "split",
]


def __getattr__(name: str) -> Any:
    """Models need torch, which takes seconds to import: who only prepares data does not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from unskew import evaluate, model, significance, timeline

    rooms = {
        "Evaluation": evaluate,
        "Comparison": significance,
        "compare": significance,
        "Rolling": timeline,
        "rolling": timeline,
    }
    return getattr(rooms.get(name, model), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
