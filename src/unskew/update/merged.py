"""The log of a run with what a store of events got since, as one log.

The run's own log is the prepared folder that it was trained on, or, where that is gone, what the run
remembers: all positives, and nothing of what was shown. The store's rows are those that `export_log`
writes, and each time all of them. So a user who was erased from the store is not in the next log, and a
click that comes late finds what was shown to its user.

A row that both have counts once, so a run may have been trained on an export of the same store.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unskew.core.atomic_files import read_parquet
from unskew.core.errors import BadInput
from unskew.data.log.clock import TICKS, Clock
from unskew.data.log.erasures import Erasures
from unskew.data.log.folder import MARK, TYPE_COLUMN
from unskew.data.log.item_feed import ItemFeed, feed_of, with_items
from unskew.data.log.log import UNKNOWN, Log
from unskew.data.log.split import Mask
from unskew.data.log.views import Ints
from unskew.data.log.vocabulary import FEATURE
from unskew.data.reading.prepare import first_of_each, read
from unskew.serve.store.export import LOGGED_COLUMN, export_log
from unskew.serve.store.items import feed_of_frames
from unskew.serve.store.store import Store
from unskew.serve.store.tables import EventTypes
from unskew.training.erase import BASE, table_without_erased
from unskew.training.extend import as_text
from unskew.training.run_card import OwnLog, RunCard
from unskew.training.run_config import RunConfig, open_log

FRESH = f"{MARK}unskew: learned later"  # a mark that goes through `read` with its row, and is then removed
MICROSECONDS = 10**6


class Base(NamedTuple):
    """The run's own log, without anything of the store."""

    table: pa.Table  # as `Log.table` gives it
    now: int
    clock: Clock
    own: OwnLog  # what the card of an updated run says of it
    remembered: bool  # whether it is only what the run remembers
    feeds: list[ItemFeed]  # what it knows of items, with times

    def without(self, erasures: Erasures) -> "Base":
        """The same without the rows of erased users."""
        return self._replace(table=table_without_erased(self.table, self.clock, erasures))


class StorePosition(NamedTuple):
    """What the store has that the run has not learned from, up to a sequence number of each kind."""

    events: int = 0
    recommendations: int = 0


class Merged(NamedTuple):
    """The whole log, and which of its rows are from the store and came since."""

    log: Log
    fresh: Mask
    newest: StorePosition  # the newest of what was read
    learned_until: int  # every row of the store that is not fresh is before this time


def base_of(folder: Path, config: RunConfig, card: RunCard, memory: Log, data: Path | None = None) -> Base:
    """The own log of a run.

    memory: what the run remembers.
    data: where the prepared folder is now, if it has moved.
    """
    clock = Clock(config.known.ticks)
    own = card.updated.base if card.updated else OwnLog(data=config.data, hash=config.hash)
    if data is not None or (own.data and Path(own.data).is_dir()):
        log = open_log(own.data, own.hash, data)
        where = str(Path(data or own.data).resolve())
        feeds = feed_of(log.items, log.audiences.listed)
        return Base(log.table(), log.now, clock, OwnLog(data=where, hash=own.hash), False, feeds)
    feeds = feed_of(memory.items, memory.audiences.listed)
    if card.updated is None:
        return Base(memory.table(), memory.now, clock, replace(own, now=memory.now), True, feeds)
    try:
        table = read_parquet(folder / BASE)
    except (OSError, pa.ArrowInvalid):
        table = None
    if table is None or own.now is None:
        raise BadInput(
            f"{own.data}: the data of this run is gone or has moved; say where it is now (--data DATA)",
            field="data",
        )
    return Base(table, own.now, clock, own, True, feeds)


