"""A process that answers for a service of several. `unskew.serve.workers.pool` starts it.

It reads the store itself and has a live log of its own. What is to be written it sends to the process that
started it, which alone writes; when that is gone, it stops.
"""

import os
import signal
import socket
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from unskew.core.errors import UnskewError
from unskew.serve.http.metrics import Metrics
from unskew.serve.http.process import Serving, http_server
from unskew.serve.http.service import Service
from unskew.serve.store.maintenance import Erased
from unskew.serve.store.store import Store, opened
from unskew.serve.store.tables import Kind
from unskew.serve.store.writer import Appended, Row
from unskew.serve.workers.channel import Channel


class RelayedStore(Store):
    """A store that this process reads, and that the process at the other end of a channel writes into."""

    channel: Channel

    def append_rows(self, kind: Kind, rows: list[Row]) -> "Future[Appended]":
        found: Future[Appended] = Future()

        def answered(asked: "Future[Any]") -> None:
            if error := asked.exception():
                found.set_exception(error)
            else:
                accepted, duplicates, sequences = asked.result()
                found.set_result(Appended(accepted, duplicates, tuple(sequences)))

        self.channel.ask("append", kind=kind.name, rows=rows).add_done_callback(answered)
        return found

    def _erase(self, users: list[str]) -> Erased:
        return Erased(*self.channel.ask("erase", users=users).result())


class OneOfSeveral(Service):
    """A service that has the run loaded anew in all processes, if anybody asks one of them."""

    channel: Channel

    def reload(self, wait: float = 0.0) -> dict[str, Any]:
        self._check_ready()
        found = self.channel.ask("everybody", topic="reload", details={"wait": wait}).result()
        for state in ("failed", "loading"):
            for answer in found:
                if answer["state"] == state:
                    return dict(answer)
        return {"state": "done", "error": None}

    def reload_here(self, wait: float) -> dict[str, Any]:
        """Load the run anew in this process."""
        return super().reload(wait)


class CommonMetrics(Metrics):
    """Counters that are told as the sum over all processes."""

    channel: Channel

    def text(self, *about: Any) -> str:
        everybody = self.channel.ask("everybody", topic="metrics", details={}).result()
        return Metrics.sum(everybody).text(*about)


def work(listener: socket.socket, line: socket.socket) -> int:
    """Answer at a socket until a signal comes, or the line ends. Returns the exit code."""
    pool, metrics = ThreadPoolExecutor(2), CommonMetrics()
    service: OneOfSeveral | None = None

    def answer(what: str, details: dict[str, Any]) -> Any:
        if what == "metrics":
            return metrics.document()
        assert what == "reload"
        assert service is not None
        return pool.submit(service.reload_here, details["wait"])

    def ended() -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # which lets requests finish

    channel = metrics.channel = Channel(line, answer, ended)
    serving = Serving(**channel.ask("begin").result())
    torch.set_num_threads(serving.threads)
    try:
        database, segments = opened(serving.store, "read", segments=serving.segments)
        with RelayedStore(database, segments) as store:
            store.channel = channel
            service = serving.service(store, OneOfSeveral, mapped=True)
            service.channel = channel
            service.load()
            server = http_server(serving, service, metrics)
            channel.ask("ready").result()
            try:
                with suppress(KeyboardInterrupt):
                    server.run(sockets=[listener])
            finally:
                service.close()
    except UnskewError as error:
        with suppress(UnskewError):  # there is nobody left to tell
            channel.ask("failed", error=str(error)).result()
        return 2
    finally:
        channel.close()
        pool.shutdown()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the server takes it over
    sys.exit(work(*(socket.socket(fileno=int(number)) for number in sys.argv[1:3])))
