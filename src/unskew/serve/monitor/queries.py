"""The tables of a monitor: the events and recommendations of a store, gathered by window of time in DuckDB.

Everything is streamed from the store into Parquet files in a scratch folder and aggregated from there, so the
memory that is needed depends on the number of users and items, and not on the number of events.

What counts as shown, and which propensity a positive has, is the same as in `Store.export`; a test compares
the two.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from unskew.core.errors import UnskewError
from unskew.data.reading.engines import literal
from unskew.serve.store.tables import EVENTS, RECOMMENDATIONS, Kind

if TYPE_CHECKING:
    from unskew.serve.store.store import Store, Types

MEMORY = "1GB"
ROWS = 50_000  # that are read together
MONDAY = 4 * 86_400 * 10**6  # 1970-01-05, the first Monday that has a timestamp
FALLBACK = "fallback"  # the model of a recommendation that no model made, alone or before a colon

PAST_ITEMS = pa.schema([("item_id", pa.string()), ("first", pa.int64()), ("positives", pa.int64())])
PAST_USERS = pa.schema([("user_id", pa.string()), ("first", pa.int64())])


class Past(Protocol):
    """What is known of the time before the store, such as what a run remembers, and who wants to know what
    came since."""

    def items(self, before: int) -> pa.Table:
        """`PAST_ITEMS`: of each item the time of its first positive, and how many positives it had before a
        time, in microseconds."""

    def users(self) -> pa.Table:
        """`PAST_USERS`: of each user the time of the first positive."""

    def follow(self, positives: Iterator[pa.RecordBatch]) -> None:
        """Take the positives of the store: user_id, item_id, timestamp."""


class Calendar(NamedTuple):
    """How time is cut into windows, in microseconds. Weeks begin on Monday and days at midnight, in UTC;
    in general windows are counted from a Monday, so that they stay where they are as the store goes on."""

    length: int

    @property
    def shift(self) -> int:
        """What a time must be moved by, so that windows begin at multiples of their length."""
        return -MONDAY % self.length

    def number(self, time: int) -> int:
        """The number of the window that a time is in."""
        return (time + self.shift) // self.length

    def start(self, number: int) -> int:
        """When a window begins."""
        return number * self.length - self.shift

    def sql(self, column: str) -> str:
        """The number of the window, as SQL."""
        return f"(({column} + {self.shift}) // {self.length})"


class Stored(NamedTuple):
    """What a store holds as a whole. Times are None in an empty store."""

    events: int
    recommendations: int
    first: int | None
    last: int | None
    future: int  # events and recommendations that are left out, because they are later than they can be
    fallbacks: int
    shown: int
    logged: int  # positives with a logged propensity
    unmatched: int  # positives that name a recommendation without their user and item


@contextmanager
def gathered(
    store: "Store", types: "Types", calendar: Calendar, latest: int, past: Past | None
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Stored]]:
    """Open a database with the tables of a monitor.

    latest: the last moment that can have happened already; what is later has a wrong clock.

    events     sequence, user_id, item_id, timestamp, window, positive
    showings   each item that was shown, once per impression_id: recommended (whether by a recommendation of
               the store), propensity, exposed, clicked, code, window
    positives  each positive event, with the propensity that was logged: code, window
    items      item_id, code from 0 on, first (the time of its first positive, null if it has none), own
               (the same in this store alone), before (positives before the store began)
    users      user_id, first, own
    """
    try:
        with tempfile.TemporaryDirectory(prefix="unskew-monitor.", ignore_cleanup_errors=True) as scratch:
            folder = Path(scratch)
            _copied(EVENTS, store.events(batch=ROWS), folder)
            _copied(RECOMMENDATIONS, store.recommendations(batch=ROWS), folder)
            with duckdb.connect(config={"memory_limit": MEMORY, "temp_directory": scratch}) as connection:
                connection.execute(_views(folder, types, calendar, latest))
                connection.execute(SHOWINGS)
                connection.execute(POSITIVES)
                _identities(connection, past)
                yield connection, _stored(connection, latest)
    except OSError as error:
        raise UnskewError(f"{store.name}: the scratch folder cannot be used ({error.strerror})") from error
    except duckdb.Error as error:
        said = str(error).partition("\n")[0]
        raise UnskewError(f"{store.name}: the figures could not be gathered ({said})") from error


def _copied(kind: Kind, frames: Iterator[pa.Table], folder: Path) -> None:
    with pq.ParquetWriter(folder / f"{kind.name}.parquet", kind.schema) as writer:
        for frame in frames:
            writer.write_table(frame)


def _views(folder: Path, types: "Types", calendar: Calendar, latest: int) -> str:
    files = [
        f"read_parquet({literal(f'{folder / kind.name}.parquet')})" for kind in (EVENTS, RECOMMENDATIONS)
    ]
    positive, shown = (", ".join(map(literal, names)) for names in types)
    window = calendar.sql("timestamp")
    return f"""
    CREATE VIEW all_events AS SELECT * FROM {files[0]};
    CREATE VIEW all_recommendations AS SELECT * FROM {files[1]};
    CREATE VIEW recommendations AS
        SELECT *, {window} AS "window", model = '{FALLBACK}' OR starts_with(model, '{FALLBACK}:') AS fallback
        FROM all_recommendations WHERE timestamp <= {latest};
    CREATE VIEW events AS
        SELECT *, {window} AS "window", type IN ({positive}) AS positive, type IN ({shown}) AS shown, CASE
            WHEN recommendation_id IS NOT NULL THEN recommendation_id
            WHEN impression IS NOT NULL OR type IN ({shown}) THEN 'event ' || event_id
        END AS impression_id
        FROM all_events WHERE timestamp <= {latest};
    """


SHOWINGS = """
CREATE TABLE recommended AS
    SELECT user_id, recommendation_id AS impression_id, item.item_id AS item_id, timestamp, "window",
        item.propensity AS propensity, item.exposed AS exposed
    FROM (SELECT * EXCLUDE (items), unnest(items) AS item FROM recommendations) AS listed;
