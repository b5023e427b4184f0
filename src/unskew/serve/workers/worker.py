"""A process that answers for a service of several. `unskew.serve.workers.pool` starts it.

It reads the store itself and has a live log of its own. What is to be written it sends to the process that
started it, which alone writes; when that process ends, the worker stops.
"""

import os
import signal
import socket
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from unskew.core.errors import UnskewError
from unskew.core.imports import import_file
from unskew.serve.http.process import Serving, http_server
from unskew.serve.http.schemas import Reload
from unskew.serve.http.service import RELOAD, Service
from unskew.serve.store.maintenance import Erased
from unskew.serve.store.store import Store, open_parts
from unskew.serve.store.tables import Kind
from unskew.serve.store.writer import Appended, Row
from unskew.serve.workers.channel import Channel


class RelayedStore(Store):
    """A store that this process reads, and that the process at the other end of a channel writes into."""

    channel: Channel

    def append_rows(self, kind: Kind, rows: list[Row]) -> "Future[Appended]":
        appended: Future[Appended] = Future()

        def pass_on(answer: "Future[Any]") -> None:
            if error := answer.exception():
                appended.set_exception(error)
            else:
                accepted, duplicates, sequences = answer.result()
                appended.set_result(Appended(accepted, duplicates, tuple(sequences)))

        self.channel.ask("append", kind=kind.name, rows=rows).add_done_callback(pass_on)
        return appended

    def _erase(self, users: list[str]) -> Erased:
        return Erased(*self.channel.ask("erase", users=users).result())


class WorkerService(Service):
    """A service that has the run loaded again in all workers when one of them is asked to."""

    channel: Channel

    def reload(self, wait: float = 0.0) -> Reload:
        self._check_ready()
        self.store.announce(f"{RELOAD} {self.machine}")
        answers: list[Reload] = self.channel.ask("reload", wait=wait).result()
        unfinished = [answer for answer in answers if answer["state"] != "done"]
        unfinished.sort(key=lambda answer: answer["state"])  # failed comes before loading
        return unfinished[0] if unfinished else Reload(state="done", error=None)

    @property
    def machine(self) -> str:
        return f"{socket.gethostname()} {os.getppid()}"


def run_worker(listener: socket.socket, connection: socket.socket) -> int:
    """Answer at a socket until a signal comes, or the channel is closed. Returns the exit code."""
    threads = ThreadPoolExecutor(2)
    service: WorkerService | None = None

    def handle(topic: str, details: dict[str, Any]) -> Any:
        assert topic == "reload"
        assert service is not None
        return threads.submit(service.reload_here, details["wait"])

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # which lets requests finish

    channel = Channel(connection, handle, stop)
    serving = Serving(**channel.ask("begin").result())
    torch.set_num_threads(serving.threads)
    try:
        for file in serving.imports:
            import_file(Path(file))
        database, segments = open_parts(serving.store, "read", segments=serving.segments)
        with RelayedStore(database, segments) as store:
            store.channel = channel
            service = serving.service(store, WorkerService, mapped=True)
            service.channel = channel
            service.load()
            server = http_server(serving, service)
            channel.ask("ready").result()
            try:
                with suppress(KeyboardInterrupt):
                    server.run(sockets=[listener])
            finally:
                service.close()
    except UnskewError as error:
        with suppress(UnskewError):  # the process that started it may have ended
            channel.ask("failed", error=str(error)).result()
        return 2
    finally:
        channel.close()
        threads.shutdown()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the server takes it over
    sys.exit(run_worker(*(socket.socket(fileno=int(number)) for number in sys.argv[1:3])))
