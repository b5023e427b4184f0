"""Time and memory of every verb on logs of growing size, each verb in a process of its own.

    python benchmarks/scale.py --folder DIR                       0.2, 2 and 20 million events
    python benchmarks/scale.py --folder DIR --events 100000000 --verbs prepare train
    python benchmarks/scale.py --page                             writes docs/scale.md only

The logs are made up (`made_up`): 20 events a user and 227 an item, popularity by Zipf, three years of
seconds. The figures go to results/scale.jsonl, the newest of each verb and size, and to docs/scale.md. Each
is measured on one thread of torch: CPU-seconds of all threads of the process, its largest resident memory,
and the largest part of it that is private (`RssAnon`): pages of mapped files are shared and can be dropped,
so only the private part must fit.
"""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tyro

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "scale.jsonl", ROOT / "docs" / "scale.md"
EVENTS_OF_USER, EVENTS_OF_ITEM = 20, 227
FIRST, SPAN = 1_500_000_000, 10**8  # seconds
CHUNK = 5_000_000  # rows that are made and written together
USERS, SAMPLE = 1000, 2000  # of `recommend` and of `evaluate`
EVERY = 0.05  # seconds between two looks at a process
VERBS = ("prepare", "inspect", "audit", "train", "evaluate", "recommend", "serve")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Measure the verbs, and write the page."""

    folder: Path | None = None
    """Where logs and runs are kept, for other measurements; by default they are thrown away."""
    events: tuple[int, ...] = (200_000, 2_000_000, 20_000_000)
    """The sizes of the logs."""
    verbs: tuple[str, ...] = VERBS
    """The verbs that are measured, in their order."""
    code: str = "now"
    """What the measured code is called in the results, such as `before`."""
    page: bool = False
    """Write the page only, from what is stored."""


def made_up(events: int, file: Path) -> None:
    """A log: users and items by Zipf under shuffled ids, and times that are uniform."""
    random = np.random.default_rng(0)
    draws = [
        _zipf(random, events // of, power) for of, power in ((EVENTS_OF_USER, 0.6), (EVENTS_OF_ITEM, 1.0))
    ]
    schema = pa.schema([("user_id", pa.string()), ("item_id", pa.string()), ("timestamp", pa.int64())])
    with pq.ParquetWriter(file, schema) as writer:
        for first in range(0, events, CHUNK):
            size = min(CHUNK, events - first)
            user, item = (draw(size) for draw in draws)
            times = pa.array(FIRST + random.integers(0, SPAN, size))
            writer.write_table(pa.table([_ids("u", user), _ids("i", item), times], schema))


def _zipf(random: np.random.Generator, size: int, power: float) -> Callable[[int], Any]:
    """A function that draws so many numbers below `size`, a few of them often."""
    sums = np.cumsum((np.arange(size) + 10.0) ** -power)
    number = random.permutation(size)
    return lambda draws: number[np.searchsorted(sums, random.random(draws) * sums[-1])]


def _ids(letter: str, numbers: Any) -> pa.Array:
    return pc.binary_join_element_wise(letter, pa.array(numbers).cast(pa.string()), "")


class Watched:
    """A process whose memory is watched until it ends."""

    def __init__(self, *arguments: object) -> None:
        self.command = command = [sys.executable, "-m", "unskew", *map(str, arguments)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.private = self.resident = 0
        self.lines: queue.Queue[str] = queue.Queue()
        self.said: list[str] = []
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._watch, self._read)]
        for thread in self._threads:
            thread.start()

    def look(self) -> tuple[int, int]:
        """Kilobytes that are private and that are resident, now."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            return 0, 0
        found = dict(re.findall(r"(RssAnon|VmHWM):\s+(\d+) kB", status))
        return int(found.get("RssAnon", 0)), int(found.get("VmHWM", 0))

    def _watch(self) -> None:
        while self.process.poll() is None:
            private, resident = self.look()
            self.private, self.resident = max(self.private, private), max(self.resident, resident)
            time.sleep(EVERY)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            self.lines.put(line)

    def finish(self) -> dict[str, float]:
        """Wait for the end, and say what it took."""
        assert self.process.stdout is not None
        self.process.stdout.read()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        if self.process.returncode not in (0, -signal.SIGTERM):
            raise SystemExit(f"{' '.join(self.command)}: {''.join(self.said)[-2000:]}")
        return {"private_gb": self.private / 1e6, "peak_gb": self.resident / 1e6}


