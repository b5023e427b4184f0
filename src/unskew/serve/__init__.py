"""From a log to live recommendations: what happened and what was shown is kept in a durable store."""

from unskew.serve.events import BadEvent, Event, Recommendation, Shown, parse_events, parse_time
from unskew.serve.store import Store, open_store

__all__ = [
    "BadEvent",
    "Event",
    "Recommendation",
    "Shown",
    "Store",
    "open_store",
    "parse_events",
    "parse_time",
]