CREATE TABLE showings AS
    WITH told AS (
        SELECT user_id, impression_id, item_id, timestamp, "window", propensity, position, 1 AS source,
            sequence
        FROM events WHERE shown
        UNION ALL
        SELECT user_id, impression_id, item_id, timestamp, "window", NULL, position, 2, sequence
        FROM (
            SELECT * EXCLUDE (impression, item_id, position), unnest(impression) AS item_id,
                generate_subscripts(impression, 1) AS position
            FROM events WHERE impression IS NOT NULL
        ) AS listed
    ),
    once AS (
        SELECT * FROM told QUALIFY row_number() OVER (
            PARTITION BY user_id, impression_id, item_id ORDER BY source, timestamp, sequence, position
        ) = 1
    ),
    all_showings AS (
        SELECT *, TRUE AS recommended FROM recommended
        UNION ALL
        SELECT user_id, impression_id, item_id, timestamp, "window", propensity, FALSE, FALSE
        FROM once ANTI JOIN recommended USING (user_id, impression_id, item_id)
    ),
    answers AS (
        SELECT DISTINCT user_id, impression_id, item_id FROM events
        WHERE positive AND impression_id IS NOT NULL
    )
    SELECT s.*, a.item_id IS NOT NULL AS clicked
    FROM all_showings AS s LEFT JOIN answers AS a
        ON s.user_id = a.user_id AND s.impression_id = a.impression_id AND s.item_id = a.item_id;
DROP TABLE recommended;
"""

POSITIVES = """
CREATE TABLE positives AS
    SELECT p.item_id, p.timestamp, p."window",
        CASE WHEN s.recommended THEN s.propensity ELSE coalesce(p.propensity, s.propensity) END AS propensity,
        s.item_id IS NULL AND k.recommendation_id IS NOT NULL AS unmatched
    FROM (SELECT * FROM events WHERE positive) AS p
    LEFT JOIN showings AS s ON s.user_id = p.user_id AND s.impression_id = p.impression_id
            AND s.item_id = p.item_id
    LEFT JOIN (SELECT DISTINCT recommendation_id FROM recommendations) AS k
        ON k.recommendation_id = p.recommendation_id;
"""


def _identities(connection: duckdb.DuckDBPyConnection, past: Past | None) -> None:
    """Number the items, and say since when there are users and items."""
    began = connection.execute("SELECT min(timestamp) FROM events").fetchall()[0][0]
    nothing = np.iinfo(np.int64).max
    past_items = PAST_ITEMS.empty_table() if past is None else past.items(nothing if began is None else began)
    past_users = PAST_USERS.empty_table() if past is None else past.users()
    connection.register("past_items", past_items)
    connection.register("past_users", past_users)
    connection.execute("""
    CREATE TABLE items AS
        SELECT item_id, CAST(row_number() OVER (ORDER BY item_id) - 1 AS INTEGER) AS code,
            min("first") AS "first", min(own) AS own, CAST(sum("before") AS BIGINT) AS "before"
        FROM (
            SELECT item_id, min(timestamp) AS "first", min(timestamp) AS own, 0 AS "before"
            FROM positives GROUP BY item_id
            UNION ALL SELECT DISTINCT item_id, NULL, NULL, 0 FROM showings
            UNION ALL SELECT item_id, "first", NULL, positives FROM past_items
        ) AS every GROUP BY item_id;
    CREATE TABLE users AS
        SELECT user_id, min("first") AS "first", min(own) AS own
        FROM (
            SELECT user_id, min(timestamp) AS "first", min(timestamp) AS own FROM events GROUP BY user_id
            UNION ALL SELECT user_id, "first", NULL FROM past_users
        ) AS every GROUP BY user_id;
    """)


def _stored(connection: duckdb.DuckDBPyConnection, latest: int) -> Stored:
    found = connection.execute(f"""
    SELECT
        (SELECT count(*) FROM all_events WHERE timestamp <= {latest}),
        (SELECT count(*) FROM recommendations),
        (SELECT min(timestamp) FROM (SELECT timestamp FROM events UNION ALL FROM (
            SELECT timestamp FROM recommendations))),
        (SELECT max(timestamp) FROM (SELECT timestamp FROM events UNION ALL FROM (
            SELECT timestamp FROM recommendations))),
        (SELECT count(*) FROM all_events WHERE timestamp > {latest})
            + (SELECT count(*) FROM all_recommendations WHERE timestamp > {latest}),
        (SELECT count(*) FROM recommendations WHERE fallback),
        (SELECT count(*) FROM showings),
        (SELECT count(propensity) FROM positives),
        (SELECT count(*) FROM positives WHERE unmatched)
    """).fetchall()[0]
    return Stored(*found)
