"""The verb `monitor`: is the recommender still healthy?"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import OmitArgPrefixes

from unskew.cli.shared import File, RunVerb, Segments, command_line, output, table, verdict_text, write_file
from unskew.core.errors import UnskewError
from unskew.report.summary import Verdict
from unskew.serve.monitor.monitor import Monitor as Measured
from unskew.serve.monitor.monitor import Monitoring, monitor
from unskew.serve.store.store import open_store

FIRST, COLUMN = 20, 16  # characters of the names of the figures, and of a window


class Unhealthy(UnskewError):  # noqa: N818 (it is a finding, as a leak is)
    """A threshold is crossed."""

    exit_code = 1


class NotMeasured(UnskewError):  # noqa: N818
    """The job failed. Of this verb, 1 means that a threshold is crossed."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Monitor(RunVerb):
    """Report window by window whether the recommender is still healthy: what happened, what was shown and
    what was clicked, the effective sample size of the logged propensities and, with a run, how well it ranks
    what it has not seen.

    Exit codes: 0, no threshold is crossed; 1, one is, in the newest whole window, and a sentence says what
    to do; 2, it could not be measured.
    """

    store: Annotated[str, tyro.conf.arg(metavar="STORE")]
    """The file of a store, or the URL of one in PostgreSQL. It may be in use meanwhile."""
    folder: Annotated[Path | None, tyro.conf.arg(name="run", metavar="RUN")] = None
    """A run of `unskew train`. It is ranked on each window that it did not see, and what it remembers counts
    as the time before the store."""
    segments: Segments = None
    settings: OmitArgPrefixes[Monitoring] = field(default_factory=Monitoring)
    html: File = None
    """Also write a page with charts, one HTML file that needs no network (needs the extra `report`)."""

    def run(self) -> None:
        try:
            measured = self._measure()
            if self.html is not None:
                from unskew.serve.monitor.page import monitor_page

                write_file(self.html, monitor_page(measured, command_line()), "the page")
        except UnskewError as error:
            raise (error if error.exit_code == NotMeasured.exit_code else NotMeasured(str(error))) from None
        figures = measured.table(newest=max(1, (output.width - FIRST) // COLUMN))
        self.show(
            measured.document() if self.json else {},
            verdict_text(Verdict(measured.verdict().finding, measured.notes())),
            *([table("", tuple(figures.titles), figures.rows)] if measured.windows else []),
        )
        if measured.crossed:
            raise Unhealthy("\n".join(crossing.sentence for crossing in measured.crossed))

    def _measure(self) -> Measured:
        model = None
        with open_store(self.store, "read", segments=self.segments) as store:
            if self.folder is not None:
                from unskew.api.create import load

                model = load(self.folder)
            return monitor(store, model, self.settings)
