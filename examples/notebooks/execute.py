"""Execute the notebooks and keep them with their outputs: make notebooks.

    python examples/notebooks/execute.py [NAMES ...] [--folder FOLDER]

Without names, all of them. With a folder, the executed notebooks are written there, and those of the
repository stay as they are. Each runs in an empty folder of its own. Needs the extra `notebooks`.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import tyro
from nbclient import NotebookClient

HERE = Path(__file__).parent
SECONDS = 7200  # after which a cell is given up; a busy machine may take long
MIME_TYPES = {"text/plain", "image/png", "text/html", "text/markdown"}


@dataclass(frozen=True)
class Arguments:
    """Which notebooks, and where they go."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of notebooks, such as 1-log-to-lists; by default all."""
    folder: Path = HERE
    """Where the executed notebooks are written."""


def execute(path: Path, out: Path) -> None:
    """Execute a notebook, and write it with its outputs and without what changes with every execution."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["UNSKEW_EXAMPLES"] = str(HERE.parent)
        client = NotebookClient(
            notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": scratch}}
        )
        client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if is_kept(output)]
        for output in cell.outputs:
            output.pop("metadata", None)
            if "data" in output:
                output["data"] = {kind: value for kind, value in output["data"].items() if kind in MIME_TYPES}
                output["metadata"] = {}
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(notebook, out)


def is_kept(output: Any) -> bool:
    """Whether an output is a result. Progress and what is on standard error are of this machine."""
    is_progress = output.output_type == "display_data" and "image/png" not in output.data
    return output.get("name") != "stderr" and not is_progress


def main(given: Arguments) -> None:
    """Execute them one after the other."""
    given.folder.mkdir(parents=True, exist_ok=True)
    paths = [HERE / f"{name}.ipynb" for name in given.names] or sorted(HERE.glob("*.ipynb"))
    for path in paths:
        print(path.name, flush=True)
        execute(path, given.folder / path.name)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
