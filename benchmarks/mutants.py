"""Would the tests notice? Plants one fault after the other in a copy of the sources and runs the tests that
should see it.

    python benchmarks/mutants.py [PART OF A NAME ...] [--list]

A mutant is killed if its tests fail, and survives if they pass: then a test is missing. The working tree is
never touched. Before any fault is planted the tests must pass in the copy, and the text that a fault replaces
must be there exactly once: a list that the code has left behind says so instead of counting as killed. The
list is in benchmarks/planted. Not part of CI: it takes half an hour. Arguments choose mutants by their file.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from planted import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
LONGEST = 900  # seconds; a mutant that never ends is noticed, too
PASSED, FAILED = 0, 1  # what pytest returns; anything else is no verdict


@dataclass(frozen=True, kw_only=True)
class Run:
    """Plant faults in a copy of the sources, one after the other, and see whether the tests notice."""

    only: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Parts of file names, or of what a fault is; by default all."""
    list: bool = False
    """Only say which there are."""


def copied(into: Path) -> None:
    """As much of the tree as tests of the library need."""
    for name in ("src", "tests", "examples", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, into / name)


def verdict(tree: Path, tests: tuple[str, ...]) -> int | None:
    """What pytest returns in the copy; None if it takes too long."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command = [*pytest, *(f"tests/{name}" for name in tests)]
    try:
        return subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, timeout=LONGEST, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def left_behind(mutant: Mutant) -> str:
    """Why a fault cannot be planted any more; empty if it can."""
    path = ROOT / "src" / "unskew" / mutant.file
    if not path.is_file():
        return "no such file"
    times = path.read_text(encoding="utf-8").count(mutant.text)
    if times != 1:
        return f"expected the text exactly once, found it {times} times"
    missing = [name for name in mutant.tests if not (ROOT / "tests" / name.partition("::")[0]).is_file()]
    return f"no such tests: {' '.join(missing)}" if missing else ""


def killed(tree: Path, mutant: Mutant) -> bool:
    path = tree / "src" / "unskew" / mutant.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(mutant.text, mutant.planted), encoding="utf-8")
    try:
        found = verdict(tree, mutant.tests)
    finally:
        path.write_text(whole, encoding="utf-8")
    if found not in (PASSED, FAILED, None):
        sys.exit(
            f"{mutant.file}: {mutant.what}: the tests do not even run (pytest returned {found}); plant "
            "something else"
        )
    return found != PASSED


def main(run: Run) -> None:
    chosen = [
        mutant
        for mutant in MUTANTS
        if not run.only or any(part in f"{mutant.file}: {mutant.what}" for part in run.only)
    ]
    stale = {mutant: why for mutant in chosen if (why := left_behind(mutant))}
    if run.list:
        for mutant in chosen:
            print(f"{mutant.file}: {mutant.what}" + (f" ({stale[mutant]})" if mutant in stale else ""))
        return
    if stale:
        said = [f"{mutant.file}: {mutant.what}: {why}: {mutant.text!r}" for mutant, why in stale.items()]
        sys.exit("\n".join([*said, f"{len(stale)} of {len(chosen)} cannot be planted"]))
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copied(tree)
        for tests in sorted({mutant.tests for mutant in chosen}):
            if verdict(tree, tests) != PASSED:
                sys.exit(f"{' '.join(tests)}: fails without any mutant, so it would kill all of them")
        for mutant in chosen:
            started = time.perf_counter()
            noticed = killed(tree, mutant)
            word = "killed  " if noticed else "SURVIVED"
            print(f"{word} {time.perf_counter() - started:5.1f} s  {mutant.file}: {mutant.what}", flush=True)
            if not noticed:
                survivors.append(mutant)
    print(
        f"{len(chosen) - len(survivors)} of {len(chosen)} killed "
        f"({1 - len(survivors) / max(len(chosen), 1):.0%})"
    )
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main(tyro.cli(Run))
