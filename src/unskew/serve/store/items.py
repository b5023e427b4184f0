"""The item feed of a store: what was said of items, and when, kept as it came.

    store.put_items([ItemRow("B_359", parse_time("2026-01-31"), "Blue lamp", {"price": 19.9})])

Rows are only appended. A value that a row does not have stays as it was, and a row that says nothing new is
not stored.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from unskew.core.config import did_you_mean
from unskew.core.errors import BadInput
from unskew.data.log.arrays import Ints
from unskew.data.log.item_feed import ItemFeed
from unskew.data.log.vocabulary import SEPARATOR
from unskew.serve.store.events import BadEvent, check_id, in_iso, parse_time
from unskew.serve.store.tables import hash_of

LONGEST_TEXT = 10_000  # characters of a value or a title
MOST_FEATURES = 100  # of an item
FIELDS = ("item_id", "timestamp", "title", "features")
COLUMNS = ("item_id", "known_since", "title")  # of an exported feed, beside its features

Plain = str | float | bool


@dataclass(frozen=True, slots=True)
class ItemRow:
    """What is known of an item from a time on.

    Attributes
    ----------
    item_id
        The item.
    timestamp
        Whole microseconds since 1970 in UTC.
    title
        The title, if the row has one.
    features
        Values by the names of features: text, numbers, or true and false.
    """

    item_id: str
    timestamp: int
    title: str | None = None
    features: Mapping[str, Plain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_id("item_id", self.item_id)
        if self.title is not None:
            _check_text("title", self.title)
        if len(self.features) > MOST_FEATURES:
            raise BadEvent("features", f"expected at most {MOST_FEATURES}, found {len(self.features):,}")
        for name, value in self.features.items():
            check_id("features", name)
            if name.lower() in COLUMNS:
                raise BadEvent(
                    f"features.{name}", "a feature cannot be called so; it is a column of the feed"
                )
            if isinstance(value, str):
                _check_text(f"features.{name}"[:100], value)

    @classmethod
    def of(cls, document: Mapping[str, Any], now: int) -> "ItemRow":
        """Make a row from a document such as parsed JSON. Without a timestamp it is known from now on; a list
        of texts is several tags, and null says nothing."""
        for name in document:
            if name not in FIELDS:
                raise BadEvent(str(name)[:60], f"no such field{did_you_mean(str(name), FIELDS)}")
        if document.get("item_id") is None:
            raise BadEvent("item_id", "is missing")
        timestamp = document.get("timestamp")
        try:
            moment = now if timestamp is None else parse_time(timestamp)
        except BadInput as error:
            raise BadEvent("timestamp", str(error)) from None
        features = document.get("features")
        if not isinstance(features, Mapping | None):
            raise BadEvent("features", f"expected an object, found {type(features).__name__}")
        values = {str(name): _plain(str(name), value) for name, value in (features or {}).items()}
        known = {name: value for name, value in values.items() if value is not None}
        return cls(document["item_id"], moment, document.get("title"), known)

    @property
    def row(self) -> tuple[Any, ...]:
        """Its columns in the table, without the sequence number."""
        said = {"title": self.title, "features": dict(self.features)}
        document = json.dumps(said, ensure_ascii=False, sort_keys=True)
        key = hash_of(f"{self.timestamp} {self.item_id} {document}").hex()
        return (key, self.item_id, self.timestamp, document)

    def after(self, known: "ItemRow | None") -> "ItemRow":
        """What is known of the item by both rows."""
        if known is None:
            return self
        older, newer = sorted((known, self), key=lambda row: row.timestamp)
        title = newer.title if newer.title is not None else older.title
        return ItemRow(self.item_id, newer.timestamp, title, {**older.features, **newer.features})

    def adds_to(self, known: "ItemRow | None") -> bool:
        """Whether it says anything that is not known."""
        if known is None or self.timestamp < known.timestamp:
            return True
        is_new = any(known.features.get(name) != value for name, value in self.features.items())
        return is_new or (self.title is not None and self.title != known.title)


def known_rows(rows: Iterable[tuple[str, int, str]]) -> dict[str, ItemRow]:
    """What is known of items from some rows of item_id, timestamp and document, in any order."""
    known: dict[str, ItemRow] = {}
    for item_id, timestamp, document in rows:
        row = ItemRow(item_id, timestamp, **json.loads(document))
        known[item_id] = row.after(known.get(item_id))
    return known


def feed_of_frames(frames: Iterable[pa.Table], ticks: Callable[[Ints], Ints]) -> ItemFeed:
    """The rows of a store as an item feed. A feature whose values are of several kinds is text.

    ticks: turns microseconds since 1970 into the times of the log.
    """
    ids, times, said = list[str](), list[int](), list[dict[str, Any]]()
    for frame in frames:
        ids += frame["item_id"].to_pylist()
        times += frame["timestamp"].to_pylist()
        said += map(json.loads, frame["document"].to_pylist())
    names = dict.fromkeys(name for row in said for name in row["features"])
    columns = {name: _column([row["features"].get(name) for row in said]) for name in names}
    titles = pa.array([row["title"] for row in said], pa.string())
    return ItemFeed(pa.array(ids, pa.string()), ticks(np.array(times, np.int64)), titles, columns)


def table_of(frames: Iterable[pa.Table]) -> pa.Table:
    """The rows of a store as a table that `unskew prepare --items` reads."""
    feed = feed_of_frames(frames, lambda times: times)
    assert feed.time is not None
    columns = {"item_id": feed.ids, "known_since": pa.array(feed.time, pa.timestamp("us", "UTC"))}
    return pa.table(columns | {"title": feed.titles, **feed.features})


def rows_of_table(table: pa.Table, ids: str, time: str | None, now: int) -> list[ItemRow]:
    """The rows of a table of items. Its columns but for the item, the time and the title are features.

    ids, time: the names of the columns of the item and of the time.
    now: the time of rows without one.
    """
    title = next((name for name in table.column_names if name.lower() == "title"), None)
    features = [name for name in table.column_names if name not in (ids, time, title)]
    kind = table[ids].type
    if not any(
        is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer)
    ):
        raise BadInput(f"items, column {ids!r}: expected text or whole numbers, found {kind}", field="items")
    made = []
    for number, row in enumerate(table.to_pylist(), 1):
        document = {
            "item_id": None if row[ids] is None else str(row[ids]),
            "timestamp": None if time is None else row[time],
            "title": None if title is None else row[title],
            "features": {name: row[name] for name in features},
        }
        try:
            made.append(ItemRow.of(document, now))
        except BadEvent as error:
            raise BadInput(f"row {number}, {error}", field="items") from None
    return made


def describe_row(row: ItemRow) -> dict[str, Any]:
    """A row as a document."""
    return {
        "item_id": row.item_id,
        "timestamp": in_iso(row.timestamp),
        "title": row.title,
        "features": dict(row.features),
    }


def _plain(name: str, value: Any) -> Plain | None:
    field = f"features.{name}"[:100]
    if isinstance(value, list | tuple):
        if not all(isinstance(tag, str) for tag in value):
            raise BadEvent(field, "expected a list of texts")
        return SEPARATOR.join(value) or None
    if value is None or isinstance(value, bool | str):
        return None if value == "" else value
    if isinstance(value, int | float | Decimal):
        try:
            number = float(value)
        except OverflowError:  # a whole number of more than 300 digits
            number = math.inf
        if not math.isfinite(number):
            raise BadEvent(field, "expected a finite number")
        return number
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    raise BadEvent(field, f"expected text, a number, or true or false, found {type(value).__name__}")


def _check_text(field: str, value: Any) -> None:
    if not isinstance(value, str):
        raise BadEvent(field, f"expected text, found {type(value).__name__}")
    if len(value) > LONGEST_TEXT:
        raise BadEvent(field, f"expected at most {LONGEST_TEXT:,} characters, found {len(value):,}")
    if "\0" in value:
        raise BadEvent(field, "the NUL character cannot be stored")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadEvent(field, "half of a surrogate pair is no text") from None


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool}:
        return pa.array(values, pa.bool_())
    if kinds <= {int, float}:
        return pa.array(values, pa.float64())
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Plain) -> str:
    """The text that Arrow makes of a value: 2, and not 2.0."""
    return value if isinstance(value, str) else str(pa.scalar(value).cast(pa.string()).as_py())
