"""What is promised about versions and formats is what the code has."""

import re
import tomllib
from pathlib import Path

import pytest

import unskew
from tests.helpers.processes import run_python
from unskew.data.log import erasures, folder
from unskew.experiments import grid
from unskew.serve.store import tables
from unskew.training import run_config
from unskew.tuning import tuning_study

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "release.md").read_text(encoding="utf-8")
FORMATS = {
    "prepared folder (`data.json`)": folder.FORMAT,
    "run (`config.json`)": run_config.FORMAT,
    "store of events": tables.SCHEMA,
    "list of erased users": erasures.FORMAT,
    "tuning study": tuning_study.FORMAT,
    "cell of `unskew bench`": grid.FORMAT,
}


def test_the_numbers_of_the_formats_are_on_the_page() -> None:
    rows = re.findall(r"^\| (.+?) \| (\d+) \|", PAGE, re.MULTILINE)
    assert {name: int(number) for name, number in rows} == FORMATS


def test_the_version_has_one_source() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "unskew.__version__"}
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, *_ = re.findall(r"^## (\S+)", changelog, re.MULTILINE)
    assert newest == unskew.__version__
    assert f"unskew:{unskew.__version__}" in (ROOT / "compose.yaml").read_text(encoding="utf-8")


def test_breaking_changes_come_first() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = changelog.split("\n## ")[1]
    assert re.findall(r"^### (.+)$", section, re.MULTILINE)[0] == "Breaking"


def test_every_extra_is_locked() -> None:
    """requirements.lock has an exact version of each package that an extra names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").lower().replace("_", "-").splitlines()
    locked = {line.split("==")[0] for line in lines if "==" in line}
    named = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    names = {re.split(r"[\[<>=]", one)[0].lower().replace("_", "-") for one in named} - {"unskew"}
    assert names <= locked


@pytest.mark.integration
@pytest.mark.parametrize("flags", [(), ("--minimum",)], ids=["newest", "oldest"])
def test_the_readme_passes_in_an_empty_environment(flags: tuple[str, ...]) -> None:
    """Builds the wheel and installs it with plain pip: needs a package index."""
    ended = run_python(ROOT / "benchmarks" / "release.py", *flags)
    assert ended.returncode == 0, ended.stderr
    assert "examples of the README passed in an empty environment" in ended.stdout
