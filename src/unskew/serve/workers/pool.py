"""Several processes that answer, and one that writes.

The process that calls `Workers.run` holds the store and writes into it. It starts the others, which answer at
one socket and read the store themselves (`unskew.serve.workers.worker`), and starts another one when one
dies.
"""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from unskew.core.errors import BadInput, UnskewError
from unskew.serve.http.logs import say
from unskew.serve.http.process import STOPPING, Serving
from unskew.serve.store.store import Store
from unskew.serve.store.tables import KINDS
from unskew.serve.workers.channel import Channel, EndedError

LOOK = 0.1  # seconds between two looks at the processes
AGAIN = 2.0  # seconds after which a process that died is started again


class Worker:
    """A process that answers, and the line to it."""

    def __init__(self, workers: "Workers") -> None:
        self.is_ready, self.error = False, ""
        self._workers = workers
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = workers.listener.fileno(), theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "unskew.serve.workers.worker", *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
                start_new_session=True,  # Ctrl-C is for the process that started it
            )
        self.channel = Channel(ours, self._answer, lambda: None)

    def _answer(self, what: str, details: dict[str, Any]) -> Any:
        """What the process asks for."""
        workers, store = self._workers, self._workers.store
        match what:
            case "begin":
                return asdict(workers.serving)
            case "ready":
                self.is_ready = True
                return None
            case "failed":
                self.error = details["error"]
                return None
            case "append":
                kind = next(kind for kind in KINDS if kind.name == details["kind"])
                return store.append_rows(kind, [tuple(row) for row in details["rows"]])
            case "erase":
                return workers.pool.submit(lambda: store.erase(*details["users"]))
            case _:
                assert what == "everybody"
                return workers.pool.submit(workers.ask_everybody, details["topic"], details["details"])


class Workers:
    """The processes of a service.

    serving: what they have to know.
    store: open for writing.
    listener: the socket at which they answer.
    count: how many there are.
    """

    def __init__(self, serving: Serving, store: Store, listener: socket.socket, count: int) -> None:
        self.serving, self.store, self.listener = serving, store, listener
        self.pool = ThreadPoolExecutor(4 * count)  # each erasure and each question to everybody has a thread
        self._stopping = threading.Event()
        self._count = count
        self._all: list[Worker] = []

    def run(self, ready: Any) -> None:
        """Answer until SIGTERM or Ctrl-C, and let requests finish. Raises what keeps the first ones from
        starting.

        ready: called when all processes answer.
        """
        with self._signals():
            try:
                self._all = [Worker(self) for _ in range(self._count)]
                if self._begun():
                    ready()
                    self._watch()
            finally:
                self._stop()

    def ask_everybody(self, topic: str, details: dict[str, Any]) -> list[Any]:
        """The answers of all processes that answer requests. One that dies meanwhile has none."""
        asked = [each.channel.ask(topic, **details) for each in self._all if each.is_ready]
        found = []
        for future in asked:
            try:
                found.append(future.result())
            except EndedError:
                continue
        return found

    def _begun(self) -> bool:
        """Wait until all processes answer. False if they are to stop before that."""
        while not self._stopping.wait(LOOK):
            for each in self._all:
                if (code := each.process.poll()) is not None:
                    raise BadInput(each.error) if each.error else _died(code)
            if all(each.is_ready for each in self._all):
                return True
        return False

    def _watch(self) -> None:
        """Start another process for each that dies."""
        begun = [time.monotonic()] * self._count
        while not self._stopping.wait(LOOK):
            for place, each in enumerate(self._all):
                if each.process.poll() is None or time.monotonic() - begun[place] < AGAIN:
                    continue
                each.channel.close()
                say("a process died; another one is started", 40, code=each.process.returncode)
                self._all[place], begun[place] = Worker(self), time.monotonic()

    def _stop(self) -> None:
        for each in self._all:
            each.process.terminate()
        until = time.monotonic() + STOPPING + 5
        for each in self._all:
            try:
                each.process.wait(max(until - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()
            each.channel.close()
        self.pool.shutdown()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        names: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(name, lambda *_: self._stopping.set()) for name in names]
        try:
            yield
        finally:
            for name, handler in zip(names, before, strict=True):
                signal.signal(name, handler)


def _died(code: int) -> UnskewError:
    return UnskewError(f"a process of the service ended with code {code} before it was ready; see its log")
