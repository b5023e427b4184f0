"""Compacting and erasing. A process that is killed in the middle of either loses nothing and doubles nothing.

Who was erased is on the list of erased users, in the database and, of a store in a file, also beside it. The
file is written first. So whoever opens a store for writing, and whoever has it open, erases everyone who is
on the list of the file and not on that of the database: what a killed process began, what a restored copy of
the database brought back, and what another process asks for.

The name of a file is noted in the table of pending files, by a commit, before it is written or removed. One
transaction moves rows between the tables and the files. Whoever opens the store next removes the files that
are still noted and belong to no segment.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from unskew.core.errors import UnskewError
from unskew.data.log.erasures import Erasures, add_erasures, read_erasures
from unskew.serve.store.database import Busy, Cursor, Database
from unskew.serve.store.events import LATEST
from unskew.serve.store.reader import Reader, newest_of, segments_of
from unskew.serve.store.segments import Segment, Segments, is_covered, reached
from unskew.serve.store.tables import OF_USERS, Kind, hash_of
from unskew.serve.store.writer import Writer

T = TypeVar("T")

WATCH_SECONDS = 0.5  # between two looks at the list of erased users
SEGMENT_ROWS = 500_000  # rows of one segment, and so of one transaction that removes them
READ_ROWS = 10_000
AHEAD = 86_400 * 10**6  # microseconds by which the clock of an event may be ahead of ours


class Compacted(NamedTuple):
    """How many rows were moved into how many new segments."""

    events: int
    recommendations: int
    segments: int


class Erased(NamedTuple):
    """How many rows were erased."""

    events: int
    recommendations: int


class Maintenance:
    """What is done to a whole store, by one thread of one process at a time."""

    def __init__(self, database: Database, reader: Reader, writer: Writer, segments: Segments) -> None:
        self._database, self._reader = database, reader
        self._writer, self._segments = writer, segments
        self._alone = threading.Lock()

    def finish(self) -> None:
        """Finish what a killed process began, and erase who is on the list beside the store, unless another
        process is at it."""
        try:
            self.apply(Erasures())
        except Busy:
            return

    def apply(self, erasures: Erasures) -> Erased:
        """Erase who is on the list beside the store or on another one; see `Store.apply_erasures`."""
        with self._alone, self._database.maintaining():
            self._finish()
            before = self._reader.erasures()
            listed = self._listed().joined(erasures)
            if before.joined(listed) == before:
                return Erased(0, 0)
            self._database.check_can_forget()
            if self._database.erased_list is not None:
                add_erasures(self._database.erased_list, before.joined(listed))
            return self._erase(listed.among(self._reader.users()), before.joined(listed))

    def compact(self, before: int) -> Compacted:
        """Move rows from before a time into segments; see `Store.compact`."""
        with self._alone, self._database.maintaining():
            self._finish()
            moved = [self._compact(kind, before) for kind in OF_USERS]
            while self._writer.run(self._database.shrink):
                pass
        (events, some), (recommendations, others) = moved
        return Compacted(events, recommendations, some + others)

    def erase(self, users: Collection[str]) -> Erased:
        """Remove all rows of these users for good; see `Store.erase`."""
        with self._alone, self._database.maintaining():
            self._finish()
            self._database.check_can_forget()
            moments = {user: self._last_moment(user) for user in users}
            erased = self._reader.erasures().joined(self._listed()).with_users(moments)
            if self._database.erased_list is not None:
                erased = add_erasures(self._database.erased_list, erased)
            reached("users listed")
            return self._erase(dict.fromkeys(users, LATEST), erased)

    # Steps

    def _listed(self) -> Erasures:
        """The list beside the store."""
        file = self._database.erased_list
        return Erasures() if file is None else read_erasures(file)

    def _last_moment(self, user: str) -> int:
        """Now, or when the newest row of a user is, if its clock was ahead; no more than a day from now,
        because the user may come back."""
        now, newest = time.time_ns() // 1000, 0
        for kind in OF_USERS:
            rows = self._reader.of_user(kind, user)
            newest = max(newest, rows["timestamp"][-1].as_py() if rows.num_rows else 0)
        return max(now, min(newest, now + AHEAD))

    def _erase(self, until: Mapping[str, int], erased: Erasures) -> Erased:
        """Remove the rows of users up to a moment, and note the list of erased users."""
        swaps = self._rewrite_segments(until)
        reached("segments rewritten")
        counts = self._transaction(lambda cursor: _erase_rows(cursor, until, swaps, erased))
        reached("rows erased")
        self._finish()
        return Erased(*counts)

    def _compact(self, kind: Kind, before: int) -> tuple[int, int]:
        """Move the old rows of one kind. Returns the numbers of rows and of segments."""
        with self._database.reading() as cursor:
            newest = newest_of(cursor, kind)
        after = rows = segments = 0
        while True:
            frames = self._old_rows(kind, before, after, newest)
            first = next(frames, None)
            if first is None:
                return rows, segments
            name = self._new_file(kind)
            segment = self._segments.write(kind, name, chain([first], frames))
            assert segment is not None
            reached("segment on the disk")
            self._transaction(partial(_exchange_rows, kind, before, segment))
            reached("rows moved")
            after, rows, segments = segment.last, rows + segment.rows, segments + 1

    def _old_rows(self, kind: Kind, before: int, after: int, newest: int) -> Iterator[pa.Table]:
        """The rows of one segment, in frames. The snapshots of the frames agree, because only we
        remove rows, and new rows get higher numbers."""
        left = SEGMENT_ROWS
        while left > 0:
            with self._database.reading() as cursor:
                rows = cursor.rows(
                    f"SELECT {kind.columns} FROM {kind.table} WHERE timestamp < ? AND sequence > ? "
                    "AND sequence <= ? ORDER BY sequence LIMIT ?",
                    (before, after, newest, min(left, READ_ROWS)),
                )
            if not rows:
                return
            yield kind.frame(rows)
            after, left = rows[-1][0], left - len(rows)

    def _rewrite_segments(self, until: Mapping[str, int]) -> "list[_Swap]":
        """For each segment with rows of these users up to a moment, a new one without them."""
        with self._database.reading() as cursor:
            segments = segments_of(cursor)
        swaps = []
        for kind in OF_USERS:
            for old in segments:
                rows = self._segments.of_users(old, until) if old.kind == kind.name else None
                erased = None if rows is None else rows.filter(is_covered(rows, until))
                if erased is None or not erased.num_rows:
                    continue
                name = self._new_file(kind)
                new = self._segments.write(kind, name, self._segments.without(old, until))
                swaps.append(_Swap(kind, old, name, new, erased[kind.key].to_pylist()))
        return swaps

    def _new_file(self, kind: Kind) -> str:
        """The name of a new segment, which is noted as pending."""
        name = self._segments.new_name(kind)
        self._transaction(lambda cursor: cursor.run("INSERT INTO unskew_pending VALUES (?)", (name,)))
        return name

    def _finish(self) -> None:
        """Remove the files that are pending, and what is left of erased rows."""
        with self._database.reading() as cursor:
            names = [name for (name,) in cursor.rows("SELECT name FROM unskew_pending")]
            ((forgetting,),) = cursor.rows("SELECT value FROM unskew_meta WHERE name = 'forgetting'")
        if not names and forgetting == "0":
            return
        self._segments.remove(names)
        reached("files removed")
        if forgetting != "0":
            self._writer.run(self._database.forget)
            reached("forgotten")
        self._transaction(lambda cursor: _clear_pending(cursor, names))

    def _transaction(self, change: Callable[[Cursor], T]) -> T:
        def run() -> Any:
            with self._database.writing() as cursor:
                return change(cursor)

        return self._writer.run(run)


class ListWatch:
    """A thread that looks every half second whether another process has changed the list of erased users."""

    def __init__(self, file: Path | None, on_change: Callable[[], None]) -> None:
        self._file, self._on_change = file, on_change
        self._closed = threading.Event()
        self._before: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._work, name="unskew erasures", daemon=True)
        if file is not None:
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _state(self) -> tuple[int, int] | None:
        try:
            found = None if self._file is None else self._file.stat()
        except OSError:
            return None
        return None if found is None else (found.st_mtime_ns, found.st_ino)

    def _work(self) -> None:
        while not self._closed.wait(WATCH_SECONDS):
            now = self._state()
            if now == self._before:
                continue
            try:
                self._on_change()
                self._before = now
            except UnskewError:  # a list that cannot be read, or a reader of an older state: look again
                continue


class _Swap(NamedTuple):
    kind: Kind
    old: Segment
    name: str
    new: Segment | None  # None if nothing is left
    keys: list[str]  # of the erased rows


def _exchange_rows(kind: Kind, before: int, segment: Segment, cursor: Cursor) -> None:
    """Exchange rows of a table for a segment."""
    removed = cursor.run(
        f"DELETE FROM {kind.table} WHERE timestamp < ? AND sequence >= ? AND sequence <= ?",
        (before, segment.first, segment.last),
    )
    if removed != segment.rows:
        raise UnskewError(
            f"{segment.name}: {segment.rows} rows, but {removed} in the table; nothing was moved"
        )
    _add(cursor, segment)
    cursor.run("DELETE FROM unskew_pending WHERE name = ?", (segment.name,))


def _erase_rows(
    cursor: Cursor, until: Mapping[str, int], swaps: "list[_Swap]", erased: Erasures
) -> list[int]:
    """Remove the rows of these users up to a moment from the tables, and exchange segments. What is left of
    them in files and free space is noted, and so is the list of erased users. Returns how many rows of each
    kind were erased."""
    counts = []
    for kind in OF_USERS:
        keys = [key for swap in swaps if swap.kind is kind for key in swap.keys]
        for covered in until.items():
            where = f"{kind.table} WHERE user_id = ? AND timestamp <= ?"
            keys += [key for (key,) in cursor.rows(f"SELECT {kind.key} FROM {where}", covered)]
            cursor.run(f"DELETE FROM {where}", covered)
        cursor.many(f"DELETE FROM {kind.keys} WHERE hash = ?", [(hash_of(key),) for key in keys])
        counts.append(len(keys))
    for swap in swaps:
        cursor.run("DELETE FROM unskew_segments WHERE name = ?", (swap.old.name,))
        cursor.run("INSERT INTO unskew_pending VALUES (?)", (swap.old.name,))
        if swap.new is not None:
            _add(cursor, swap.new)
            cursor.run("DELETE FROM unskew_pending WHERE name = ?", (swap.name,))
    ((erasures,),) = cursor.rows("SELECT value FROM unskew_meta WHERE name = 'erasures'")
    changes = ("erasures", str(int(erasures) + 1)), ("forgetting", "1"), ("erased", erased.to_json())
    for name, value in changes:
        cursor.run("UPDATE unskew_meta SET value = ? WHERE name = ?", (value, name))
    return counts


def _clear_pending(cursor: Cursor, names: list[str]) -> None:
    cursor.many("DELETE FROM unskew_pending WHERE name = ?", [(name,) for name in names])
    cursor.run("UPDATE unskew_meta SET value = '0' WHERE name = 'forgetting'")


def _add(cursor: Cursor, segment: Segment) -> None:
    marks = ", ".join("?" * len(segment))
    cursor.run(f"INSERT INTO unskew_segments ({', '.join(segment._fields)}) VALUES ({marks})", segment)
