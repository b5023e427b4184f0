"""The tables of a monitor: the events and recommendations of a store by window of time, in DuckDB."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import duckdb
import numpy as np
import pyarrow as pa

from unskew.report.templates import render
from unskew.serve.store.impressions import EventSource, open_impressions
from unskew.serve.store.tables import EventTypes

MONDAY = 4 * 86_400 * 10**6  # 1970-01-05, the first Monday that has a timestamp

PAST_ITEMS = pa.schema([("item_id", pa.string()), ("first", pa.int64()), ("positives", pa.int64())])
PAST_USERS = pa.schema([("user_id", pa.string()), ("first", pa.int64())])


class Past(Protocol):
    """What is known of the time before the store, such as what a run remembers, and who wants to know what
    came since."""

    def items(self, before: int) -> pa.Table:
        """`PAST_ITEMS`: the time of the first positive of each item, and its number of positives before a
        time, in microseconds."""

    def users(self) -> pa.Table:
        """`PAST_USERS`: the time of the first positive of each user."""

    def follow(self, positives: Iterator[pa.RecordBatch]) -> None:
        """Take the positives of the store: user_id, item_id, timestamp."""


class Calendar(NamedTuple):
    """How time is cut into windows, in microseconds. Weeks begin on Monday and days at midnight, in UTC;
    in general windows are counted from a Monday, so that they stay where they are as the store goes on."""

    length: int

    @property
    def shift(self) -> int:
        """What a time must be moved by, so that windows begin at multiples of their length."""
        return -MONDAY % self.length

    def number(self, time: int) -> int:
        """The number of the window that a time is in."""
        return (time + self.shift) // self.length

    def start(self, number: int) -> int:
        """When a window begins."""
        return number * self.length - self.shift

    def sql(self, column: str) -> str:
        """The number of the window, as SQL."""
        return f"(({column} + {self.shift}) // {self.length})"


class Stored(NamedTuple):
    """What a store holds as a whole. Times are None in an empty store."""

    events: int
    recommendations: int
    first: int | None
    last: int | None
    future: int  # events and recommendations that are left out, because they are later than they can be
    fallbacks: int
    shown: int
    logged: int  # positives with a logged propensity
    unmatched: int  # positives that name a recommendation without their user and item


@contextmanager
def gather_tables(
    source: EventSource, types: EventTypes, calendar: Calendar, latest: int, past: Past | None
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Stored]]:
    """Open a database with the tables of `open_impressions`, each with the column `window`, and these two.

    items  item_id, code from 0 on, first (the time of its first positive, null if it has none), own (the same
           in this store alone), before (positives before the store began)
    users  user_id, first, own

    latest: the last moment that can have happened already; a later timestamp comes from a wrong clock.
    """
    window = f', {calendar.sql("timestamp")} AS "window"'
    with (
        tempfile.TemporaryDirectory(prefix="unskew-monitor.", ignore_cleanup_errors=True) as scratch,
        open_impressions(source, types, Path(scratch), "the monitor", latest, window) as connection,
    ):
        _create_identities(connection, past)
        counts = connection.execute(render("serve/monitor/templates/stored.sql", latest=latest)).fetchall()
        yield connection, Stored(*counts[0])


def _create_identities(connection: duckdb.DuckDBPyConnection, past: Past | None) -> None:
    """Number the items, and say since when there are users and items."""
    began = connection.execute("SELECT min(timestamp) FROM events").fetchall()[0][0]
    nothing = np.iinfo(np.int64).max
    past_items = PAST_ITEMS.empty_table() if past is None else past.items(nothing if began is None else began)
    past_users = PAST_USERS.empty_table() if past is None else past.users()
    connection.register("past_items", past_items)
    connection.register("past_users", past_users)
    connection.execute(render("serve/monitor/templates/identities.sql"))