def merged(base: Base, store: Store, after: StorePosition, positive: Sequence[str] | None = None) -> Merged:
    """The log of a run and of a store.

    after: up to where the run has learned from the store.
    positive: the types of events that are positive, if they are to be others than the store's own.
    """
    types = store.resolve_types(positive)
    snapshot = _Snapshot(store, after, types)
    with tempfile.TemporaryDirectory(prefix="unskew.") as folder:
        file = export_log(snapshot, Path(folder) / "log.parquet", types).file
        exported = read_parquet(file)
    own, theirs = _with_common_id_type(base.table, exported)
    newer = _new_rows(own, theirs, snapshot, base)
    until = pc.max(newer["time"].filter(pc.equal(newer[FRESH], 0))).as_py()
    log = read(_joined(own, newer))
    for feed in (*base.feeds, feed_of_frames(store.items(), partial(_ticks_of, base))):
        log = with_items(log, feed)
    unit = next((name for name, ticks in TICKS.items() if ticks == base.clock.ticks), None)
    marks = dict(log.marks)
    fresh = np.asarray(marks.pop(FRESH.removeprefix(MARK))) == 1
    metadata = replace(log.metadata, source="a run and a store", time_unit=unit or log.metadata.time_unit)
    log = replace(log, marks=marks, metadata=metadata)
    return Merged(log, fresh, snapshot.newest, 0 if until is None else until + 1)


def _ticks_of(base: Base, microseconds: Ints) -> Ints:
    """Times of the store in the ticks of the run's log. Where times are only an order, it is the end."""
    if base.clock.ticks is None:
        return np.full(len(microseconds), base.now)
    return np.array([base.clock.tick_of(moment) for moment in microseconds.tolist()], np.int64)


class _Snapshot:
    """What `export_log` reads of a store: everything up to the newest event of now. On the way it keeps what
    came since."""

    def __init__(self, store: Store, after: StorePosition, types: EventTypes) -> None:
        self.name, self.newest = store.name, StorePosition(store.state().newest, after.recommendations)
        self._store, self._after, self._types = store, after, types
        self.clicks: list[pa.Table] = []  # user, item and time of new positives
        self.lists: list[pa.Table] = []  # user and time of whatever is new

    def events(self, *, batch: int) -> Iterator[pa.Table]:
        """Up to the newest one of now."""
        for frame in self._store.events(batch=batch):
            frame = frame.filter(pc.less_equal(frame["sequence"], self.newest.events))  # noqa: PLW2901
            new = frame.filter(pc.greater(frame["sequence"], self._after.events))
            clicked = pc.is_in(new["type"], value_set=pa.array(self._types.positive, pa.string()))
            self.clicks.append(new.filter(clicked).select(["user_id", "item_id", "timestamp"]))
            self.lists.append(new.select(["user_id", "timestamp"]))
            yield frame

    def recommendations(self, *, batch: int) -> Iterator[pa.Table]:
        """All of them."""
        for frame in self._store.recommendations(batch=batch):
            new = frame.filter(pc.greater(frame["sequence"], self._after.recommendations))
            self.lists.append(new.select(["user_id", "timestamp"]))
            newest = max(self.newest.recommendations, pc.max(frame["sequence"]).as_py())
            self.newest = self.newest._replace(recommendations=newest)
            yield frame


