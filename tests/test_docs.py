"""What the documents say is executed; what they link to exists; no tracked file is data."""

import re
import subprocess
from pathlib import Path

import pytest

from unskew.cli import VERBS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch) -> Path:
    """The click log that the examples speak of."""
    rows = "".join(f"u{n * 7 % 31},i{(n * n + n // 31) % 97},{1_700_000_000 + 60 * n}\n" for n in range(2000))
    (tmp_path / "clicks.csv").write_text("user_id,item_id,timestamp\n" + rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", ["README.md", "docs/deps.md"])
def test_the_python_of_the_documents_runs(clicks: Path, document: str) -> None:
    found = blocks("python", (ROOT / document).read_text(encoding="utf-8"))
    assert found
    for code in found:
        exec(compile(code, document, "exec"), {})


@pytest.mark.parametrize("document", ["README.md", "docs/deps.md"])
def test_the_commands_of_the_documents_run(clicks: Path, document: str) -> None:
    from unskew.cli import main

    found = blocks("bash", (ROOT / document).read_text(encoding="utf-8"))
    commands = [
        line.split("#")[0].split()[1:]
        for block in found
        for line in block.splitlines()
        if line.startswith("unskew ")
    ]
    assert {command[0] for command in commands} <= set(VERBS)
    for command in commands:
        assert main(command) == 0, command


@pytest.mark.parametrize(
    "document", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda path: path.name
)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), f"{document.name} -> {target}"


def test_no_tracked_file_is_data_or_large() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    files = [ROOT / name for name in tracked if name and (ROOT / name).is_file()]
    assert files
    assert not [
        path for path in files if path.suffix in {".parquet", ".npy", ".gz", ".safetensors", ".pt", ".pkl"}
    ]
    assert not [path for path in files if path.stat().st_size > 500_000]
