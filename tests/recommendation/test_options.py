"""The options of a list: no two of them can change places, and impossible ones are refused."""

import os
import subprocess
import sys
from dataclasses import fields
from inspect import Parameter, getsource, signature
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import unskew
from tests.helpers.errors import refused
from unskew.recommendation import options
from unskew.recommendation.options import RecommendKeywords, RecommendOptions

NAMES = [field.name for field in fields(RecommendOptions)]


def test_any_two_options_that_change_places_fail_mypy(tmp_path: Path) -> None:
    """Each swap is a line of a file that mypy reads; the last line is right."""
    (tmp_path / "options.py").write_text(getsource(options))
    lines = ["from options import RecommendOptions", "def swapped(o: RecommendOptions) -> None:"]
    swaps = list(combinations(NAMES, 2))
    lines += [f"    RecommendOptions({one}=o.{other}, {other}=o.{one})" for one, other in swaps]
    lines += [
        "    RecommendOptions(10, True)",
        f"    RecommendOptions({', '.join(f'{n}=o.{n}' for n in NAMES)})",
    ]
    (tmp_path / "swapped.py").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "swapped.py"]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")
    }
    checked = subprocess.run(
        [*command, "--follow-imports=silent", "--config-file=", "--no-site-packages"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = {int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line}
    assert wrong == set(range(3, 3 + len(swaps) + 1)), checked.stdout


def test_python_takes_all_options_as_keywords_alone() -> None:
    given = signature(unskew.Model.recommend).parameters
    assert [name for name in given if name in NAMES] == NAMES == list(RecommendKeywords.__annotations__)
    for name in NAMES:
        assert given[name].kind is Parameter.KEYWORD_ONLY
        assert given[name].default == getattr(RecommendOptions(), name)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"k": 0}, "k"),
        ({"diverse": 1.5}, "diverse"),
        ({"debias": 0.5, "approximate": True}, "debias"),
    ],
)
def test_impossible_options(wrong: dict[str, Any], field: str) -> None:
    with refused(field):
        RecommendOptions(**wrong)
