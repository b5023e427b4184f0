"""The verb `doctor`: does this machine have what unskew needs?"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from unskew.cli.shared import Verb, table
from unskew.core.errors import BadInput
from unskew.diagnostics.machine import examine


@dataclass(frozen=True, kw_only=True)
class Doctor(Verb):
    """Report what this machine and this installation have: versions, threads, memory, disk, open files,
    extras and Java; and what to do where that is short."""

    folder: Positional[
        Annotated[
            Path,
            tyro.conf.arg(metavar="FOLDER", help="Where prepared data and runs are to be written."),
        ]
    ] = Path()

    def run(self) -> None:
        if not self.folder.is_dir():
            raise BadInput(f"{self.folder}: no such folder", field="folder")
        checks = examine(self.folder)
        rows = [(check.topic, check.value, check.advice) for check in checks]
        self.show({"checks": [asdict(check) for check in checks]}, table("", ("", "", "what to do"), rows))
