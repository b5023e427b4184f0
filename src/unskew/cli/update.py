"""The verb update: train on from a run with the events that a store got since."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import OmitArgPrefixes, Positional

from unskew.cli.shared import EventTypes, MovedData, RunVerb, Segments, notify, words_in
from unskew.core.config import Document
from unskew.core.errors import BadInput
from unskew.update import Updating

if TYPE_CHECKING:
    from unskew.update.judge import Power
    from unskew.update.update import Outcome

CODES = {"published": 0, "forced": 0, "would be published": 0, "would be forced": 0}
CODES |= {"nothing new": 3, "worse": 4}


@dataclass(frozen=True, kw_only=True)
class Update(RunVerb):
    """Train on from a run with the events that a store got since, and write the new run unless it is
    significantly worse.

    The newest window of the new events is ranked by the old run and by the new one before anything learns
    from it; of its events, those judge that the old run did not choose itself. The new one is refused if the
    whole 95 % interval of the difference is below zero. Prints one line, with the loss that such a window
    notices. Exit codes: 0 published, 3 nothing new, 4 refused because it is worse; 1 and 2 are errors.
    """

    folder: Positional[Annotated[Path | None, tyro.conf.arg(metavar="RUN")]] = None
    """A finished run, or a link to one."""
    store: Annotated[str | None, tyro.conf.arg(metavar="STORE")] = None
    """The file of a store, or the URL of one in PostgreSQL. It may be in use meanwhile."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="NEW")] = None
    """The folder of the new run. It is whole or absent."""
    current: Annotated[Path | None, tyro.conf.arg(metavar="LINK")] = None
    """A symbolic link that points to the new run from the moment when that is whole."""
    rollback: bool = False
    """Let --current LINK point back to the run that its run was updated from; nothing else is done."""
    settings: OmitArgPrefixes[Updating] = field(default_factory=Updating)
    positive: EventTypes = None
    """The types of events that are positive, between commas; by default what the store says."""
    data: MovedData = None
    segments: Segments = None
    force: bool = False
    """Publish the new run even if it is significantly worse; the output and its card then say `forced`."""
    dry_run: bool = False
    """Train, compare, print, and write nothing."""

    def run(self) -> int:
        if self.rollback:
            return self._roll_back()
        if self.folder is None or self.store is None:
            raise BadInput("expected RUN and --store STORE")
        from unskew.update.update import update

        outcome = update(
            self.folder,
            self.store,
            self.out,
            self.settings,
            current=self.current,
            positive=words_in(self.positive) or None,
            data=self.data,
            segments=self.segments,
            force=self.force,
            dry_run=self.dry_run,
        )
        for note in outcome.notes:
            notify(note)
        self._say(outcome.document(), line(outcome))
        return CODES[outcome.verdict]

    def _roll_back(self) -> int:
        from unskew.update.publish import roll_back

        if self.current is None:
            raise BadInput("expected --current LINK, which is to point back")
        if self.folder is not None or self.store is not None or self.out is not None:
            raise BadInput("--rollback only moves --current LINK: leave RUN, --store and --out away")
        now, before = roll_back(self.current)
        document = {"verdict": "rolled back", "current": str(self.current), "to": str(now)}
        self._say(document | {"from": str(before)}, f"rolled back: {self.current} -> {now} (was {before})")
        return 0

    def _say(self, document: Document, words: str) -> None:
        if self.json:
            self.show(document)
        else:
            print(words)


def line(outcome: "Outcome") -> str:
    """What an update came to, in one line."""
    if outcome.tested is None:
        return f"{outcome.verdict}: {outcome.why}; nothing was written"
    window, tested = outcome.tested.document(), outcome.tested.found
    where = f" {outcome.out}" if outcome.out is not None else ""
    rows = "" if window["judged_by"] == "all" else f"{window['judged_by']} "
    return (
        f"{outcome.verdict}{where}: {outcome.new_positives:,} new positives; NDCG@10 ({window['test']}) on "
        f"the newest {window['positives']:,} {rows}positives: {window['before']:.4f} before, "
        f"{window['after']:.4f} now, difference {tested.difference:+.4f} [{tested.low:+.4f}, "
        f"{tested.high:+.4f}]: {outcome.why}; {_power(outcome.tested.power)}"
    )


def _power(power: "Power | None") -> str:
    """What the window can detect, in a clause."""
    if power is None:
        return "the two rank these rows the same"
    return (
        f"a loss of {power.loss:.0%} would be noticed in {power.noticed:.0%} of the cases, one of "
        f"{power.smallest:.0%} in 80%"
    ).replace("%", " %")
