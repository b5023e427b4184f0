"""Python files of the caller, which define models, estimators of propensities or suites."""

import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from unskew.core.errors import BadInput, UnskewError

PREFIX = "unskew_import_"

_files: dict[str, Path] = {}  # by the names of their modules


class MissingImport(BadInput):
    """A run needs a file of the caller that has not been imported."""


def import_file(file: Path) -> ModuleType:
    """Import a Python file. The models and estimators that it defines are registered."""
    if not file.is_file():
        raise BadInput(f"{file}: no such file; expected a Python file")
    name = f"{PREFIX}{file.stem}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadInput(f"{file}: expected a name that ends with .py")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for their annotations there
    try:
        spec.loader.exec_module(module)
    except UnskewError:
        raise
    except Exception as error:
        raise BadInput(f"{file}: could not be read ({type(error).__name__}: {error})") from error
    _files[name] = file
    return module


def files_of(classes: Iterable[type]) -> tuple[str, ...]:
    """The imported files that define some of these classes, as they were named."""
    return tuple(dict.fromkeys(str(_files[kind.__module__]) for kind in classes if kind.__module__ in _files))


def imported_files() -> tuple[Path, ...]:
    """All files that this process has imported."""
    return tuple(_files.values())
