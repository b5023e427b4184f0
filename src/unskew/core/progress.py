"""Progress of long jobs, on standard error: a bar on a terminal, elsewhere lines, the first after two seconds
and the next ones ever more rarely, so that an hour has some thirty of them. A job that has not come to its
first step by then says so. The library is silent unless `shown_on` is used."""

import threading
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

    def __init__(self, console: Console, title: str = "") -> None:
        self.console, self.title = console, title
        self.jobs: list[Job] = []  # that are under way, the innermost one last
        self._started = self._last = time.monotonic()
        self._lock, self._ended = threading.Lock(), threading.Event()

    def print(self, line: str) -> bool:
        """Print a line if one is due."""
        with self._lock:
            now = time.monotonic()
            if now - self._last < max(PATIENCE, PAUSE * (now - self._started)):
                return False
            self._last = now
            self.console.print(line, highlight=False)
            return True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Print where the innermost job is whenever a line is due, even if it does not advance."""
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._ended.set()
            watcher.join()

    def _watch(self) -> None:
        while not self._ended.wait(PATIENCE / 4):
            if self.jobs:
                self.jobs[-1].tell()
            elif self.title:
                self.print(f"{self.title}: under way")


_output: ContextVar[Output | None] = ContextVar("output", default=None)


@contextmanager
def shown_on(console: Console | None, title: str = "") -> Iterator[None]:
    """Show the progress of all jobs inside this context on a console; with None, nowhere. The title is shown
    while there is no job."""
    output = None if console is None else Output(console, title)
    token = _output.set(output)
    is_silent = output is None or output.console.is_terminal
    try:
        with nullcontext() if is_silent or output is None else output.watched():
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
        if self._output is None:
            return
        # There is room for one bar: that of the outermost job.
        if self._output.console.is_terminal and not self._output.jobs:
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
        self._output.jobs.append(self)

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Say that a part of the job is done; `note` is shown next to the title."""
        self.done, self.note = self.done + amount, note
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=self.done, description=f"{self.title} {note}".rstrip()
            )
        else:
            self.tell()

    def tell(self) -> None:
        """Print a line if one is due."""
        if self._output is None or self._output.console.is_terminal:
            return
        of = f" of {self.total:g}" if self.total is not None else ""
        line = f"{self.title}: {self.done:g}{of} {self.note}".rstrip() + self._left()
        self._has_lines = self._output.print(line) or self._has_lines

    def _left(self) -> str:
        """How long the rest takes, if it is as fast as what is done."""
        elapsed = time.monotonic() - self._started
        if self.total is None or not 0 < self.done < self.total or elapsed < PATIENCE:
            return ""
        seconds = elapsed * (self.total - self.done) / self.done
        return f", about {seconds / 60:.0f} min left" if seconds >= 60 else ""

    def close(self) -> None:
        """Say that the job has ended."""
        if self._output is not None and self in self._output.jobs:
            self._output.jobs.remove(self)
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
