"""What the tests of updates share: a log with seconds, a store with what came after it, and quick runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import unskew
from tests.helpers.contract import tiny
from unskew.api.model import Model
from unskew.models.base import Training, model_named
from unskew.serve import Event, open_store

BEGIN = 1_767_225_600  # 2026-01-01 in UTC
SPAN = 100_000  # seconds of the log, and of what the store got afterwards
QUICK = Training(epochs=1, batch_size=128, sequences=32, valid_examples=50)
USERS, ITEMS = 40, 25


def drawn(rows: int, seed: int, begin: int, more: int = 0) -> list[tuple[str, str, int]]:
    """User, item and time of random clicks; `more` are the users and items that were not there before."""
    random = np.random.default_rng(seed)
    user = random.integers(0, USERS + more, rows)
    item = np.minimum(((ITEMS + more) * random.random(rows) ** 2).astype(int), ITEMS + more - 1)
    times = np.sort(random.choice(SPAN, rows, replace=False)) + begin
    return [(f"u{u}", f"i{i}", int(t)) for u, i, t in zip(user, item, times, strict=True)]


def table_of(rows: list[tuple[Any, Any, int]]) -> pa.Table:
    user, item, time = zip(*rows, strict=True)
    return pa.table({"user": user, "item": item, "time": time})


def prepared(folder: Path, rows: int = 500) -> Path:
    unskew.prepare(table_of(drawn(rows, 0, BEGIN)), folder)
    return folder


def add(store: Path, rows: list[tuple[Any, Any, int]], name: str = "e", kind: str = "click") -> None:
    """Events with times in seconds."""
    with open_store(store) as opened:
        opened.append(
            [
                Event(f"{name}{place}", str(user), str(item), kind, time * 10**6)
                for place, (user, item, time) in enumerate(rows)
            ]
        )


def stored(store: Path, rows: int = 250, more: int = 4) -> Path:
    add(store, drawn(rows, 1, BEGIN + SPAN, more))
    return store


def trained(data: Path, folder: Path, name: str = "itemknn", **training: Any) -> Path:
    kind = model_named(name)
    config = kind.Config(backbone=tiny(kind.Backbone)) if hasattr(kind, "Backbone") else tiny(kind)
    settings = Training(**{**QUICK.__dict__, **training})
    Model(name, config, settings).fit(unskew.split(unskew.Log.open(data)), folder, show_progress=False)
    return folder


def card(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "card.json").read_text())


def everything_below(folder: Path) -> dict[str, bytes | None]:
    """All files with their content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def events_of(log: unskew.Log) -> list[tuple[Any, Any, int]]:
    """The positives of a log, as triples, in the order of time."""
    rows = log.table().slice(0, log.positives)
    found = zip(*(rows[name].to_pylist() for name in ("user", "item", "time")), strict=True)
    return sorted(found, key=lambda row: (row[2], str(row)))


def ruined(data: Path, folder: Path) -> Path:
    """A run that any training makes much worse."""
    run = trained(data, folder, "sasrec", epochs=15, learning_rate=0.01)
    for name in ("config.json", "card.json"):
        said = json.loads((run / name).read_text())
        said["training"]["learning_rate"] = 3.0
        (run / name).write_text(json.dumps(said))
    return run


# An update that kills itself: before the card is written, before the link is moved, or while it is.
KILLED = """
import os, signal, sys
from pathlib import Path
import unskew.update.publish as publish
from unskew.training.run import RunFolder
from unskew.update.update import update
from unskew.update import Updating

when, folder = sys.argv[1], Path(sys.argv[2])
die = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
if when == "weights":
    real = RunFolder.replace
    RunFolder.replace = lambda self, name, write: (die if name == "card.json" else real)(self, name, write)
elif when == "pointer":
    import unskew.update.update
    unskew.update.update.point = die
else:
    Path.replace = die
update(folder / "run", folder / "e.db", folder / "new", Updating(least=40), current=folder / "current")
"""