def _with_common_id_type(base: pa.Table, exported: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Both tables with ids of one type: that of the run's log, if it fits the ids of the store, too;
    otherwise text."""
    theirs = exported.rename_columns(
        [{"user_id": "user", "item_id": "item"}.get(name, name) for name in exported.column_names]
    )
    theirs = theirs.set_column(2, "timestamp", theirs["timestamp"].cast(pa.int64()))
    for name in ("user", "item"):
        place, mine = base.column_names.index(name), base[name].combine_chunks()
        found, kind = theirs[name].combine_chunks(), mine.type
        whole = _whole(found, kind) if pa.types.is_integer(kind) else None
        if whole is None:
            base, whole = base.set_column(place, name, as_text(mine)), found
        theirs = theirs.set_column(theirs.column_names.index(name), name, whole)
    return base, theirs


def _whole(ids: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Text as whole numbers; None if that would lose anything, such as a leading zero."""
    try:
        found = ids.cast(kind)
    except pa.ArrowInvalid:
        return None
    return found if found.cast(pa.string()).equals(ids) else None


def _new_rows(base: pa.Table, exported: pa.Table, snapshot: _Snapshot, own: Base) -> pa.Table:
    """The rows of the store in the ticks of the run's log, each marked as fresh or not, without duplicates
    and without those that the run's log has, too."""
    ticks = own.clock.ticks
    if ticks is None:  # times are only an order: one tick after another, behind the log
        time = f"{own.now} - 1 + dense_rank() OVER (ORDER BY timestamp)"
    elif ticks > MICROSECONDS:
        time = f"timestamp * {ticks // MICROSECONDS}"
    else:
        time = f"timestamp // {MICROSECONDS // ticks}"
    others = [f'"{name}"' for name in exported.column_names if name not in ("user", "item", "timestamp")]
    kind, is_typed = f'"{TYPE_COLUMN}"', TYPE_COLUMN in exported.column_names
    key = f'"user", item, time, {kind}' if is_typed else '"user", item, time'
    same_kind = f"b.{kind} IS NOT DISTINCT FROM once.{kind}" if is_typed else f"b.{kind} IS NULL"
    if TYPE_COLUMN not in base.column_names:
        base = base.append_column(TYPE_COLUMN, pa.nulls(len(base), pa.string()))
    order = ["label DESC", "fresh", *(f"{name} NULLS LAST" for name in others if name != '"label"')]
    with duckdb.connect(config={"memory_limit": "2GB"}) as connection:
        connection.register("exported", exported)
        connection.register("base", base.select(["user", "item", "time", "label", TYPE_COLUMN]))
        connection.register("clicks", pa.concat_tables(snapshot.clicks))
        connection.register("lists", pa.concat_tables(snapshot.lists))
        return connection.sql(f"""
        WITH
        marked AS (
            SELECT e.*, CAST(CASE WHEN label = 1 THEN c.user_id IS NOT NULL ELSE l.user_id IS NOT NULL END
                AS TINYINT) AS fresh
            FROM exported AS e
            LEFT JOIN (SELECT DISTINCT * FROM clicks) AS c ON CAST(e.user AS VARCHAR) = c.user_id
                AND CAST(e.item AS VARCHAR) = c.item_id AND e.timestamp = c.timestamp
            LEFT JOIN (SELECT DISTINCT * FROM lists) AS l ON CAST(e.user AS VARCHAR) = l.user_id
                AND e.timestamp = l.timestamp
        ),
        timed AS (SELECT *, CAST({time} AS BIGINT) AS time FROM marked),
        once AS ({first_of_each("timed", key, ", ".join(order), "*")})
        SELECT "user", item, time, {", ".join(others)}, fresh AS "{FRESH}" FROM once WHERE NOT EXISTS (
            SELECT 1 FROM base AS b WHERE b."user" = once."user" AND b.item = once.item
                AND b.time = once.time AND b.label >= once.label AND {same_kind}
        ) ORDER BY time, "user", item
        """).to_arrow_table()


def _joined(base: pa.Table, newer: pa.Table) -> pa.Table:
    """Both tables as one, with the columns of both."""
    sides = [base, newer]
    if "impression_id" in base.column_names:  # numbers there, ids of recommendations here
        named = pc.binary_join_element_wise("log", base["impression_id"].cast(pa.string()), " ")
        sides[0] = base.set_column(base.column_names.index("impression_id"), "impression_id", named)
    logged = ["propensity" in side.column_names for side in sides]
    if any(logged) and (not all(logged) or any(LOGGED_COLUMN in side.column_names for side in sides)):
        sides = [
            side
            if LOGGED_COLUMN in side.column_names
            else side.append_column(LOGGED_COLUMN, _all(int(known), len(side)))
            for side, known in zip(sides, logged, strict=True)
        ]
    kinds = {field.name: field.type for side in reversed(sides) for field in side.schema}
    return pa.concat_tables(
        pa.table(
            {
                name: side[name].cast(kind) if name in side.column_names else _unknown(name, kind, len(side))
                for name, kind in kinds.items()
            }
        )
        for side in sides
    )


def _unknown(name: str, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of which nothing is known: no test, and a certain exposure that was not at random."""
    if name != "impression_id" and (name in UNKNOWN or (name.startswith(MARK) and FEATURE not in name)):
        return pa.repeat(pa.scalar(UNKNOWN.get(name, 0), kind), rows)
    return pa.nulls(rows, kind)


def _all(value: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int8()), rows)
