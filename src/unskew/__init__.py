"""Unbiased next-item recommendation from biased interaction logs."""

from unskew.data.log import Log
from unskew.data.prepare import prepare, read
from unskew.errors import BadInput, Leak, UnskewError

__version__ = "0.1.0"
__all__ = ["BadInput", "Leak", "Log", "UnskewError", "prepare", "read"]
