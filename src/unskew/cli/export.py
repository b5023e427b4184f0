"""The verb `export`: a trained model as a file that other programs run."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from unskew.cli.shared import RunArg, RunVerb, pairs
from unskew.data.log.held_out import Criterion


@dataclass(frozen=True, kw_only=True)
class Export(RunVerb):
    """Write a stored run as a file that programs without Python and torch can run: histories of item codes
    in, scores of all items and the best ones out. The item id of each code is written beside it.

    This is for models that read a history of items and nothing else; docs/exporting.md says which.
    """

    folder: Positional[RunArg]
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Where the file goes, such as films.onnx; the item ids go to films.items.parquet."""
    to: Literal["onnx"] = "onnx"
    """The format of the file: `onnx` (extra `onnx`)."""
    select_by: Criterion | None = None
    """Which validation metric chose the weights that are written; by default the one that the training
    settings name."""

    def run(self) -> None:
        from unskew.api.create import load
        from unskew.api.onnx import export

        trained = load(self.folder)
        if self.select_by is not None:
            trained.chosen_by(self.select_by)
        document = asdict(export(trained, self.out))
        document["difference"] = float(f"{document['difference']:.2g}")
        self.show(document, pairs(f"{self.folder} -> {self.out}", document))
