"""Unbiased next-item recommendation from biased interaction logs."""

from typing import TYPE_CHECKING, Any

from unskew.data.log import Log
from unskew.data.prepare import prepare, read
from unskew.data.simulate import World, simulate
from unskew.data.split import Split, split
from unskew.errors import BadInput, Leak, UnskewError

if TYPE_CHECKING:
    from unskew.model import DEPS, Debiased, Model, load, recommender

__version__ = "0.1.0"
__all__ = [
    "DEPS",
    "BadInput",
    "Debiased",
    "Leak",
    "Log",
    "Model",
    "Split",
    "UnskewError",
    "World",
    "load",
    "prepare",
    "read",
    "recommender",
    "simulate",
    "split",
]


def __getattr__(name: str) -> Any:
    """Models need torch, which takes seconds to import: who only prepares data does not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from unskew import model

    return getattr(model, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
