"""What the processes that share a store on a server tell each other (LISTEN and NOTIFY of PostgreSQL).

`changed` comes with every commit, and after each time the connection was lost, because anything may have
happened meanwhile. Any other text is what a process announced. A notice is a hint to look soon: whoever
answers a request looks at the store first anyway.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from unskew.core.errors import UnskewError

CHANGED = "changed"
RETRY_SECONDS = 1.0  # before a lost connection is made again


class Listening:
    """A thread that listens until it is closed.

    notices: the texts of one connection as they come, and None now and then when there is none. It raises
        UnskewError when the connection is lost.
    heard: called with each text, in the thread. What it raises of our errors is left to the next notice.
    """

    def __init__(self, notices: Callable[[], Iterator[str | None]], heard: Callable[[str], None]) -> None:
        self._notices, self._heard = notices, heard
        self._closed, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="unskew notices", daemon=True)
        self._thread.start()
        self._begun.wait()  # what happens from now on is heard

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        while not self._closed.is_set():
            with suppress(UnskewError):
                for text in self._notices():
                    self._begun.set()
                    if self._closed.is_set():
                        return
                    if text is not None:
                        with suppress(UnskewError):
                            self._heard(text)
            self._begun.set()  # or it cannot be reached: then it is tried again
            self._closed.wait(RETRY_SECONDS)
