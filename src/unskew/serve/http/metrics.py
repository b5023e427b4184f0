"""Counters and histograms in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """What a service counts about itself; never who asked, or for what."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, str], int] = {}
        self._latencies: dict[str, tuple[list[int], float]] = {}
        self._events = {"accepted": 0, "duplicate": 0, "rejected": 0}
        self._lists = {"model": 0, "fallback": 0}

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        with self._lock:
            key = method, route, str(status)
            self._requests[key] = self._requests.get(key, 0) + 1
            counts, total = self._latencies.get(route, ([0] * (len(BOUNDS) + 1), 0.0))
            counts[bisect_left(BOUNDS, seconds)] += 1
            self._latencies[route] = counts, total + seconds

    def events(self, accepted: int, duplicate: int, rejected: int) -> None:
        """Count events."""
        with self._lock:
            self._events["accepted"] += accepted
            self._events["duplicate"] += duplicate
            self._events["rejected"] += rejected

    def listed(self, source: str) -> None:
        """Count a list."""
        with self._lock:
            self._lists[source] += 1

    def document(self) -> dict[str, Any]:
        """Everything that was counted, for JSON."""
        with self._lock:
            return {
                "requests": [[*key, count] for key, count in self._requests.items()],
                "latencies": [[route, list(counts), sum] for route, (counts, sum) in self._latencies.items()],
                "events": dict(self._events),
                "lists": dict(self._lists),
            }

    @classmethod
    def sum(cls, documents: Iterable[Mapping[str, Any]]) -> "Metrics":
        """What several have counted together."""
        made = Metrics()
        for document in documents:
            for method, route, status, count in document["requests"]:
                key = method, route, status
                made._requests[key] = made._requests.get(key, 0) + count
            for route, more, seconds in document["latencies"]:
                counts, total = made._latencies.get(route, ([0] * len(more), 0.0))
                added = [one + other for one, other in zip(counts, more, strict=True)]
                made._latencies[route] = added, total + seconds
            for kept, more in ((made._events, document["events"]), (made._lists, document["lists"])):
                for name, count in more.items():
                    kept[name] += count
        return made

    def text(self, gauges: dict[str, float], model: Labels) -> str:
        """Everything, with some gauges, and the labels of the model."""
        with self._lock:
            lines = ["# TYPE unskew_requests_total counter"]
            for (method, route, status), count in sorted(self._requests.items()):
                asked = ("method", method), ("route", route), ("status", status)
                lines.append(f"unskew_requests_total{_written(asked)} {count}")
            lines.append("# TYPE unskew_request_seconds histogram")
            for route, (counts, total) in sorted(self._latencies.items()):
                so_far = 0
                for bound, count in zip([*map(str, BOUNDS), "+Inf"], counts, strict=True):
                    so_far += count
                    labels = ("route", route), ("le", bound)
                    lines.append(f"unskew_request_seconds_bucket{_written(labels)} {so_far}")
                lines.append(f"unskew_request_seconds_sum{_written((('route', route),))} {total:.6f}")
                lines.append(f"unskew_request_seconds_count{_written((('route', route),))} {so_far}")
            lines.append("# TYPE unskew_events_total counter")
            lines += [f'unskew_events_total{{result="{name}"}} {n}' for name, n in self._events.items()]
            lines.append("# TYPE unskew_lists_total counter")
            lines += [f'unskew_lists_total{{source="{name}"}} {n}' for name, n in self._lists.items()]
        lines += ["# TYPE unskew_model_info gauge", f"unskew_model_info{_written(model)} 1"]
        for name, value in gauges.items():
            written = f"{value:g}" if value % 1 else str(int(value))
            lines += [f"# TYPE unskew_{name} gauge", f"unskew_{name} {written}"]
        return "\n".join(lines) + "\n"


def _written(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
