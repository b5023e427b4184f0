"""The log of a store, as one table that `prepare` reads: what was positive (label 1), and what was shown and
was not (label 0), each with the probability with which it was shown.

A row with label 1 is a positive event, at its own time. A row with label 0 is an item of a recommendation, of
an `impression` list, or of an event whose type says that it was shown, without a positive event of the same
user and item in the same impression. An impression is a recommendation; a list without one is an impression
of its own.

Where an item was recommended by the store's own record, that record is believed, and not what an event says
about its propensity and position.

`prepare` wants a value in every row. Where nothing is known, the row says so:

    propensity  1, so that it counts once, as in a log without propensities
    exposed     0, because it is not known to be random
    impression       null, which means that nobody knows whether the row was shown
    position    0; positions are counted from 1
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from unskew.core.atomic_files import FRAMES, check_free, save_frames
from unskew.core.errors import BadInput, UnskewError
from unskew.data.reading.engines import literal
from unskew.serve.store.tables import EVENTS, RECOMMENDATIONS, Kind

if TYPE_CHECKING:
    from unskew.serve.store.store import Store, Types

LOGGED = "test:logged"  # `prepare` makes a named test of such a column
MEMORY = "2GB"
ROWS = 100_000  # that are read and written together

SHOWN_COLUMNS = {"exposed": pa.int8(), "impression_id": pa.string(), "position": pa.int32()}
COLUMNS = {"user_id": pa.string(), "item_id": pa.string(), "timestamp": pa.timestamp("us", "UTC")}
COLUMNS |= {"label": pa.int8()}


@dataclass(frozen=True)
class Exported:
    """What was written, and how much of it has a known propensity."""

    file: Path
    rows: int
    positives: int
    shown: int  # rows of which it is known that they were shown
    logged: int  # rows with a known propensity
    unmatched: (
        int  # positives that name a recommendation of the store which does not have their user and item
    )


def export(store: "Store", out: Path, types: "Types") -> Exported:
    """Write the log of a store as one file; see `Store.export`."""
    file = out / "log.parquet" if out.is_dir() or not out.suffix else out
    if file.suffix not in FRAMES:
        raise BadInput(f"{out}: expected a folder, or a name that ends with {', '.join(FRAMES)}")
    check_free(file)
    with _scratch(out) as folder:
        _copied(EVENTS, store.events(batch=ROWS), folder)
        _copied(RECOMMENDATIONS, store.recommendations(batch=ROWS), folder)
        try:
            with duckdb.connect(config={"memory_limit": MEMORY, "temp_directory": str(folder)}) as connection:
                connection.execute(_query(folder, types))
                counts = connection.execute(COUNTS).fetchall()[0]
                rows, positives, shown, logged, unmatched = (int(count or 0) for count in counts)
                if not positives:
                    listed = ", ".join(types.positive)
                    raise BadInput(f"{store.name}: not one positive event ({listed}); nothing to export")
                save_frames(_frames(connection, shown > 0, logged, rows), file)
        except duckdb.Error as error:
            said = str(error).partition("\n")[0]
            raise UnskewError(f"{store.name}: the export failed ({said}); nothing was written") from None
    return Exported(file, rows, positives, shown, logged, unmatched)


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder for temporary files, on the disk that the output is on, if that is there already."""
    place = out.parent if out.parent.is_dir() else None
    try:
        scratch = tempfile.TemporaryDirectory(prefix=".export.", dir=place, ignore_cleanup_errors=True)
    except OSError as error:
        raise BadInput(f"{out}: cannot write there ({error.strerror})") from None
    with scratch as folder:
        yield Path(folder)


def _copied(kind: Kind, frames: Iterator[pa.Table], folder: Path) -> None:
    with pq.ParquetWriter(folder / f"{kind.name}.parquet", kind.schema) as writer:
        for frame in frames:
            writer.write_table(frame)


