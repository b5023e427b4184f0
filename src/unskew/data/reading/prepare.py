"""Prepare a log: remove duplicates, apply the k-core, number users and items, and sort.

The SQL is the same for DuckDB and Spark, and its result becomes flat columns that are mapped into memory.
Everything is sorted by values only, and ties are always broken, so the result depends on nothing but the
rows: not on their order in a file, on threads, on partitions or on the engine.
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

from unskew.core.config import configured
from unskew.core.errors import BadInput, UnskewError
from unskew.core.progress import Job, progress
from unskew.data.log.folder import (
    NewArray,
    assemble,
    in_memory,
    is_prepared,
    new_folder,
    on_disk,
    save_metadata,
)
from unskew.data.log.log import AUDIENCE, COLUMNS, EXTRAS, Log
from unskew.data.log.views import PAD, offsets_of
from unskew.data.reading.bad_rows import SIDE_FILE
from unskew.data.reading.checks import Checked, check, labels_found
from unskew.data.reading.columns import Reading, Source
from unskew.data.reading.engines import DuckDB, Engine, Spark
from unskew.data.reading.features import plain, with_features
from unskew.data.reading.formats import recognise


@dataclass(frozen=True, kw_only=True)
class Preparation(Reading):
    """How a log is prepared: how it is read, and which rows stay."""

    min_count: int = 1
    """Users and items with fewer positives in the training set are unknown to every model: they share one
    learned vector. No row is removed. The number is stored with the data as the default of `split` and
    `train`, which know the training set."""
    borders: str | None = None
    """Two of the named tests (`--tests`) between a comma, VALID,TEST, with whose first rows the validation
    part and the test set begin. It is stored with the data as the default of `split` and `train`."""
    k_core: int = 1
    """Remove users and items with fewer interactions than this, again and again until none is left. Such a
    filter over the whole log looks into the future, because whatever stays is certain to come again. Use it
    only for comparison with published data sets; 1 removes nothing."""
    core: Literal["iterative", "authors"] = "iterative"
    """How the k-core is made: `iterative` repeats until nothing changes; `authors` makes one single pass,
    first over the items, then over the users, as the paper's code does."""
    count: Literal["interactions", "positives"] = "interactions"
    """Which rows are counted for the k-core: all interactions, or positives only."""
    duplicates: Literal["event", "pair", "keep"] = "event"
    """Which rows are duplicates, of which one is kept: rows with the same user, item and time (`event`), rows
    with the same user and item (`pair`), or none (`keep`). The earliest is kept, and of several at that time
    the one with the highest label."""
    engine: Literal["duckdb", "spark"] = "duckdb"
    """The engine that runs the SQL: `duckdb` on this machine, or `spark` on a cluster."""
    master: str = "local[*]"
    """The address of the Spark cluster."""
    memory: str = "2GB"
    """The memory that the engine may use. Whatever does not fit is written to temporary files."""


_NEVER = np.iinfo(np.int64).max  # the time of the first positive, where there is none
EVERYTHING = Preparation(duplicates="keep")


