"""A store in one SQLite file in WAL mode.

FILE           the database
FILE-wal, -shm SQLite's own, beside a store that is open
FILE-lock      held by the one process that may write
FILE-segments  the Parquet files of what is compacted

One connection writes. Readers have connections of their own, so they wait for no commit.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa

from unskew.core.atomic_files import sync_folder
from unskew.core.errors import BadInput, UnskewError
from unskew.core.file_lock import lock_file
from unskew.serve.store.database import Cursor, Database, Mode, Rows, Synchronous, check_schema
from unskew.serve.store.tables import beginnings, definitions

TYPES = {pa.string(): "TEXT", pa.int64(): "INTEGER", pa.int32(): "INTEGER", pa.float64(): "REAL"}
PATIENCE = 10.0  # seconds that a connection waits for a lock of another program
FREED_AT_ONCE = 2000  # pages that are given back while others wait to write
LARGEST_WAL = 64 * 2**20  # bytes that the file of the WAL keeps after a checkpoint

DAMAGED = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}
REFUSED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class _Cursor:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        return self._connection.execute(sql, values).rowcount

    def many(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, values)


class SQLite(Database):
    """The tables of a store in an SQLite file. A process that may write holds a lock; readers need none.

    mode: `create` opens a store or makes a new one, `write` opens one that is there, `read` changes nothing.
    synchronous: with `full` each commit is on the disk before it is acknowledged. With `normal` a power cut
        may lose the newest commits; a process that is killed loses none.
    """

    def __init__(self, file: Path, mode: Mode, synchronous: Synchronous) -> None:
        self.mode, self.name = mode, str(file)
        self.file = file = file.expanduser().resolve()  # by any other name it has the same lock
        self._readers: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        self._lock: int | None = None
        self._writer: sqlite3.Connection | None = None
        self._closed = False
        if mode != "create" and not file.is_file():
            raise BadInput(f"{file}: no such store")
        try:
            if mode != "read":
                # Closing another handle of the database itself would end SQLite's own locks.
                refusal = BadInput(f"{file}: another process is writing into this store; only one may")
                self._lock = lock_file(file.with_name(f"{file.name}-lock"), refusal)
                if mode == "create" and not file.exists():
                    self._create()
            if file.stat().st_size == 0:
                raise BadInput(f"{file}: an empty file, not a store; was it cut off? nothing was changed")
            with self._translated():
                with self.reading() as cursor:
                    self._check(cursor)
                if mode != "read":
                    self._writer = self._connected()
                    _prepare(self._writer, synchronous, self.name)
        except BaseException:
            self.close()
            raise

    @property
    def segments(self) -> Path:
        """The folder of the segments."""
        return self.file.with_name(f"{self.file.name}-segments")

    # The interface

    @contextmanager
    def reading(self) -> Iterator[Cursor]:
        with self._translated():
            try:
                connection = self._readers.get_nowait()
            except Empty:
                connection = self._connected()
                connection.execute("PRAGMA query_only = ON")
            try:
                connection.execute("BEGIN")
                yield _Cursor(connection)
            finally:
                with suppress(sqlite3.Error):
                    connection.rollback()
                self._readers.put(connection)
                if self._closed:
                    self._close_readers()

    @contextmanager
    def writing(self) -> Iterator[Cursor]:
        writer = self._may_write()
        with self._translated():
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield _Cursor(writer)
                writer.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # some errors have rolled it back already
                    writer.rollback()
                raise

    def maintaining(self) -> nullcontext[None]:
        self._may_write()
        return nullcontext()  # the lock of the file keeps other processes away

    def check_forgetting(self) -> None:
        self._may_write()

    def forget(self) -> None:
        writer = self._may_write()
        with self._translated():
            # Deleted rows leave copies in free pages, and in the free space of others. A new database has
            # none. It reaches the file itself by a checkpoint, which also empties the WAL.
            writer.execute("VACUUM")
            (held, _, _) = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if held:
            raise UnskewError(
                f"{self.name}: another process is reading an older state, so the WAL still holds what was "
                "removed; it is emptied when the store is opened again, or call this again"
            )

    def shrink(self) -> bool:
        writer = self._may_write()
        with self._translated():
            writer.execute(f"PRAGMA incremental_vacuum({FREED_AT_ONCE})").fetchall()
            return bool(writer.execute("PRAGMA freelist_count").fetchone()[0])

    def size(self) -> int:
        files = (self.file.with_name(self.file.name + suffix) for suffix in ("", "-wal", "-shm"))
        return sum(path.stat().st_size for path in files if path.is_file())

    def close(self) -> None:
        self._closed = True
        self._close_readers()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Connections

    def _connected(self) -> sqlite3.Connection:
        if self._closed:
            raise UnskewError(f"{self.name}: the store is closed")
        # A reader, too, opens the file for writing: SQLite's own files beside it are then removed at the end.
        # A file that cannot be changed here, and was closed in good order, needs none.
        by_effect = os.access in os.supports_effective_ids
        is_open = self.file.with_name(f"{self.file.name}-wal").exists()
        still = not is_open and not os.access(self.file.parent, os.W_OK, effective_ids=by_effect)
        how = "immutable=1" if self.mode == "read" and still else "mode=rw"
        uri = f"{self.file.as_uri()}?{how}"
        return sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False)

    def _close_readers(self) -> None:
        with suppress(Empty):
            while True:
                self._readers.get_nowait().close()

    def _may_write(self) -> sqlite3.Connection:
        if self._writer is None:
            said = "the store is closed" if self._closed else "the store was opened for reading only"
            raise UnskewError(f"{self.name}: {said}")
        return self._writer

    def _check(self, cursor: Cursor) -> None:
        there = cursor.rows("SELECT name FROM sqlite_master WHERE name = 'unskew_meta'")
        found = cursor.rows("SELECT value FROM unskew_meta WHERE name = 'schema'") if there else []
        check_schema(self.name, found[0][0] if found else None)

    def _create(self) -> None:
        """Make the file of a new store, whole or not at all."""
        for left in (self.file.with_name(f"{self.file.name}-wal"), *self.segments.glob("*")):
            if left.exists():
                raise BadInput(f"{self.file}: is missing, but {left} is there; nothing was changed")
        draft = self.file.with_name(f".{self.file.name}.new")
        draft.unlink(missing_ok=True)
        try:
            with self._translated():
                connection = sqlite3.connect(draft, isolation_level=None)
                with closing(connection):
                    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                    connection.execute("BEGIN")
                    for sql in definitions(TYPES, "BLOB", " WITHOUT ROWID"):
                        connection.execute(sql)
                    connection.executemany("INSERT INTO unskew_meta VALUES (?, ?)", beginnings())
                    connection.execute("COMMIT")
            draft.rename(self.file)
            sync_folder(self.file.parent)
        except OSError as error:
            raise BadInput(f"{self.file}: cannot write there ({error.strerror})") from None
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Say in one line what SQLite complains about."""
        try:
            yield
        except sqlite3.ProgrammingError as error:
            if self._closed:
                raise UnskewError(f"{self.name}: the store is closed") from None
            raise AssertionError("wrong use of SQLite; this is a fault of unskew") from error
        except sqlite3.DatabaseError as error:
            code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
            if code in DAMAGED:
                said = f"not a store, or a damaged one ({error}); nothing was changed"
                raise BadInput(f"{self.name}: {said}") from None
            if code in REFUSED:
                raise BadInput(f"{self.name}: cannot be opened or written ({error})") from None
            if code in HELD:
                raise UnskewError(f"{self.name}: another program keeps it locked ({error})") from None
            said = "what was acknowledged before is safe, and the rest may be sent again"
            raise UnskewError(f"{self.name}: writing or reading failed ({error}); {said}") from error


def _prepare(writer: sqlite3.Connection, synchronous: Synchronous, name: str) -> None:
    """Set up the connection that writes."""
    (journal,) = writer.execute("PRAGMA journal_mode = WAL").fetchone()
    if journal != "wal":
        raise BadInput(f"{name}: this file system cannot hold a store (no WAL mode, but {journal!r})")
    writer.execute(f"PRAGMA synchronous = {synchronous.upper()}")
    writer.execute("PRAGMA fullfsync = ON")  # on a Mac, nothing else outlives a power cut
    writer.execute(f"PRAGMA journal_size_limit = {LARGEST_WAL}")
