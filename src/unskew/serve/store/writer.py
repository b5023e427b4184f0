"""One thread writes. What arrives while a commit is under way is committed together by the next one."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from unskew.core.errors import UnskewError
from unskew.serve.store.database import Cursor, Database
from unskew.serve.store.reader import newest_of
from unskew.serve.store.tables import KINDS, Kind, hash_of

GROUP = 5000  # rows after which a group is full
ASKED = 500  # keys that one statement looks up

Row = tuple[Any, ...]  # of a table, without its sequence number; the key stands first


class Appended(NamedTuple):
    """What became of the rows that were appended: how many are new, how many are copies of rows that were
    there, and the sequence number of each row, in the order given; None for a copy."""

    accepted: int
    duplicates: int
    sequences: tuple[int | None, ...]


@dataclass(eq=False)
class _Append:
    kind: Kind
    rows: Sequence[Row]
    future: "Future[Appended]" = field(default_factory=Future)


@dataclass(eq=False)
class _Job:
    run: Callable[[], Any]
    future: "Future[Any]" = field(default_factory=Future)


class Writer:
    """The thread that writes into a database: rows in groups, and any other job by itself, in the order in
    which they came."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[_Append | _Job] = deque()
        self._changed, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._work, name="unskew store", daemon=True)
        self._thread.start()

    def append(self, kind: Kind, rows: Sequence[Row]) -> "Future[Appended]":
        """Store rows; the future is done when they are committed."""
        asked = _Append(kind, rows)
        self._enqueue(asked)
        return asked.future

    def run(self, job: Callable[[], Any]) -> Any:
        """Run a job between two groups, and return what it returns."""
        asked = _Job(job)
        self._enqueue(asked)
        return asked.future.result()

    def close(self) -> None:
        """Finish what was asked for, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _enqueue(self, asked: _Append | _Job) -> None:
        asked.future.set_running_or_notify_cancel()  # from now on nobody can cancel it: it will be written
        with self._changed:
            if self._closed:
                raise UnskewError(f"{self._database.name}: the store is closed")
            self._waiting.append(asked)
            self._changed.notify()

    # In the thread

    def _work(self) -> None:
        while asked := self._next():
            if isinstance(asked, _Job):
                _answer([asked], lambda job: [job[0].run()])
            else:
                _answer(asked, self._committed)

    def _next(self) -> "_Job | list[_Append] | None":
        """A job, or all rows that wait in front of the next one. None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            group: list[_Append] = []
            size = 0
            while self._waiting and size < GROUP:
                asked = self._waiting.popleft()
                if isinstance(asked, _Append):
                    group.append(asked)
                    size += len(asked.rows)
                elif group:
                    self._waiting.appendleft(asked)
                    break
                else:
                    return asked
            return group or None

    def _committed(self, group: Sequence[_Append]) -> list[Appended]:
        """Store a group in one transaction. The rows of each kind get sequence numbers in the order in which
        they came."""
        found = {}
        with self._database.writing() as cursor:
            for kind in KINDS:
                rows = [row for asked in group if asked.kind is kind for row in asked.rows]
                found[kind] = iter(_stored(cursor, kind, rows) if rows else ())
        results = []
        for asked in group:
            sequences = tuple(next(found[asked.kind]) for _ in asked.rows)
            duplicates = sequences.count(None)
            results.append(Appended(len(sequences) - duplicates, duplicates, sequences))
        return results


A = TypeVar("A", _Append, _Job)


def _answer(asked: Sequence[A], results: Callable[[Sequence[A]], Sequence[Any]]) -> None:
    """Tell those who wait what came of it, or what failed."""
    try:
        found = results(asked)
    except BaseException as error:
        for each in asked:
            each.future.set_exception(error)
    else:
        for each, result in zip(asked, found, strict=True):
            each.future.set_result(result)


def _stored(cursor: Cursor, kind: Kind, rows: Sequence[Row]) -> list[int | None]:
    """Store rows whose keys are new, and return the sequence number of each; None for copies. Of several rows
    with one key, the first one wins, also if they differ."""
    hashes = [hash_of(row[0]) for row in rows]
    known: set[bytes] = set()
    for begin in range(0, len(hashes), ASKED):
        some = hashes[begin : begin + ASKED]
        marks = ", ".join("?" * len(some))
        known.update(
            hash for (hash,) in cursor.rows(f"SELECT hash FROM {kind.keys} WHERE hash IN ({marks})", some)
        )
    newest = newest_of(cursor, kind)
    sequences: list[int | None] = []
    for hash in hashes:
        if hash not in known:
            known.add(hash)
            newest += 1
            sequences.append(newest)
        else:
            sequences.append(None)
    new = [(place, sequence) for place, sequence in enumerate(sequences) if sequence is not None]
    cursor.many(
        f"INSERT INTO {kind.keys} (hash, sequence) VALUES (?, ?)",
        [(hashes[place], sequence) for place, sequence in new],
    )
    cursor.many(kind.inserting, [(sequence, *rows[place]) for place, sequence in new])
    cursor.run("UPDATE unskew_meta SET value = ? WHERE name = ?", (str(newest), f"newest_{kind.name}"))
    return sequences
