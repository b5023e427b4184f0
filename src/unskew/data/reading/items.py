"""Reading an item feed: a file or a table with a row per item, or per item and time.

The column of the item has its usual name, as in a log; every other column is a feature, but for the title and
the time.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unskew.core.atomic_files import beside
from unskew.core.errors import BadInput
from unskew.data.log.arrays import Ints
from unskew.data.log.clock import Clock
from unskew.data.log.folder import (
    AUDIENCE,
    COLUMNS,
    EXTRAS,
    OFFSETS,
    VIEW_PARTS,
    column_file,
    context_column,
    save_metadata,
)
from unskew.data.log.item_feed import ItemFeed, with_items
from unskew.data.log.log import Log
from unskew.data.reading.columns import ALIASES
from unskew.data.reading.engines import DuckDB, literal
from unskew.data.reading.features import typed_texts
from unskew.data.reading.files import suffix

READERS = {
    ".csv": "read_csv({}, header = true, all_varchar = true)",
    ".tsv": "read_csv({}, header = true, all_varchar = true, delim = '\t')",
    ".parquet": "read_parquet({})",
    ".jsonl": "read_json({}, format = 'newline_delimited')",
    ".ndjson": "read_json({}, format = 'newline_delimited')",
}
MICROSECONDS = 10**6


def read_item_table(source: Any) -> pa.Table:
    """The rows of a file of items, or of any table that Arrow understands. In text files, columns in which
    every value looks like a number are numbers, but ids are text."""
    if not isinstance(source, str | os.PathLike):
        return source if isinstance(source, pa.Table) else pa.table(source)
    file = Path(source)
    if not file.is_file():
        raise BadInput(f"{file}: no such file of items", field="items")
    if suffix(file) not in READERS:
        raise BadInput(f"{file}: expected a name that ends with {', '.join(READERS)}", field="items")
    with tempfile.TemporaryDirectory(prefix="unskew.") as scratch:
        engine = DuckDB("1GB", Path(scratch))
        try:
            table = engine.arrow(f"SELECT * FROM {READERS[suffix(file)].format(literal(str(file)))}")
        finally:
            engine.close()
    if suffix(file) in (".csv", ".tsv"):
        ids = column_of_items(table, str(file))
        for place, name in enumerate(table.column_names):
            if name != ids:
                table = table.set_column(place, name, typed_texts(table[name].combine_chunks()))
    return table


def read_items(
    source: Any, clock: Clock, kind: pa.DataType, *, item: str | None = None, time: str | None = None
) -> ItemFeed:
    """Read an item feed.

    Parameters
    ----------
    source
        A file (CSV, Parquet or JSON lines), or any table that Arrow understands.
    clock
        The clock of the log.
    kind
        The type of the ids of the log's items.
    item, time
        The names of the columns of the item and of the time. Without one of times, all values were known all
        the time.

    Returns
    -------
    ItemFeed
        The feed, whose times are ticks of the clock.
    """
    table, name = read_item_table(source), str(source) if isinstance(source, str | os.PathLike) else "items"
    columns = {column: table[column].combine_chunks() for column in table.column_names}
    ids = columns.pop(column_of_items(table, name, item))
    if ids.null_count:
        raise BadInput(f"{name}: {ids.null_count:,} rows have no item", field="items")
    if pa.types.is_string(kind) and not pa.types.is_string(ids.type):
        ids = ids.cast(pa.string())
    if time is not None and time not in columns:
        listed = ", ".join(map(repr, columns))
        raise BadInput(
            f"{name}: no column {time!r} for the time; its columns are {listed}", field="items_time"
        )
    ticks = None if time is None else _ticks(columns.pop(time), clock, f"{name}, column {time!r}")
    title = next((column for column in columns if column.lower() == "title"), None)
    titles = None if title is None else columns.pop(title)
    wrong = next((column for column, values in columns.items() if _is_no_feature(values.type)), None)
    if wrong is not None:
        raise BadInput(
            f"{name}, column {wrong!r}: expected plain values; write several tags as text, Crime|Drama",
            field="items",
        )
    return ItemFeed(ids, ticks, titles, columns)


def add_items(folder: Path, feed: Callable[[Log], ItemFeed]) -> None:
    """Add an item feed to a prepared folder, file by file. The folder is not in use yet."""
    before = Log.open(folder)
    log = with_items(before, feed(before))
    arrays: dict[str, Any] = {name: getattr(log, name) for name in (*COLUMNS, *EXTRAS)}
    view = log.audiences
    arrays |= dict(zip((*AUDIENCE, OFFSETS[1]), (view.ids, view.times, view.offsets), strict=True))
    arrays["item_since"] = view.listed
    for kind, views in log.context.items():
        sides = views.histories, views.audiences
        parts = (
            part for side in sides for part in (side.ids, side.times, np.append(side.starts, len(side.ids)))
        )
        arrays |= {context_column(kind, name): part for name, part in zip(VIEW_PARTS, parts, strict=True)}
    types = {context_column(kind, name): VIEW_PARTS[name] for kind in log.context for name in VIEW_PARTS} | {
        **COLUMNS,
        **EXTRAS,
        **AUDIENCE,
        OFFSETS[1]: np.int64,
        "item_since": np.int64,
    }
    for name, array in arrays.items():
        if array is not None:
            with beside(column_file(folder, name)) as path, path.open("wb") as stream:
                np.save(stream, np.asarray(array, types[name]))
    pq.write_table(log.items.table(), folder / "items.parquet")
    save_metadata(folder, log.metadata)


def column_of_items(table: pa.Table, name: str, given: str | None = None) -> str:
    """The name of the column of the items: as it is given, or a usual one."""
    listed = ", ".join(map(repr, table.column_names))
    if given is not None:
        if given not in table.column_names:
            raise BadInput(f"{name}: no column {given!r}; its columns are {listed}", field="item")
        return given
    simple = {column.lower(): column for column in reversed(table.column_names)}
    usual = next((simple[alias] for alias in (*ALIASES["item"].split(), "id") if alias in simple), None)
    if usual is None:
        raise BadInput(f"{name}: no column such as item_id; its columns are {listed}", field="items")
    return usual


def _is_no_feature(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _ticks(values: pa.Array, clock: Clock, name: str) -> Ints:
    """Times in ticks of a clock: numbers are ticks, and dates are moments."""
    if values.null_count:
        raise BadInput(f"{name}: {values.null_count:,} rows have no time", field="items_time")
    if pa.types.is_integer(values.type):
        return np.asarray(values.to_numpy(zero_copy_only=False), np.int64)
    if pa.types.is_temporal(values.type):
        kind = pa.timestamp("us", getattr(values.type, "tz", None))
        moments = values.cast(kind, safe=False).cast(pa.int64()).to_numpy(zero_copy_only=False).tolist()
        return np.array([clock.tick_of(moment) for moment in moments], np.int64)
    if not pa.types.is_string(values.type):
        raise BadInput(f"{name}: expected times, found {values.type}", field="items_time")
    distinct = pc.unique(values)
    try:
        ticks = np.array([clock.moment(text) for text in distinct.to_pylist()], np.int64)
    except BadInput as error:
        raise BadInput(f"{name}: {error}", field="items_time") from None
    return ticks[pc.index_in(values, value_set=distinct).to_numpy()]
