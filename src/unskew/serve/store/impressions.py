"""What a store says about impressions, as tables in DuckDB: what was shown, what was positive, and the
propensity of both. The export of a log and the monitor read the same tables.

An impression is the set of items that were shown together: a recommendation that the store recorded, the
`impression` list of an event, or the events of a shown type that name the same recommendation. An item counts
once per impression. If the store recorded the recommendation, its propensity and position are used, and those
of the event are ignored.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from unskew.core.errors import UnskewError
from unskew.data.reading.engines import literal
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
    positives        user_id, impression_id, item_id, timestamp, propensity, exposed, position, unmatched (the
                     event names a recommendation of the store that lacks its user and item)

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
            connection.execute(_tables_sql(files, types, latest, extra))
            yield connection
    except (duckdb.Error, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UnskewError(f"{source.name}: {task} failed ({reason})") from error


def _tables_sql(files: list[Path], types: EventTypes, latest: int, extra: str) -> str:
    events, recommendations = (f"read_parquet({literal(str(file))})" for file in files)
    positive, shown = (", ".join(map(literal, names)) for names in types)
    return f"""
    CREATE VIEW all_events AS SELECT * FROM {events};
    CREATE VIEW all_recommendations AS SELECT * FROM {recommendations};
    CREATE VIEW recommendations AS
        SELECT *, model = '{FALLBACK}' OR starts_with(model, '{FALLBACK}:') AS fallback {extra}
        FROM all_recommendations WHERE timestamp <= {latest};
    CREATE VIEW events AS
        SELECT *, type IN ({positive}) AS positive, type IN ({shown}) AS shown, CASE
            WHEN recommendation_id IS NOT NULL THEN recommendation_id
            WHEN impression IS NOT NULL OR type IN ({shown}) THEN 'event ' || event_id
        END AS impression_id {extra}
        FROM all_events WHERE timestamp <= {latest};
    CREATE TABLE showings AS
        WITH recommended AS (
            SELECT user_id, recommendation_id AS impression_id, item.item_id AS item_id, timestamp,
                item.propensity AS propensity, item.exposed AS exposed, position
            FROM (
                SELECT * EXCLUDE (items), unnest(items) AS item, generate_subscripts(items, 1) AS position
                FROM recommendations
            ) AS listed
        ),
        reported AS (
            SELECT user_id, impression_id, item_id, timestamp, propensity, position, 1 AS source, sequence
            FROM events WHERE shown
            UNION ALL
            SELECT user_id, impression_id, item_id, timestamp, NULL, position, 2, sequence
            FROM (
                SELECT * EXCLUDE (impression, item_id, position), unnest(impression) AS item_id,
                    generate_subscripts(impression, 1) AS position
                FROM events WHERE impression IS NOT NULL
            ) AS listed
        ),
        -- An item counts once in an impression, by what is known best about it.
        distinct_reported AS (
            SELECT * FROM reported QUALIFY row_number() OVER (
                PARTITION BY user_id, impression_id, item_id ORDER BY source, timestamp, sequence, position
            ) = 1
        ),
        all_showings AS (
            SELECT *, TRUE AS recommended FROM recommended
            UNION ALL
            SELECT user_id, impression_id, item_id, timestamp, propensity, FALSE, position, FALSE
            FROM distinct_reported ANTI JOIN recommended USING (user_id, impression_id, item_id)
        ),
        answers AS (
            SELECT DISTINCT user_id, impression_id, item_id FROM events
            WHERE positive AND impression_id IS NOT NULL
        )
        SELECT s.*, a.item_id IS NOT NULL AS clicked {extra}
        FROM all_showings AS s LEFT JOIN answers AS a USING (user_id, impression_id, item_id);
    CREATE TABLE positives AS
        WITH matched AS (
            SELECT p.user_id, p.item_id, p.timestamp,
                CASE WHEN s.recommended THEN s.propensity ELSE coalesce(p.propensity, s.propensity) END
                    AS propensity,
                coalesce(s.exposed, FALSE) AS exposed,
                -- A user to whom something else was recommended was not shown this item.
                s.item_id IS NULL AND k.recommendation_id IS NOT NULL AS unmatched,
                CASE WHEN NOT unmatched THEN p.impression_id END AS impression_id,
                CASE WHEN s.recommended THEN s.position ELSE coalesce(p.position, s.position) END AS position
            FROM (SELECT * FROM events WHERE positive) AS p
            LEFT JOIN showings AS s ON s.user_id = p.user_id AND s.impression_id = p.impression_id
                AND s.item_id = p.item_id
            LEFT JOIN (SELECT DISTINCT recommendation_id FROM recommendations) AS k
                ON k.recommendation_id = p.recommendation_id
        )
        SELECT * {extra} FROM matched;
    """
