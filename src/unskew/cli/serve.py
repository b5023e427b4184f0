"""The verb serve: recommendations over HTTP."""

import contextlib
import errno
import socket
import threading
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional

from unskew.cli.shared import (
    EventTypes,
    File,
    Imports,
    OnDevice,
    Segments,
    moment_of,
    notify,
    span_of,
    use_threads,
    words_in,
)
from unskew.core.errors import BadInput, UnskewError
from unskew.recommendation.rules import read_rule_sets

if TYPE_CHECKING:
    from unskew.serve.http.process import Serving
    from unskew.serve.http.tokens import Tokens
    from unskew.serve.store.store import Store

MOST_WORKERS = 64


@dataclass(frozen=True, kw_only=True)
class Serve(OnDevice, Imports):
    """Recommend over HTTP from a run and from a store of events, and record what was recommended.

    Open the printed address for the page, and /docs for the endpoints. SIGTERM and Ctrl-C let requests
    finish. `POST /v1/model/reload` loads RUN again, so it may be a link that `unskew update --current` moves.
    """

    folder: Positional[Annotated[str, tyro.conf.arg(metavar="RUN")]]
    """A finished run, or a link to one, or `pulse-zero` with --data."""
    store: Annotated[str, tyro.conf.arg(metavar="STORE")]
    """The file of a store, or the URL of one in PostgreSQL. It is created if it does not exist."""
    host: str = "127.0.0.1"
    """The address to listen at. Any other than loopback needs --token-file."""
    port: int = 8000
    """The port to listen at; 0 is any free one, which is printed."""
    token_file: File = None
    """A file with the lines `read: TOKEN`, `write: TOKEN` and maybe `record: TOKEN`, or the same as JSON. The
    token for recording reads and has the lists that it asks for recorded; the one for writing does all."""
    explore: float = 0.0
    """The fraction of random items in each list, from 0 to 1, with known probabilities."""
    explore_cold: float = 0.0
    """The fraction of lists in which one item is drawn among those that fewer than five users have had, with
    known probabilities."""
    rules: File = None
    """A file of named sets of business rules, TOML or JSON, such as `front_page = ["in_stock = true", "at
    most 2 per brand"]`. A request names a set; the one that is called `default` is for those that name none.
    The file is read again with the run."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="DATA")] = None
    """With `pulse-zero`: the prepared log that it begins with."""
    positive: EventTypes = None
    """The types of events that are positive, between commas; by default the setting of the store."""
    context: EventTypes = None
    """The types of events that models read and that are not predicted, between commas, such as view,cart; by
    default the setting of the store. Events of any other type are rejected."""
    variant: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=RUN:FRACTION")
    ] = ()
    """Another run, which a fixed fraction of the users gets, such as B=runs/2:0.2; the flag may be given
    several times. Lists are recorded with their variant, and RUN itself is variant A."""
    segments: Segments = None
    noun: str = "item"
    """What an item is called on the page, such as product, film or song; where the plural takes more than an
    s, both words with a slash between them, such as story/stories."""
    report: File = None
    """A page that `unskew report --html FILE` made, for /report, which every client may read."""
    mcp: bool = False
    """Let language models use the service by the Model Context Protocol, at /mcp: recommend, similar,
    explain, inspect_bias. They record nothing. Needs the extra `mcp`."""
    threads: int = 1
    """How many threads torch may use for a request."""
    timeout: float = 30.0
    """How many seconds a request may take."""
    earliest: Annotated[str | None, tyro.conf.arg(metavar="TIME")] = None
    """The earliest time of an event that is accepted, such as 2020-01-31; by default the first moment of the
    run's log."""
    latest_ahead: Annotated[str, tyro.conf.arg(metavar="SPAN")] = "5min"
    """How far the time of an event may be ahead of the clock of this machine, such as 30s, 5min or 1h."""
    connections: int = 1000
    """How many connections each process keeps open. At the limit a new one takes the place of the one that
    has waited longest for a whole request. The limit of open files is raised as far as the system allows
    it; where that is too low, there are fewer connections."""
    header_timeout: float = 10.0
    """How many seconds a new connection may take to send the headers of its first request."""
    workers: int = 1
    """How many processes answer. If there are several, they share the weights of the run by a memory map,
    and one more process writes into the store."""

    def run(self) -> None:
        if not 1 <= self.workers <= MOST_WORKERS:
            raise BadInput(f"workers {self.workers}: expected from 1 to {MOST_WORKERS}", field="workers")
        for name, seconds in (("timeout", self.timeout), ("header-timeout", self.header_timeout)):
            if seconds <= 0:
                raise BadInput(f"{name} {seconds:g}: expected more than 0 seconds", field=name)
        if self.connections < 1:
            raise BadInput(f"connections {self.connections}: expected at least 1", field="connections")
        require_packages(self.mcp)
        from unskew.serve.http.tokens import read_tokens

        tokens, warnings = (None, list[str]()) if self.token_file is None else read_tokens(self.token_file)
        is_local = is_loopback(self.host)
        if tokens is None and not is_local:
            raise BadInput(
                f"host {self.host}: every client that reaches this address could read and erase; add "
                "--token-file FILE, or listen at 127.0.0.1"
            )
        for warning in warnings:
            notify(f"unskew: {warning}")
        if self.report is not None and not self.report.is_file():
            raise BadInput(f"{self.report}: no such report")
        if self.rules is not None:
            read_rule_sets(self.rules)  # a mistake in it is said at once
        use_threads(self.threads)
        self.use_device()
        with contextlib.closing(open_listener(self.host, self.port)) as listener:
            self._serve(listener, tokens, is_local)

    def use_device(self) -> None:
        """Let all networks of this process compute there."""
        if self.workers > 1 and self.device != "cpu":
            raise BadInput(
                f"device {self.device}: several workers share the weights in main memory; expected cpu, or "
                "--workers 1",
                field="device",
            )
        super().use_device()

    def _serve(self, listener: socket.socket, tokens: "Tokens | None", is_local: bool) -> None:
        from unskew.serve.http.loaded_run import listed_erasures
        from unskew.serve.http.middleware import LOOPBACK
        from unskew.serve.http.process import Serving
        from unskew.serve.store.store import open_store
        from unskew.serve.variants.assignment import Assignment, Variant

        check_run(self.folder, self.data)
        variants = [Variant.parse(text) for text in self.variant]
        assignment = Assignment.of(variants)
        for variant in variants:
            check_run(variant.run, None)
        serving = Serving(
            run=self.folder,
            store=self.store,
            data=None if self.data is None else str(self.data),
            segments=None if self.segments is None else str(self.segments),
            explore=self.explore,
            explore_cold=self.explore_cold,
            rules=None if self.rules is None else str(self.rules),
            timeout=self.timeout,
            connections=self.connections,
            earliest=None if self.earliest is None else moment_of("earliest", self.earliest),
            latest_ahead=span_of("latest-ahead", self.latest_ahead),
            noun=self.noun,
            header_timeout=self.header_timeout,
            threads=self.threads,
            hosts=(*LOOPBACK, self.host.lower()) if is_local else None,
            tokens=None if tokens is None else (tokens.read, tokens.write, tokens.record),
            report=None if self.report is None else str(self.report),
            variants=self.variant,
            imports=tuple(map(str, self.imports)),
            mcp=self.mcp,
        )
        positive, context = words_in(self.positive), words_in(self.context)
        with open_store(self.store, positive=positive, context=context, segments=self.segments) as store:
            for run, data in ((self.folder, self.data), *((variant.run, None) for variant in variants)):
                store.apply_erasures(listed_erasures(run, data))
            if variants:
                store.declare_variants(assignment.expected)
            if self.workers == 1:
                _serve_here(serving, store, listener)
            else:
                _serve_by_workers(serving, store, listener, self.workers)
        notify("unskew: stopped; every acknowledged event is in the store")


