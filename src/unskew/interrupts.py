"""Ctrl-C and SIGTERM that wait for a good moment, so that nothing is saved half done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While `deferred` is entered, an interrupt raises KeyboardInterrupt at once outside of a `step`, and at
    the end of the step inside of one. A second interrupt raises it wherever it is."""

    def __init__(self) -> None:
        self.in_step = self._asked = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Only the main thread of a process gets signals; elsewhere this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.getsignal(each) for each in SIGNALS}
        for each in SIGNALS:
            signal.signal(each, self._stop)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    @contextmanager
    def step(self) -> Iterator[None]:
        """What must be done whole. If it fails, `in_step` stays true: it is half done."""
        self.in_step = True
        yield
        self.in_step = False
        if self._asked:
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: Any) -> None:
        if self.in_step and not self._asked:
            self._asked = True
            return
        raise KeyboardInterrupt
