"""Every module has its place in the layers, names carry content, and what is asked for is where one looks."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "unskew"
EMPTY_NAMES = {"found", "place", "known", "said", "one", "each", "made", "wanted", "asked"}
MOST_EMPTY = 0.05  # of all assigned names


def layers_of(container: str) -> set[str]:
    """The names in the layers of the import contract of this package."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (one for one in settings["contracts"] if one.get("containers") == [container])
    return {name.strip() for layer in contract["layers"] for name in layer.split(":")}


def test_nothing_stands_at_the_root() -> None:
    assert {path.name for path in SRC.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_every_module_is_in_a_layer() -> None:
    packages = {path.relative_to(SRC).parts[0] for path in SRC.rglob("*.py") if path.parent != SRC}
    assert packages == layers_of("unskew")
    data = SRC / "data"
    rooms = {path.relative_to(data).parts[0] for path in data.rglob("*.py") if path.parent != data}
    assert rooms == layers_of("unskew.data")
    assert not [path for path in SRC.rglob("*.py") if not (path.parent / "__init__.py").is_file()]


def assigned_names(source: str) -> list[str]:
    """The names of variables that a module assigns, as often as it does."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))
    return [node.id for node in nodes if isinstance(node.ctx, ast.Store)]


def test_names_carry_content() -> None:
    names = [name for path in SRC.rglob("*.py") for name in assigned_names(path.read_text(encoding="utf-8"))]
    empty = [name for name in names if name in EMPTY_NAMES]
    assert len(empty) / len(names) < MOST_EMPTY, f"{len(empty)} of {len(names)}"


def test_assigned_names_are_counted_wherever_they_are() -> None:
    source = "found = 1\nfor place in found: pass\nwith a as said: [one for one in said]\n(b := found)"
    assert sorted(assigned_names(source)) == ["b", "found", "one", "place", "said"]


def test_what_is_asked_for_is_where_the_table_says() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where is")[2]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE)[2:]
    assert len(rows) >= 30
    paths = [path for _, cell in rows for path in re.findall(r"`(.+?)`", cell)]
    assert len(paths) >= len(rows)
    assert not [path for path in paths if not (SRC / path).exists()]
