"""The tables of a store, which are the same in SQLite and in PostgreSQL.

unskew_meta             the version of these tables, the settings, counters, and the list of erased users
unskew_events           one row for each event that is not compacted yet
unskew_recommendations  one row for each recommendation that is not compacted yet
unskew_items            one row for each thing that an item feed said
unskew_events_keys, unskew_recommendations_keys, unskew_items_keys
                        a hash of every key that was ever stored, compacted or not, and its sequence number
unskew_segments         the Parquet files that hold what is compacted
unskew_pending          Parquet files that are being written, or are to be removed

SQL is written with `?` for parameters; lists are JSON in a column of text.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa

from unskew.data.log.erasures import Erasures
from unskew.serve.store.events import Event, Recommendation, Shown

SCHEMA = 4  # the version of the tables; it is raised when an older reader would misread them
POSITIVE = ("click", "purchase")  # the types of events that are positive, unless the store says otherwise
SHOWN = ("impression",)  # the types of events that say that their item was shown
CONTEXT = ("view", "cart")  # the types of events that models may read and that are not predicted

ITEMS = pa.list_(pa.struct([("item_id", pa.string()), ("propensity", pa.float64()), ("exposed", pa.bool_())]))


class EventTypes(NamedTuple):
    """What the types of events mean: which are positive, which report that their item was shown, and which
    are read by models and not predicted."""

    positive: tuple[str, ...]
    shown: tuple[str, ...]
    context: tuple[str, ...] = ()

    def declares(self, kind: str) -> bool:
        """Whether a type is one of them."""
        return any(kind in types for types in self)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of rows that a store keeps. The columns of its table are those of the schema."""

    name: str
    key: str  # the column with the caller's own key
    schema: pa.Schema
    packed: str  # the column that is a list
    indexed: str = "user_id"  # the column by which rows are looked up

    @property
    def table(self) -> str:
        """The name of its table."""
        return f"unskew_{self.name}"

    @property
    def keys(self) -> str:
        """The name of the table of its keys."""
        return f"unskew_{self.name}_keys"

    @property
    def columns(self) -> str:
        """The names of its columns, for SQL."""
        return ", ".join(self.schema.names)

    @property
    def inserting(self) -> str:
        """SQL that stores one row."""
        marks = ", ".join("?" * len(self.schema))
        return f"INSERT INTO {self.table} ({self.columns}) VALUES ({marks})"

    def frame(self, rows: Sequence[Sequence[Any]]) -> pa.Table:
        """Rows of the table as an Arrow table."""
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(self.schema)
        arrays = [
            pa.array(map(_unpacked, column) if field.name == self.packed else column, field.type)
            for field, column in zip(self.schema, columns, strict=True)
        ]
        return pa.table(arrays, schema=self.schema)


EVENTS = Kind(
    "events",
    "event_id",
    pa.schema(
        [
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("event_id", pa.string(), nullable=False),
            pa.field("user_id", pa.string(), nullable=False),
            pa.field("item_id", pa.string(), nullable=False),
            pa.field("type", pa.string(), nullable=False),
            pa.field("timestamp", pa.int64(), nullable=False),
            ("recommendation_id", pa.string()),
            ("impression", pa.list_(pa.string())),
            ("propensity", pa.float64()),
            ("position", pa.int32()),
        ]
    ),
    "impression",
)
RECOMMENDATIONS = Kind(
    "recommendations",
    "recommendation_id",
    pa.schema(
        [
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("recommendation_id", pa.string(), nullable=False),
            pa.field("user_id", pa.string(), nullable=False),
            pa.field("timestamp", pa.int64(), nullable=False),
            pa.field("model", pa.string(), nullable=False),
            pa.field("version", pa.string(), nullable=False),
            pa.field("items", ITEMS, nullable=False),
            ("variant", pa.string()),
            ("took_ms", pa.float64()),
        ]
    ),
    "items",
)
ITEM_FEED = Kind(
    "items",
    "row_id",
    pa.schema(
        [
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("row_id", pa.string(), nullable=False),
            pa.field("item_id", pa.string(), nullable=False),
            pa.field("timestamp", pa.int64(), nullable=False),
            pa.field("document", pa.string(), nullable=False),
        ]
    ),
    "",
    "item_id",
)
OF_USERS = (EVENTS, RECOMMENDATIONS)  # which are compacted, and erased by user
KINDS = (*OF_USERS, ITEM_FEED)


