"""One thread writes. Rows that arrive while a commit is under way are committed together by the next one."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from unskew.core.errors import UnskewError
from unskew.data.log.erasures import Erasures
from unskew.serve.store.database import Cursor, Database
from unskew.serve.store.reader import newest_of
from unskew.serve.store.tables import KINDS, OF_USERS, Kind, hash_of

GROUP_ROWS = 5000  # after which a group is full
LOOKED_UP = 500  # keys in one statement

Row = tuple[Any, ...]  # of a table, without its sequence number; the key stands first


class Appended(NamedTuple):
    """What became of appended rows.

    Attributes
    ----------
    accepted, duplicates
        How many rows are new, and how many are copies of rows that were stored before. What happened before
        its user was erased counts as a copy.
    sequences
        The sequence number of each row, in the order given; None for a copy.
    """

    accepted: int
    duplicates: int
    sequences: tuple[int | None, ...]


class _Rows(NamedTuple):
    kind: Kind
    rows: Sequence[Row]
    future: "Future[Appended]"


class _Job(NamedTuple):
    run: Callable[[], Any]
    future: "Future[Any]"


class Writer:
    """The thread that writes into a database: rows in groups, and any other job by itself, in the order in
    which they came."""

    def __init__(self, database: Database) -> None:
        self._database, self._erased = database, (-1, Erasures())
        self._waiting: deque[_Rows | _Job] = deque()
        self._changed, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._work, name="unskew store", daemon=True)
        self._thread.start()

    def append(self, kind: Kind, rows: Sequence[Row]) -> "Future[Appended]":
        """Store rows; the future is done when they are committed."""
        return self._enqueue(_Rows(kind, rows, Future()))

    def run(self, job: Callable[[], Any]) -> Any:
        """Run a job between two groups, and return what it returns."""
        return self._enqueue(_Job(job, Future())).result()

    def close(self) -> None:
        """Finish what is waiting, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _enqueue(self, task: _Rows | _Job) -> "Future[Any]":
        task.future.set_running_or_notify_cancel()  # from now on it cannot be cancelled: it will be written
        with self._changed:
            if self._closed:
                raise UnskewError(f"{self._database.name}: the store is closed")
            self._waiting.append(task)
            self._changed.notify()
        return task.future

    # In the thread

    def _work(self) -> None:
        while tasks := self._next():
            try:
                first = tasks[0]
                results = [first.run()] if isinstance(first, _Job) else self._commit(tasks)
            except BaseException as error:
                for task in tasks:
                    task.future.set_exception(error)
            else:
                for task, result in zip(tasks, results, strict=True):
                    task.future.set_result(result)

    def _next(self) -> list[Any]:
        """One job, or all rows that wait in front of the next job. Nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._waiting and isinstance(self._waiting[0], _Job):
                return [self._waiting.popleft()]
            group: list[_Rows] = []
            while self._waiting and sum(len(task.rows) for task in group) < GROUP_ROWS:
                task = self._waiting[0]
                if isinstance(task, _Job):
                    break
                group.append(task)
                self._waiting.popleft()
            return group

    def _commit(self, group: Sequence[_Rows]) -> list[Appended]:
        """Store a group in one transaction. The rows of each kind get sequence numbers in the order in which
        they came."""
        stored = {}
        with self._database.writing() as cursor:
            for kind in KINDS:
                rows = [row for task in group if task.kind is kind for row in task.rows]
                stored[kind] = iter(_store_rows(cursor, kind, rows, self._erasures(cursor)) if rows else ())
        results = []
        for task in group:
            sequences = tuple(next(stored[task.kind]) for _ in task.rows)
            duplicates = sequences.count(None)
            results.append(Appended(len(sequences) - duplicates, duplicates, sequences))
        return results

    def _erasures(self, cursor: Cursor) -> Erasures:
        """The list of erased users, which is read again after each erasure."""
        ((number,),) = cursor.rows("SELECT value FROM unskew_meta WHERE name = 'erasures'")
        if self._erased[0] != int(number):
            ((text,),) = cursor.rows("SELECT value FROM unskew_meta WHERE name = 'erased'")
            self._erased = int(number), Erasures.from_json(text)
        return self._erased[1]


def _store_rows(cursor: Cursor, kind: Kind, rows: Sequence[Row], erasures: Erasures) -> list[int | None]:
    """Store rows whose keys are new, and return the sequence number of each; None for copies, and for what
    happened before its user was erased. Of several rows with one key, the first one wins, also if they
    differ."""
    user, timestamp = (kind.schema.names.index(name) - 1 for name in (kind.indexed, "timestamp"))
    until = erasures.among({row[user] for row in rows}) if kind in OF_USERS else {}
    hashes = [hash_of(row[0]) for row in rows]
    stored: set[bytes] = set()
    for begin in range(0, len(hashes), LOOKED_UP):
        some = hashes[begin : begin + LOOKED_UP]
        marks = ", ".join("?" * len(some))
        rows_with_key = cursor.rows(f"SELECT hash FROM {kind.keys} WHERE hash IN ({marks})", some)
        stored.update(hash for (hash,) in rows_with_key)
    newest = newest_of(cursor, kind)
    sequences: list[int | None] = []
    for hash, row in zip(hashes, rows, strict=True):
        if hash in stored or row[timestamp] <= until.get(row[user], -1):
            sequences.append(None)
            continue
        stored.add(hash)
        newest += 1
        sequences.append(newest)
    new = [(index, sequence) for index, sequence in enumerate(sequences) if sequence is not None]
    cursor.many(
        f"INSERT INTO {kind.keys} (hash, sequence) VALUES (?, ?)",
        [(hashes[index], sequence) for index, sequence in new],
    )
    cursor.many(kind.inserting, [(sequence, *rows[index]) for index, sequence in new])
    cursor.run("UPDATE unskew_meta SET value = ? WHERE name = ?", (str(newest), f"newest_{kind.name}"))
    return sequences
