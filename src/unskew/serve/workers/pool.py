"""Several processes that answer, and one that writes.

The process that calls `WorkerPool.run` holds the store and writes into it. It starts the workers, which
answer at one socket and read the store themselves (`unskew.serve.workers.worker`), and replaces a worker that
dies. Their counters for /metrics are files in a folder that all of them read.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from unskew.core.errors import BadInput, UnskewError
from unskew.serve.http.logs import write_log
from unskew.serve.http.metrics import COUNTER_FILES
from unskew.serve.http.process import STOPPING, Serving
from unskew.serve.store.store import Store
from unskew.serve.store.tables import KINDS
from unskew.serve.workers.channel import Channel, EndedError

CHECK_SECONDS = 0.1  # between two looks at the workers
RESTART_SECONDS = 2.0  # from the start of a worker to the start of the one that replaces it, at least


class Worker:
    """A process that answers, and the channel to it."""

    def __init__(self, pool: "WorkerPool") -> None:
        self.is_ready, self.error, self.started = False, "", time.monotonic()
        self._pool = pool
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = pool.listener.fileno(), theirs.fileno()
            self.process = subprocess.Popen(
                # -P: modules are not looked for in the working directory.
                [sys.executable, "-P", "-m", "unskew.serve.workers.worker", *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C is for the process that started it
                env=os.environ | {COUNTER_FILES: pool.counter_folder},
            )
        self.channel = Channel(ours, self._handle, lambda: None)

    def _handle(self, topic: str, details: dict[str, Any]) -> Any:
        """Answer the worker."""
        pool = self._pool
        match topic:
            case "begin":
                return asdict(pool.serving)
            case "ready":
                self.is_ready = True
                return None
            case "failed":
                self.error = details["error"]
                return None
            case "append":
                kind = next(kind for kind in KINDS if kind.name == details["kind"])
                return pool.store.append_rows(kind, [tuple(row) for row in details["rows"]])
            case "erase":
                return pool.threads.submit(pool.store.erase, *details["users"])
            case _:
                assert topic == "reload"
                return pool.threads.submit(pool.ask_all, "reload", **details)


class WorkerPool:
    """The workers of a service.

    serving: the settings of each.
    store: open for writing.
    listener: the socket at which they answer.
    size: the number of workers.
    """

    def __init__(self, serving: Serving, store: Store, listener: socket.socket, size: int) -> None:
        self.serving, self.store, self.listener = serving, store, listener
        self.threads = ThreadPoolExecutor(4 * size)  # an erasure or a reload has a thread
        self._stopping = threading.Event()
        self._size, self.counter_folder = size, ""
        self._workers: list[Worker] = []

    def run(self, on_ready: Callable[[], None]) -> None:
        """Answer until SIGTERM or Ctrl-C, and let requests finish. Raises what keeps the first workers from
        starting.

        on_ready: called when all workers answer.
        """
        with (
            tempfile.TemporaryDirectory(
                prefix="unskew-metrics.", ignore_cleanup_errors=True
            ) as self.counter_folder,
            self._signals(),
        ):
            try:
                self._workers = [Worker(self) for _ in range(self._size)]
                if self._wait_until_ready():
                    on_ready()
                    self._replace_dead()
            finally:
                self._stop()

    def ask_all(self, topic: str, **details: Any) -> list[Any]:
        """The answers of all workers that are ready. One that dies meanwhile has none."""
        futures = [worker.channel.ask(topic, **details) for worker in self._workers if worker.is_ready]
        answers = []
        for future in futures:
            with suppress(EndedError):
                answers.append(future.result())
        return answers

    def _wait_until_ready(self) -> bool:
        """Whether all workers answer; False if the service is stopped before that."""
        while not self._stopping.wait(CHECK_SECONDS):
            for worker in self._workers:
                if (code := worker.process.poll()) is not None:
                    if worker.error:
                        raise BadInput(worker.error)
                    raise UnskewError(
                        f"a process of the service ended with code {code} before it was ready; see its log"
                    )
            if all(worker.is_ready for worker in self._workers):
                return True
        return False

    def _replace_dead(self) -> None:
        """Start another worker for each that dies, until the service is stopped."""
        while not self._stopping.wait(CHECK_SECONDS):
            for index, worker in enumerate(self._workers):
                if worker.process.poll() is None or time.monotonic() - worker.started < RESTART_SECONDS:
                    continue
                worker.channel.close()
                write_log("a process died; another one is started", 40, code=worker.process.returncode)
                self._workers[index] = Worker(self)

    def _stop(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        deadline = time.monotonic() + STOPPING + 5
        for worker in self._workers:
            try:
                worker.process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.channel.close()
        self.threads.shutdown()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        signals = (signal.SIGTERM, signal.SIGINT)
        handlers = [signal.signal(number, lambda *_: self._stopping.set()) for number in signals]
        try:
            yield
        finally:
            for number, handler in zip(signals, handlers, strict=True):
                signal.signal(number, handler)
