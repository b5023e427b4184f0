"""Every model of this folder is registered by being in it; those of other packages by their entry points
`unskew.models`."""

import importlib
import pkgutil
import warnings
from importlib.metadata import entry_points

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

for _point in entry_points(group="unskew.models"):
    try:
        _point.load()
    except Exception as _error:  # whatever is wrong with another's package, ours works without it
        warnings.warn(
            f"model {_point.name} ({_point.value}) cannot be loaded: {_error}", RuntimeWarning, stacklevel=2
        )
