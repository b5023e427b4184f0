"""Progress of long jobs, on standard error: a bar on a terminal, elsewhere a line every two seconds. The
library is silent unless `shown_on` is used."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PATIENCE = 2.0  # seconds between two lines; a job that is shorter prints nothing

_console: ContextVar[Console | None] = ContextVar("console", default=None)


@contextmanager
def shown_on(console: Console | None) -> Iterator[None]:
    """Show the progress of all jobs inside this context on a console; with None, nowhere."""
    token = _console.set(console)
    try:
        yield
    finally:
        _console.reset(token)


@contextmanager
def shown(show: bool = True) -> Iterator[None]:
    """Show progress on standard error, if that is wanted and no console has been chosen already."""
    with shown_on(Console(stderr=True)) if show and _console.get() is None else nullcontext():
        yield


class Job:
    """A job whose progress is shown. `total` is its length, or None if that is unknown."""

    def __init__(self, title: str, total: float | None) -> None:
        self.title, self.total, self.done, self.note = title, total, 0.0, ""
        self._console = _console.get()
        self._started = self._last = time.monotonic()
        self._bar: Progress | None = None
        if self._console is not None and self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task(title, total=total)
            self._bar.start()

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Say that a part of the job is done; `note` is shown next to the title."""
        self.done, self.note = self.done + amount, note
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=self.done, description=f"{self.title} {note}".rstrip()
            )
        elif self._console is not None and now - self._last >= PATIENCE:
            self._last = now
            of = f" of {self.total:g}" if self.total is not None else ""
            self._console.print(f"{self.title}: {self.done:g}{of} {note}".rstrip(), highlight=False)

    def close(self) -> None:
        """Say that the job has ended."""
        if self._bar is not None:
            self._bar.stop()
        elapsed = time.monotonic() - self._started
        if self._console is not None and elapsed >= PATIENCE:
            self._console.print(f"{self.title}: done in {elapsed:.1f} s", highlight=False)


@contextmanager
def progress(title: str, total: float | None = None) -> Iterator[Job]:
    """A job that ends with this context. Call its `advance` as the work proceeds."""
    job = Job(title, total)
    try:
        yield job
    finally:
        job.close()