class Dialect(NamedTuple):
    """What a database calls the types of columns.

    types: all but those of lists, which are text.
    binary: the type of bytes.
    keyed: the end of the definition of a table that is looked up by its key alone.
    """

    types: dict[pa.DataType, str]
    binary: str
    keyed: str


def definitions(dialect: Dialect) -> Iterator[str]:
    """SQL that makes all tables of an empty store."""
    types, binary, keyed = dialect
    text, whole = types[pa.string()], types[pa.int64()]
    yield f"CREATE TABLE unskew_meta (name {text} PRIMARY KEY, value {text} NOT NULL)"
    for kind in KINDS:
        columns = [
            f"{field.name} {types.get(field.type, text)}{'' if field.nullable else ' NOT NULL'}"
            for field in kind.schema
        ]
        yield f"CREATE TABLE {kind.table} ({', '.join(columns)}, PRIMARY KEY (sequence))"
        index = f"{kind.table}_{kind.indexed.removesuffix('_id')}"
        yield f"CREATE INDEX {index} ON {kind.table} ({kind.indexed})"
        yield f"CREATE TABLE {kind.keys} (hash {binary} PRIMARY KEY, sequence {whole} NOT NULL){keyed}"
    yield (
        f"CREATE TABLE unskew_segments (name {text} PRIMARY KEY, kind {text} NOT NULL, "
        f"first {whole} NOT NULL, last {whole} NOT NULL, rows {whole} NOT NULL, bytes {whole} NOT NULL)"
    )
    yield f"CREATE TABLE unskew_pending (name {text} PRIMARY KEY)"


TABLES = (
    "unskew_meta",
    *(name for kind in KINDS for name in (kind.table, kind.keys)),
    "unskew_segments",
    "unskew_pending",
)


def initial_rows() -> list[tuple[str, str]]:
    """The rows of unskew_meta in a new store."""
    counters = [(f"newest_{kind.name}", "0") for kind in KINDS]
    settings = [("positive", json.dumps(POSITIVE)), ("shown", json.dumps(SHOWN))]
    settings.append(("context", json.dumps(CONTEXT)))
    settings.append(("variants", "{}"))  # the fraction of the users of each variant of an A/B test
    erasures = [("erasures", "0"), ("forgetting", "0"), ("erased", Erasures().to_json())]
    return [("schema", str(SCHEMA)), *settings, *counters, *erasures]


def hash_of(key: str) -> bytes:
    """Sixteen bytes that stand for a key. Among 10^12 keys, two share them with a probability of 10^-15."""
    return blake2b(key.encode(), digest_size=16).digest()


def row_of(value: Event | Recommendation) -> tuple[Any, ...]:
    """The columns of an event or a recommendation, without its sequence number."""
    if isinstance(value, Event):
        impression = json.dumps(value.impression, ensure_ascii=False) if value.impression else None
        required = (value.event_id, value.user_id, value.item_id, value.type, value.timestamp)
        return (*required, value.recommendation_id, impression, value.propensity, value.position)
    items = json.dumps([item._asdict() for item in value.items], ensure_ascii=False)
    made_by = (value.recommendation_id, value.user_id, value.timestamp, value.model, value.version)
    return (*made_by, items, value.variant, value.took_ms)


def events_of(frame: pa.Table) -> list[Event]:
    """The events in the rows of an Arrow table."""
    rows = frame.drop_columns("sequence").to_pylist()
    return [Event(**row | {"impression": tuple(row["impression"] or ())}) for row in rows]


def recommendations_of(frame: pa.Table) -> list[Recommendation]:
    """The recommendations in the rows of an Arrow table."""
    rows = frame.drop_columns("sequence").to_pylist()
    return [Recommendation(**row | {"items": tuple(Shown(**item) for item in row["items"])}) for row in rows]


def in_order(kind: Kind, frames: Iterable[pa.Table], *by: str) -> pa.Table:
    """Several tables as one, sorted by these columns."""
    whole = pa.concat_tables([kind.schema.empty_table(), *frames])
    return whole.sort_by([(name, "ascending") for name in by])


def _unpacked(value: str | None) -> Any:
    return None if value is None else json.loads(value)
