"""The verb of items: bring an item feed into a store."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import OmitSubcommandPrefixes, Positional

from unskew.cli.shared import Segments, Verb, pairs
from unskew.core.atomic_files import save_frames
from unskew.core.errors import BadInput
from unskew.data.reading.items import column_of_items, read_item_table
from unskew.serve.store.items import rows_of_table, table_of
from unskew.serve.store.store import open_store

ROWS = 10_000  # that are committed together


@dataclass(frozen=True, kw_only=True)
class ItemsImport(Verb):
    """Read a file of items into a store: titles, tags, numbers, availability and text, from when on they are
    known. Rows that say nothing new are not stored, so the same file may be imported every day. A running
    service takes it over HTTP instead (PUT /v1/items), because only one process may write into a file."""

    source: Positional[Annotated[str, tyro.conf.arg(metavar="FILE")]]
    """CSV, TSV, Parquet or JSON lines, with a column such as item_id. Its columns but for the item, the time
    and the title are features."""
    store: Annotated[str, tyro.conf.arg(metavar="STORE")]
    """The file of a store, or the URL of one in PostgreSQL. It is created if it does not exist."""
    item: str | None = None
    """Name of the column of the item, if it is none of the usual ones."""
    time: str | None = None
    """Name of the column with the time from which a row is known; by default all rows are known from now
    on."""
    segments: Segments = None

    def run(self) -> None:
        table, now = read_item_table(self.source), time.time_ns() // 1000
        ids = column_of_items(table, self.source, self.item)
        if self.time is not None and self.time not in table.column_names:
            listed = ", ".join(map(repr, table.column_names))
            raise BadInput(f"{self.source}: no column {self.time!r}; its columns are {listed}", field="time")
        rows = rows_of_table(table, ids, self.time, now)
        late = next((row for row in rows if row.timestamp > now), None)
        if late is not None:
            raise BadInput(f"{self.source}: item {late.item_id!r} has a time after now", field="time")
        accepted = 0
        with open_store(self.store, segments=self.segments) as store:
            for first in range(0, len(rows), ROWS):
                accepted += store.put_items(rows[first : first + ROWS]).accepted
        facts = {"rows": len(rows), "accepted": accepted, "unchanged": len(rows) - accepted}
        self.show({"store": store.name, **facts}, pairs(f"{Path(self.source)} -> {store.name}", facts))


@dataclass(frozen=True, kw_only=True)
class ItemsExport(Verb):
    """Write the item feed of a store as a file that `unskew prepare --items` reads, with the times from which
    its rows are known. The store may be in use meanwhile."""

    store: Positional[Annotated[str, tyro.conf.arg(metavar="STORE")]]
    """The file of a store, or the URL of one in PostgreSQL."""
    out: Annotated[Path, tyro.conf.arg(metavar="OUT")]
    """The file to write: Parquet, or CSV or JSON lines if its name ends with .csv or .jsonl."""
    segments: Segments = None

    def run(self) -> None:
        with open_store(self.store, "read", segments=self.segments) as store:
            table = table_of(store.items())
            if not len(table):
                raise BadInput(f"{store.name}: has no item feed; nothing was written", field="store")
            save_frames(iter([table]), self.out)
        facts = {"rows": len(table), "items": len(table["item_id"].unique())}
        self.show(facts | {"file": str(self.out)}, pairs(f"{self.store} -> {self.out}", facts))


@dataclass(frozen=True, kw_only=True)
class Items:
    """Bring an item feed into a store (import), or take it out (export)."""

    verb: OmitSubcommandPrefixes[
        Annotated[ItemsImport, tyro.conf.subcommand("import")]
        | Annotated[ItemsExport, tyro.conf.subcommand("export")]
    ]

    def run(self) -> None:
        """Run the verb that was asked for."""
        self.verb.run()