def _query(folder: Path, types: "Types") -> str:
    """SQL that makes the table of all rows."""
    events, recommendations = (
        f"read_parquet({literal(str(folder / kind.name) + '.parquet')})" for kind in (EVENTS, RECOMMENDATIONS)
    )
    positive, shown = (", ".join(map(literal, names)) for names in types)
    return f"""
    CREATE TABLE log AS
    WITH
    -- The impression of an event: the recommendation that it names, or else its own list.
    events AS (
        SELECT *, CASE
            WHEN recommendation_id IS NOT NULL THEN recommendation_id
            WHEN impression IS NOT NULL OR type IN ({shown}) THEN 'event ' || event_id
        END AS impression_id
        FROM {events}
    ),
    recommendations AS (SELECT * FROM {recommendations}),
    every_showing AS (
        SELECT user_id, recommendation_id AS impression_id, item.item_id AS item_id, timestamp,
            item.propensity AS propensity, item.exposed AS exposed, position, 0 AS source, sequence
        FROM (
            SELECT * EXCLUDE (items), unnest(items) AS item, generate_subscripts(items, 1) AS position
            FROM recommendations
        ) AS listed
        UNION ALL
        SELECT user_id, impression_id, item_id, timestamp, propensity, FALSE, position, 1, sequence
        FROM events WHERE type IN ({shown})
        UNION ALL
        SELECT user_id, impression_id, item_id, timestamp, NULL, FALSE, position, 2, sequence
        FROM (
            SELECT * EXCLUDE (impression, item_id, position), unnest(impression) AS item_id,
                generate_subscripts(impression, 1) AS position
            FROM events WHERE impression IS NOT NULL
        ) AS listed
    ),
    -- An item counts once in an impression, by what is known best about it.
    showings AS (
        SELECT * FROM every_showing
        QUALIFY row_number() OVER (
            PARTITION BY user_id, impression_id, item_id ORDER BY source, timestamp, sequence, position
        ) = 1
    ),
    positives AS (SELECT * FROM events WHERE type IN ({positive})),
    known AS (SELECT DISTINCT recommendation_id FROM recommendations),
    clicked AS (
        SELECT p.user_id, p.item_id, p.timestamp, 1 AS label,
            CASE WHEN s.source = 0 THEN s.propensity ELSE coalesce(p.propensity, s.propensity) END
                AS propensity,
            coalesce(s.exposed, FALSE) AS exposed,
            -- Whoever was recommended something else was not shown this.
            s.source IS NULL AND k.recommendation_id IS NOT NULL AS unmatched,
            CASE WHEN NOT unmatched THEN p.impression_id END AS impression_id,
            CASE WHEN s.source = 0 THEN s.position ELSE coalesce(p.position, s.position) END AS position
        FROM positives AS p
        LEFT JOIN showings AS s ON s.user_id = p.user_id AND s.impression_id = p.impression_id
            AND s.item_id = p.item_id
        LEFT JOIN known AS k ON k.recommendation_id = p.recommendation_id
    ),
    passed AS (
        SELECT user_id, item_id, timestamp, 0 AS label, propensity, exposed, FALSE, impression_id, position
        FROM showings AS s
        WHERE NOT EXISTS (
            SELECT 1 FROM positives AS p
            WHERE p.user_id = s.user_id AND p.impression_id = s.impression_id AND p.item_id = s.item_id
        )
    )
    SELECT * FROM clicked UNION ALL SELECT * FROM passed
    """


COUNTS = """SELECT count(*), sum(label), count(impression_id), count(propensity), count(*) FILTER (unmatched)
FROM log"""


def _frames(
    connection: duckdb.DuckDBPyConnection, any_shown: bool, logged: int, rows: int
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
        columns[LOGGED] = pa.int8()
        values[LOGGED] = "propensity IS NOT NULL"
    selected = ", ".join(
        f'CAST({values[name]} AS {_sql(kind)}) AS "{name}"' for name, kind in columns.items()
    )
    keys = "timestamp", "user_id", "item_id", "label DESC", "impression_id", "propensity", "position"
    order = ", ".join(f"log.{key}" for key in keys)
    schema = pa.schema(columns)
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
