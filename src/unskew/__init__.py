"""Unbiased next-item recommendation from biased interaction logs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unskew.core.errors import BadInput, Leak, UnskewError
from unskew.data.log.live import Live
from unskew.data.log.log import Log
from unskew.data.log.split import Split, split
from unskew.data.reading.prepare import prepare, read
from unskew.world.simulate import World, simulate

if TYPE_CHECKING:
    from unskew.api.create import DEPS, Debiased, create_model, load, resume
    from unskew.api.model import Model
    from unskew.api.zero_shot import recommend
    from unskew.evaluation.comparison import Family, compare_models
    from unskew.evaluation.evaluate import Evaluation
    from unskew.evaluation.rolling import Rolling, rolling
    from unskew.evaluation.significance import Comparison, compare
    from unskew.tuning.search_space import BeforeTest
    from unskew.tuning.tuner import Tuned, tune

__version__ = "0.2.0"

# Models need torch, which takes seconds to import: these names are imported when they are first used.
_LAZY = {
    "DEPS": "unskew.api.create",
    "BeforeTest": "unskew.tuning.search_space",
    "Comparison": "unskew.evaluation.significance",
    "Debiased": "unskew.api.create",
    "Evaluation": "unskew.evaluation.evaluate",
    "Family": "unskew.evaluation.comparison",
    "Model": "unskew.api.model",
    "Rolling": "unskew.evaluation.rolling",
    "Tuned": "unskew.tuning.tuner",
    "compare": "unskew.evaluation.significance",
    "compare_models": "unskew.evaluation.comparison",
    "create_model": "unskew.api.create",
    "load": "unskew.api.create",
    "recommend": "unskew.api.zero_shot",
    "resume": "unskew.api.create",
    "rolling": "unskew.evaluation.rolling",
    "tune": "unskew.tuning.tuner",
}

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
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
