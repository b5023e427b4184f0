"""What the documents say is executed; what they link to exists; no tracked file is data."""

import ast
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from unskew.cli import VERBS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


EXECUTED = ("README.md", "docs/start.md", "docs/deps.md", "docs/rules.md")  # their commands and Python


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch) -> Path:
    """The click log that the examples speak of."""
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "clicks.csv", tmp_path / "examples")
    shutil.copy(ROOT / "examples" / "clicks.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", [*EXECUTED, "docs/warehouse.md"])
def test_the_python_of_the_documents_runs(clicks: Path, document: str) -> None:
    found = blocks("python", (ROOT / document).read_text(encoding="utf-8"))
    assert found
    for code in found:
        exec(compile(code, document, "exec"), {})


@pytest.mark.parametrize("document", EXECUTED)
def test_the_commands_of_the_documents_run(clicks: Path, document: str) -> None:
    from unskew.cli import main

    found = blocks("bash", (ROOT / document).read_text(encoding="utf-8"))
    commands = [
        shlex.split(line, comments=True)[1:]
        for block in found
        for line in block.splitlines()
        if line.startswith("unskew ")
    ]
    assert {command[0] for command in commands} <= set(VERBS)
    for command in commands:
        assert main(command) == 0, command


@pytest.mark.parametrize(
    "document",
    sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/[ct]*/*.md")]),
    ids=lambda path: path.name,
)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text(encoding="utf-8")):
        if "generated/" in target:  # these pages are there only when the site is built, which checks them
            continue
        assert (document.parent / target).exists(), f"{document.name} -> {target}"


def test_no_tracked_file_is_data_or_large() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    files = [ROOT / name for name in tracked if name and (ROOT / name).is_file()]
    assert files
    assert not [
        path
        for path in files
        if path.suffix in {".parquet", ".npy", ".gz", ".safetensors", ".pt", ".pkl"}
        if path.name != "pulse-zero.safetensors" or path.stat().st_size > 50_000  # a part of the package
    ]
    # The report is one file, and of each run of the suites some kilobytes are kept.
    larger = {"docs/report.html": 2_000_000, "results/bench/cells.jsonl": 8_000_000}
    larger |= {"results/bench/tests.jsonl": 2_000_000}  # which positives each test ranks, for all runs
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in files}
    assert not [name for name, size in sizes.items() if size > larger.get(name, 500_000)]


# The house rules that a machine can check


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 100


def test_no_hint_installs_what_cannot_be_found() -> None:
    """Nothing is released, so `pip install 'unskew[serve]'` finds nothing: hints name a clone."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    assert [file.name for file in files if re.search(r"unskew\[\w", file.read_text(encoding="utf-8"))] == []


def undocumented(path: Path) -> list[str]:
    """Public modules, classes, functions and methods without a docstring. A method that overrides one of a
    base class has that one's."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [] if ast.get_docstring(tree) else ["module"]
    found += [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not node.bases:
            found += [
                f"{node.name}.{method.name}"
                for method in node.body
                if isinstance(method, ast.FunctionDef)
                if not method.name.startswith("_") and not ast.get_docstring(method)
            ]
    return found


def test_everything_public_is_documented() -> None:
    missing = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / "src").rglob("*.py"))
        if (names := undocumented(path))
    }
    assert missing == {}
