"""Questions and answers between two processes of this machine, as JSON over a pair of sockets."""

import json
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any

from unskew.core.errors import BadInput, UnskewError

LENGTH = struct.Struct(">I")  # of a message, in front of it
ENDED = "the other process of the service has ended"

Answering = Callable[[str, dict[str, Any]], Any]


class EndedError(UnskewError):
    """The process at the other end is gone."""


class Channel:
    """One end of a line. Both ends may ask, from any thread, and answers come in any order.

    line: the socket.
    answer: called in the thread that reads, with what is asked and its details. It returns the answer, or a
        future of it if that takes a while.
    ended: called once, when the other end is gone.
    """

    def __init__(self, line: socket.socket, answer: Answering, ended: Callable[[], None]) -> None:
        self._line, self._answer, self._ended = line, answer, ended
        self._sending, self._numbers = threading.Lock(), count()
        self._asked: dict[int, Future[Any]] = {}
        self._is_open = True
        self._reading = threading.Thread(target=self._read, name="unskew channel", daemon=True)
        self._reading.start()

    def ask(self, what: str, **details: Any) -> "Future[Any]":
        """Ask the other end. The future is done when its answer is here, or fails as it did there."""
        number, future = next(self._numbers), Future[Any]()
        future.set_running_or_notify_cancel()
        self._asked[number] = future
        try:
            self._send({"ask": number, "what": what, "details": details})
            if not self._is_open:
                raise OSError
        except OSError:
            if self._asked.pop(number, None) is not None:
                future.set_exception(EndedError(ENDED))
        return future

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):  # the other end has hung up already
            self._line.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reading:
            self._reading.join()

    def _send(self, message: dict[str, Any]) -> None:
        text = json.dumps(message, separators=(",", ":")).encode()
        with self._sending:
            self._line.sendall(LENGTH.pack(len(text)) + text)

    # In the thread that reads

    def _read(self) -> None:
        with self._line, self._line.makefile("rb") as file:
            while message := _next(file):
                if "ask" in message:
                    self._asked_for(message["ask"], message["what"], message["details"])
                else:
                    self._answered(message)
        self._is_open = False
        for number in list(self._asked):
            if (future := self._asked.pop(number, None)) is not None:
                future.set_exception(EndedError(ENDED))
        self._ended()

    def _asked_for(self, number: int, what: str, details: dict[str, Any]) -> None:
        future = Future[Any]()
        try:
            found = self._answer(what, details)
            if isinstance(found, Future):
                future = found
            else:
                future.set_result(found)
        except Exception as error:
            future.set_exception(error)
        future.add_done_callback(lambda done: self._reply(number, done))

    def _reply(self, number: int, done: "Future[Any]") -> None:
        error = done.exception()
        if error is None:
            message = {"reply": number, "value": done.result()}
        else:
            known = isinstance(error, UnskewError)
            text = str(error) if known else f"a fault of unskew: {type(error).__name__}"
            message = {"reply": number, "error": text, "bad_input": isinstance(error, BadInput)}
        with suppress(OSError):  # nobody waits for it any more
            self._send(message)

    def _answered(self, message: dict[str, Any]) -> None:
        future = self._asked.pop(message["reply"], None)
        if future is None:
            return
        if "error" in message:
            kind = BadInput if message["bad_input"] else UnskewError
            future.set_exception(kind(message["error"]))
        else:
            future.set_result(message["value"])


def _next(file: Any) -> dict[str, Any] | None:
    """The next message; None at the end of the line."""
    try:
        head = file.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack(head)
        text = file.read(size)
    except OSError:
        return None
    return dict(json.loads(text)) if len(text) == size else None
