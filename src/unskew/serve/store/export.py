"""The log of a store, as one table that `unskew prepare` reads.

A row with label 1 is a positive event, at its own time. A row with label 0 is an item that was shown
(`unskew.serve.store.impressions`) without a positive event of the same user and item in the same impression.

`prepare` wants a value in every row. Where nothing is known, a row has these values:

    propensity     1, so that it counts once, as in a log without propensities
    exposed        0, because it is not known to be random
    impression_id  null, which means that it is not known whether the row was shown
    position       0; positions are counted from 1
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from unskew.core.atomic_files import FRAMES, check_free, save_frames
from unskew.core.errors import BadInput
from unskew.data.log.erasures import list_beside
from unskew.data.log.folder import MARK, TYPE_COLUMN
from unskew.data.log.held_out import LOGGED
from unskew.data.reading.engines import literal
from unskew.data.reading.leave_out import EXPORTED
from unskew.serve.store.impressions import ROWS, EventSource, open_impressions
from unskew.serve.store.items import table_of
from unskew.serve.store.store import Store
from unskew.serve.store.tables import EventTypes

LOGGED_COLUMN = f"{MARK}{LOGGED}"  # `prepare` makes a named test of such a column
ORGANIC = "organic"  # the named test of positives that no recommendation chose
ORGANIC_COLUMN = f"{MARK}{ORGANIC}"

SHOWN_COLUMNS = {"exposed": pa.int8(), "impression_id": pa.string(), "position": pa.int32()}
COLUMNS = {"user_id": pa.string(), "item_id": pa.string(), "timestamp": pa.timestamp("us", "UTC")}
COLUMNS |= {"label": pa.int8()}


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes
    ----------
    file
        The file.
    rows, positives
        The number of rows, and of those with label 1.
    shown
        Rows that are known to have been shown.
    logged
        Rows with a known propensity.
    unmatched
        Positives that name a recommendation of the store which lacks their user and item.
    context
        Events of context types, which are no rows; `prepare` knows them by the column `context:type`.
    """

    file: Path
    rows: int
    positives: int
    shown: int
    logged: int
    unmatched: int
    context: int = 0


