"""Reading a store: the tables and the segments as one."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from unskew.core.errors import BadInput
from unskew.data.log.erasures import Erasures
from unskew.serve.store.database import Cursor, Database
from unskew.serve.store.items import ItemRow, known_rows
from unskew.serve.store.segments import Missing, Segment, Segments
from unskew.serve.store.tables import ITEM_FEED, OF_USERS, Kind, hash_of, in_order

USERS_READ = 50_000  # rows that are read together
LOOKED_UP = 500  # items in one statement
TRIES = 3  # to read segments that an erasure may replace meanwhile


def segments_of(cursor: Cursor, kind: Kind | None = None) -> list[Segment]:
    """All segments, or those of one kind, in the order of their first rows."""
    columns = ", ".join(Segment._fields)
    rows = cursor.rows(f"SELECT {columns} FROM unskew_segments ORDER BY first, name")
    segments = [Segment(*row) for row in rows]
    return [segment for segment in segments if kind is None or segment.kind == kind.name]


def newest_of(cursor: Cursor, kind: Kind) -> int:
    """The newest sequence number of a kind; 0 if there is none."""
    return int(cursor.rows("SELECT value FROM unskew_meta WHERE name = ?", (f"newest_{kind.name}",))[0][0])


class Reader:
    """Reads a store, each time in a snapshot of its own. Nothing here waits for a commit."""

    def __init__(self, database: Database, segments: Segments) -> None:
        self._database, self._segments = database, segments

    def check(self) -> None:
        """Refuse a store that lacks segments."""
        self._retried(lambda: self._segments.check(self.segments()))

    def segments(self) -> list[Segment]:
        """All segments."""
        with self._database.reading() as cursor:
            return segments_of(cursor)

    def meta(self, *names: str) -> list[str]:
        """Entries of the table of settings and counters, from one snapshot."""
        marks = ", ".join("?" * len(names))
        with self._database.reading() as cursor:
            entries: dict[str, str] = dict(
                cursor.rows(f"SELECT name, value FROM unskew_meta WHERE name IN ({marks})", names)
            )
        return [entries[name] for name in names]

    def count(self, kind: Kind) -> int:
        """The number of rows, compacted or not."""
        with self._database.reading() as cursor:
            ((rows,),) = cursor.rows(f"SELECT count(*) FROM {kind.table}")
            return int(rows) + sum(segment.rows for segment in segments_of(cursor, kind))

    def frames(self, kind: Kind, after: int, batch: int) -> Iterator[pa.Table]:
        """All rows after a sequence number, in order, up to the one that is the newest now."""
        if batch < 1:
            raise BadInput(f"batch {batch}: expected at least 1", field="batch")
        with self._database.reading() as cursor:
            newest = newest_of(cursor, kind)
        return self._frames(kind, after, newest, batch)

    def erasures(self) -> Erasures:
        """The list of erased users."""
        (text,) = self.meta("erased")
        return Erasures.from_json(text)

    def users(self) -> set[str]:
        """All users."""
        users: set[str] = set()
        for kind in OF_USERS:
            for frame in self.frames(kind, 0, USERS_READ):
                users.update(pc.unique(frame["user_id"]).to_pylist())
        return users

    def of_user(self, kind: Kind, user_id: str) -> pa.Table:
        """All rows of a user, in the order of their times."""

        def read() -> pa.Table:
            with self._database.reading() as cursor:
                rows = cursor.rows(f"SELECT {kind.columns} FROM {kind.table} WHERE user_id = ?", (user_id,))
                segments = segments_of(cursor, kind)
            frames = [self._segments.of_users(segment, [user_id]) for segment in segments]
            return in_order(kind, [kind.frame(rows), *frames], "timestamp", "sequence")

        return self._retried(read)

    def items(self, item_ids: Sequence[str]) -> dict[str, ItemRow]:
        """What is known of some items."""
        rows: list[tuple[str, int, str]] = []
        with self._database.reading() as cursor:
            for first in range(0, len(item_ids), LOOKED_UP):
                some = item_ids[first : first + LOOKED_UP]
                marks = ", ".join("?" * len(some))
                rows += cursor.rows(
                    f"SELECT item_id, timestamp, document FROM {ITEM_FEED.table} WHERE item_id IN ({marks}) "
                    "ORDER BY timestamp, sequence",
                    some,
                )
        return known_rows(rows)

    def of_key(self, kind: Kind, key: str) -> pa.Table:
        """The row of a key; an empty table if there is none."""

        def read() -> pa.Table:
            with self._database.reading() as cursor:
                numbers = cursor.rows(f"SELECT sequence FROM {kind.keys} WHERE hash = ?", (hash_of(key),))
                if not numbers:
                    return kind.schema.empty_table()
                ((sequence,),) = numbers
                rows = cursor.rows(f"SELECT {kind.columns} FROM {kind.table} WHERE sequence = ?", (sequence,))
                segments = [
                    segment
                    for segment in segments_of(cursor, kind)
                    if segment.first <= sequence <= segment.last
                ]
            frames = [self._segments.after(segment, sequence - 1, 1) for segment in segments]
            whole = in_order(kind, [kind.frame(rows), *frames], "sequence")
            return whole.filter(pc.equal(whole["sequence"], sequence))

        return self._retried(read)

    def _frames(self, kind: Kind, after: int, newest: int, batch: int) -> Iterator[pa.Table]:
        while after < newest:
            frame = self._retried(partial(self._some, kind, after, newest, batch))
            if not frame.num_rows:
                return
            yield frame
            after = frame["sequence"][-1].as_py()

    def _some(self, kind: Kind, after: int, newest: int, batch: int) -> pa.Table:
        """The next rows, of the table and of the segments as one."""
        with self._database.reading() as cursor:
            rows = cursor.rows(
                f"SELECT {kind.columns} FROM {kind.table} WHERE sequence > ? AND sequence <= ? "
                "ORDER BY sequence LIMIT ?",
                (after, newest, batch),
            )
            segments = [segment for segment in segments_of(cursor, kind) if segment.last > after]
        frame = kind.frame(rows)
        for segment in segments:  # in the order of their first rows
            if frame.num_rows == batch and frame["sequence"][-1].as_py() < segment.first:
                break
            others = self._segments.after(segment, after, batch)
            frame = in_order(kind, [frame, others], "sequence").slice(0, batch)
        return frame.filter(pc.less_equal(frame["sequence"], newest))

    def _retried(self, read: Callable[[], pa.Table]) -> pa.Table:
        """Read again if a segment was replaced between a look at the table and a look at the file."""
        for _ in range(TRIES - 1):
            try:
                return read()
            except Missing:
                continue
        return read()
