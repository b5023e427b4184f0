"""One process that answers over HTTP: the settings of `unskew serve`, and the server made from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from unskew.serve.http.app import create_app
from unskew.serve.http.event_times import TimeBounds
from unskew.serve.http.logs import log_to_stderr
from unskew.serve.http.middleware import Limits
from unskew.serve.http.service import Service
from unskew.serve.http.tokens import Tokens
from unskew.serve.store.store import Store
from unskew.serve.variants.assignment import Variant

if TYPE_CHECKING:
    import uvicorn

S = TypeVar("S", bound=Service)
BACKLOG = 64  # connections that the system keeps for us; uvicorn takes so many at once
STOPPING = 30  # seconds that requests have to finish after SIGTERM
PATIENCE = 0.8  # the fraction of a request's time for which it waits for others


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The settings of each process that answers, in types that can be sent to one as JSON.

    run: the folder of a run, or a link to one, or `pulse-zero`.
    store: the file of the store, or its URL.
    data: the prepared log of `pulse-zero`.
    segments: the folder of the compacted rows, if the store is in PostgreSQL.
    explore: the fraction of random items.
    explore_cold: the fraction of lists with a drawn cold item.
    rules: the file of named rule sets.
    timeout: how many seconds a request may take.
    connections: how many connections may be open.
    header_timeout: how many seconds the headers of the first request of a connection may take.
    threads: how many threads torch may use.
    hosts: the names by which it may be called; None is any.
    tokens: the tokens for reading, writing and recording; None if every client may do all of it.
    report: the file of a report.
    variants: the other runs of an A/B test, as `NAME=RUN:FRACTION`.
    earliest: the earliest time of an event, in microseconds; by default the first moment of the run's log.
    latest_ahead: how far the time of an event may be ahead of the clock, in microseconds.
    noun: what an item is called on the page.
    imports: Python files that define the run's model or estimator.
    mcp: whether language models may use it at /mcp.
    """

    run: str
    store: str
    data: str | None = None
    segments: str | None = None
    explore: float = 0.0
    explore_cold: float = 0.0
    rules: str | None = None
    timeout: float = 30.0
    connections: int = 1000
    header_timeout: float = 10.0
    threads: int = 1
    hosts: tuple[str, ...] | None = None
    tokens: tuple[str, ...] | None = None
    report: str | None = None
    variants: tuple[str, ...] = ()
    earliest: int | None = None
    latest_ahead: int = TimeBounds().ahead
    noun: str = "item"
    imports: tuple[str, ...] = ()
    mcp: bool = False

    def service(self, store: Store, kind: type[S], mapped: bool = False) -> S:
        """The service, which is still to be loaded."""
        data, rules = (None if path is None else Path(path) for path in (self.data, self.rules))
        patience = PATIENCE * self.timeout
        return kind(
            self.run,
            store,
            data=data,
            explore=self.explore,
            explore_cold=self.explore_cold,
            rules=rules,
            patience=patience,
            mapped=mapped,
            variants=[Variant.parse(text) for text in self.variants],
            times=TimeBounds(self.earliest, self.latest_ahead),
            noun=self.noun,
        )


def http_server(serving: Serving, service: Service) -> "uvicorn.Server":
    """The HTTP server of a service. Its logs go to standard error."""
    import uvicorn

    from unskew.serve.http.connections import (
        KEEP_ALIVE,
        ConnectionLimits,
        limited_protocol,
        most_connections,
    )

    log_to_stderr()
    limits = ConnectionLimits(most_connections(serving.connections), serving.header_timeout)
    app = create_app(
        service,
        tokens=None if serving.tokens is None else Tokens(*serving.tokens),
        hosts=serving.hosts,
        limits=Limits(seconds=serving.timeout),
        report=None if serving.report is None else Path(serving.report),
        mcp=serving.mcp,
    )
    config = uvicorn.Config(
        app,
        http=limited_protocol(limits),
        ws="none",
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOPPING,
        timeout_keep_alive=int(KEEP_ALIVE),
    )
    return uvicorn.Server(config)