def measured(*arguments: object) -> dict[str, float]:
    """What a verb takes from its start to its end."""
    before, began = _cpu_of_children(), time.perf_counter()
    taken = Watched(*arguments).finish()
    wall = time.perf_counter() - began
    return {"cpu_s": _cpu_of_children() - before, "wall_s": wall, **taken}


def _cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def served(run: Path, scratch: Path, workers: int) -> dict[str, float]:
    """What a service takes until it is ready, and what it holds after some requests."""
    before, began = _cpu_of_children(), time.perf_counter()
    flags = ["--store", scratch / f"events-{workers}.db", "--port", 0, "--workers", workers]
    child = Watched("serve", run, *flags)
    url = ""
    while not url and child.process.poll() is None:
        try:
            line = child.lines.get(timeout=1)
        except queue.Empty:
            continue
        url = (re.findall(r"http://\S+", line) or [""])[0].rstrip("/.,") if "ready: " in line else ""
    ready = time.perf_counter() - began
    for number in range(20):
        body = json.dumps({"user_id": f"u{number}", "k": 10}).encode()
        request = urllib.request.Request(
            f"{url}/v1/recommendations", body, {"content-type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request) as answer:
            answer.read()
    processes = [child.process.pid, *_children_of(child.process.pid)]
    held = [_held(process) for process in processes]
    child.process.send_signal(signal.SIGTERM)
    taken = child.finish()
    return {
        "cpu_s": _cpu_of_children() - before,
        "wall_s": ready,
        "peak_gb": taken["peak_gb"],
        "private_gb": max(private for private, _ in held) / 1e6,
        "machine_gb": sum(proportional for _, proportional in held) / 1e6,
    }


def _children_of(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8")
    return [int(number) for number in text.split()]


def _held(process: int) -> tuple[int, int]:
    """The kilobytes of a process that are private, and its part of all that is resident: what several share
    counts once for all of them."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8")
    found = dict(re.findall(r"^(Pss|Private_Dirty):\s+(\d+) kB", text, re.MULTILINE))
    return int(found["Private_Dirty"]), int(found["Pss"])


def verbs(events: int, folder: Path) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """The verbs with what measures each of them, in the order in which they need each other."""
    source, data, run = (folder / f"{name}-{events}" for name in ("log", "data", "run"))
    source = source.with_suffix(".parquet")
    if not source.exists():
        made_up(events, source)
    users = folder / "users.csv"
    users.write_text("user_id\n" + "".join(f"u{number}\n" for number in range(USERS)), encoding="utf-8")
    out = folder / f"lists-{events}.parquet"
    yield "prepare", lambda: measured("prepare", source, "--out", data)
    yield "inspect", lambda: measured("inspect", data)
    yield "audit", lambda: measured("audit", data)
    yield "train", lambda: measured("train", data, "--out", run, "--epochs", 1, "--threads", 1)
    yield "evaluate", lambda: measured("evaluate", run, "--sample", SAMPLE)
    yield "recommend", lambda: measured("recommend", run, "--input", users, "--out", out)
    for workers in (1, 2):
        yield (
            f"serve, {workers} worker{'s'[: workers - 1]}",
            partial(served, run, folder, workers),
        )


def main(settings: Settings) -> None:
    if not settings.page:
        with tempfile.TemporaryDirectory() as scratch:
            folder = settings.folder or Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            for events in settings.events:
                for verb, work in verbs(events, folder):
                    if verb.partition(",")[0] in settings.verbs:
                        found = {"code": settings.code, "verb": verb, "events": events, **work()}
                        print(json.dumps(found), flush=True)
                        _store(found)
    PAGE.write_text(page(), encoding="utf-8")


HEAD = """# The scale

This page reports what each verb takes on logs of growing size. It is generated by `python
benchmarks/scale.py --folder DIR` from [results/scale.jsonl](../results/scale.jsonl).

The logs are made up: 20 events a user and 227 an item, popularity by Zipf, three years of seconds. Each
verb is a process of its own on one thread of torch; training is that of Pulse with its default settings and
one epoch, `evaluate` ranks 2,000 positives and `recommend` makes lists for 1,000 users. The columns are
CPU-seconds, the private memory (`RssAnon`, which has no file behind it) and the peak of all resident
memory, in GB. The peak also counts pages of mapped files, which all processes share and which the system
drops where memory is short; so only the private memory must fit. At 20 million events the folder had its
`derived` files already, except for `prepare` and `inspect`. The peak of several workers is that of the
process that starts them. *Before* is the code of 19 November, when every process had its own copies."""

PATH = """## What is in the files

An event of a prepared log takes 29 bytes: user, item, time and label, and the same by item. What is
computed of a log with a million rows or more is written once into its folder `derived`, by whoever needs it
first, and takes 31 bytes an event for Pulse:

| what | bytes an event |
| --- | ---: |
| the order of time, and the same events in it | 4 + 12 |
| the order of each user's items (what repeats) | 4 |
| where the events of audiences are in the histories | 4 |
| whether an event repeats one | 1 |
| decayed counts with six half-lives, after every 16 events, of items and of all | 2 x 3 |

The run of such a log refers to the folder and has no copy of its events (`train --events-in run` makes
one). `tests/training/test_private_memory.py` holds that private memory grows less than the log.

## The path to a billion events"""


def page() -> str:
    """The page, from what is stored."""
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    by = {(line["code"], line["verb"], line["events"]): line for line in lines}
    rows = ["| verb | events | CPU-s | before | private | before | peak | before |"]
    rows.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for verb in dict.fromkeys(line["verb"] for line in lines):
        for events in sorted({line["events"] for line in lines if line["verb"] == verb}):
            now, before = (by.get((code, verb, events), {}) for code in ("now", "before"))
            cells = [
                _cell(of.get(name), form)
                for name, form in (("cpu_s", "{:,.0f}"), ("private_gb", "{:.2f}"), ("peak_gb", "{:.2f}"))
                for of in (now, before)
            ]
            rows.append(f"| {verb} | {events:,} | " + " | ".join(cells) + " |")
    return "\n\n".join([HEAD, "\n".join(rows), PATH, _path(by)]) + "\n"


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _path(by: dict[tuple[str, str, int], dict[str, Any]]) -> str:
    """What a billion events would take, by the growth between the two largest logs."""
    rows = ["| verb | CPU-s per million events | private MB per million events | CPU-hours | private GB |"]
    rows.append("| --- | ---: | ---: | ---: | ---: |")
    for verb in ("prepare", "inspect", "train", "evaluate", "recommend"):
        small, large = (by.get(("now", verb, events)) for events in (2_000_000, 20_000_000))
        if small is None or large is None:
            continue
        cpu, private = ((large[name] - small[name]) / 18 for name in ("cpu_s", "private_gb"))
        at = large["cpu_s"] + 980 * cpu, large["private_gb"] + 980 * private
        rows.append(f"| {verb} | {cpu:.2f} | {1000 * private:.0f} | {at[0] / 3600:.1f} | {at[1]:.0f} |")
    return (
        "Nothing of this was run: it extends the growth between 2 and 20 million events in a straight line, "
        "with users and items growing at the same rate. What grows with the number of items (validation, "
        "evaluation) is most of the time of training. A log of a billion events takes 29 GB in the prepared "
        "folder and 31 GB in `derived`.\n\n" + "\n".join(rows)
    )


def _store(found: dict[str, Any]) -> None:
    """Keep a measurement in the place of an older one of the same kind."""
    lines = []
    if RESULTS.exists():
        lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    kind = ("code", "verb", "events")
    lines = [line for line in lines if any(line[name] != found[name] for name in kind)]
    found = {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}
    text = "".join(json.dumps(line) + "\n" for line in [*lines, found])
    RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
