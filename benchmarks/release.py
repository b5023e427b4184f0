"""The wheel in an empty environment: the README's examples run there, and its sizes are measured.

    python benchmarks/release.py             with the newest versions that pyproject.toml admits
    python benchmarks/release.py --minimum   with the oldest ones: every lower bound, in its newest patch
    python benchmarks/release.py --page      and write the sizes into docs/release.md

The wheel is built of a copy of what git tracks, and installed with plain pip into an environment that is
removed at the end. Both need a package index. torch is installed first and by its exact version, because
otherwise pip takes a build of several gigabytes.
"""

import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tyro
from pages import replace_between

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "release.md"
BEGIN, END = "<!-- made by benchmarks/release.py --page -->", "<!-- end -->"
LOCKED_TORCH = "torch==2.13.0"
IMPORTS = 5  # of which the fastest counts


@dataclass(frozen=True)
class Arguments:
    """What to try."""

    minimum: bool = False
    """Install the lowest version of each dependency instead of the newest one."""
    page: bool = False
    """Write the sizes into docs/release.md."""
    skip_examples: bool = False
    """Only measure: the README's examples take minutes of CPU."""


@dataclass(frozen=True)
class Environment:
    """A Python environment of its own, which knows nothing of the clone."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> "Environment":
        """An empty one."""
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        return cls(folder)

    def run(self, *command: str, cwd: Path) -> str:
        """What a program of the environment prints. It must succeed."""
        program = str(self.folder / "bin" / command[0])
        ended = subprocess.run(
            [program, *command[1:]],
            cwd=cwd,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=environment_variables(),
        )
        return ended.stdout

    def install(self, *requirements: str) -> None:
        """Install with plain pip."""
        self.run("python", "-m", "pip", "install", "-qq", *requirements, cwd=self.folder)

    @property
    def packages(self) -> Path:
        """Where packages are installed."""
        (folder,) = self.folder.glob("lib/python3.*/site-packages")
        return folder


def environment_variables() -> dict[str, str]:
    """Nothing of the caller's environment but the number of threads."""
    threads = os.environ.get("OMP_NUM_THREADS")
    return {} if threads is None else {"OMP_NUM_THREADS": threads}


def build_wheel(folder: Path) -> Path:
    """The wheel, built of a copy of what git tracks."""
    asked = ["git", "ls-files", "-z", "src", "pyproject.toml", "README.md", "LICENSE"]
    names = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "copy" / name)
    pip = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*pip, str(folder / "copy")], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def lower_bounds() -> list[str]:
    """Every dependency of the core in its lowest version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [re.sub(r">=([\d.]+).*", r"==\1.*", name) for name in project["dependencies"]]


def run_readme(environment: Environment, folder: Path) -> int:
    """Run the README's commands and its Python where nothing else of the project is; how many there were."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (folder / "examples").mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "clicks.csv", folder / "examples")
    commands = [
        shlex.split(line, comments=True)
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
        if line.startswith("unskew ")
    ]
    scripts = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for command in commands:
        environment.run(*command, cwd=folder)
    for script in scripts:
        environment.run("python", "-c", script, cwd=folder)
    return len(commands) + len(scripts)


def import_seconds(environment: Environment) -> float:
    """The CPU seconds of `import unskew` in a new process, beyond those of an empty program. torch must not
    be among what it imports."""
    program = str(environment.folder / "bin" / "python")
    asked = [program, "-X", "importtime", "-c", "import unskew"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stderr.splitlines()
    if any(re.search(r"\| +torch$", line) for line in lines):
        raise SystemExit("import unskew imports torch")
    return min(cpu_seconds(program, "import unskew") for _ in range(IMPORTS)) - min(
        cpu_seconds(program, "pass") for _ in range(IMPORTS)
    )


def cpu_seconds(program: str, code: str) -> float:
    """The CPU seconds of a Python program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([program, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def megabytes(*paths: Path) -> float:
    """The size of files and trees, as the sum of their files."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def sizes(wheel: Path, environment: Environment) -> dict[str, str]:
    """The sizes of the wheel and of what is installed with it."""
    torch = sorted(environment.packages.glob("torch*"))
    rest = [
        path
        for path in environment.packages.iterdir()
        if not path.name.startswith(("torch", "unskew", "pip", "setuptools", "_distutils"))
    ]
    ours = megabytes(environment.packages / "unskew")
    return {
        "the wheel": f"{megabytes(wheel):.2f} MB",
        "unskew, installed, with its bytecode": f"{ours:.1f} MB",
        "its dependencies without torch": f"{megabytes(*rest):.0f} MB",
        "torch (CPU build)": f"{megabytes(*torch):.0f} MB",
        "`import unskew`": f"{import_seconds(environment):.2f} CPU-s",
    }


def main(given: Arguments) -> None:
    """Build, install, run, measure."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheel = build_wheel(folder)
        environment = Environment.create(folder / "environment")
        pins = lower_bounds() if given.minimum else []
        environment.install(next((pin for pin in pins if pin.startswith("torch")), LOCKED_TORCH))
        environment.install(str(wheel), *pins)
        if not given.skip_examples:
            number = run_readme(environment, folder / "empty")
            print(f"{wheel.name}: {number} examples of the README passed in an empty environment")
        print(environment.run("unskew", "--version", cwd=folder).strip(), *pins, sep=", ")
        rows = sizes(wheel, environment)
    lines = ["| what | |", "| --- | ---: |", *(f"| {name} | {size} |" for name, size in rows.items())]
    print("\n".join(lines))
    if given.page:
        replace_between(PAGE, BEGIN, END, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__, config=(tyro.conf.FlagCreatePairsOff,)))
