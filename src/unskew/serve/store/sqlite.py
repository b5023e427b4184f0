"""A store in one SQLite file in WAL mode.

FILE           the database
FILE-wal, -shm SQLite's own, beside a store that is open
FILE-lock      held by the one process that may write
FILE-segments  the Parquet files of what is compacted
FILE-erased    the list of erased users, which a restored copy of the database leaves alone

They hold personal data, so only their owner may read a new one; SQLite gives its own files the permissions of
the database.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

import pyarrow as pa

from unskew.core.atomic_files import sync_folder
from unskew.core.errors import BadInput, UnskewError
from unskew.core.file_lock import lock_file
from unskew.data.log.erasures import OWN_MODE, list_beside
from unskew.serve.store.database import Cursor, Database, Mode, Occupied, Synchronous
from unskew.serve.store.tables import Dialect

BUSY_SECONDS = 10.0  # for which a connection waits for a lock of another program
FREED_PAGES = 2000  # that are given back while others wait to write
LARGEST_WAL = 64 * 2**20  # bytes that the file of the WAL keeps after a checkpoint

DAMAGED = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}
REFUSED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class SQLite(Database):
    """The tables of a store in an SQLite file. A process that may write holds a lock; readers need none.

    mode: `create` opens a store or makes a new one, `write` opens one that is there, `read` changes nothing.
    synchronous: with `full` each commit is on the disk before it is acknowledged. With `normal` a power cut
        may lose the newest commits; a process that is killed loses none.
    """

    dialect = Dialect(
        {pa.string(): "TEXT", pa.int64(): "INTEGER", pa.int32(): "INTEGER", pa.float64(): "REAL"},
        *("BLOB", " WITHOUT ROWID"),
    )
    begin_writing = "BEGIN IMMEDIATE"

    def __init__(self, file: Path, mode: Mode, synchronous: Synchronous) -> None:
        super().__init__(str(file), mode)
        self.file = file = file.expanduser().resolve()  # by any other name it has the same lock
        self.erased_list = list_beside(file)
        self._lock: int | None = None
        if mode != "create" and not file.is_file():
            raise BadInput(f"{file}: no such store")
        try:
            if mode != "read":
                # The lock has a file of its own: closing any other handle of the database would end SQLite's
                # own locks.
                refusal = Occupied(f"{file}: another process is writing into this store; only one may")
                self._lock = lock_file(file.with_name(f"{file.name}-lock"), refusal, OWN_MODE)
                if mode == "create" and not file.exists():
                    self._create()
            if file.stat().st_size == 0:
                raise BadInput(f"{file}: an empty file, not a store; was it cut off? nothing was changed")
            with self.reading() as cursor:
                tables = cursor.rows("SELECT name FROM sqlite_master WHERE name = 'unskew_meta'")
                self._check_tables(cursor, bool(tables))
            if mode != "read":
                with self._translated():
                    self._writer = self._connect()
                    _prepare(self._writer, synchronous, self.name)
        except BaseException:
            self.close()
            raise

    @property
    def segments(self) -> Path:
        """The folder of the segments."""
        return self._beside("-segments")

    def maintaining(self) -> nullcontext[None]:
        self._may_write()
        return nullcontext()  # the lock of the file keeps other processes away

    def check_can_forget(self) -> None:
        self._may_write()

    def forget(self) -> None:
        writer = self._may_write()
        with self._translated():
            # Deleted rows leave copies in free pages, and in the free space of others. A new database has
            # none. It reaches the file itself by a checkpoint, which also empties the WAL.
            writer.execute("VACUUM")
            (is_held, _, _) = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_held:
            raise UnskewError(
                f"{self.name}: another process is reading an older state, so the WAL still holds what was "
                "removed; it is emptied when the store is opened again, or call this again"
            )

    def shrink(self) -> bool:
        writer = self._may_write()
        with self._translated():
            writer.execute(f"PRAGMA incremental_vacuum({FREED_PAGES})").fetchall()
            return bool(writer.execute("PRAGMA freelist_count").fetchone()[0])

    def size(self) -> int:
        files = map(self._beside, ("", "-wal", "-shm"))
        return sum(path.stat().st_size for path in files if path.is_file())

    def close(self) -> None:
        super().close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _beside(self, suffix: str) -> Path:
        return self.file.with_name(self.file.name + suffix)

    def _connect(self) -> sqlite3.Connection:
        if self._closed:
            raise UnskewError(f"{self.name}: the store is closed")
        # A reader, too, opens the file for writing: SQLite's own files beside it are then removed at the end.
        # A file that cannot be changed here, and was closed in good order, needs none.
        effective = os.access in os.supports_effective_ids
        can_write = os.access(self.file.parent, os.W_OK, effective_ids=effective)
        is_still = self.mode == "read" and not self._beside("-wal").exists() and not can_write
        uri = f"{self.file.as_uri()}?{'immutable=1' if is_still else 'mode=rw'}"
        return sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )

    def _cursor(self, connection: sqlite3.Connection) -> Cursor:
        return Cursor(connection.cursor())

    def _create(self) -> None:
        """Make the file of a new store, whole or not at all."""
        for rest in (self._beside("-wal"), *self.segments.glob("*")):
            if rest.exists():
                raise BadInput(f"{self.file}: is missing, but {rest} is there; nothing was changed")
        draft = self.file.with_name(f".{self.file.name}.new")
        draft.unlink(missing_ok=True)
        try:
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWN_MODE))
            with self._translated(), closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("BEGIN")
                self._create_tables(self._cursor(connection))
                connection.commit()
            draft.rename(self.file)
            sync_folder(self.file.parent)
        except OSError as error:
            raise BadInput(f"{self.file}: cannot write there ({error.strerror})") from None
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError as error:
            if self._closed:
                raise UnskewError(f"{self.name}: the store is closed") from None
            raise AssertionError("wrong use of SQLite; this is a fault of unskew") from error
        except sqlite3.DatabaseError as error:
            code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
            if code in DAMAGED:
                reason = f"not a store, or a damaged one ({error}); nothing was changed"
                raise BadInput(f"{self.name}: {reason}") from None
            if code in REFUSED:
                raise BadInput(f"{self.name}: cannot be opened or written ({error})") from None
            if code in HELD:
                raise UnskewError(f"{self.name}: another program keeps it locked ({error})") from None
            advice = "what was acknowledged before is safe, and the rest may be sent again"
            raise UnskewError(f"{self.name}: writing or reading failed ({error}); {advice}") from error


def _prepare(writer: sqlite3.Connection, synchronous: Synchronous, name: str) -> None:
    """Set up the connection that writes."""
    (journal,) = writer.execute("PRAGMA journal_mode = WAL").fetchone()
    if journal != "wal":
        raise BadInput(f"{name}: this file system cannot hold a store (no WAL mode, but {journal!r})")
    writer.execute(f"PRAGMA synchronous = {synchronous.upper()}")
    writer.execute("PRAGMA fullfsync = ON")  # on a Mac, nothing else outlives a power cut
    writer.execute(f"PRAGMA journal_size_limit = {LARGEST_WAL}")
