"""From a log to live recommendations: what happened and what was shown is kept in a durable store."""

from typing import TYPE_CHECKING, Any

from unskew.serve.store.events import BadEvent, Event, Recommendation, Shown, parse_events, parse_time
from unskew.serve.store.store import Store, open_store

if TYPE_CHECKING:
    from unskew.serve.http.app import create_app
    from unskew.serve.http.service import Service

__all__ = [
    "BadEvent",
    "Event",
    "Recommendation",
    "Service",
    "Shown",
    "Store",
    "create_app",
    "open_store",
    "parse_events",
    "parse_time",
]


def __getattr__(name: str) -> Any:
    """The service needs torch and FastAPI; who only keeps events does not."""
    if name == "create_app":
        from unskew.serve.http.app import create_app

        return create_app
    if name == "Service":
        from unskew.serve.http.service import Service

        return Service
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
