"""What the tests of the store share: places, events, and the contents of a store in a comparable form."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.serve import Event, Recommendation, Shown, Store, open_store

DAY = 86_400_000_000
BEGIN = 1_767_225_600_000_000  # 2026-01-01 in UTC


@dataclass(frozen=True)
class Place:
    """Where a store is, and how it is opened there."""

    where: str
    segments: Path
    folder: Path  # for files beside it
    data: Path  # whatever the database writes is here

    @property
    def in_postgres(self) -> bool:
        return "://" in self.where

    @property
    def options(self) -> dict[str, Any]:
        return {"segments": self.segments} if self.in_postgres else {}

    def open(self, mode: Any = "create", **more: Any) -> Store:
        return open_store(self.where, mode, **self.options, **more)


@dataclass(frozen=True)
class Server:
    url: str
    data: Path

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL as the owner of the server."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(sql.encode())
            return found.fetchall() if found.description else []


def click(number: int, user: str = "ann", item: str = "tea", **more: Any) -> Event:
    """The event with this number, that many seconds after the beginning."""
    more = {"type": "click", "timestamp": BEGIN + number * 10**6} | more
    return Event(event_id=f"e{number}", user_id=user, item_id=item, **more)


def shown(name: str, user: str = "ann", *items: tuple[str, float, bool], at: int = 0) -> Recommendation:
    """A recommendation, so many seconds after the beginning."""
    listed = tuple(Shown(*item) for item in items or (("tea", 0.5, False), ("mate", 0.25, True)))
    return Recommendation(name, user, BEGIN + at * 10**6, "pulse", "v1", listed)


def rows_of(store: Store, after: int = 0, batch: int = 10_000) -> list[dict[str, Any]]:
    """All events after a sequence number."""
    return [row for frame in store.events(after, batch) for row in frame.to_pylist()]


def ids_of(store: Store, after: int = 0, batch: int = 10_000) -> list[str]:
    """Their ids."""
    return [row["event_id"] for row in rows_of(store, after, batch)]
