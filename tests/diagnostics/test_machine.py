"""What the doctor sees of a machine, and when it has something to say."""

import json
import resource
from pathlib import Path

import pytest

from tests.helpers.command import run
from unskew.diagnostics import machine
from unskew.diagnostics.machine import GIB, available_memory, cores, examine


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files by which a system describes itself."""
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    return tmp_path


def test_memory_is_what_both_the_machine_and_the_container_leave(system: Path) -> None:
    assert available_memory() is None
    (system / "meminfo").write_text(f"MemFree: 1 kB\nMemAvailable:  {8 * GIB // 1024} kB\n")
    assert available_memory() == 8 * GIB
    (system / "memory.max").write_text("max\n")
    (system / "memory.current").write_text(f"{GIB}\n")
    assert available_memory() == 8 * GIB  # the container has no limit
    (system / "memory.max").write_text(f"{4 * GIB}\n")
    assert available_memory() == 3 * GIB


def test_cores_are_those_of_the_container(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)))
    assert cores() == 8
    (system / "cpu.max").write_text("max 100000\n")
    assert cores() == 8
    (system / "cpu.max").write_text("250000 100000\n")
    assert cores() == 2
    (system / "cpu.max").write_text("50000 100000\n")
    assert cores() == 1


def advice(folder: Path) -> dict[str, str]:
    return {check.topic: check.advice for check in examine(folder)}


def test_what_is_short_has_advice(system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (system / "meminfo").write_text(f"MemAvailable: {3 * GIB // 1024} kB\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 8192))
    assert not {topic for topic, words in advice(tmp_path).items() if words} & {
        "memory",
        "open files",
        "torch",
    }
    (system / "meminfo").write_text(f"MemAvailable: {GIB // 1024} kB\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 8192))
    monkeypatch.setattr(machine, "requires", lambda _: ["torch>=2", 'no-such-thing>=1; extra == "odd"'])
    given = advice(tmp_path)
    assert "--memory" in given["memory"]
    assert given["open files"].endswith("ulimit -n 8192")
    assert given["extra odd"] == "pip install no-such-thing"


def test_the_verb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "doctor", tmp_path, "--json")
    topics = [check["topic"] for check in json.loads(out)["checks"]]
    assert code == 0
    assert {"unskew", "Python", "torch", "threads", "memory", "disk", "extra spark", "Java"} <= set(topics)
    assert run(capsys, "doctor", tmp_path / "none")[0] == 2