def require_packages(mcp: bool) -> None:
    """Refuse to go on without the packages of the extras that are used."""
    try:
        import fastapi
        import uvicorn
    except ImportError:
        raise BadInput("to serve, install the extra: pip install '.[serve]' in a clone of unskew") from None
    del fastapi, uvicorn
    if mcp:
        from unskew.serve.http.mcp import require_mcp

        require_mcp()


def check_run(run: str, data: Path | None) -> None:
    """Refuse what is no run before anything is opened."""
    from unskew.training.run import read_config

    if run == "pulse-zero" and not Path(run).exists():
        if data is None:
            raise BadInput(
                "pulse-zero has no log of its own: say --data DATA, a folder that `unskew prepare` made"
            )
    elif data is not None:
        raise BadInput(f"{run}: a run has its own log; --data is for pulse-zero")
    else:
        read_config(Path(run))


def _serve_here(serving: "Serving", store: "Store", listener: socket.socket) -> None:
    """Answer in this process, with 503 while the run is loaded."""
    from unskew.serve.http.process import http_server
    from unskew.serve.http.service import Service

    service = serving.service(store, Service)
    server = http_server(serving, service)
    errors: list[BaseException] = []

    def load() -> None:
        address = _address(listener)
        notify(f"unskew: loading the run; {address} answers 503 until it is ready")
        try:
            service.load()
            notify(f"unskew: ready: {address}")
        except BaseException as error:
            errors.append(error)
            server.should_exit = True

    threading.Thread(target=load, daemon=True).start()
    try:
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again at its end
            server.run(sockets=[listener])
    finally:
        service.close()
    if errors:
        raise errors[0]


def _serve_by_workers(serving: "Serving", store: "Store", listener: socket.socket, workers: int) -> None:
    """Let workers answer, and write in this process."""
    from unskew.serve.http.logs import log_to_stderr
    from unskew.serve.workers.pool import WorkerPool

    log_to_stderr()
    ready = f"unskew: ready: {_address(listener)}"
    notify(f"unskew: loading the run in {workers} processes, and answering then")
    WorkerPool(serving, store, listener, workers).run(lambda: notify(ready))


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host.lower() == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name
        return False


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens, or one line that says why not."""
    if not 0 <= port <= 65535:
        raise BadInput(f"port {port}: expected from 0 to 65535", field="port")
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio sets TCP_NODELAY only on sockets that name their protocol.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as error:
        raise BadInput(f"host {host}: no address of this machine ({error.strerror})") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            message = f"port {port}: another program listens there; choose another with --port"
            raise UnskewError(message) from None
        raise BadInput(f"{host}:{port}: cannot listen there ({error.strerror})") from None
    return listener
