"""Models and estimators from outside: installed beside the package for a while, and forgotten afterwards."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from unskew.cli import main
from unskew.models.base import MODELS
from unskew.propensity import base as estimators

TABLES: tuple[dict[str, type], ...] = (MODELS, estimators.ESTIMATORS)


@contextmanager
def restored_registries() -> Iterator[None]:
    """Forget the models and estimators that this block registers, but for our own, which may be imported in
    it for the first time."""
    before = [set(table) for table in TABLES]
    try:
        yield
    finally:
        for table, names in zip(TABLES, before, strict=True):
            for name in set(table) - names:
                if not table[name].__module__.startswith("unskew."):
                    del table[name]


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Let Python find the packages of a folder, as if pip had installed them there."""
    modules = set(sys.modules)
    sys.path.insert(0, str(folder))
    estimators._installed.cache_clear()
    try:
        with restored_registries():
            yield
    finally:
        sys.path.remove(str(folder))
        estimators._installed.cache_clear()
        for name in set(sys.modules) - modules:
            if str(folder) in str(getattr(sys.modules[name], "__file__", None)):
                del sys.modules[name]


def run_script(folder: Path, script: str, *arguments: object) -> None:
    """Run a script in this process, where the packages of a folder are installed."""
    before = sys.argv
    sys.argv = ["script", *map(str, arguments)]
    try:
        with installed(folder):
            exec(compile(script, "script", "exec"), {"__name__": "__main__"})
    finally:
        sys.argv = before


def run_commands(folder: Path, *commands: tuple[object, ...]) -> list[tuple[int, str, str]]:
    """Run commands in this process, where the packages of a folder are installed. Returns the exit code of
    each command, and what it printed."""
    results = []
    with installed(folder):
        for command in commands:
            with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
                code = main([str(word) for word in command])
            results.append((code, out.getvalue(), err.getvalue()))
    return results
