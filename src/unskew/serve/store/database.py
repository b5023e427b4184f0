"""What a store asks of a database: a snapshot to read, a transaction to write, and to forget for good."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Literal

from unskew.core.errors import BadInput, UnskewError
from unskew.serve.store.notices import Listening
from unskew.serve.store.tables import SCHEMA, Dialect, definitions, initial_rows

Mode = Literal["create", "write", "read"]
Synchronous = Literal["full", "normal"]
Rows = list[tuple[Any, ...]]


class Busy(BadInput):
    """Another process is compacting or erasing."""


class Occupied(BadInput):
    """Another process is writing into a store of which only one process may write."""


class Cursor:
    """Runs SQL within one snapshot or transaction. Parameters are written as `?`.

    cursor: that of the driver.
    rewrite: turns SQL into what the driver reads.
    """

    def __init__(self, cursor: Any, rewrite: Callable[[str], Any] = str) -> None:
        self._cursor, self._rewrite = cursor, rewrite

    def rows(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run a query and return all of its rows."""
        return self._cursor.execute(self._rewrite(sql), values).fetchall()

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        return self._cursor.execute(self._rewrite(sql), values).rowcount

    def many(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each of these values."""
        self._cursor.executemany(self._rewrite(sql), values)


class Database(ABC):
    """A database with the tables of a store. One thread writes; any number of threads read.

    Readers have connections of their own, which are kept for the next snapshot, so they wait for no commit.
    """

    dialect: ClassVar[Dialect]
    begin_reading: ClassVar[str] = "BEGIN"
    begin_writing: ClassVar[str]
    lost: tuple[type[Exception], ...] = ()  # errors of a kept connection that the server has closed
    erased_list: Path | None = None  # the file of erased users beside a store in a file

    def __init__(self, name: str, mode: Mode) -> None:
        self.name, self.mode = name, mode  # the name has no password; messages show it
        self._readers: SimpleQueue[Any] = SimpleQueue()
        self._writer: Any = None
        self._closed = False

    @contextmanager
    def reading(self) -> Iterator[Cursor]:
        """One snapshot of everything that was committed so far. It waits for no commit."""
        with self._translated():
            connection = self._reader()
            try:
                yield self._cursor(connection)
            finally:
                with suppress(Exception):
                    connection.rollback()
                self._readers.put(connection)
                if self._closed:
                    self._close_readers()

    @contextmanager
    def writing(self) -> Iterator[Cursor]:
        """One transaction, alone in the whole store. It is committed on leaving, durably, or rolled back if
        anything was raised."""
        with self._translated():
            writer = self._may_write()
            try:
                writer.execute(self.begin_writing)
                yield self._cursor(writer)
                self._before_commit(self._cursor(writer))
                writer.commit()
            except BaseException:
                with suppress(Exception):  # some errors have rolled it back already
                    writer.rollback()
                raise

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        self._close_readers()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def listen(self, heard: Callable[[str], None]) -> Listening | None:
        """Call a function, in a thread, with what other processes announce, and with `changed` after each
        commit; None where no server passes it on."""
        return None

    def announce(self, text: str) -> None:  # noqa: B027 (a file has nobody to tell)
        """Tell all processes that listen. Where no server passes it on, nobody does."""

    @abstractmethod
    def maintaining(self) -> AbstractContextManager[None]:
        """Keep other processes from compacting and erasing."""

    @abstractmethod
    def check_can_forget(self) -> None:
        """Refuse to begin if `forget` would not be allowed."""

    @abstractmethod
    def forget(self) -> None:
        """Rewrite everything, so that no file of the database has anything of a deleted row. Only the thread
        that writes may call this."""

    @abstractmethod
    def shrink(self) -> bool:
        """Make some of the space of deleted rows free for others; return whether there is more. Only the
        thread that writes may call this."""

    @abstractmethod
    def size(self) -> int:
        """The size of the database on disk, in bytes."""

    # Connections

    def _before_commit(self, cursor: Cursor) -> None:  # noqa: B027 (in a file, nothing)
        """What belongs to every transaction that writes."""

    @abstractmethod
    def _connect(self) -> Any:
        """A new connection, in which nothing begins a transaction by itself."""

    @abstractmethod
    def _cursor(self, connection: Any) -> Cursor:
        """A cursor of a connection."""

    @abstractmethod
    def _translated(self) -> AbstractContextManager[None]:
        """Turn the errors of the driver into sentences."""

    def _reader(self) -> Any:
        """A connection that has begun a snapshot."""
        while True:
            try:
                connection = self._readers.get_nowait()
            except Empty:
                connection = self._connect()
                connection.execute(self.begin_reading)
                return connection
            try:
                connection.execute(self.begin_reading)
                return connection
            except self.lost:
                connection.close()

    def _close_readers(self) -> None:
        with suppress(Empty):
            while True:
                self._readers.get_nowait().close()

    def _may_write(self) -> Any:
        """The connection that writes."""
        if self._writer is None:
            reason = "the store is closed" if self._closed else "the store was opened for reading only"
            raise UnskewError(f"{self.name}: {reason}")
        return self._writer

    # Tables

    def _create_tables(self, cursor: Cursor) -> None:
        for sql in definitions(self.dialect):
            cursor.run(sql)
        cursor.many("INSERT INTO unskew_meta VALUES (?, ?)", initial_rows())

    def _check_tables(self, cursor: Cursor, has_tables: bool) -> None:
        """Refuse the tables of another version, or of something else."""
        versions = cursor.rows("SELECT value FROM unskew_meta WHERE name = 'schema'") if has_tables else []
        if not versions:
            raise BadInput(f"{self.name}: a database, but not a store of unskew; nothing was changed")
        if versions[0][0] != str(SCHEMA):
            raise BadInput(
                f"{self.name}: a store of schema {versions[0][0]}, this version of unskew reads {SCHEMA}; "
                "nothing was changed. `unskew store export` of the version that wrote it takes its log out"
            )
