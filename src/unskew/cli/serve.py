"""The verb serve: recommendations over HTTP."""

import contextlib
import errno
import socket
import threading
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional

from unskew.cli.shared import messages, use_threads
from unskew.errors import BadInput, UnskewError

if TYPE_CHECKING:
    from unskew.serve.service import Service
    from unskew.serve.tokens import Tokens

STOPPING = 30  # seconds that requests have to finish after SIGTERM
ONE_PROCESS = (
    "only one process may write into a store in a file, and each process has a live log of its own; for "
    "more, start several services on several ports, each with --workers 1, and with one store in PostgreSQL"
)


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Recommend over HTTP from a run and from a store of events, and record what was recommended.

    Open the printed address for the page, and /docs for the endpoints. SIGTERM and Ctrl-C let requests
    finish. `POST /v1/model/reload` loads RUN anew, so it may be a link that `unskew update --current` moves.
    """

    folder: Positional[
        Annotated[
            str,
            tyro.conf.arg(
                metavar="RUN", help="A finished run, or a link to one, or `pulse-zero` with --data."
            ),
        ]
    ]
    store: Annotated[str, tyro.conf.arg(metavar="STORE")]
    """The file of a store, or the URL of one in PostgreSQL. It is made if it is not there."""
    host: str = "127.0.0.1"
    """The address to listen at. Any other than loopback needs --token-file."""
    port: int = 8000
    """The port to listen at; 0 is any free one, which is printed."""
    token_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A file with the lines `read: TOKEN` and `write: TOKEN`, or the same as JSON. The token for writing also
    reads."""
    explore: float = 0.0
    """The share of random items in each list, from 0 to 1, with known probabilities."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="DATA")] = None
    """With `pulse-zero`: the prepared log that it begins with."""
    positive: Annotated[str | None, tyro.conf.arg(metavar="TYPE,TYPE")] = None
    """The types of events that are positive, between commas; by default what the store says."""
    segments: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """The folder of the compacted rows, if the store is in PostgreSQL."""
    report: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A page that `unskew report --html FILE` made, to be shown at /report to whoever reaches the service."""
    threads: int = 1
    """How many threads torch may use for a request."""
    timeout: float = 30.0
    """How many seconds a request may take."""
    workers: int = 1
    """How many processes answer. Only 1 is possible."""

    def run(self) -> int:
        """Serve until a signal comes. Returns the exit code."""
        if self.workers != 1:
            raise BadInput(f"workers {self.workers}: {ONE_PROCESS}")
        if self.timeout <= 0:
            raise BadInput(f"timeout {self.timeout:g}: expected more than 0 seconds")
        try:
            import fastapi
            import uvicorn
        except ImportError:
            raise BadInput("to serve, install the extra: pip install 'unskew[serve]'") from None
        del fastapi, uvicorn
        from unskew.serve.tokens import read_tokens

        tokens, warnings = (None, list[str]()) if self.token_file is None else read_tokens(self.token_file)
        is_local = _is_loopback(self.host)
        if tokens is None and not is_local:
            raise BadInput(
                f"host {self.host}: whoever reaches this address could read and erase; say --token-file "
                "FILE, or listen at 127.0.0.1"
            )
        for warning in warnings:
            messages.print(f"unskew: {warning}", soft_wrap=True)
        if self.report is not None and not self.report.is_file():
            raise BadInput(f"{self.report}: no such report")
        use_threads(self.threads)
        with contextlib.closing(_listening(self.host, self.port)) as listener:
            return self._serve(listener, tokens, is_local)

    def _serve(self, listener: socket.socket, tokens: "Tokens | None", is_local: bool) -> int:
        import uvicorn

        from unskew.cli.store import _words
        from unskew.serve.app import create_app
        from unskew.serve.gate import LOOPBACK, Limits
        from unskew.serve.logs import log_to_stderr
        from unskew.serve.service import Service
        from unskew.serve.store import open_store

        check_run(self.folder, self.data)
        with open_store(self.store, positive=_words(self.positive), segments=self.segments) as store:
            service = Service(
                self.folder, store, data=self.data, explore=self.explore, patience=self.timeout * 0.8
            )
            log_to_stderr()
            hosts = (*LOOPBACK, self.host.lower()) if is_local else None
            app = create_app(
                service, tokens=tokens, hosts=hosts, limits=Limits(seconds=self.timeout), report=self.report
            )
            server = uvicorn.Server(
                uvicorn.Config(
                    app,
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    timeout_graceful_shutdown=STOPPING,
                    timeout_keep_alive=30,
                )
            )
            failed: list[BaseException] = []
            loading = threading.Thread(target=_load, args=(service, server, listener, failed), daemon=True)
            loading.start()
            try:
                with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again at its end
                    server.run(sockets=[listener])
            finally:
                service.close()
            if failed:
                raise failed[0]
        messages.print("unskew: stopped; every acknowledged event is in the store")
        return 0


def check_run(run: str, data: Path | None) -> None:
    """Refuse what is no run before anything is opened."""
    from unskew.run import read_config

    if run == "pulse-zero" and not Path(run).exists():
        if data is None:
            raise BadInput(
                "pulse-zero has no log of its own: say --data DATA, a folder that `unskew prepare` made"
            )
    elif data is not None:
        raise BadInput(f"{run}: a run has its own log; --data is for pulse-zero")
    else:
        read_config(Path(run))


def _load(service: "Service", server: Any, listener: socket.socket, failed: list[BaseException]) -> None:
    """Load the run while the server says already that it is not ready. If it fails, the server stops."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    messages.print(
        f"unskew: loading the run; http://{shown}:{port} answers 503 until it is ready", soft_wrap=True
    )
    try:
        service.load()
    except BaseException as error:
        failed.append(error)
        server.should_exit = True
        return
    messages.print(f"unskew: ready: http://{shown}:{port}", soft_wrap=True)


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ip_address(host.strip("[]")).is_loopback
    return False


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, or one line that says why not."""
    if not 0 <= port <= 65535:
        raise BadInput(f"port {port}: expected from 0 to 65535")
    name = host.strip("[]")
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only if it is said
    except OSError as error:
        raise BadInput(f"host {host}: no address of this machine ({error.strerror})") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(2048)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise UnskewError(
                f"port {port}: another program listens there; choose another with --port"
            ) from None
        raise BadInput(f"{host}:{port}: cannot listen there ({error.strerror})") from None
    return made
