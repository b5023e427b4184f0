"""What a store says about impressions, as tables in DuckDB: what was shown, what was positive, and the
propensity of both. The export of a log and the monitor read the same tables.

An impression is the set of items that were shown together: a recommendation that the store recorded, the
`impression` list of an event, or the events of a shown type that name the same recommendation. An item counts
once per impression. If the store recorded the recommendation, its propensity and position are used, and those
of the event are ignored.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from unskew.core.errors import UnskewError
from unskew.data.reading.engines import literal
from unskew.report.templates import render
from unskew.serve.store.events import LATEST
from unskew.serve.store.tables import EVENTS, RECOMMENDATIONS, EventTypes

MEMORY = "1GB"
ROWS = 50_000  # that are read together
FALLBACK = "fallback"  # the model of a recommendation that no model made, alone or before a colon


class EventSource(Protocol):
    """A store, or a part of one."""

    name: str

    def events(self, *, batch: int) -> Iterator[pa.Table]:
        """The events as frames."""

    def recommendations(self, *, batch: int) -> Iterator[pa.Table]:
        """The recommendations as frames."""


@contextmanager
def open_impressions(
    source: EventSource,
    types: EventTypes,
    scratch: Path,
    task: str,
    latest: int = LATEST,
    extra: str = "",
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database with these tables. Everything is streamed into Parquet files first, so the memory does
    not grow with the number of events.

    all_events, all_recommendations  the rows of the source
    events           with impression_id, and whether the type is positive or shown
    recommendations  with fallback: whether no model made it
    showings         user_id, impression_id, item_id, timestamp, propensity, exposed, position, recommended
                     (the store recorded the recommendation), clicked
    positives        user_id, impression_id, item_id, timestamp, propensity, exposed, position, recommended
                     (it answers a recorded recommendation of this item to this user), unmatched (the event
                     names a recommendation of the store that lacks its user and item)

    scratch: a folder for temporary files.
    task: what is being done, for the error message.
    latest: rows with a later timestamp are only in the first two tables.
    extra: SQL of one more column of all other tables, computed from `timestamp`; it begins with a comma.
    """
    try:
        files = []
        for kind, frames in (
            (EVENTS, source.events(batch=ROWS)),
            (RECOMMENDATIONS, source.recommendations(batch=ROWS)),
        ):
            files.append(scratch / f"{kind.name}.parquet")
            with pq.ParquetWriter(files[-1], kind.schema) as writer:
                for frame in frames:
                    writer.write_table(frame)
        with duckdb.connect(config={"memory_limit": MEMORY, "temp_directory": str(scratch)}) as connection:
            events, recommendations = (f"read_parquet({literal(str(file))})" for file in files)
            positive, shown = (", ".join(map(literal, names)) for names in types[:2])
            sql = render(
                "serve/store/templates/impressions.sql",
                events=events,
                recommendations=recommendations,
                positive=positive,
                shown=shown,
                fallback=FALLBACK,
                latest=latest,
                extra=extra,
            )
            connection.execute(sql)
            yield connection
    except (duckdb.Error, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UnskewError(f"{source.name}: {task} failed ({reason})") from error


def query_table(connection: duckdb.DuckDBPyConnection, sql: str, values: Sequence[Any] = ()) -> pa.Table:
    """The rows of a query as an Arrow table."""
    return connection.sql(sql, params=list(values)).to_arrow_table()
