"""What a store keeps: events, and what was recommended. Every value is checked when one of them is made.

Times are whole microseconds since 1970 in UTC. Ids are text of any kind, but not blank, without the NUL
character, which databases refuse, and of at most 500 characters, which their indexes can hold.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from unskew.core.config import did_you_mean
from unskew.core.errors import BadInput
from unskew.data.log.clock import UNITS

LONGEST = 500  # characters of an id; in UTF-8 they fit into an index of PostgreSQL, which ends at 2,704 bytes
MOST_SHOWN = 1000  # items in one impression or recommendation
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEYOND = "expected a time from 1970 to 9999"
MICROSECOND = timedelta(microseconds=1)
LATEST = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // MICROSECOND
MOST_POSITION = 2**31 - 1


class BadEvent(BadInput):
    """A field of an event or of a recommendation is wrong. The reason does not repeat the value, because
    messages end up in logs."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason = field, reason


@dataclass(frozen=True, slots=True)
class Event:
    """Somebody did something with an item, or was shown it.

    event_id: the caller's own key. A second event with the same key is a copy, and is not stored.
    type: such as click, purchase, view or impression. The store's settings say which types are positive.
    timestamp: whole microseconds since 1970 in UTC; `Event.of` reads other times.
    recommendation_id: the recommendation that the event answers.
    impression: all items that were shown together, in their order.
    propensity: the probability with which the item was shown, above 0 and at most 1.
    position: the position of the item in what was shown, counted from 1.
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
            _check_text(name, getattr(self, name))
        _check_moment(self.timestamp)
        if self.recommendation_id is not None:
            _check_text("recommendation_id", self.recommendation_id)
        if self.impression != ():
            object.__setattr__(self, "impression", _listed("impression", self.impression))
            for item in self.impression:
                _check_text("impression", item)
        if self.propensity is not None:
            object.__setattr__(self, "propensity", _probability("propensity", self.propensity))
        if self.position is not None:
            _check_position(self.position)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Event":
        """An event from a document such as parsed JSON. Its timestamp is ISO text or seconds (`parse_time`),
        and optional fields may be null."""
        known = _fields_of(cls, document)
        if known.get("impression") is None:
            known.pop("impression", None)
        return cls(**known)


class Shown(NamedTuple):
    """One item of a recommendation.

    propensity: the probability with which it was shown, above 0 and at most 1.
    exposed: whether it was chosen at random, whatever the model thinks of it.
    """

    item_id: str
    propensity: float
    exposed: bool = False


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What was recommended to a user at one moment, in its order: an impression with known probabilities."""

    recommendation_id: str
    user_id: str
    timestamp: int
    model: str
    version: str
    items: tuple[Shown, ...]

    def __post_init__(self) -> None:
        for name in ("recommendation_id", "user_id", "model", "version"):
            _check_text(name, getattr(self, name))
        _check_moment(self.timestamp)
        items = tuple(_shown(item) for item in _listed("items", self.items))
        if len({item.item_id for item in items}) < len(items):
            raise BadEvent("items", "one item is listed twice")
        object.__setattr__(self, "items", items)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Recommendation":
        """A recommendation from a document such as parsed JSON. Its items are objects with the fields of
        `Shown`."""
        known = _fields_of(cls, document)
        items = known["items"]
        if not isinstance(items, list | tuple) or not all(isinstance(item, Mapping) for item in items):
            raise BadEvent("items", "expected a list of objects")
        return cls(**known | {"items": tuple(_document_of_item(item) for item in items)})


@dataclass(frozen=True, slots=True)
class Rejected:
    """A document that is no event: its place in the list, the field that is wrong, and the reason."""

    index: int
    field: str
    reason: str


def parse_events(documents: Iterable[Any]) -> tuple[list[Event], list[Rejected]]:
    """The events of some documents, and what is wrong with the others."""
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
    """Whole microseconds since 1970 in UTC, from seconds, ISO text or a datetime. A time without an offset is
    in UTC. Numbers that look like milliseconds or finer units are refused, not guessed at."""
    expected = "expected seconds since 1970, or ISO text such as 2026-01-31T23:59:59Z"
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise BadInput(expected) from None
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        found = (moment - EPOCH) // MICROSECOND
    elif not _is_number(value):
        raise BadInput(expected)
    elif value < 0:
        raise BadInput(BEYOND)
    elif value >= UNITS["seconds"][1]:
        likely = next((unit for unit, (low, high) in UNITS.items() if low <= value < high), "no time at all")
        raise BadInput(f"{expected}; this number looks like {likely}")
    else:
        found = value * 10**6 if isinstance(value, int) else round(value * 10**6)
    if not 0 <= found <= LATEST:
        raise BadInput(BEYOND)
    return found


def _is_number(value: Any) -> bool:
    """Whether it is a whole number, however large, or a finite one."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def in_iso(timestamp: int) -> str:
    """Microseconds since 1970 as ISO text in UTC."""
    return (EPOCH + timestamp * MICROSECOND).isoformat().replace("+00:00", "Z")


def check_id(field: str, value: Any) -> str:
    """The id itself, if it can be one."""
    _check_text(field, value)
    return str(value)


def _fields_of(kind: type[Event] | type[Recommendation], document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a document, with its time in microseconds. Unknown and missing ones are refused."""
    names = [field.name for field in fields(kind)]
    for name in document:
        if name not in names:
            raise BadEvent(str(name)[:60], f"no such field{did_you_mean(str(name), names)}")
    optional = {"recommendation_id", "impression", "propensity", "position"} if kind is Event else set()
    for name in names:
        if document.get(name) is None and name not in optional:
            raise BadEvent(name, "is missing")
    try:
        return {**document, "timestamp": parse_time(document["timestamp"])}
    except BadInput as error:
        raise BadEvent("timestamp", str(error)) from None


def _document_of_item(item: Mapping[str, Any]) -> Shown:
    for name in item:
        if name not in Shown._fields:
            raise BadEvent("items", f"no such field of an item: {str(name)[:60]!r}")
    return Shown(item.get("item_id", ""), item.get("propensity", 0), item.get("exposed", False))


def _shown(item: Any) -> Shown:
    if not isinstance(item, tuple) or not 2 <= len(item) <= 3:
        raise BadEvent("items", "expected items of the kind Shown(item_id, propensity, exposed)")
    shown = Shown(*item)
    _check_text("items", shown.item_id)
    if not isinstance(shown.exposed, bool):
        raise BadEvent("items", "exposed: expected true or false")
    return shown._replace(propensity=_probability("items", shown.propensity))


def _listed(field: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise BadEvent(field, f"expected a list of items, found {type(value).__name__}")
    if not 1 <= len(value) <= MOST_SHOWN:
        raise BadEvent(field, f"expected 1 to {MOST_SHOWN:,} items, found {len(value):,}")
    return tuple(value)


def _check_text(field: str, value: Any) -> None:
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


def _check_moment(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadEvent("timestamp", f"expected whole microseconds since 1970, found {type(value).__name__}")
    if not 0 <= value <= LATEST:
        raise BadEvent("timestamp", "expected whole microseconds from 1970 to 9999")


def _probability(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise BadEvent(field, "expected a probability above 0 and at most 1")
    return float(value)


def _check_position(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_POSITION:
        raise BadEvent("position", "expected a whole number of at least 1")
