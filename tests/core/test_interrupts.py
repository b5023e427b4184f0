"""Interrupts wait for the end of a step; what is half done is never saved."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import unskew
from tests.helpers.runs import SHORT, TINY, records, train
from unskew.core.interrupts import Interrupts

BOTH = (signal.SIGINT, signal.SIGTERM)


def unexpected(number: int, frame: Any) -> None:
    raise AssertionError(f"signal {number} was handled elsewhere")


@pytest.fixture(params=BOTH, ids=["SIGINT", "SIGTERM"])
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    """A signal whose handlers are ours before and afterwards."""
    before = {each: signal.signal(each, unexpected) for each in BOTH}
    yield request.param
    assert all(signal.getsignal(each) is unexpected for each in BOTH)
    for each, handler in before.items():
        signal.signal(each, handler)


def interrupted(steps: Callable[[Interrupts, list[str]], None]) -> tuple[Interrupts, list[str]]:
    """Run some steps until they are stopped; what was done by then."""
    mine, done = Interrupts(), []

    def deferred() -> None:
        with mine.deferred():
            steps(mine, done)

    with pytest.raises(KeyboardInterrupt):
        deferred()
    return mine, done


def test_one_waits_for_the_end_of_the_step(number: int) -> None:
    def steps(mine: Interrupts, done: list[str]) -> None:
        with mine.step():
            signal.raise_signal(number)
            done.append("the rest of the step")
        done.append("the next step")

    mine, done = interrupted(steps)
    assert done == ["the rest of the step"]
    assert not mine.in_step


def test_between_steps_it_is_raised_at_once(number: int) -> None:
    def steps(mine: Interrupts, done: list[str]) -> None:
        with mine.step():
            done.append("a step")
        signal.raise_signal(number)
        done.append("more")

    mine, done = interrupted(steps)
    assert done == ["a step"]
    assert not mine.in_step


def test_a_second_one_does_not_wait(number: int) -> None:
    def steps(mine: Interrupts, done: list[str]) -> None:
        with mine.step():
            signal.raise_signal(number)
            done.append("after the first")
            signal.raise_signal(number)
            done.append("after the second")

    mine, done = interrupted(steps)
    assert done == ["after the first"]
    assert mine.in_step


def test_a_step_that_fails_is_not_done() -> None:
    mine = Interrupts()
    with pytest.raises(ValueError, match="wrong"), mine.step():
        raise ValueError("wrong")
    assert mine.in_step


def test_other_threads_leave_handlers_alone() -> None:
    seen = []

    def elsewhere() -> None:
        with Interrupts().deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_what_is_saved_is_whole(small_split: unskew.Split, tmp_path: Path, monkeypatch, times: int) -> None:
    """After one interrupt the step is in the checkpoint. After two the weights have moved and the counters
    have not, so there is no checkpoint of that."""
    steps: list[int] = []
    step = torch.optim.Adam.step

    def stepping(self: torch.optim.Adam, *args: object) -> None:
        step(self, *args)
        steps.append(len(steps) + 1)
        if len(steps) == 3:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(torch.optim.Adam, "step", stepping)
        with pytest.raises(KeyboardInterrupt):
            train(small_split, "deps", TINY, SHORT, tmp_path / "run")
    assert steps == [1, 2, 3]
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    assert checkpoint.is_file() == (times == 1)
    if times == 1:
        with safe_open(checkpoint, framework="pt") as file:
            assert json.loads(file.metadata()["progress"])["step"] == 3
    train(small_split, "deps", TINY, SHORT, tmp_path / "run", resume=True)
    train(small_split, "deps", TINY, SHORT, tmp_path / "whole")
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    for path in (tmp_path / "whole").glob("weights-*"):
        assert path.read_bytes() == (tmp_path / "run" / path.name).read_bytes()
