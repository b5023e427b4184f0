"""From a log to live recommendations: what happened and what was shown is kept in a durable store."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unskew.serve.store.events import BadEvent, Event, Recommendation, Shown, parse_events, parse_time
from unskew.serve.store.store import Store, open_store

if TYPE_CHECKING:
    from unskew.serve.http.app import create_app
    from unskew.serve.http.service import Service
    from unskew.serve.store.export import export_log

__all__ = [
    "BadEvent",
    "Event",
    "Recommendation",
    "Service",
    "Shown",
    "Store",
    "create_app",
    "export_log",
    "open_store",
    "parse_events",
    "parse_time",
]

# Imported on first use: a process that only stores events needs neither torch, FastAPI nor DuckDB.
_LAZY = {
    "create_app": "unskew.serve.http.app",
    "Service": "unskew.serve.http.service",
    "export_log": "unskew.serve.store.export",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