@configured(Reading)
def read(source: Any, reading: Reading) -> Log:
    """Read a log into memory. Every row is checked, and none is removed.

    `source` is a file, a folder, a pattern such as `logs/*.csv`, or any table that Arrow understands (of
    pandas, polars or Arrow itself). A folder that `prepare` made is opened as it is.
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
    """Prepare a log once, write it into the folder `out`, and open it. `source` is what `read` takes. After
    an error, `out` is as it was before."""
    for name in ("min_count", "k_core"):
        if getattr(settings, name) < 1:
            raise BadInput(f"{name} {getattr(settings, name)}: expected at least 1")
    target = Path(out).expanduser().resolve()
    found = recognise(source, settings)
    with new_folder(target) as folder, _engine(settings, folder) as engine, progress("prepare") as job:
        made = _run(engine, check(engine, found, settings), found, settings, on_disk(folder), folder, job)
        if settings.borders is not None:
            made.named_borders(settings.borders)
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
    """All steps from checked rows to a log. `new` makes the arrays of the log, and `folder` is where the rest
    of it is written; without one, the log stays in memory."""
    extras = "".join(
        f", {name}" for name in (*checked.extras, *(f"mark_{place}" for place in range(len(checked.marks))))
    )
    columns = f"u, i, t, y{extras}{', title' if checked.titled else ''}"
    job.advance(note="rows that stay")
    kept = engine.table("core", _first_of_duplicates(checked, settings, columns))
    removed: dict[str, int] = {"bad_rows": len(checked.bad_rows), "duplicates": checked.rows - kept}
    kept, removed["k_core"], removed["k_core_iterations"] = _core(engine, settings, columns, kept, job)

    job.advance(note="index")
    for table, key in (("users", "u"), ("items", "i")):
        title = ", title" if checked.titled and key == "i" else ""
        # Codes follow the first positive in time, so that what exists at any moment is a prefix. Users and
        # items without a positive come last.
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
    if checked.titled and items["title"].null_count == len(items):
        items = items.drop_columns("title")
    features: dict[str, Any] = {}
    if checked.described is not None:
        job.advance(note="features")
        engine.table("described", checked.described)
        users, features["users"] = with_features(engine, users, "user", source)
        items, features["items"] = with_features(engine, items, "item", source)
    impressions, numbered = "", extras
    if "impression_id" in checked.extras:
        engine.table(
            "impressions",
            # Sorted by length first, numbers keep their order, and a log that is prepared again is the same.
            """SELECT id, CAST(row_number() OVER (ORDER BY length(id), id) - 1 AS BIGINT) AS code
            FROM (SELECT DISTINCT impression_id AS id FROM core WHERE impression_id IS NOT NULL) AS seen""",
        )
        impressions, numbered = (
            " LEFT JOIN impressions ON impression_id = impressions.id",
            extras.replace(", impression_id", f", COALESCE(impressions.code, {PAD}) AS impression_id"),
        )
    engine.table(
        "indexed",
        f"""SELECT users.code AS user_code, items.code AS item_code, t, y{numbered}
        FROM core JOIN users ON u = users.id JOIN items ON i = items.id{impressions}""",
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
        **({"features": features} if features else {}),
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
    """SQL of the rows without duplicates. Of several at the same time, the one with the highest label stays,
    because a click says more than its own impression."""
    if settings.duplicates == "keep":
        return checked.query
    key = "u, i, t" if settings.duplicates == "event" else "u, i"
    # Engines sort missing values differently, so a missing impression becomes an empty one, and missing
    # titles are put last.
    values = ["COALESCE(impression_id, '')" if name == "impression_id" else name for name in checked.extras]
    values += [f"mark_{place} DESC" for place in range(len(checked.marks))]
    if checked.titled:
        values += ["CASE WHEN title IS NULL THEN 1 ELSE 0 END", "title"]
    order = "".join(f", {name}" for name in values)
    numbered = (
        f"SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY t, y DESC{order}) AS place FROM "
        f"({checked.query}) AS good"
    )
    return f"SELECT {columns} FROM ({numbered}) AS placed WHERE place = 1"


def _core(engine: Engine, settings: Preparation, columns: str, rows: int, job: Job) -> tuple[int, int, int]:
    """Remove users and items with too few rows from the table `core`. Returns the numbers of rows left, of
    rows removed, and of epochs.

    A k-core is slow if every epoch counts all rows again. Here each epoch counts only the rows that the
    epoch before removed.
    """
    least, before, epochs = settings.k_core, rows, 0
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
            return rows, before - rows, epochs
        epochs += 1
        job.advance(note=f"k-core, epoch {epochs}: {rows:,} rows")
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
    """Copy batches into arrays. The columns of a batch are in the order of the arrays."""
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
    """Pass the batches on, and add up in `per_item` how many rows each item has."""
    for batch in batches:
        per_item += np.bincount(batch.column(2).to_numpy(), minlength=len(per_item))
        yield batch


def _vocabulary(engine: Engine, source: Source, table: str, role: str) -> pa.Table:
    """The ids, and maybe titles, in the order of their codes. Ids get back the type that they had in the
    source."""
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
    return vocabulary.set_column(0, "id", vocabulary["id"].cast(plain(column.type)))
