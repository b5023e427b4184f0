"""The suites by name: those of this package, those of others (entry point `unskew.suites`), and those of a
file."""

from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

from unskew.core.config import did_you_mean
from unskew.core.errors import BadInput
from unskew.core.imports import import_file
from unskew.experiments import extra_suites, paper_suites
from unskew.experiments.suite import Suite

EVERYTHING = "all"


def suites() -> dict[str, Suite]:
    """All suites by name. A package adds its own with an entry point `unskew.suites` that names a `Suite`."""
    by_name = {suite.name: suite for suite in (*paper_suites.SUITES, *extra_suites.SUITES)}
    for entry in entry_points(group="unskew.suites"):
        suite = entry.load()
        if not isinstance(suite, Suite):
            raise BadInput(f"entry point {entry.name} of unskew.suites: expected a Suite, found {suite!r}")
        if suite.name in by_name:
            raise BadInput(f"entry point {entry.name}: a suite named {suite.name!r} is there already")
        by_name[suite.name] = suite
    return by_name


def suites_named(name: str, by_name: dict[str, Suite]) -> list[Suite]:
    """The suite of a name, or all of them."""
    if name == EVERYTHING:
        return list(by_name.values())
    if name not in by_name:
        near = did_you_mean(name, by_name)
        raise BadInput(f"no suite {name!r}{near}; there are {', '.join(by_name)}, and {EVERYTHING}")
    return [by_name[name]]


def suites_in(file: Path) -> dict[str, Suite]:
    """The suites that a Python file defines, by their names. Models that it defines are registered. A suite
    of this package that it imports, to take arms or worlds from, is not its own."""
    values = vars(import_file(file)).values()
    others = list(suites().values())
    own = [value for value in values if isinstance(value, Suite) and value not in others]
    if not own:
        raise BadInput(f"{file}: defines no `Suite`; see `unskew.experiments.suite`")
    return {suite.name: replace(suite, file=str(file)) for suite in own}
