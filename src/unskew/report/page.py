"""The head and the foot that all reports have; the rest of a page stands in its template."""

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from unskew.report.summary import Verdict


@dataclass(frozen=True)
class Page:
    """What the template `report/templates/base.html` needs for the head and the foot of a report.

    verdict: what stands above everything else.
    data: the hash of the data, `Log.fingerprint()`.
    command: the command line that made the page; empty where it was made from Python.
    date: when it was made; by default now.
    advice_head: the title of the sentences below the finding.
    advice_has_topics: whether each of these sentences begins with a topic and a colon.
    tone: a class of the verdict's card, for its colour.
    """

    title: str
    verdict: Verdict
    data: str
    command: str = ""
    date: str = ""
    subtitle: str = ""
    advice_head: str = "What to do"
    advice_has_topics: bool = False
    tone: str = ""

    @property
    def version(self) -> str:
        """The version of unskew that makes the page."""
        return version("unskew")

    @property
    def made_on(self) -> str:
        """The date of the page."""
        return self.date or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
