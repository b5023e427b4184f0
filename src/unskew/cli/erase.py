"""The verb erase: users out of stores, runs and prepared data."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text
from tyro.conf import Positional

from unskew.cli.shared import RunVerb, Segments, table

Places = Annotated[tuple[Path, ...], tyro.conf.UseAppendAction]


@dataclass(frozen=True, kw_only=True)
class Erase(RunVerb):
    """Erase users from a store, from what runs remember and from prepared data, and say what that covers.

    Each place keeps a list of salted hashes of the erased ids, so that an update, a refit, a reload or a
    restored copy does not bring anyone back. Without USER, everyone who is on the list of one of the places
    is erased from all of them again.
    """

    users: Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="[USER [USER ...]]")]] = ()
    """The ids of the users."""
    store: Annotated[str | None, tyro.conf.arg(metavar="STORE")] = None
    """The file of a store, or the URL of one in PostgreSQL. A service may be using it."""
    runs: Annotated[Places, tyro.conf.arg(name="run", metavar="RUN")] = ()
    """A run, or a link to one; the flag may be given several times. A service that uses the run loads it
    again only if the store is given, too."""
    data: Annotated[Places, tyro.conf.arg(metavar="DATA")] = ()
    """A folder that `unskew prepare` made; the flag may be given several times."""
    segments: Segments = None

    def run(self) -> None:
        from unskew.update.erase import erase

        erased = erase(self.users, store=self.store, runs=self.runs, data=self.data, segments=self.segments)
        head = ("", "", "rows", "recommendations")
        rows = [tuple(map(str, asdict(place).values())) for place in erased.places]
        words = [f"Covered: {sentence}." for sentence in erased.covered]
        words += [f"Not covered: {sentence}." for sentence in erased.not_covered]
        title = f"{erased.users:,} users erased"
        self.show(erased.document(), table(title, head, rows), *map(Text, words))