def export_log(source: EventSource, out: str | os.PathLike[str], types: EventTypes) -> Exported:
    """Write the log of a store as one file that `unskew prepare` reads.

    The columns are user_id, item_id, timestamp and label and, as far as anything is known of what was shown,
    propensity, exposed, impression_id and position. Label 1 is a positive event; label 0 was shown in the
    same impression and was not clicked. A row whose propensity is not known has propensity 1 and 0 in the
    column `test:logged`, so that `unskew evaluate --test logged` leaves it out. If the store recorded
    recommendations, the column `test:organic` is 1 for positives that no recommendation chose: those that
    answer none, and those whose item was drawn at random.

    Parameters
    ----------
    source
        An open store.
    out
        A folder, in which log.parquet is written, or a file: Parquet, CSV or JSON lines by its suffix.
    types
        The positive types of events and those that report a shown item, such as `store.types`.

    Returns
    -------
    Exported
        The file, and counts of its rows.
    """
    out = Path(out)
    file = out / "log.parquet" if out.is_dir() or not out.suffix else out
    if file.suffix not in FRAMES:
        raise BadInput(f"{out}: expected a folder, or a name that ends with {', '.join(FRAMES)}")
    check_free(file)
    parent = out.parent if out.parent.is_dir() else None
    try:
        scratch = tempfile.TemporaryDirectory(prefix=".export.", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise BadInput(f"{out}: cannot write there ({error.strerror})") from None
    with scratch, open_impressions(source, types, Path(scratch.name), "the export") as connection:
        listed = ", ".join(literal(kind) for kind in types.context) or "NULL"
        connection.execute(LOG.format(context=listed))
        counts = connection.execute(COUNTS).fetchall()[0]
        rows, positives, shown, logged, unmatched, recommended, context = (int(n or 0) for n in counts)
        if not positives:
            listed = ", ".join(types.positive)
            raise BadInput(f"{source.name}: not one positive event ({listed}); nothing to export")
        optional = {ORGANIC_COLUMN: recommended > 0, TYPE_COLUMN: context > 0}
        save_frames(_frames(connection, source.name, shown > 0, logged, rows, optional), file)
    return Exported(file, rows, positives, shown, logged, unmatched, context)


def export_items(store: Store, out: str | os.PathLike[str]) -> Path | None:
    """Write the item feed of a store as a file that `unskew prepare --items` reads, beside its log.

    Parameters
    ----------
    store
        An open store.
    out
        The folder or the file that `export_log` wrote the log to: the file is items.parquet beside it.

    Returns
    -------
    Path
        The file, or None if the store has no item feed.
    """
    if not store.state().items:
        return None
    out = Path(out)
    file = (out if out.is_dir() or not out.suffix else out.parent) / "items.parquet"
    table = table_of(store.items())
    save_frames(iter([table]), file)
    return file


LOG = """
CREATE TABLE log AS
    SELECT user_id, item_id, timestamp, 1 AS label, propensity, exposed, unmatched, impression_id, position,
        exposed OR NOT recommended AS organic, CAST(NULL AS VARCHAR) AS type
    FROM positives
    UNION ALL
    SELECT user_id, item_id, timestamp, 0, propensity, exposed, FALSE, impression_id, position, FALSE, NULL
    FROM showings WHERE NOT clicked
    UNION ALL
    SELECT user_id, item_id, timestamp, 0, NULL, FALSE, FALSE, NULL, NULL, FALSE, type
    FROM events WHERE type IN ({context})
"""
COUNTS = """SELECT count(*), sum(label), count(impression_id), count(propensity), count(*) FILTER (unmatched),
    (SELECT count(*) FROM recommendations), (SELECT count(*) FROM log WHERE type IS NOT NULL)
    FROM log WHERE type IS NULL"""


def _frames(
    connection: duckdb.DuckDBPyConnection,
    store: str,
    any_shown: bool,
    logged: int,
    rows: int,
    optional: dict[str, bool],
) -> Iterator[pa.Table]:
    """All rows in the order of time. Columns about which nothing is known are left out."""
    columns = dict(COLUMNS)
    values = {name: name for name in columns}
    if logged:
        columns["propensity"] = pa.float64()
        values["propensity"] = "coalesce(propensity, 1)"
    if any_shown:
        columns |= SHOWN_COLUMNS
        values |= {
            "exposed": "exposed",
            "impression_id": "impression_id",
            "position": "coalesce(position, 0)",
        }
    if 0 < logged < rows:
        columns[LOGGED_COLUMN] = pa.int8()
        values[LOGGED_COLUMN] = "propensity IS NOT NULL"
    if optional[ORGANIC_COLUMN]:
        columns[ORGANIC_COLUMN] = pa.int8()
        values[ORGANIC_COLUMN] = "organic"
    if optional[TYPE_COLUMN]:
        columns[TYPE_COLUMN] = pa.string()
        values[TYPE_COLUMN] = "type"
    selected = ", ".join(
        f'CAST({values[name]} AS {_sql(kind)}) AS "{name}"' for name, kind in columns.items()
    )
    keys = "timestamp", "user_id", "item_id", "label DESC", "impression_id", "propensity", "position", "type"
    order = ", ".join(f"log.{key}" for key in keys)
    metadata = (
        {} if "://" in store else {EXPORTED: str(list_beside(Path(store).expanduser().resolve())).encode()}
    )
    schema = pa.schema(columns, metadata=metadata)
    for batch in connection.sql(f"SELECT {selected} FROM log ORDER BY {order}").to_arrow_reader(ROWS):
        yield pa.table(
            [column.cast(kind) for column, kind in zip(batch.columns, schema.types, strict=True)],
            schema=schema,
        )


def _sql(kind: pa.DataType) -> str:
    """What DuckDB calls the type of a column on its way to Arrow."""
    if pa.types.is_timestamp(kind):
        return "BIGINT"
    return {pa.string(): "VARCHAR", pa.int8(): "TINYINT", pa.int32(): "INTEGER"}.get(kind, "DOUBLE")
