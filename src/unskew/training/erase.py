"""Erasing what a stored run remembers of users."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from unskew.core.atomic_files import read_parquet
from unskew.core.damage import reading
from unskew.core.errors import BadInput
from unskew.data.log.clock import Clock
from unskew.data.log.erasures import (
    IN_RUN,
    NOT_ERASED,
    Erasures,
    add_erasures,
    erased_rows,
    moments_of,
    read_erasures,
)
from unskew.data.log.log import Log
from unskew.training.run import RunFolder, read_config
from unskew.training.run_config import RunConfig
from unskew.training.run_log import context_arrays, load_memory

MEMORY = "memory.safetensors"
WEIGHTS = "weights that were learned from the user's events, until the next training"
DATA = (
    "the prepared log that the run was trained on: `unskew update` with this store and "
    "`unskew train --refit` of this run leave the user out of it, and `unskew erase USER --data FOLDER` "
    "removes the rows"
)
OTHER_RUNS = (
    "other runs: a service or an update with this store leaves the user out of them, and "
    "`unskew erase USER --run RUN` removes the rows"
)
COPIES = (
    "exports, replicas and backups from before; a folder or a file of a store that is restored beside its "
    "list of erased users is refused, or erased again"
)
BASE = "base.parquet"  # in an updated run: the log of the first run, where only its memory was left


def run_erasures(folder: Path) -> Erasures:
    """The users who were erased from a run, or from what it was made of."""
    return read_erasures(folder / IN_RUN)


def erase_from_run(folder: Path, erasures: Erasures) -> int:
    """Remove the events of erased users, and the ids of those who have no other event, from what a run
    remembers. Returns how many events there were.

    A place in the table of ids stays, without the id, because the rows of the network are numbered by them;
    so do weights that were learned from the events. The list is written first: whatever makes a new run of
    this one reads it.
    """
    config = read_config(folder)
    whole = add_erasures(folder / IN_RUN, erasures) if erasures else run_erasures(folder)
    if config.events_in == "folder":
        return 0  # it has no events of its own, and is not opened as long as the folder has erased ones
    log, run, clock = _remembered(folder, config), RunFolder(folder), Clock(config.known.ticks)
    _erase_from_base(run, clock, whole)
    until = moments_of(log.users.ids, clock, whole)
    if until is None:
        return 0
    owner, place = log.histories.everything()
    in_history = log.histories.times[place] <= until[owner]
    in_audience = log.audiences.times <= until[log.audiences.ids]
    memory: dict[str, NDArray[Any]] = load_file(folder / MEMORY)
    for view, erased in (("history", in_history), ("audience", in_audience)):
        before = np.concatenate([[0], np.cumsum(erased)])
        offsets = memory[f"{view}_offsets"]
        memory[f"{view}_offsets"] = np.ascontiguousarray(offsets - before[offsets])
        for name in ("ids", "times"):
            memory[f"{view}_{name}"] = np.ascontiguousarray(memory[f"{view}_{name}"][~erased])
    is_gone = until > NOT_ERASED
    is_gone[owner[~in_history]] = False
    erased_events = int(np.count_nonzero(in_history))
    for kind, views in log.context.items():
        user, item, time = views.events()
        later = time > until[user]
        is_gone[user[later]] = False
        memory |= context_arrays(kind, (user[later], item[later], time[later]))
        erased_events += int(np.count_nonzero(~later))
    run.replace(MEMORY, lambda path: save_file(memory, path))
    run.replace("users.parquet", lambda path: pq.write_table(_without_ids(log, is_gone), path))
    return erased_events


def _remembered(folder: Path, config: RunConfig) -> Log:
    with reading(f"{folder}: the run is damaged"):
        return load_memory(folder, config.known)[0]


def _without_ids(log: Log, is_gone: NDArray[np.bool_]) -> pa.Table:
    """The table of users, in which the rows of some are empty."""
    table = log.users.table()
    kept = pa.array(np.arange(len(table)), mask=is_gone)
    return pa.table({name: table[name].combine_chunks().take(kept) for name in table.column_names})


def _erase_from_base(run: RunFolder, clock: Clock, erasures: Erasures) -> None:
    """Remove the rows of erased users from the log of the first run, if the run keeps it."""
    file = run.folder / BASE
    if not file.is_file():
        return
    try:
        table = read_parquet(file)
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{file}: the run is damaged ({error})") from None
    rest = table_without_erased(table, clock, erasures)
    if len(rest) < len(table):
        run.replace(BASE, lambda path: pq.write_table(rest, path))


def table_without_erased(table: pa.Table, clock: Clock, erasures: Erasures) -> pa.Table:
    """A table with the columns user and time, without the rows of erased users."""
    ids = table["user"].combine_chunks().dictionary_encode()
    codes = ids.indices.to_numpy(zero_copy_only=False)
    times = np.asarray(table["time"].to_numpy(), np.int64)
    erased = erased_rows(ids.dictionary, codes, times, clock, erasures)
    return table.filter(pa.array(~erased)) if erased.any() else table
