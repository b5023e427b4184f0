"""Unbiased next-item recommendation from biased interaction logs."""

from unskew.data.log import Log
from unskew.data.prepare import prepare, read
from unskew.data.simulate import World, simulate
from unskew.data.split import Split, split
from unskew.errors import BadInput, Leak, UnskewError
from unskew.model import DEPS, Debiased, Model, load

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
    "simulate",
    "split",
]
