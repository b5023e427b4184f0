"""The notebooks are kept with outputs, and can be executed (make test-integrations)."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import run_python

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells_of(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_it_was_executed(path: Path) -> None:
    code = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 1
    assert path.read_text(encoding="utf-8").count("/work/") == 0  # nothing of the machine


def test_there_are_four() -> None:
    assert [path.stem[0] for path in NOTEBOOKS] == ["1", "2", "3", "4"]


@pytest.mark.integration
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_can_be_executed(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="needs the extra `notebooks`")
    ended = run_python(FOLDER / "execute.py", path.stem, "--folder", tmp_path)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (tmp_path / path.name).is_file()
