"""Logs as one JSON object per line. They say how the service does, and never what users did: no ids, no
items, no bodies, no query strings."""

import json
import logging
import sys
import time
import traceback
from typing import Any

logger = logging.getLogger("unskew.serve")


class JsonLines(logging.Formatter):
    """A record as a line of JSON. The message of an exception may hold anything, so only its type and where
    it was raised are told."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            line["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-12:]]
        return json.dumps(line, ensure_ascii=True)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Write the logs of the service and of its HTTP server to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("unskew.serve", "uvicorn.error"):
        named = logging.getLogger(name)
        named.handlers, named.propagate = [handler], False
        named.setLevel(level if name == "unskew.serve" else logging.WARNING)


def write_log(
    message: str, level: int = logging.INFO, error: BaseException | None = None, **facts: Any
) -> None:
    """Log a message with some facts."""
    logger.log(level, message, extra={"facts": facts}, exc_info=error)
