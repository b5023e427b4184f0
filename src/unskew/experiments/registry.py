"""The suites by name, those of this package and those of others (entry point `unskew.suites`)."""

from importlib.metadata import entry_points

from unskew.core.config import did_you_mean
from unskew.core.errors import BadInput
from unskew.experiments import extra_suites as beyond
from unskew.experiments import paper_suites as paper
from unskew.experiments.suite import Suite

EVERYTHING = "all"


def suites() -> dict[str, Suite]:
    """All suites by name. A package adds its own with an entry point `unskew.suites` that names a `Suite`."""
    found = {suite.name: suite for suite in (*paper.SUITES, *beyond.SUITES)}
    for entry in entry_points(group="unskew.suites"):
        suite = entry.load()
        if not isinstance(suite, Suite):
            raise BadInput(f"entry point {entry.name} of unskew.suites: expected a Suite, found {suite!r}")
        if suite.name in found:
            raise BadInput(f"entry point {entry.name}: a suite named {suite.name!r} is there already")
        found[suite.name] = suite
    return found


def suites_named(name: str, known: dict[str, Suite]) -> list[Suite]:
    """The suite of a name, or all of them."""
    if name == EVERYTHING:
        return list(known.values())
    if name not in known:
        near = did_you_mean(name, known)
        raise BadInput(f"no suite {name!r}{near}; there are {', '.join(known)}, and {EVERYTHING}")
    return [known[name]]
