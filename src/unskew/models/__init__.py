"""All models. A model of this folder is registered by being in it; a model of another package by an entry
point of the group `unskew.models`."""

import importlib
import pkgutil
import warnings
from importlib.metadata import entry_points

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

for _point in entry_points(group="unskew.models"):
    try:
        _point.load()
    except Exception as _error:  # whatever is wrong with another package, this one works without it
        warnings.warn(
            f"model {_point.name} ({_point.value}) cannot be loaded: {_error}", RuntimeWarning, stacklevel=2
        )
