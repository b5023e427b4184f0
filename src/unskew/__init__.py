"""Unbiased next-item recommendation from biased interaction logs."""

from typing import TYPE_CHECKING, Any

from unskew.data.live import Live
from unskew.data.log import Log
from unskew.data.prepare import prepare, read
from unskew.data.split import Split, split
from unskew.errors import BadInput, Leak, UnskewError
from unskew.world.simulate import World, simulate

if TYPE_CHECKING:
    from unskew.api import Model, load
    from unskew.comparison import Family, compare_models
    from unskew.create import DEPS, Debiased, create_model, resume
    from unskew.evaluate import Evaluation
    from unskew.search import BeforeTest
    from unskew.significance import Comparison, compare
    from unskew.timeline import Rolling, rolling
    from unskew.tuning import Tuned, tune
    from unskew.zero import recommend

__version__ = "0.2.0"
__all__ = [
    "DEPS",
    "BadInput",
    "BeforeTest",
    "Comparison",
    "Debiased",
    "Evaluation",
    "Family",
    "Leak",
    "Live",
    "Log",
    "Model",
    "Rolling",
    "Split",
    "Tuned",
    "UnskewError",
    "World",
    "compare",
    "compare_models",
    "create_model",
    "load",
    "prepare",
    "read",
    "recommend",
    "resume",
    "rolling",
    "simulate",
    "split",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Models need torch, which takes seconds to import: who only prepares data does not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from unskew import api, comparison, create, evaluate, search, significance, timeline, tuning, zero

    for room in (api, comparison, create, evaluate, search, significance, timeline, tuning, zero):
        if hasattr(room, name):
            return getattr(room, name)
    raise AssertionError(f"{name} is nowhere")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
