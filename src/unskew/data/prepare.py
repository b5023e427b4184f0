"""Deduplicate, binarise, k-core, index, sort: one SQL text for DuckDB and Spark, ending in flat columns that
are memory-mapped.

Every order below is total and made of values only, so the result depends on the rows, not on their order in a
file, on threads, on partitions or on the engine.
"""

import csv
import dataclasses
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unskew.config import configured
from unskew.data.checks import SIDE_FILE, Checked, check, labels_found
from unskew.data.engines import DuckDB, Engine, Spark
from unskew.data.folder import NewArray, assemble, in_memory, is_prepared, new_folder, on_disk, save_metadata
from unskew.data.formats import Reading, Source, recognise
from unskew.data.log import AUDIENCE, COLUMNS, EXTRAS, Log
from unskew.data.views import PAD, offsets_of
from unskew.errors import BadInput, UnskewError
from unskew.progress import Job, progress


@dataclass(frozen=True, kw_only=True)
class Preparation(Reading):
    """How a log is prepared: how it is read, and which rows stay."""

    min_count: int = 1
    """Users and items with fewer positives in the training part are unknown to every model: they share one
    learned vector. No row is removed. Kept with the data as the default of `split` and `train`, where the
    training part is known."""
    k_core: int = 1
    """Remove users and items with fewer interactions than this, again and again until none is left. A filter
    over the whole log
    looks ahead: whatever stays is certain to come again. For comparison with published data sets only; 1
    removes nothing."""
    core: Literal["iterative", "authors"] = "iterative"
    """How the k-core is made. `authors`: one single pass, items first, then users, as in the paper's code."""
    count: Literal["interactions", "positives"] = "interactions"
    """Which rows count for the k-core."""
    duplicates: Literal["event", "pair", "keep"] = "event"
    """Of rows with the same user, item and time (`event`) or the same user and item (`pair`) one stays: the
    first, and of those at the same time the one with the highest label."""
    engine: Literal["duckdb", "spark"] = "duckdb"
    """Where the SQL runs."""
    master: str = "local[*]"
    """With engine spark: the cluster's address."""
    memory: str = "2GB"
    """What the engine may use; beyond it, it spills to disk."""


_NEVER = np.iinfo(np.int64).max  # the first positive of who has none
EVERYTHING = Preparation(duplicates="keep")


@configured(Reading)
def read(source: Any, reading: Reading) -> Log:
    """Read a log into memory: every row checked, nothing removed.

    `source` is a file, a folder, a pattern, or any table that Arrow understands (pandas, polars, Arrow
    itself); a folder that `prepare` made is opened as it is.
    """
    if isinstance(source, str | os.PathLike) and is_prepared(Path(source)):
        if reading != Reading():
            raise BadInput(
                f"{source}: a prepared folder is opened as it is; how to read it was said when it was made"
            )
        return Log.open(source)
    found = recognise(source, reading)
    with _engine(EVERYTHING, None) as engine, progress("read") as job:
        return _run(engine, check(engine, found, reading), found, EVERYTHING, in_memory, None, job)


@configured(Preparation)
def prepare(source: Any, out: str | os.PathLike[str], settings: Preparation) -> Log:
    """Prepare a log once, into the folder `out`, and open it. On any error `out` is as it was before."""
    for name in ("min_count", "k_core"):
        if getattr(settings, name) < 1:
            raise BadInput(f"{name} {getattr(settings, name)}: expected at least 1")
    target = Path(out).expanduser().resolve()
    found = recognise(source, settings)
    with new_folder(target) as folder, _engine(settings, folder) as engine, progress("prepare") as job:
        _run(engine, check(engine, found, settings), found, settings, on_disk(folder), folder, job)
    return Log.open(target)


@contextmanager
def _engine(settings: Preparation, folder: Path | None) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory(prefix=".engine.", dir=folder, ignore_cleanup_errors=True) as scratch:
        spark = settings.engine == "spark"
        engine: Engine = (
            Spark(settings.master, settings.memory, Path(scratch))
            if spark
            else DuckDB(settings.memory, Path(scratch))
        )
        try:
            yield engine
        finally:
            engine.close()


