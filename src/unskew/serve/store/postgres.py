"""A store in a PostgreSQL database, by its URL. It needs psycopg 3 (extra `postgres`).

The tables stand where the search path of the user leads (`?options=-csearch_path%3DNAME` names a schema). Any
number of processes may write; each takes its turn, so that sequence numbers follow the order of commits.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from unskew.core.errors import BadInput, UnskewError
from unskew.serve.store.database import Busy, Cursor, Database, Mode, Synchronous
from unskew.serve.store.notices import CHANGED, Listening
from unskew.serve.store.tables import KINDS, TABLES, Dialect

if TYPE_CHECKING:
    import psycopg

CREATING, WRITING, MAINTAINING = 0x756E73, 0x756E74, 0x756E75  # the kinds of our advisory locks
CONNECT_SECONDS = 10
LISTEN_SECONDS = 0.5  # after which a thread that listens looks whether it is closed
CHANNEL = "'unskew_' || 'unskew_meta'::regclass::oid"  # one for each store of a database
NOTIFY = f"SELECT pg_notify({CHANNEL}, ?)"


# A user and a password, the hosts, the database and the options. The signs that separate them can be within
# one of them only if they are percent-encoded.
URL = re.compile(r"(postgres(?:ql)?://)(?:[^/?#@\s]*@)?([^/?#@\s]*(?:/[^/?#@\s]*)?)(?:\?[^#@\s]*)?")


def url_without_secrets(url: str) -> str:
    """A URL without user, password and options, for messages. A URL whose parts cannot be told apart is
    refused: any part of it, in a message of the driver too, could be a piece of the password."""
    match = URL.fullmatch(url)
    if match is None:
        raise BadInput(
            "postgresql://...: expected a URL such as postgresql://USER:PASSWORD@HOST/DATABASE; in a user or "
            "a password, write / as %2F, # as %23, ? as %3F, @ as %40 and a blank as %20"
        )
    return match[1] + match[2]


def _lock_key(kind: int) -> str:
    """SQL of the key of a lock: one for each store of a database."""
    return f"({kind}::bigint << 32) + 'unskew_meta'::regclass::oid::bigint"


class Postgres(Database):
    """The tables of a store in PostgreSQL.

    mode: `create` opens a store or makes a new one, `write` opens one that is there, `read` changes nothing.
    synchronous: with `full` the server has each commit on its disk before it is acknowledged. With `normal` a
        crash of the server may lose the newest commits.
    """

    dialect = Dialect(
        {
            pa.string(): 'text COLLATE "C"',
            pa.int64(): "bigint",
            pa.int32(): "integer",
            pa.float64(): "double precision",
        },
        *("bytea", ""),
    )
    begin_reading = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    begin_writing = f"BEGIN; SELECT pg_advisory_xact_lock({_lock_key(WRITING)})"

    def __init__(self, url: str, mode: Mode, synchronous: Synchronous) -> None:
        try:
            import psycopg
        except ImportError:
            raise BadInput(
                "a store in PostgreSQL needs psycopg: pip install '.[postgres]' in a clone of unskew"
            ) from None
        super().__init__(url_without_secrets(url), mode)
        self._psycopg, self._url, self._synchronous = psycopg, url, synchronous
        self.lost = (psycopg.OperationalError,)
        self._opened = False
        try:
            with self._translated(), self._connect() as connection:
                self._open(self._cursor(connection))
            self._opened = True
        except BaseException:
            self.close()
            raise

    @contextmanager
    def maintaining(self) -> Iterator[None]:
        self._may_write()
        with self._translated(), self._connect() as connection:
            # The lock lasts as long as this connection, also if the process is killed. It is given back
            # before that, because the server may notice the end of a connection late.
            cursor, key = self._cursor(connection), _lock_key(MAINTAINING)
            if cursor.rows(f"SELECT pg_try_advisory_lock({key})") != [(True,)]:
                raise Busy(f"{self.name}: another process is compacting or erasing right now")
            try:
                yield
            finally:
                with suppress(self._psycopg.Error):
                    cursor.rows(f"SELECT pg_advisory_unlock({key})")

    def listen(self, heard: Callable[[str], None]) -> Listening:
        return Listening(self._notices, heard)

    def announce(self, text: str) -> None:
        with self._translated(), self._connect() as connection:
            self._cursor(connection).rows(NOTIFY, (text,))

    def _before_commit(self, cursor: Cursor) -> None:
        cursor.rows(NOTIFY, (CHANGED,))

    def _notices(self) -> Iterator[str | None]:
        with self._translated(), self._connect() as connection:
            ((channel,),) = self._cursor(connection).rows(f"SELECT {CHANNEL}")
            self._cursor(connection).run(f"LISTEN {channel}")
            yield CHANGED
            while True:
                for notice in connection.notifies(timeout=LISTEN_SECONDS):
                    yield notice.payload
                yield None

    def check_can_forget(self) -> None:
        # PostgreSQL only warns a user who may not rewrite a table.
        tables = ", ".join(f"'{table}'::regclass" for table in TABLES)
        with self.reading() as cursor:
            foreign = cursor.rows(
                f"SELECT relname FROM pg_class WHERE oid IN ({tables}) AND NOT pg_has_role(relowner, 'USAGE')"
            )
        if foreign:
            raise BadInput(f"{self.name}: only the owner of the table {foreign[0][0]} can erase users")

    def forget(self) -> None:
        self._vacuum("VACUUM FULL", [name for kind in KINDS for name in (kind.table, kind.keys)])

    def shrink(self) -> bool:
        self._vacuum("VACUUM", TABLES)
        return False

    def size(self) -> int:
        sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in TABLES)
        with self.reading() as cursor:
            return int(cursor.rows(f"SELECT ({sizes})::bigint")[0][0])

    def _vacuum(self, command: str, tables: "list[str] | tuple[str, ...]") -> None:
        with self._translated():
            cursor = self._cursor(self._may_write())
            for table in tables:
                cursor.run(f"{command} {table}")

    def _open(self, cursor: Cursor) -> None:
        if (encoding := _setting(cursor, "server_encoding")) != "UTF8":
            raise BadInput(f"{self.name}: the database has the encoding {encoding}; expected UTF8")
        if self.mode != "read" and self._synchronous == "full" and _setting(cursor, "fsync") != "on":
            reason = "an acknowledged event would not outlive a power cut; switch it on, or say `normal`"
            raise BadInput(f"{self.name}: the server runs with fsync off: {reason}")
        if not _has_tables(cursor):
            if self.mode != "create":
                raise BadInput(f"{self.name}: no store in this database", field="where")
            self._create(cursor)
        self._check_tables(cursor, has_tables=True)

    def _create(self, cursor: Cursor) -> None:
        # The lock comes before the transaction, which would go on with what it knew while it waited. It ends
        # with the connection, and so does the transaction if anything is raised.
        cursor.rows(f"SELECT pg_advisory_lock({CREATING})")
        if _has_tables(cursor):  # another process was faster
            return
        cursor.run("BEGIN")
        self._create_tables(cursor)
        for kind in KINDS:
            # Otherwise the planner keeps frequent values, such as ids of users, in tables of its own.
            for field in kind.schema:
                cursor.run(f"ALTER TABLE {kind.table} ALTER {field.name} SET STATISTICS 0")
        cursor.run("COMMIT")

    def _connect(self) -> "psycopg.Connection[Any]":
        if self._closed:
            raise UnskewError(f"{self.name}: the store is closed")
        return self._psycopg.connect(self._url, autocommit=True, connect_timeout=CONNECT_SECONDS)

    def _cursor(self, connection: "psycopg.Connection[Any]") -> Cursor:
        # Our SQL has no percent signs and no other question marks.
        return Cursor(connection.cursor(binary=True), lambda sql: sql.replace("?", "%s").encode())

    def _may_write(self) -> "psycopg.Connection[Any]":
        if self.mode != "read" and (self._writer is None or self._writer.closed):
            self._writer = self._connect()
            cursor = self._cursor(self._writer)
            if self._synchronous == "normal":
                cursor.run("SET synchronous_commit = off")
            elif _setting(cursor, "synchronous_commit") in ("off", "local"):
                cursor.run(
                    "SET synchronous_commit = on"
                )  # other settings of the server are at least as strict
        return super()._may_write()

    @contextmanager
    def _translated(self) -> Iterator[None]:
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
                is_parsed = error.sqlstate is not None or isinstance(error, self._psycopg.OperationalError)
                reason = _first_line(error) if is_parsed else "not a URL that PostgreSQL understands"
                raise BadInput(f"{self.name}: cannot be opened ({reason})") from None
            advice = "what was acknowledged before is safe, and the rest may be sent again"
            raise UnskewError(f"{self.name}: the server failed ({_first_line(error)}); {advice}") from error


def _has_tables(cursor: Cursor) -> bool:
    return cursor.rows("SELECT to_regclass('unskew_meta') IS NOT NULL") == [(True,)]


def _setting(cursor: Cursor, name: str) -> str:
    return str(cursor.rows(f"SHOW {name}")[0][0])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
