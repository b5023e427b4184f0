"""The connections of a process that answers: how many there are, and how long one may wait.

Whoever opens a connection and sends nothing, or half a request, costs a file descriptor, and no token was
asked for yet. So the headers of a request must be complete in time, and at the limit a new connection takes
the place of the one that has waited longest without a whole request: health checks are always answered.
"""

import asyncio
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

KEEP_ALIVE = 30.0  # seconds for which a connection is kept for the next request
OTHER_FILES = 160  # descriptors for everything else: a thread that reads an SQLite file has three
FEWEST = 16  # connections


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections may be open, and how many seconds the headers of the first request may take."""

    most: int
    header_seconds: float


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with limits, which a subclass sets (`limited_protocol`)."""

    limits: ConnectionLimits
    open: dict["LimitedProtocol", None]  # those of this process, in the order in which they began to wait

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, in the place of another connection at the limit."""
        super().connection_made(transport)
        while len(self.open) >= self.limits.most and (oldest := _longest_waiting(self.open)) is not None:
            oldest.end()
        self._wait(self.limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._stop_waiting()
        self.open.pop(self, None)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Stop waiting as soon as the headers of a request are complete."""
        super().handle_events()
        if self.is_answering:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait(KEEP_ALIVE)
        super().on_response_complete()

    @property
    def is_answering(self) -> bool:
        """Whether there is a request without its whole answer."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def has_whole_request(self) -> bool:
        """Whether the request that is being answered is here with its whole body."""
        return self.is_answering and not self.cycle.more_body

    def end(self) -> None:
        """End the connection at once."""
        self._stop_waiting()
        self.open.pop(self, None)
        self.transport.abort()

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self.open.pop(self, None)
        self.open[self] = None
        self._deadline = self.loop.call_later(seconds, self.end)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _longest_waiting(connections: Iterable[LimitedProtocol]) -> LimitedProtocol | None:
    """Of those without a request the first one, otherwise of those whose request is not whole."""
    waiting = [each for each in connections if not each.has_whole_request]
    return next((each for each in waiting if not each.is_answering), next(iter(waiting), None))


def limited_protocol(limits: ConnectionLimits) -> type[LimitedProtocol]:
    """A protocol for one server, with its own connections."""
    return type("Limited", (LimitedProtocol,), {"limits": limits, "open": {}})


def most_connections(most: int) -> int:
    """Let this process open as many files as the system allows it, and return how many connections there may
    be: `most`, or fewer if files are short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems have an unlimited hard limit that cannot be set
            pass
    if soft == resource.RLIM_INFINITY:
        return most
    return max(min(most, soft - OTHER_FILES), FEWEST)