def _run(
    engine: Engine,
    checked: Checked,
    source: Source,
    settings: Preparation,
    new: NewArray,
    folder: Path | None,
    job: Job,
) -> Log:
    extras = "".join(
        f", {name}" for name in (*checked.extras, *(f"mark_{place}" for place in range(len(checked.marks))))
    )
    columns = f"u, i, t, y{extras}{', title' if checked.titled else ''}"
    job.advance(note="rows that stay")
    kept = engine.table("core", _first_of_duplicates(checked, settings, columns))
    removed: dict[str, int] = {"bad_rows": len(checked.bad_rows), "duplicates": checked.rows - kept}
    kept, removed["k_core"], removed["k_core_rounds"] = _core(engine, settings, columns, kept, job)

    job.advance(note="index")
    for table, key in (("users", "u"), ("items", "i")):
        title = ", title" if checked.titled and key == "i" else ""
        # Codes follow the first positive in time: what exists at any moment is then a prefix. Who never has
        # one comes last.
        engine.table(
            table,
            f"""SELECT id, CAST(row_number() OVER (ORDER BY first, seen, id) - 1 AS INT) AS code{title}
            FROM (
                SELECT {key} AS id, MIN(CASE WHEN y = 1 THEN t ELSE {_NEVER} END) AS first, MIN(t) AS seen
                    {", MIN(title) AS title" if title else ""}
                FROM core GROUP BY {key}
            ) AS firsts""",
        )
    users, items = (
        _vocabulary(engine, source, table, role) for table, role in (("users", "user"), ("items", "item"))
    )
    visits, numbered = "", extras
    if "visit" in checked.extras:
        engine.table(
            "visits",
            # By length first: numbers stay in order, so a log that is prepared again is the same.
            """SELECT id, CAST(row_number() OVER (ORDER BY length(id), id) - 1 AS BIGINT) AS code
            FROM (SELECT DISTINCT visit AS id FROM core WHERE visit IS NOT NULL) AS seen""",
        )
        visits, numbered = (
            " LEFT JOIN visits ON visit = visits.id",
            extras.replace(", visit", f", COALESCE(visits.code, {PAD}) AS visit"),
        )
    engine.table(
        "indexed",
        f"""SELECT users.code AS user_code, items.code AS item_code, t, y{numbered}
        FROM core JOIN users ON u = users.id JOIN items ON i = items.id{visits}""",
    )

    job.advance(note="sort by user")
    by_user = (
        f"SELECT user_code, item_code, t, y{extras} FROM indexed ORDER BY y DESC, user_code, t, "
        f"item_code{extras}"
    )
    wanted = COLUMNS | {name: EXTRAS[name] for name in checked.extras} | dict.fromkeys(checked.marks, np.int8)
    arrays = _fill(engine.batches(by_user), {name: new(name, dtype, kept) for name, dtype in wanted.items()})
    positives = int(np.count_nonzero(arrays["label"]))
    if not positives:
        there = f" Its labels are {labels_found(engine, source)}." if "label" in source.roles else ""
        raise BadInput(
            f"{source.name}: not one positive among {kept} rows; expected some: is --positive "
            f"{settings.positive} right?{there}"
        )

    job.advance(note="sort by item")
    by_item = "SELECT user_code, t, item_code FROM indexed WHERE y = 1 ORDER BY item_code, t, user_code"
    audience = {name: new(name, dtype, positives) for name, dtype in AUDIENCE.items()}
    per_item = np.zeros(len(items), np.int64)
    arrays |= _fill(_counted(engine.batches(by_item), per_item), audience)
    for name, offsets in (
        ("history_offsets", offsets_of(arrays["user"][:positives], len(users))),
        ("audience_offsets", np.concatenate([np.zeros(1, np.int64), np.cumsum(per_item)])),
    ):
        arrays[name] = new(name, np.int64, len(offsets))
        arrays[name][:] = offsets

    metadata = {
        "source": source.name,
        "rows": kept,
        "positives": positives,
        "users": len(users),
        "items": len(items),
        "extras": [*checked.extras, *checked.marks],
        "time_unit": source.origin.get("time_unit", checked.time_unit),
        "columns": {role: column.name for role, column in source.roles.items()},
        "removed": removed,
        "settings": dataclasses.asdict(settings),
        **({"origin": source.origin} if source.origin else {}),
    }
    if folder is not None:
        for array in arrays.values():
            if isinstance(array, np.memmap):
                array.flush()
        pq.write_table(users, folder / "users.parquet")
        pq.write_table(items, folder / "items.parquet")
        if checked.bad_rows:
            with (folder / "bad_rows.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, SIDE_FILE)
                writer.writeheader()
                writer.writerows(checked.bad_rows)
        save_metadata(folder, metadata)
    return assemble(arrays, users, items, metadata)


def _first_of_duplicates(checked: Checked, settings: Preparation, columns: str) -> str:
    """The first in time; at the same time, the one with the higher label: a click says more than its own
    impression."""
    if settings.duplicates == "keep":
        return checked.query
    key = "u, i, t" if settings.duplicates == "event" else "u, i"
    # Engines differ in where they put what is missing, so a missing visit is an empty one.
    values = ["COALESCE(visit, '')" if name == "visit" else name for name in checked.extras]
    values += [f"mark_{place} DESC" for place in range(len(checked.marks))]
    order = "".join(f", {name}" for name in (*values, *(["title"] if checked.titled else [])))
    numbered = (
        f"SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY t, y DESC{order}) AS place FROM "
        f"({checked.query}) AS good"
    )
    return f"SELECT {columns} FROM ({numbered}) AS placed WHERE place = 1"


def _core(engine: Engine, settings: Preparation, columns: str, rows: int, job: Job) -> tuple[int, int, int]:
    """Remove thin users and items from the table `core`: rows left, rows removed, rounds.

    Counting all rows again in each round is what makes a k-core slow; here each round counts only what the
    last one removed.
    """
    least, before, rounds = settings.k_core, rows, 0
    if least == 1:
        return rows, 0, 0
    counts = "WHERE y = 1" if settings.count == "positives" else ""
    if settings.core == "authors":
        for key in ("i", "u"):
            enough = f"SELECT {key} FROM core {counts} GROUP BY {key} HAVING count(*) >= {least}"
            rows = engine.table("core", f"SELECT {columns} FROM core WHERE {key} IN ({enough})")
        _complain_if_empty(rows, before, settings)
        return rows, before - rows, 1
    for key in ("u", "i"):
        everyone = f"SELECT {key} AS id, SUM({'y' if counts else '1'}) AS n FROM core GROUP BY {key}"
        engine.table(f"degree_{key}", everyone)
    while True:
        thin = sum(
            engine.table(f"thin_{key}", f"SELECT id FROM degree_{key} WHERE n < {least}")
            for key in ("u", "i")
        )
        if not thin:
            return rows, before - rows, rounds
        rounds += 1
        job.advance(note=f"k-core, round {rounds}: {rows:,} rows")
        thin_row = (
            "EXISTS (SELECT 1 FROM thin_u WHERE thin_u.id = core.u) OR EXISTS (SELECT 1 FROM thin_i "
            "WHERE thin_i.id = core.i)"
        )
        engine.table("gone", f"SELECT u, i FROM core WHERE ({thin_row}){' AND y = 1' if counts else ''}")
        rows = engine.table("core", f"SELECT {columns} FROM core WHERE NOT ({thin_row})")
        _complain_if_empty(rows, before, settings)
        for key in ("u", "i"):
            engine.table(
                f"degree_{key}",
                f"""SELECT d.id, d.n - COALESCE(lost.n, 0) AS n FROM degree_{key} AS d
                LEFT JOIN (SELECT {key} AS id, count(*) AS n FROM gone GROUP BY {key}) AS lost
                ON lost.id = d.id
                WHERE d.n >= {least}""",
            )


def _complain_if_empty(rows: int, before: int, settings: Preparation) -> None:
    if not rows:
        raise BadInput(
            f"k_core {settings.k_core} removes all {before} rows: no users and items with so many "
            f"{settings.count}; try a smaller one"
        )


def _fill(batches: Iterator[pa.RecordBatch], arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Pour batches into arrays, column by column in order."""
    place = 0
    for batch in batches:
        for (name, array), column in zip(arrays.items(), batch.columns, strict=False):
            if column.null_count:
                raise UnskewError(
                    f"column {name}: {column.null_count} values were lost on the way; this is a fault of "
                    "unskew"
                )
            array[place : place + len(column)] = column.to_numpy(zero_copy_only=False)
        place += batch.num_rows
    if any(len(array) != place for array in arrays.values()):
        raise UnskewError(
            f"{place} rows came of {len(next(iter(arrays.values())))}; this is a fault of unskew"
        )
    return arrays


def _counted(batches: Iterator[pa.RecordBatch], per_item: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        per_item += np.bincount(batch.column(2).to_numpy(), minlength=len(per_item))
        yield batch


def _vocabulary(engine: Engine, source: Source, table: str, role: str) -> pa.Table:
    """Ids in the order of their codes and in the type they came in, where the engine has types of its own."""
    vocabulary = engine.arrow(f"SELECT * FROM {table} ORDER BY code").drop_columns("code")
    column = source.roles[role]
    if len(vocabulary) == 1:
        only = vocabulary["id"][0].as_py()
        raise BadInput(
            f"{source.name}: one single {role}, {only!r}; expected at least two: is {column.name!r} the "
            f"column of the {role}?"
        )
    if column.ids is not None:
        return vocabulary.set_column(0, "id", column.ids.take(vocabulary["id"].combine_chunks()))
    if column.type is None:
        return vocabulary
    kind = column.type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    kind = (
        pa.string() if pa.types.is_string_view(kind) else kind
    )  # the same values in a layout that Arrow can index
    return vocabulary.set_column(0, "id", vocabulary["id"].cast(kind))
