"""Lives of a process that ends by kill -9. Run as `python -m tests.helpers.store_lives WHAT WHERE SEGMENTS
...`; it prints JSON.

Each life is a fork of this process, which has not opened the store itself.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

from tests.helpers.stores import BEGIN, click, shown
from unskew.serve import Store, open_store
from unskew.serve.store import maintenance, segments

COMPACTING = ("segment written", "segment on the disk", "in the transaction", "rows moved")
ERASING = (
    "users listed",
    "segment written",
    "segments rewritten",
    "in the transaction",
    "rows erased",
    "files removed",
    "forgotten",
)


def opened(where: str, folder: str) -> Store:
    return open_store(where, segments=folder) if "://" in where else open_store(where)


def lived(life: Callable[[], None], ready: Callable[[], None] = lambda: None) -> int:
    """Fork a life. `ready` runs beside it; its end is what kill -9 or an error made of it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            life()
            status = 0
        finally:
            os._exit(status)
    try:
        ready()
    finally:
        _, status = os.waitpid(child, 0)
    return status


def killed(where: str, folder: str, count: int) -> dict[str, Any]:
    """Append in small batches, and be killed at a random moment; again and again on the same store."""
    random, acknowledged, sent = Random(5), [], 0
    for life in range(count):
        reading, writing = os.pipe()

        def append(first: int = 100_000 * life, to: int = writing) -> None:
            with opened(where, folder) as store:
                for number in range(first, first + 100_000, 3):
                    batch = [click(number + place, f"u{number % 7}") for place in range(3)]
                    assert store.append(batch).accepted == 3
                    os.write(to, f"{number}\n".encode())

        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                append()
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading) as lines:
            first = lines.readline()  # it has begun
            time.sleep(random.random() * 0.1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            numbers = [int(line) for line in [first, *lines] if line.endswith("\n")]
        acknowledged += [f"e{number + place}" for number in numbers for place in range(3)]
        sent += len(numbers)
    with opened(where, folder) as store:
        rows = [row for frame in store.events() for row in frame.to_pylist()]
    return {
        "acknowledged": acknowledged,
        "stored": [row["event_id"] for row in rows],
        "sequences": [row["sequence"] for row in rows],
    }


def stopped(what: str, where: str, folder: str) -> dict[str, Any]:
    """Compact, or erase ann, in lives that are killed at one step after the other."""
    found = {}
    for step in COMPACTING if what == "compact" else ERASING:
        place, own = where.replace("STEP", step.replace(" ", "_")), f"{folder}/{step.replace(' ', '_')}"

        def begin(place: str = place, own: str = own) -> None:
            with opened(place, own) as store:
                store.append([click(n, "ann" if n % 2 else "bob") for n in range(30)])
                store.record([shown(f"r{n}", "ann" if n % 2 else "bob", at=n) for n in range(30)])
                if what == "erase":
                    store.compact(BEGIN + 20 * 10**6)

        def die(reached: str, step: str = step) -> None:
            if reached == step:
                os.kill(os.getpid(), signal.SIGKILL)

        def end(place: str = place, own: str = own) -> None:
            segments.reached = maintenance.reached = die
            add = maintenance._add

            def added(*arguments: Any) -> None:
                add(*arguments)
                die("in the transaction")

            maintenance._add = added
            with opened(place, own) as store:
                store.compact(BEGIN + 20 * 10**6) if what == "compact" else store.erase("ann")

        assert lived(begin) == 0, "the store was not filled"
        status = lived(end)
        with opened(place, own) as store:
            found[step] = {
                "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
                "events": [row["event_id"] for frame in store.events() for row in frame.to_pylist()],
                "recommendations": [
                    row["recommendation_id"] for frame in store.recommendations() for row in frame.to_pylist()
                ],
                "copies": store.append([click(n, "ann" if n % 2 else "bob") for n in range(30)]).duplicates,
                "listed": len(store.erasures()),
                "segments": sorted(segment.name for segment in store._reader.segments()),
                "files": sorted(path.name for path in store._reader._segments.folder.glob("*")),
                "hidden": [path.name for path in store._reader._segments.folder.glob(".*")],
            }
            if what == "erase":
                store.erase("ann")
                found[step]["left"] = len(store.of_user("ann")) + len(store.recommended_to("ann"))
    return found


if __name__ == "__main__":
    asked, at, beside, *rest = sys.argv[1:]
    answer = killed(at, beside, int(rest[0])) if asked == "killed" else stopped(asked, at, beside)
    print(json.dumps(answer))
