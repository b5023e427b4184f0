"""What a store asks of a database: a snapshot to read, a transaction to write, and to forget for good."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from unskew.core.errors import BadInput
from unskew.serve.store.tables import SCHEMA

Mode = Literal["create", "write", "read"]
Synchronous = Literal["full", "normal"]
Rows = list[tuple[Any, ...]]


class Busy(BadInput):
    """Another process is compacting or erasing."""


class Cursor(Protocol):
    """Runs SQL within one snapshot or transaction. Parameters are written as `?`."""

    def rows(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run a query and return all of its rows."""

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""

    def many(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each of these values."""


class Database(ABC):
    """A database with the tables of a store. One thread writes; any number of threads read."""

    name: str  # for messages; without a password
    mode: Mode

    @abstractmethod
    def reading(self) -> AbstractContextManager[Cursor]:
        """One snapshot of everything that was committed so far. It waits for no commit."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Cursor]:
        """One transaction, alone in the whole store. It is committed on leaving, durably, or rolled back if
        anything was raised."""

    @abstractmethod
    def maintaining(self) -> AbstractContextManager[None]:
        """Keep other processes from compacting and erasing."""

    @abstractmethod
    def check_forgetting(self) -> None:
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

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""


def check_schema(name: str, version: str | None) -> None:
    """Refuse the tables of another version, or of something else."""
    if version is None:
        raise BadInput(f"{name}: a database, but not a store of unskew; nothing was changed")
    if version != str(SCHEMA):
        raise BadInput(
            f"{name}: a store of schema {version}, this version of unskew reads {SCHEMA}; nothing was changed"
        )
