"""Lines of progress where there is no terminal: soon the first one, and few of them however long it takes."""

import io
import time

import pytest
from rich.console import Console

from unskew.core.progress import progress, shown_on


def lines(monkeypatch: pytest.MonkeyPatch, jobs: int, seconds: float) -> list[str]:
    """What jobs print that take so many seconds each, and advance ten times a second."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    console = Console(file=io.StringIO(), width=200)
    with shown_on(console):
        for number in range(jobs):
            with progress(f"epoch {number}", 10 * seconds) as job:
                for _ in range(int(10 * seconds)):
                    clock[0] += 0.1
                    job.advance()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_first_line_comes_after_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(monkeypatch, 1, 1.9) == []
    assert lines(monkeypatch, 1, 2.5)[0].startswith(("epoch 0: 20 of 25", "epoch 0: 21 of 25"))


def test_short_jobs_share_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(monkeypatch, 2, 1.9)[0].startswith("epoch 1: ")


def test_an_hour_has_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    started = [line for line in lines(monkeypatch, 360, 10.0) if "done" not in line]
    assert 25 <= len(started) <= 50
