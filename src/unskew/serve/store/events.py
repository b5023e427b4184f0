"""What a store keeps: events, and what was recommended. Every value is checked when one of them is made.

Times are whole microseconds since 1970 in UTC. Ids are text of any kind, but not blank, without the NUL
character, which databases refuse, and of at most 500 characters, which their indexes can hold.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from unskew.core.config import did_you_mean
from unskew.core.errors import BadInput
from unskew.data.log.clock import UNITS

LONGEST = 500  # characters of an id; in UTF-8 they fit into an index of PostgreSQL, which ends at 2,704 bytes
MOST_SHOWN = 1000  # items in one impression or recommendation
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
LATEST = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // MICROSECOND
MOST_POSITION = 2**31 - 1


class BadEvent(BadInput):
    """A field of an event or of a recommendation is wrong. The reason does not repeat the value, because
    messages end up in logs."""

    field: str

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}", field=field)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Event:
    """A user did something with an item, or was shown it.

    Attributes
    ----------
    event_id
        The caller's own key. A second event with the same key is a copy, and is not stored.
    user_id, item_id
        The user and the item.
    type
        Such as click, purchase, view or impression. The store's settings say which types are positive.
    timestamp
        Whole microseconds since 1970 in UTC; `Event.of` reads other times.
    recommendation_id
        The recommendation that the event answers.
    impression
        All items that were shown together, in their order.
    propensity
        The probability with which the item was shown, above 0 and at most 1.
    position
        The position of the item in what was shown, counted from 1.
    """

    event_id: str
    user_id: str
    item_id: str
    type: str
    timestamp: int
    recommendation_id: str | None = None
    impression: tuple[str, ...] = ()
    propensity: float | None = None
    position: int | None = None

    def __post_init__(self) -> None:
        for name in ("event_id", "user_id", "item_id", "type"):
            check_id(name, getattr(self, name))
        _check_timestamp(self.timestamp)
        if self.recommendation_id is not None:
            check_id("recommendation_id", self.recommendation_id)
        if self.impression != ():
            object.__setattr__(self, "impression", _checked_list("impression", self.impression))
            for item in self.impression:
                check_id("impression", item)
        if self.propensity is not None:
            object.__setattr__(self, "propensity", _checked_probability("propensity", self.propensity))
        if self.position is not None and not (
            _is_whole(self.position) and 1 <= self.position <= MOST_POSITION
        ):
            raise BadEvent("position", "expected a whole number of at least 1")

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Event":
        """Make an event from a document such as parsed JSON. Its timestamp is ISO text or seconds
        (`parse_time`), and optional fields may be null."""
        names = [field.name for field in fields(cls)]
        for name in document:
            if name not in names:
                raise BadEvent(str(name)[:60], f"no such field{did_you_mean(str(name), names)}")
        for field in fields(cls):
            if field.default is MISSING and document.get(field.name) is None:
                raise BadEvent(field.name, "is missing")
        try:
            timestamp = parse_time(document["timestamp"])
        except BadInput as error:
            raise BadEvent("timestamp", str(error)) from None
        values = {name: value for name, value in document.items() if value is not None}
        return cls(**values | {"timestamp": timestamp})


class Shown(NamedTuple):
    """One item of a recommendation.

    Attributes
    ----------
    item_id
        The item.
    propensity
        The probability with which it was shown, above 0 and at most 1.
    exposed
        Whether it was chosen at random, whatever the model thinks of it.
    """

    item_id: str
    propensity: float
    exposed: bool = False


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What was recommended to a user at one moment: an impression with known probabilities.

    Attributes
    ----------
    recommendation_id
        Its key, which events name that answer it.
    user_id, timestamp
        The user, and whole microseconds since 1970 in UTC.
    model, version
        What recommended.
    items
        The list, in its order.
    variant
        In an A/B test, the name of the variant that made it.
    took_ms
        How many milliseconds it took to make it.
    """

    recommendation_id: str
    user_id: str
    timestamp: int
    model: str
    version: str
    items: tuple[Shown, ...]
    variant: str | None = None
    took_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("recommendation_id", "user_id", "model", "version"):
            check_id(name, getattr(self, name))
        _check_timestamp(self.timestamp)
        items = tuple(_checked_item(item) for item in _checked_list("items", self.items))
        if len({item.item_id for item in items}) < len(items):
            raise BadEvent("items", "one item is listed twice")
        object.__setattr__(self, "items", items)
        if self.variant is not None:
            check_id("variant", self.variant)
        if self.took_ms is not None and not (math.isfinite(self.took_ms) and self.took_ms >= 0):
            raise BadEvent("took_ms", "expected milliseconds, from 0 on")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A document that is no event: its index in the list, the field that is wrong, and the reason."""

    index: int
    field: str
    reason: str


def parse_events(documents: Iterable[Any]) -> tuple[list[Event], list[Rejected]]:
    """Make events from documents such as parsed JSON.

    Parameters
    ----------
    documents
        The documents, as `Event.of` reads them.

    Returns
    -------
    tuple[list[Event], list[Rejected]]
        The events, and what is wrong with the other documents.
    """
    events, rejected = [], []
    for index, document in enumerate(documents):
        try:
            if not isinstance(document, Mapping):
                raise BadEvent("event", f"expected an object, found {type(document).__name__}")
            events.append(Event.of(document))
        except BadEvent as error:
            rejected.append(Rejected(index, error.field, error.reason))
    return events, rejected


def parse_time(value: Any) -> int:
    """Convert a time to whole microseconds since 1970 in UTC.

    Parameters
    ----------
    value
        Seconds since 1970, ISO text or a datetime. Without an offset it is in UTC. Numbers that look like
        milliseconds or finer units are refused.
    """
    expected = "expected seconds since 1970, or ISO text such as 2026-01-31T23:59:59Z"
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise BadInput(expected) from None
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        timestamp = (moment - EPOCH) // MICROSECOND
    elif not (_is_whole(value) or (isinstance(value, float) and math.isfinite(value))):
        raise BadInput(expected)
    elif value < 0:
        timestamp = -1
    elif value >= UNITS["seconds"][1]:
        likely = next((unit for unit, (low, high) in UNITS.items() if low <= value < high), "no time at all")
        raise BadInput(f"{expected}; this number looks like {likely}")
    else:
        timestamp = value * 10**6 if isinstance(value, int) else round(value * 10**6)
    if not 0 <= timestamp <= LATEST:
        raise BadInput("expected a time from 1970 to 9999")
    return timestamp


def in_iso(timestamp: int) -> str:
    """Microseconds since 1970 as ISO text in UTC."""
    return (EPOCH + timestamp * MICROSECOND).isoformat().replace("+00:00", "Z")


def check_id(field: str, value: Any) -> str:
    """The id itself, if it can be one."""
    if not isinstance(value, str):
        raise BadEvent(field, f"expected text, found {type(value).__name__}")
    if not value or value.isspace():
        raise BadEvent(field, "expected text, found nothing or blanks")
    if "\0" in value:
        raise BadEvent(field, "the NUL character cannot be stored")
    if len(value) > LONGEST:
        raise BadEvent(field, f"expected at most {LONGEST} characters, found {len(value):,}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadEvent(field, "half of a surrogate pair is no text") from None
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_timestamp(value: Any) -> None:
    if not _is_whole(value):
        raise BadEvent("timestamp", f"expected whole microseconds since 1970, found {type(value).__name__}")
    if not 0 <= value <= LATEST:
        raise BadEvent("timestamp", "expected whole microseconds from 1970 to 9999")


def _checked_probability(field: str, value: Any) -> float:
    if not (_is_whole(value) or isinstance(value, float)) or not 0 < value <= 1:
        raise BadEvent(field, "expected a probability above 0 and at most 1")
    return float(value)


def _checked_list(field: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise BadEvent(field, f"expected a list of items, found {type(value).__name__}")
    if not 1 <= len(value) <= MOST_SHOWN:
        raise BadEvent(field, f"expected 1 to {MOST_SHOWN:,} items, found {len(value):,}")
    return tuple(value)


def _checked_item(item: Any) -> Shown:
    if not isinstance(item, tuple) or not 2 <= len(item) <= 3:
        raise BadEvent("items", "expected items of the kind Shown(item_id, propensity, exposed)")
    shown = Shown(*item)
    check_id("items", shown.item_id)
    if not isinstance(shown.exposed, bool):
        raise BadEvent("items", "exposed: expected true or false")
    return shown._replace(propensity=_checked_probability("items", shown.propensity))
