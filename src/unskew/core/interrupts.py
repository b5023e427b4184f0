"""Interrupts (Ctrl-C and SIGTERM) that wait for a good moment, so that nothing is saved half done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Turns interrupts into KeyboardInterrupt, but not in the middle of a step.

    While `deferred` is entered, an interrupt raises KeyboardInterrupt at once if no `step` is under way, and
    otherwise at the end of the step. A second interrupt raises it wherever the program is.
    """

    def __init__(self) -> None:
        self.in_step = self._interrupted = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Handle interrupts within this block. Python handles signals in the main thread only; elsewhere this
        does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.signal(number, self._stop) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @contextmanager
    def step(self) -> Iterator[None]:
        """A block that must be done as a whole. If it fails, `in_step` stays true: the step is only half
        done."""
        self.in_step = True
        yield
        self.in_step = False
        if self._interrupted:
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: Any) -> None:
        if self.in_step and not self._interrupted:
            self._interrupted = True
            return
        raise KeyboardInterrupt
