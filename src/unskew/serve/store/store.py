"""The durable store of events and of what was recommended.

    with open_store("events.db") as store:  # or a URL, postgresql://host/database
        store.append([Event("e1", "ann", "tea", "click", parse_time("2026-01-31T12:00:00Z"))])

Rows are only appended. Each gets a sequence number, which follows the order of commits. An acknowledged row
survives a killed process and, unless the store says `normal`, a power cut.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

import pyarrow as pa
import pyarrow.compute as pc

from unskew.core.config import Document
from unskew.core.errors import BadInput, UnskewError
from unskew.data.log.erasures import Erasures
from unskew.serve.store.database import Database, Mode, Synchronous
from unskew.serve.store.events import Event, Recommendation, check_id, in_iso
from unskew.serve.store.items import ItemRow
from unskew.serve.store.maintenance import Compacted, Erased, ListWatch, Maintenance
from unskew.serve.store.notices import Listening
from unskew.serve.store.reader import Reader
from unskew.serve.store.segments import Segments
from unskew.serve.store.sqlite import SQLite
from unskew.serve.store.tables import (
    EVENTS,
    ITEM_FEED,
    OF_USERS,
    RECOMMENDATIONS,
    SCHEMA,
    EventTypes,
    Kind,
    events_of,
    recommendations_of,
    row_of,
)
from unskew.serve.store.writer import Appended, Row, Writer

SCHEMES = ("postgresql", "postgres")


class StoreState(NamedTuple):
    """Counters of a store, which never fall: the sequence number of the newest event, how often users were
    erased, and the sequence number of the newest row about an item. Data that was read before the last
    erasure should be read again."""

    newest: int
    erasures: int
    items: int


def open_store(
    where: str | os.PathLike[str],
    mode: Mode = "create",
    *,
    positive: Sequence[str] | None = None,
    shown: Sequence[str] | None = None,
    context: Sequence[str] | None = None,
    synchronous: Synchronous = "full",
    segments: str | os.PathLike[str] | None = None,
) -> "Store":
    """Open a store.

    Parameters
    ----------
    where
        An SQLite file, or the URL of a PostgreSQL database.
    mode
        `create` opens a store or makes a new one, `write` opens one that is there, `read` changes nothing and
        may be used while another process writes. One process at a time may write into a file; into PostgreSQL
        any number.
    positive
        The types of events that are positive; by default click and purchase. The store keeps the setting.
    shown
        The types of events that report a shown item; by default impression. The store keeps the setting.
    context
        The types of events that models read and that are not predicted; by default view and cart. The store
        keeps the setting. The service rejects events of any other type.
    synchronous
        With `full` a row outlives a power cut as soon as it is acknowledged. `normal` is faster, and a power
        cut may lose the newest rows.
    segments
        The folder of compacted rows, for PostgreSQL. All processes must see the same one. For a file it is
        always beside it.

    Returns
    -------
    Store
        The store, which is also a context manager that closes it.
    """
    store = Store(*open_parts(where, mode, synchronous=synchronous, segments=segments))
    try:
        store.configure(positive, shown, context)
    except BaseException:
        store.close()
        raise
    return store


def open_parts(
    where: str | os.PathLike[str],
    mode: Mode,
    *,
    synchronous: Synchronous = "full",
    segments: str | os.PathLike[str] | None = None,
) -> tuple[Database, Segments]:
    """The parts of a store, which `Store` closes if they do not fit. See `open_store`."""
    for name, value, allowed in (("mode", mode, Mode), ("synchronous", synchronous, Synchronous)):
        if value not in get_args(allowed):
            raise BadInput(f"{name} {value!r}: expected one of {', '.join(get_args(allowed))}", field=name)
    text = os.fspath(where)
    scheme, is_url, _ = text.partition("://")
    if is_url and scheme in SCHEMES:
        from unskew.serve.store.postgres import Postgres

        return Postgres(text, mode, synchronous), Segments(None if segments is None else Path(segments))
    if is_url:
        raise BadInput(f"a store at {scheme}://...: expected a file or a URL of PostgreSQL, postgresql://...")
    if segments is not None:
        raise BadInput(f"{text}: the segments of a store in a file are beside it; leave the folder away")
    database = SQLite(Path(text), mode, synchronous)
    return database, Segments(database.segments)


class Store:
    """Events and recommendations, kept durably; `open_store` opens one. Threads may share it.

    Parameters
    ----------
    database
        The database, which the store closes.
    segments
        The files of compacted rows.
    """

    def __init__(self, database: Database, segments: Segments) -> None:
        self.name = database.name
        self._database, self._reader = database, Reader(database, segments)
        self._writer: Writer | None = None
        self._watch: ListWatch | None = None
        try:
            self._reader.check()
            if database.mode != "read":
                self._writer = Writer(database)
                self._maintenance = Maintenance(database, self._reader, self._writer, segments)
                self._maintenance.finish()
                self._watch = ListWatch(database.erased_list, self._maintenance.finish)
        except BaseException:
            self.close()
            raise

    # Writing

    def append(self, events: Iterable[Event]) -> Appended:
        """Store events, and return when they are committed.

        Parameters
        ----------
        events
            The events. One whose `event_id` is known, in the store or earlier in the list, is counted as a
            duplicate and not stored: the first one wins, also if they differ.

        Returns
        -------
        Appended
            How many events are new and how many are duplicates, and the sequence number of each.
        """
        return self.append_later(events).result()

    def record(self, recommendations: Iterable[Recommendation]) -> Appended:
        """Store what was recommended, and return when it is committed. The first one of a
        `recommendation_id` wins."""
        return self.record_later(recommendations).result()

    def append_later(self, events: Iterable[Event]) -> "Future[Appended]":
        """Store events as `append` does, without waiting: nothing is acknowledged before the future is
        done."""
        return self.append_rows(EVENTS, _rows_of(Event, events))

    def record_later(self, recommendations: Iterable[Recommendation]) -> "Future[Appended]":
        """Store what was recommended as `record` does, without waiting."""
        return self.append_rows(RECOMMENDATIONS, _rows_of(Recommendation, recommendations))

    def append_rows(self, kind: Kind, rows: list[Row]) -> "Future[Appended]":
        """Store rows that `row_of` made."""
        return self._may_write().append(kind, rows)

    def put_items(self, rows: Sequence[ItemRow]) -> Appended:
        """Store what is known of items from some times on, and return when it is committed.

        Parameters
        ----------
        rows
            The rows, in any order.

        Returns
        -------
        Appended
            How many rows say something new. The others are counted as duplicates and not stored.
        """
        known = self._reader.items(list(dict.fromkeys(row.item_id for row in rows)))
        new = []
        for row in sorted(rows, key=lambda row: row.timestamp):
            before = known.get(row.item_id)
            if row.adds_to(before):
                new.append(row.row)
                known[row.item_id] = row.after(before)
        accepted, duplicates, sequences = self.append_rows(ITEM_FEED, new).result()
        return Appended(accepted, duplicates + len(rows) - len(new), sequences)

    def configure(
        self,
        positive: Sequence[str] | None = None,
        shown: Sequence[str] | None = None,
        context: Sequence[str] | None = None,
    ) -> None:
        """Change what the types of events mean; None leaves it as it is."""
        after = self.resolve_types(positive, shown, context)
        if after == self.types:
            return
        self._set_meta(after._asdict())

    def declare_variants(self, fractions: Mapping[str, float]) -> None:
        """Keep the fraction of the users that each variant of an A/B test gets, for its results."""
        if dict(fractions) != self.variants:
            self._set_meta({"variants": dict(fractions)})

    def _set_meta(self, values: Mapping[str, Any]) -> None:
        writer = self._may_write()

        def change() -> None:
            with self._database.writing() as cursor:
                for name, value in values.items():
                    cursor.run("UPDATE unskew_meta SET value = ? WHERE name = ?", (json.dumps(value), name))

        writer.run(change)

    # Reading

    @property
    def types(self) -> EventTypes:
        """What the types of events mean."""
        return EventTypes(*(tuple(json.loads(value)) for value in self._reader.meta(*EventTypes._fields)))

    @property
    def variants(self) -> dict[str, float]:
        """The fraction of the users that each variant of an A/B test gets; empty without a test."""
        (text,) = self._reader.meta("variants")
        return dict(json.loads(text))

    def resolve_types(
        self,
        positive: Sequence[str] | None = None,
        shown: Sequence[str] | None = None,
        context: Sequence[str] | None = None,
    ) -> EventTypes:
        """The store's types of events with some of them replaced."""
        before = self.types
        after = EventTypes(
            before.positive if positive is None else _checked_types("positive", positive),
            before.shown if shown is None else _checked_types("shown", shown),
        )
        if context is None:  # a type that is given another meaning is no context any more
            others = (*after.positive, *after.shown)
            after = after._replace(context=tuple(kind for kind in before.context if kind not in others))
        else:
            after = after._replace(context=_checked_types("context", context))
        twice = sorted(set(after.context) & {*after.positive, *after.shown})
        if twice:
            raise BadInput(f"events of type {twice[0]!r}: context, or something else, but not both")
        both = sorted(set(after.positive) & set(after.shown))
        if both:
            raise BadInput(f"events of type {both[0]!r}: positive, or shown, but not both")
        return after

    def state(self) -> StoreState:
        """The counters by which a reader notices new events and erasures, in one read."""
        meta = self._reader.meta(f"newest_{EVENTS.name}", "erasures", f"newest_{ITEM_FEED.name}")
        return StoreState(*map(int, meta))

    def erasures(self) -> Erasures:
        """The list of erased users: salted hashes of their ids, with the moments of the erasures."""
        return self._reader.erasures()

    def listen(self, heard: Callable[[str], None]) -> Listening | None:
        """Hear of the commits and the announcements of all processes that share a store on a server.

        Parameters
        ----------
        heard
            Called in a thread with `changed` after each commit, and with what `announce` sends.

        Returns
        -------
        Listening or None
            What listens, to be closed before the store; None for a store in a file.
        """
        return self._database.listen(heard)

    def announce(self, text: str) -> None:
        """Tell all processes that listen. Nobody listens to a store in a file."""
        self._database.announce(text)

    def counts(self) -> dict[str, int]:
        """How many events and recommendations there are, compacted or not."""
        return {kind.name: self._reader.count(kind) for kind in OF_USERS}

    def events(self, after: int = 0, batch: int = 10_000) -> Iterator[pa.Table]:
        """All events with a higher sequence number than `after`, in this order, as Arrow tables of up to
        `batch` rows. It ends with the event that was the newest when it began."""
        return self._reader.frames(EVENTS, after, batch)

    def recommendations(self, after: int = 0, batch: int = 10_000) -> Iterator[pa.Table]:
        """All recommendations, as `events` gives events."""
        return self._reader.frames(RECOMMENDATIONS, after, batch)

    def items(self, after: int = 0, batch: int = 10_000) -> Iterator[pa.Table]:
        """All rows about items, as `events` gives events."""
        return self._reader.frames(ITEM_FEED, after, batch)

    def of_user(self, user_id: str) -> list[Event]:
        """All events of a user, in the order of their times; equal times in the order of their commits."""
        return events_of(self._reader.of_user(EVENTS, check_id("user_id", user_id)))

    def recommended_to(self, user_id: str) -> list[Recommendation]:
        """All recommendations that were made to a user, in the order of their times."""
        return recommendations_of(self._reader.of_user(RECOMMENDATIONS, check_id("user_id", user_id)))

    def recommendation(self, recommendation_id: str) -> Recommendation | None:
        """The recommendation of this id, compacted or not; None if there is none."""
        rows = self._reader.of_key(RECOMMENDATIONS, check_id("recommendation_id", recommendation_id))
        return next(iter(recommendations_of(rows)), None)

    def info(self) -> Document:
        """What the store holds, for people and for JSON. It reads all events, to count users and items."""
        users: set[str] = set()
        items: set[str] = set()
        first = last = None
        for frame in self.events(batch=50_000):
            users.update(pc.unique(frame["user_id"]).to_pylist())
            items.update(pc.unique(frame["item_id"]).to_pylist())
            times = pc.min_max(frame["timestamp"]).as_py()
            first = times["min"] if first is None else min(first, times["min"])
            last = times["max"] if last is None else max(last, times["max"])
        segments, state = self._reader.segments(), self.state()
        return {
            "store": self.name,
            "schema": SCHEMA,
            **self.counts(),
            "users": len(users),
            "items": len(items),
            "first": None if first is None else in_iso(first),
            "last": None if last is None else in_iso(last),
            "newest": state.newest,
            "bytes": self._database.size() + sum(segment.bytes for segment in segments),
            "segments": len(segments),
            "compacted": sum(segment.rows for segment in segments),
            "item_rows": self._reader.count(ITEM_FEED),
            "erasures": state.erasures,
            **{name: list(value) for name, value in self.types._asdict().items()},
        }

    # The whole store

    def compact(self, before: int) -> Compacted:
        """Move old events and recommendations into Parquet files, so that the database does not grow without
        bound.

        Reading sees no difference. Of each row the database keeps a hash of its key, so that a late copy is
        still a duplicate: about 30 bytes a row in SQLite, and 100 to 170 in PostgreSQL. To look one user up,
        the column of users of all files is read.

        Parameters
        ----------
        before
            Move what happened before this time, in whole microseconds since 1970.
        """
        if isinstance(before, bool) or not isinstance(before, int):
            raise BadInput("before: expected whole microseconds since 1970; `parse_time` reads other times")
        self._may_write()
        return self._maintenance.compact(before)

    def erase(self, *user_ids: str) -> Erased:
        """Erase users: their events, what was recommended to them, and the hashes of the keys of both.

        When this returns, no file of the store has them any more: not the database, nor its free pages, its
        indexes and its WAL, nor the segments, which are written again. SQLite's file is rewritten as a whole,
        and other writers wait meanwhile; several users at once cost as much as one. In PostgreSQL the tables
        are rewritten (VACUUM FULL).

        Not covered are: exports, prepared data and models that were trained before; backups, replicas,
        PostgreSQL's own WAL, its archive and its logs; blocks of the disk that files gave back; the memory of
        processes that read before; and rows of other users in which the same text is the id of an item or
        within an id.

        The store keeps a list of salted hashes of the erased ids, in the database and beside a file
        (`unskew.data.log.erasures`). Later events of the same user are accepted, as those of a new user. What
        happened before the erasure is not accepted again, and a copy of the database that is restored is
        erased again when it is opened.

        Parameters
        ----------
        *user_ids
            The users.
        """
        users = [check_id("user_id", user) for user in user_ids]
        if not users:
            raise BadInput("expected at least one user to erase")
        return self._erase(list(dict.fromkeys(users)))

    def apply_erasures(self, erasures: Erasures) -> Erased:
        """Erase whoever is on the list of another place, such as a run, and not yet on that of this store: a
        backup from before the erasure may have been restored together with the list beside it.

        Parameters
        ----------
        erasures
            The list. What users did after their erasure stays.
        """
        self._may_write()
        return self._maintenance.apply(erasures)

    def close(self) -> None:
        """Finish what was asked for, and close the store. Closing it again does nothing."""
        if self._watch is not None:
            self._watch.close()
        if self._writer is not None:
            self._writer.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Parts of these

    def _may_write(self) -> Writer:
        if self._writer is None:
            raise UnskewError(f"{self.name}: the store was opened for reading only")
        return self._writer

    def _erase(self, users: list[str]) -> Erased:
        self._may_write()
        return self._maintenance.erase(users)


def _rows_of(expected: type[Event] | type[Recommendation], values: Iterable[Any]) -> list[Row]:
    rows = []
    for value in values:
        if not isinstance(value, expected):
            raise BadInput(f"expected {expected.__name__}, found {type(value).__name__}")
        rows.append(row_of(value))
    return rows


def _checked_types(name: str, types: Sequence[str]) -> tuple[str, ...]:
    if isinstance(types, str) or not types:
        raise BadInput(f"{name}: expected a list of types of events, such as click")
    return tuple(dict.fromkeys(check_id(name, kind) for kind in types))
