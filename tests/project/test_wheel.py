"""The wheel holds every file of the package, and works where nothing else of the project is."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import unskew
from tests.helpers.processes import run_python

ROOT = Path(__file__).parents[2]
USE = """
import sys
from pathlib import Path
import unskew
from unskew.cli import main

assert Path(unskew.__file__).is_relative_to(sys.argv[1]), unskew.__file__
assert main(["prepare", "clicks.csv", "--out", "shop"]) == 0
assert main(["inspect", "shop", "--html", "bias.html"]) == 0
assert unskew.recommend(unskew.Log.open("shop"), users=["u1"], k=5).table.num_rows == 5
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of a copy of what git tracks."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "src", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in filter(None, tracked):
        if (ROOT / name).exists():
            (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "copy" / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(folder / "copy")], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    copied = wheel.parent / "copy" / "src"
    ours = {str(path.relative_to(copied)) for path in copied.glob("unskew/**/*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        assert ours - set(archive.namelist()) == set()
    assert wheel.name.startswith(f"unskew-{unskew.__version__}-")


def test_the_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    shutil.copy(ROOT / "examples" / "clicks.csv", tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    ended = run_python("-P", "-c", USE, tmp_path / "installed", cwd=tmp_path, env=environment)
    assert ended.returncode == 0, ended.stderr


def test_the_citation_names_the_version() -> None:
    assert f"\nversion: {unskew.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
