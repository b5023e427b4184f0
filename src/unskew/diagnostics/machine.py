"""What `unskew doctor` reports: the machine, the installation, and what to do where something is short."""

import os
import platform
import re
import resource
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # where Linux says what a container may use
MEMINFO = Path("/proc/meminfo")
GIB = 2**30
DISK, MEMORY = 2 * GIB, 2 * GIB  # below these, a log of a million events may not fit
DESCRIPTORS = 1024  # a service needs one per connection
JAVA = 17  # of Spark 4


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, what there is, and what to do; nothing where it is well."""

    topic: str
    value: str
    advice: str = ""


def examine(folder: Path) -> list[Check]:
    """Look at everything that a run of unskew depends on.

    Parameters
    ----------
    folder
        Where prepared data and runs are to be written.
    """
    return [*_versions(), _threads(), _memory(), *_disks(folder), _descriptors(), *_extras(), _java()]


def _versions() -> Iterator[Check]:
    yield Check("unskew", version("unskew"))
    yield Check("Python", platform.python_version())
    required, _ = _requirements()
    for name in required:
        yield Check(name, _installed(name) or "missing", "" if _installed(name) else f"pip install {name}")


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """The packages that unskew needs, and those of each extra, from the metadata of the installed package."""
    required, extras = [], defaultdict(list)
    for line in requires("unskew") or ():
        name = re.split(r"[\s<>=!~;\[(]", line, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if extra is None:
            required.append(name)
        elif name != "unskew":
            extras[extra.group(1)].append(name)
    return required, dict(extras)


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _extras() -> Iterator[Check]:
    for extra, names in _requirements()[1].items():
        missing = [name for name in names if not _installed(name)]
        value = "installed" if not missing else f"not installed: {', '.join(missing)}"
        yield Check(f"extra {extra}", value, f"pip install {' '.join(missing)}" if missing else "")


def _threads() -> Check:
    import torch

    allowed, used = cores(), torch.get_num_threads()
    too_many = used > allowed
    value = f"{used} of torch, {allowed} cores"
    return Check("threads", value, f"set OMP_NUM_THREADS={allowed}, or --threads" if too_many else "")


def cores() -> int:
    """The number of cores that this process may use, by its affinity and by the limit of its container."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit, _, period = _read(CGROUP / "cpu.max").partition(" ")
    return min(affinity, max(int(limit) // int(period), 1)) if limit.isdigit() else affinity


def available_memory() -> int | None:
    """The bytes that this process may still take; None where nothing says so."""
    free = re.search(r"MemAvailable:\s+(\d+) kB", _read(MEMINFO))
    limit, used = _read(CGROUP / "memory.max"), _read(CGROUP / "memory.current")
    bounds = [int(free.group(1)) * 1024] if free else []
    if limit.isdigit() and used.isdigit():
        bounds.append(max(int(limit) - int(used), 0))
    return min(bounds, default=None)


def _memory() -> Check:
    free = available_memory()
    if free is None:
        return Check("memory", "unknown on this system")
    advice = "stop other programs, or use a larger machine; `prepare --memory` bounds the engine"
    return Check("memory", f"{free / GIB:.1f} GiB available", advice if free < MEMORY else "")


def _disks(folder: Path) -> Iterator[Check]:
    for topic, place in (("disk", folder), ("temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(place).free
        advice = f"free some space below {place}" if topic == "disk" else "set TMPDIR to a larger disk"
        yield Check(topic, f"{free / GIB:.1f} GiB free in {place}", advice if free < DISK else "")


def _descriptors() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = f"a service needs one for each connection: ulimit -n {min(hard, 65536)}"
    return Check("open files", f"{soft} allowed", advice if soft < DESCRIPTORS else "")


def _java() -> Check:
    program = shutil.which("java")
    if program is None:
        return Check("Java", "not installed", f"only for --engine spark: install Java {JAVA}")
    asked = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    named = re.search(r'version "(\d+)', asked.stderr)
    old = named is None or int(named.group(1)) < JAVA
    return Check("Java", named.group(1) if named else "unknown", f"Spark needs {JAVA}" if old else "")


def _read(path: Path) -> str:
    """The content of a file of the system, which not every system has."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
