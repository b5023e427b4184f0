"""The verb `report`: what a bench found, as a page or as tables."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text
from tyro.conf import Positional

from unskew.cli.shared import Verb, command_line, pairs, write_file


@dataclass(frozen=True, kw_only=True)
class Report(Verb):
    """Turn the results of `unskew bench` into one self-contained HTML file, or into tables in Markdown or
    LaTeX. Without a file it prints the verdict in words; `--json` prints every figure of the tables.

    A bench that is not finished, or in which runs have failed, can be reported at any time.
    """

    folder: Positional[Annotated[Path, tyro.conf.arg(metavar="DIR", help="A folder of `unskew bench`.")]]
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the report, one HTML file that needs no network and no server (needs the extra `report`)."""
    markdown: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the tables as Markdown."""
    summary: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write one page of Markdown that a person reads: the verdict, a table for each suite, and what of the
    paper holds."""
    latex: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the tables as LaTeX, for the package booktabs."""

    def run(self) -> None:
        from unskew.experiments.document import Report as Found
        from unskew.experiments.results import Findings

        found = Found.of(Findings.open(self.folder))
        if self.html is not None:
            from unskew.experiments.page import report_page

            write_file(self.html, report_page(found, command_line()), "the page")
        if self.markdown is not None:
            write_file(self.markdown, found.written("markdown"), "the tables")
        if self.summary is not None:
            from unskew.experiments.summary import summary

            write_file(self.summary, summary(found, command_line()), "the tables")
        if self.latex is not None:
            write_file(self.latex, found.written("latex"), "the tables")
        runs = {"runs": found.findings.planned, "done": found.findings.done}
        verdict = [Text(found.verdict.finding, "bold"), *(Text(f"- {line}") for line in found.verdict.advice)]
        document = found.document() if self.json else {}
        self.show(document, *verdict, pairs("", runs))
