"""What a stored run remembers of its log: the caller's ids, each user's items, each item's users, and what
the network was built for. So it can recommend without the data. A run of a large log reads the events from
the prepared folder instead, and remembers only what the network was built for."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from unskew.core.atomic_files import read_parquet
from unskew.data.log.arrays import check_codes, check_offsets, check_times
from unskew.data.log.folder import CONTEXT
from unskew.data.log.log import Log
from unskew.data.log.split import Known, Split
from unskew.data.log.views import Ints, Sequences, Views, views_of
from unskew.data.log.vocabulary import Vocabulary
from unskew.training.run_config import KnownShape

Write = Callable[[str, Callable[[Path], Any]], None]  # (name of the file, what writes it to a path)


def save_memory(write: Write, split: Split, has_events: bool = True) -> None:
    """Write ids and all positive events, in both views; or, without events, only which ids are rare."""
    log = split.log
    arrays: dict[str, NDArray[Any]] = {"now": np.array([log.now])}
    for name, ids in (("users", split.known.users), ("items", split.known.items)):
        if ids.rare is not None:
            arrays[f"rare_{name}"] = ids.rare.astype(np.uint8)
    if has_events:
        arrays |= _event_arrays(log)
        for name, vocabulary in (("users", log.users), ("items", log.items)):
            write(f"{name}.parquet", partial(pq.write_table, vocabulary.table()))
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write("memory.safetensors", lambda path: save_file(whole, path))


def _event_arrays(log: Log) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for name, view in (("history", log.histories), ("audience", log.audiences)):
        start, end = view.before(np.arange(len(view)), log.now)
        _, places = view.flat(start, end)
        arrays |= {f"{name}_ids": view.ids[places], f"{name}_times": view.times[places]}
        arrays |= {f"{name}_offsets": np.concatenate([[0], np.cumsum(end - start)])}
        if view.listed is not None:
            arrays |= {f"{name}_listed": view.listed}
    for kind, views in log.context.items():
        arrays |= context_arrays(kind, views.events())
    return arrays


def load_memory(folder: Path, shape: KnownShape, events: Log | None = None) -> tuple[Log, Known]:
    """The log of the newest events, and what the network was built for.

    events: the log in the prepared folder, for a run that has no events of its own.
    """
    memory = load_file(folder / "memory.safetensors")
    rare = (memory.get(f"rare_{name}") for name in ("users", "items"))
    masks = [None if mask is None else mask.astype(bool) for mask in rare]
    if events is None:
        users, items = (read_parquet(folder / f"{name}.parquet") for name in ("users", "items"))
        for table in (users, items):
            table.validate(full=True)
        sizes = len(users), len(items)
    else:
        sizes = len(events.users), len(events.items)
    for known, size, mask in zip((shape.users, shape.items), sizes, masks, strict=True):
        if not 0 <= known.size <= size or (mask is not None and len(mask) != known.size):
            raise ValueError("config.json and the vocabularies are not of the same run")
    return _remembered(memory, users, items) if events is None else events, shape.build(*masks)


def _remembered(memory: dict[str, NDArray[Any]], users: pa.Table, items: pa.Table) -> Log:
    for name, entities, others in (("history", users, items), ("audience", items, users)):
        ids, times, offsets = (memory[f"{name}_{part}"] for part in ("ids", "times", "offsets"))
        if len(offsets) != len(entities) + 1 or len(ids) != len(times):
            raise ValueError("memory and vocabularies are not of the same run")
        check_offsets(f"{name}_offsets", offsets, len(ids))
        if len(memory.get(f"{name}_listed", offsets[1:])) != len(entities):
            raise ValueError(f"{name}_listed: expected a time for each of {len(entities):,} ids")
        check_codes(f"{name}_ids", ids, len(others))
        check_times(f"{name}_times", times, offsets)
    histories, audiences = (
        Sequences(
            memory[f"{name}_ids"],
            memory[f"{name}_times"],
            memory[f"{name}_offsets"],
            memory.get(f"{name}_listed"),
        )
        for name in ("history", "audience")
    )
    vocabularies = Vocabulary.of_table(users), Vocabulary.of_table(items)
    now, sizes = int(memory["now"][0]), (len(users), len(items))
    return Log.of_positives(histories, audiences, *vocabularies, now, context=_context_of(memory, *sizes))


def context_arrays(kind: str, events: tuple[Ints, Ints, Ints]) -> dict[str, NDArray[Any]]:
    """The events of a context type, as the memory holds them."""
    columns = zip(("user", "item", "time"), events, strict=True)
    return {f"{CONTEXT}{kind}:{name}": np.ascontiguousarray(column) for name, column in columns}


def _context_of(memory: dict[str, NDArray[Any]], users: int, items: int) -> dict[str, Views]:
    """The events of all context types, by their types."""
    suffix, context = ":time", {}
    for name in sorted(memory):
        if not (name.startswith(CONTEXT) and name.endswith(suffix)):
            continue
        kind = name.removeprefix(CONTEXT).removesuffix(suffix)
        user, item, time = (memory[f"{CONTEXT}{kind}:{part}"] for part in ("user", "item", "time"))
        if not len(user) == len(item) == len(time):
            raise ValueError(f"{CONTEXT}{kind}: columns of different lengths")
        for codes, size in ((user, users), (item, items)):
            check_codes(f"{CONTEXT}{kind}", codes, size)
        context[kind] = views_of(user, item, time, users, items)
    return context
