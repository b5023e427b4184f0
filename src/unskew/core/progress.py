"""Progress of long jobs, on standard error: a bar on a terminal, elsewhere lines, the first after two seconds
and the next ones ever more rarely, so that an hour has some thirty of them. The library is silent unless
`shown_on` is used."""

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

PATIENCE = 2.0  # the smallest number of seconds between two lines
PAUSE = 0.2  # between two lines, as a fraction of the time since the first job began


class Output:
    """A console with the times of its lines, which all jobs on it share."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started = self._last = time.monotonic()

    def print(self, line: str) -> bool:
        """Print a line if one is due."""
        now = time.monotonic()
        if now - self._last < max(PATIENCE, PAUSE * (now - self._started)):
            return False
        self._last = now
        self.console.print(line, highlight=False)
        return True


_output: ContextVar[Output | None] = ContextVar("output", default=None)


@contextmanager
def shown_on(console: Console | None) -> Iterator[None]:
    """Show the progress of all jobs inside this context on a console; with None, nowhere."""
    token = _output.set(None if console is None else Output(console))
    try:
        yield
    finally:
        _output.reset(token)


@contextmanager
def shown(show: bool = True) -> Iterator[None]:
    """Show progress on standard error, if that is wanted and no console has been chosen already."""
    with shown_on(Console(stderr=True)) if show and _output.get() is None else nullcontext():
        yield


class Job:
    """A job whose progress is shown. `total` is its length, or None if that is unknown."""

    def __init__(self, title: str, total: float | None) -> None:
        self.title, self.total, self.done, self.note = title, total, 0.0, ""
        self._output, self._started, self._has_lines = _output.get(), time.monotonic(), False
        self._bar: Progress | None = None
        if self._output is not None and self._output.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._output.console, transient=True)
            self._bar.add_task(title, total=total)
            self._bar.start()

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Say that a part of the job is done; `note` is shown next to the title."""
        self.done, self.note = self.done + amount, note
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=self.done, description=f"{self.title} {note}".rstrip()
            )
        elif self._output is not None:
            of = f" of {self.total:g}" if self.total is not None else ""
            line = f"{self.title}: {self.done:g}{of} {note}".rstrip()
            self._has_lines = self._output.print(line) or self._has_lines

    def close(self) -> None:
        """Say that the job has ended."""
        if self._bar is not None:
            self._bar.stop()
        elif self._output is not None and self._has_lines:
            elapsed = time.monotonic() - self._started
            self._output.console.print(f"{self.title}: done in {elapsed:.1f} s", highlight=False)


@contextmanager
def progress(title: str, total: float | None = None) -> Iterator[Job]:
    """A job that ends with this context. Call its `advance` as the work proceeds."""
    job = Job(title, total)
    try:
        yield job
    finally:
        job.close()
