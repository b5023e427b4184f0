"""Questions and answers between two processes of this machine: one JSON object a line over a socket pair."""

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any

from unskew.core.errors import BadInput, UnskewError

Handler = Callable[[str, dict[str, Any]], Any]


class EndedError(UnskewError):
    """The process at the other end has ended."""

    def __init__(self) -> None:
        super().__init__("the other process of the service has ended")


class Channel:
    """One end of a connection. Both ends may ask, from any thread, and answers come in any order.

    connection: the socket.
    handle: called in the reading thread with a topic and its details. It returns the answer, or a future of
        it if that takes a while.
    on_end: called once, when the other end is closed.
    """

    def __init__(self, connection: socket.socket, handle: Handler, on_end: Callable[[], None]) -> None:
        self._connection, self._handle, self._on_end = connection, handle, on_end
        self._sending, self._numbers = threading.Lock(), count()
        self._pending: dict[int, Future[Any]] = {}
        self._is_open = True
        self._reader = threading.Thread(target=self._read, name="unskew channel", daemon=True)
        self._reader.start()

    def ask(self, topic: str, **details: Any) -> "Future[Any]":
        """Ask the other end. The future has its answer, or the error that was raised there."""
        number, future = next(self._numbers), Future[Any]()
        future.set_running_or_notify_cancel()
        self._pending[number] = future
        try:
            self._send({"ask": number, "topic": topic, "details": details})
            if not self._is_open:
                raise OSError
        except OSError:
            self._fail(number)
        return future

    def close(self) -> None:
        """Close this end."""
        with suppress(OSError):  # the other end is closed already
            self._connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            self._connection.sendall(line)

    def _fail(self, number: int) -> None:
        if (future := self._pending.pop(number, None)) is not None:
            future.set_exception(EndedError())

    # In the reading thread

    def _read(self) -> None:
        with self._connection, self._connection.makefile("rb") as lines, suppress(OSError):
            for line in lines:
                if line.endswith(b"\n"):  # otherwise the other process died while it sent the line
                    self._receive(json.loads(line))
        self._is_open = False
        for number in list(self._pending):
            self._fail(number)
        self._on_end()

    def _receive(self, message: dict[str, Any]) -> None:
        if "ask" in message:
            self._answer(message["ask"], message["topic"], message["details"])
        elif (future := self._pending.pop(message["reply"], None)) is None:
            return
        elif "error" in message:
            kind = BadInput if message["bad_input"] else UnskewError
            future.set_exception(kind(message["error"]))
        else:
            future.set_result(message["value"])

    def _answer(self, number: int, topic: str, details: dict[str, Any]) -> None:
        future = Future[Any]()
        try:
            answer = self._handle(topic, details)
            if isinstance(answer, Future):
                future = answer
            else:
                future.set_result(answer)
        except Exception as error:
            future.set_exception(error)
        future.add_done_callback(lambda done: self._reply(number, done))

    def _reply(self, number: int, done: "Future[Any]") -> None:
        error = done.exception()
        if error is None:
            message = {"reply": number, "value": done.result()}
        else:
            is_ours = isinstance(error, UnskewError)
            text = str(error) if is_ours else f"a fault of unskew: {type(error).__name__}"
            message = {"reply": number, "error": text, "bad_input": isinstance(error, BadInput)}
        with suppress(OSError):  # the process that asked has ended
            self._send(message)
