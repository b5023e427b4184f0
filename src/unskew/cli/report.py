"""The verb `report`: the results of a bench as a page or as tables."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from unskew.cli.shared import File, Verb, command_line, pairs, verdict_text, write_file


@dataclass(frozen=True, kw_only=True)
class Report(Verb):
    """Turn the results of `unskew bench` into one self-contained HTML file, or into tables in Markdown or
    LaTeX. Without a file it prints the verdict; `--json` prints every value of the tables.

    A bench that is not finished, or in which runs have failed, can be reported at any time.
    """

    folder: Positional[Annotated[Path, tyro.conf.arg(metavar="DIR", help="A folder of `unskew bench`.")]]
    html: File = None
    """Write the report, one HTML file that needs no network and no server (needs the extra `report`)."""
    markdown: File = None
    """Write the tables as Markdown."""
    summary: File = None
    """Write one page of Markdown that a person reads: the verdict, a table for each suite, and what of the
    paper holds."""
    latex: File = None
    """Write the tables as LaTeX, for the package booktabs."""

    def run(self) -> None:
        from unskew.experiments.report import Report as BenchReport
        from unskew.experiments.report_page import report_page
        from unskew.experiments.results import BenchResults
        from unskew.experiments.summary import summary

        report = BenchReport.of(BenchResults.open(self.folder))
        for file, what, write in (
            (self.html, "the page", lambda: report_page(report, command_line())),
            (self.markdown, "the tables", lambda: report.written("md")),
            (self.summary, "the tables", lambda: summary(report, command_line())),
            (self.latex, "the tables", lambda: report.written("tex")),
        ):
            if file is not None:
                write_file(file, write(), what)
        runs = {"runs": report.results.planned, "done": report.results.done}
        self.show(report.document() if self.json else {}, verdict_text(report.verdict), pairs("", runs))
