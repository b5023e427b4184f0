"""What a stored run remembers of its log, so that it can recommend without the data: the caller's ids, each
user's items, each item's users, and what the network was built for. And where its data is."""

import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from unskew.core.errors import BadInput
from unskew.data.log.clock import Clock
from unskew.data.log.log import Log
from unskew.data.log.split import Ids, Known, Split, Splitting, split
from unskew.data.log.views import Sequences
from unskew.data.log.vocabulary import Vocabulary

Write = Callable[[str, Callable[[Path], Any]], None]  # (name of the file, what writes it to a path)


def save_memory(write: Write, split: Split) -> None:
    """Write ids and all positive events, in both views."""
    log = split.log
    arrays: dict[str, NDArray[Any]] = {"now": np.array([log.now])}
    for name, view in (("history", log.histories), ("audience", log.audiences)):
        start, end = view.before(np.arange(len(view)), log.now)
        _, places = view.flat(start, end)
        arrays |= {f"{name}_ids": view.ids[places], f"{name}_times": view.times[places]}
        arrays |= {f"{name}_offsets": np.concatenate([[0], np.cumsum(end - start)])}
    for name, ids in (("users", split.known.users), ("items", split.known.items)):
        if ids.rare is not None:
            arrays[f"rare_{name}"] = ids.rare.astype(np.uint8)
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write("memory.safetensors", lambda path: save_file(whole, path))
    for name, vocabulary in (("users", log.users), ("items", log.items)):
        write(f"{name}.parquet", partial(pq.write_table, vocabulary.table()))


def load_memory(folder: Path, known: dict[str, Any]) -> tuple[Log, Known]:
    """The log of the newest events, and what the network was built for (`described` wrote that)."""
    memory = load_file(folder / "memory.safetensors")
    users, items = (pq.read_table(folder / f"{name}.parquet") for name in ("users", "items"))
    log = _remembered(memory, users, items)
    sides = {}
    for name in ("users", "items"):
        rare = memory.get(f"rare_{name}")
        sides[name] = Ids(**known[name], rare=None if rare is None else rare.astype(bool))
    return log, Known(**sides, clock=Clock(known["ticks"]))


def described(known: Known) -> dict[str, Any]:
    """What the network was built for, as plain numbers; who is rare is among the arrays."""
    sides = {"users": known.users, "items": known.items}
    sizes = {name: {"size": ids.size, "categories": dict(ids.categories)} for name, ids in sides.items()}
    return sizes | {"ticks": known.clock.ticks}


def _remembered(memory: dict[str, NDArray[Any]], users: pa.Table, items: pa.Table) -> Log:
    if len(memory["history_offsets"]) != len(users) + 1 or len(memory["audience_offsets"]) != len(items) + 1:
        raise ValueError("memory and vocabularies are not of the same run")
    histories, audiences = (
        Sequences(*(memory[f"{name}_{part}"] for part in ("ids", "times", "offsets")))
        for name in ("history", "audience")
    )
    vocabularies = Vocabulary.of_table(users), Vocabulary.of_table(items)
    return Log.of_positives(histories, audiences, *vocabularies, end=int(memory["now"][0]))


# The data itself, where the run says that it is


def log_of(config: dict[str, Any], data: str | os.PathLike[str] | None = None) -> Log:
    """The log that a run was trained on. `data` is where the prepared folder is now, if it has moved."""
    where = data or config["data"]
    if not where:
        raise BadInput(
            "this run was trained from Python and does not know where its data is; say it with --data"
        )
    if data is None and not Path(where).exists():
        raise BadInput(
            f"{where}: the data of this run is gone or has moved; say where it is now (--data DATA; to "
            "train, DATA itself)"
        )
    log = Log.open(where)
    if log.fingerprint() != config["hash"]:
        raise BadInput(f"{where}: not the data that this run was trained on")
    return log


def splitting_of(config: dict[str, Any]) -> Splitting:
    """How the log of a run was split."""
    return Splitting(**{**config["split"], "fractions": tuple(config["split"]["fractions"])})


def split_of(config: dict[str, Any], data: str | os.PathLike[str] | None = None) -> Split:
    """The split that a run was trained on."""
    return split(log_of(config, data), **asdict(splitting_of(config)))
