"""A store in a PostgreSQL database, by its URL. It needs psycopg 3 (extra `postgres`).

The tables stand where the search path of the user leads (`?options=-csearch_path%3DNAME` names a schema). Any
number of processes may write; each takes its turn, so that sequence numbers follow the order of commits.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa

from unskew.core.errors import BadInput, UnskewError
from unskew.serve.store.database import Busy, Cursor, Database, Mode, Rows, Synchronous, check_schema
from unskew.serve.store.tables import KINDS, TABLES, beginnings, definitions

if TYPE_CHECKING:
    import psycopg

TYPES = {
    pa.string(): 'text COLLATE "C"',
    pa.int64(): "bigint",
    pa.int32(): "integer",
    pa.float64(): "double precision",
}
CREATING, WRITING, MAINTAINING = 0x756E73, 0x756E74, 0x756E75  # the kinds of our advisory locks
CONNECT_SECONDS = 10


def shown_url(url: str) -> str:
    """A URL as it may be shown: without user, password and options."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "postgresql://..."
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class _Cursor:
    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._cursor = connection.cursor(binary=True)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        return self._cursor.execute(_placed(sql), values).fetchall()

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        return self._cursor.execute(_placed(sql), values).rowcount

    def many(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        self._cursor.executemany(_placed(sql), values)


class Postgres(Database):
    """The tables of a store in PostgreSQL.

    mode: `create` opens a store or makes a new one, `write` opens one that is there, `read` changes nothing.
    synchronous: with `full` the server has each commit on its disk before it is acknowledged. With `normal` a
        crash of the server may lose the newest commits.
    """

    def __init__(self, url: str, mode: Mode, synchronous: Synchronous) -> None:
        try:
            import psycopg
        except ImportError:
            raise BadInput("a store in PostgreSQL needs psycopg: pip install 'unskew[postgres]'") from None
        self._psycopg = psycopg
        self._url, self.mode, self.name = url, mode, shown_url(url)
        self._synchronous = synchronous
        self._readers: SimpleQueue[psycopg.Connection[Any]] = SimpleQueue()
        self._writer: psycopg.Connection[Any] | None = None
        self._opened = self._closed = False
        try:
            with self._translated():
                self._open()
            self._opened = True
        except BaseException:
            self.close()
            raise

    # The interface

    @contextmanager
    def reading(self) -> Iterator[Cursor]:
        with self._translated():
            connection = self._reader()
            try:
                with connection.transaction():
                    yield _Cursor(connection)
            finally:
                if connection.closed or self._closed:
                    connection.close()
                else:
                    self._readers.put(connection)

    @contextmanager
    def writing(self) -> Iterator[Cursor]:
        with self._translated():
            writer = self._may_write()
            try:
                with writer.transaction():
                    cursor = _Cursor(writer)
                    cursor.rows(f"SELECT pg_advisory_xact_lock({_lock(WRITING)})")
                    yield cursor
            except self._psycopg.OperationalError:
                writer.close()  # whatever is wrong with it, the next transaction gets a new one
                raise

    @contextmanager
    def maintaining(self) -> Iterator[None]:
        self._may_write()
        with self._translated(), self._connected() as connection:
            # The lock lasts as long as this connection, also if the process is killed. It is given back
            # before that, because the server may notice the end of a connection late.
            got = connection.execute(_placed(f"SELECT pg_try_advisory_lock({_lock(MAINTAINING)})")).fetchone()
            if got is None or not got[0]:
                raise Busy(f"{self.name}: another process is compacting or erasing right now")
            try:
                yield
            finally:
                with suppress(self._psycopg.Error):
                    connection.execute(_placed(f"SELECT pg_advisory_unlock({_lock(MAINTAINING)})"))

    def check_forgetting(self) -> None:
        # PostgreSQL only warns whoever may not rewrite a table.
        listed = ", ".join(f"'{table}'::regclass" for table in TABLES)
        with self.reading() as cursor:
            foreign = cursor.rows(
                f"SELECT relname FROM pg_class WHERE oid IN ({listed}) AND NOT pg_has_role(relowner, 'USAGE')"
            )
        if foreign:
            raise BadInput(f"{self.name}: only the owner of the table {foreign[0][0]} can erase users")

    def forget(self) -> None:
        writer = self._may_write()
        with self._translated():
            for table in (name for kind in KINDS for name in (kind.table, kind.keys)):
                writer.execute(_placed(f"VACUUM FULL {table}"))

    def shrink(self) -> bool:
        writer = self._may_write()
        with self._translated():
            for table in TABLES:
                writer.execute(_placed(f"VACUUM {table}"))
        return False

    def size(self) -> int:
        sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in TABLES)
        with self.reading() as cursor:
            return int(cursor.rows(f"SELECT ({sizes})::bigint")[0][0])

    def close(self) -> None:
        self._closed = True
        with suppress(Empty):
            while True:
                self._readers.get_nowait().close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    # Connections

    def _open(self) -> None:
        with self._connected() as connection:
            cursor = _Cursor(connection)
            encoding = cursor.rows("SHOW server_encoding")[0][0]
            if encoding != "UTF8":
                raise BadInput(f"{self.name}: the database has the encoding {encoding}; expected UTF8")
            if self.mode != "read" and self._synchronous == "full" and _setting(cursor, "fsync") != "on":
                said = "an acknowledged event would not outlive a power cut; switch it on, or say `normal`"
                raise BadInput(f"{self.name}: the server runs with fsync off: {said}")
            if not _is_there(cursor):
                if self.mode != "create":
                    raise BadInput(f"{self.name}: no store in this database")
                self._create(connection)
            found = cursor.rows("SELECT value FROM unskew_meta WHERE name = 'schema'")
            check_schema(self.name, found[0][0] if found else None)

    def _create(self, connection: "psycopg.Connection[Any]") -> None:
        # The lock comes before the transaction, which would go on with what it knew while it waited.
        _Cursor(connection).rows(f"SELECT pg_advisory_lock({CREATING})")
        with connection.transaction():
            cursor = _Cursor(connection)
            if _is_there(cursor):  # another process was faster
                return
            for sql in definitions(TYPES, "bytea", ""):
                cursor.run(sql)
            for kind in KINDS:
                # Otherwise the planner keeps frequent values, such as ids of users, in tables of its own.
                for field in kind.schema:
                    cursor.run(f"ALTER TABLE {kind.table} ALTER {field.name} SET STATISTICS 0")
            cursor.many("INSERT INTO unskew_meta VALUES (?, ?)", beginnings())

    def _connected(self) -> "psycopg.Connection[Any]":
        if self._closed:
            raise UnskewError(f"{self.name}: the store is closed")
        return self._psycopg.connect(self._url, autocommit=True, connect_timeout=CONNECT_SECONDS)

    def _reader(self) -> "psycopg.Connection[Any]":
        """A connection for one snapshot: one that was used before, if the server still knows it."""
        with suppress(Empty):
            while True:
                connection = self._readers.get_nowait()
                with suppress(self._psycopg.OperationalError):
                    connection.execute(b"SELECT 1")
                    return connection
                connection.close()
        connection = self._connected()
        connection.read_only = True
        connection.isolation_level = self._psycopg.IsolationLevel.REPEATABLE_READ
        return connection

    def _may_write(self) -> "psycopg.Connection[Any]":
        if self.mode == "read":
            raise UnskewError(f"{self.name}: the store was opened for reading only")
        if self._writer is None or self._writer.closed:
            self._writer = self._connected()
            cursor = _Cursor(self._writer)
            now = _setting(cursor, "synchronous_commit")
            if self._synchronous == "normal":
                cursor.run("SET synchronous_commit = off")
            elif now in ("off", "local"):  # any other setting of the server is at least as strict
                cursor.run("SET synchronous_commit = on")
        return self._writer

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Say in one line what PostgreSQL complains about."""
        faults = self._psycopg.errors
        try:
            yield
        except (faults.InsufficientPrivilege, faults.ReadOnlySqlTransaction) as error:
            raise BadInput(f"{self.name}: cannot be written ({_first_line(error)})") from None
        except (faults.UndefinedTable, faults.UndefinedColumn) as error:
            raise BadInput(f"{self.name}: not a store, or a damaged one ({_first_line(error)})") from None
        except self._psycopg.Error as error:
            if not self._opened:
                # What cannot be parsed is not repeated: it may hold a password.
                parsed = error.sqlstate is not None or isinstance(error, self._psycopg.OperationalError)
                said = _first_line(error) if parsed else "not a URL that PostgreSQL understands"
                raise BadInput(f"{self.name}: cannot be opened ({said})") from None
            said = "what was acknowledged before is safe, and the rest may be sent again"
            raise UnskewError(f"{self.name}: the server failed ({_first_line(error)}); {said}") from error


def _placed(sql: str) -> bytes:
    """SQL with psycopg's own marks for parameters. Ours has no percent signs and no other question marks."""
    return sql.replace("?", "%s").encode()


def _lock(kind: int) -> str:
    """SQL of the key of a lock: one for each store of a database."""
    return f"({kind}::bigint << 32) + 'unskew_meta'::regclass::oid::bigint"


def _is_there(cursor: Cursor) -> bool:
    return cursor.rows("SELECT to_regclass('unskew_meta') IS NOT NULL") == [(True,)]


def _setting(cursor: Cursor, name: str) -> str:
    return str(cursor.rows(f"SHOW {name}")[0][0])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
