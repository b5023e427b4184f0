"""What a service counts about itself, for Prometheus. Users and items are never among the labels.

The counters of several processes are added up through files: see `unskew.serve.workers.pool`.
"""

import os
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
COUNTER_FILES = "PROMETHEUS_MULTIPROC_DIR"  # the variable of the environment that names their folder


class Metrics:
    """The counters of a service."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter("unskew_requests", "Requests that were answered.", labels, registry=registry)
        self._seconds = Histogram(
            *("unskew_request_seconds", "Time from a request to its answer.", ["route"]),
            buckets=BUCKETS,
            registry=registry,
        )
        self._events = Counter("unskew_events", "Events that were posted.", ["result"], registry=registry)
        self._lists = Counter("unskew_lists", "Recommended lists.", ["source"], registry=registry)
        self.count_events(0, 0, 0)
        for source in ("model", "fallback"):
            self._lists.labels(source)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def count_events(self, accepted: int, duplicate: int, rejected: int) -> None:
        """Count posted events."""
        for result, number in (("accepted", accepted), ("duplicate", duplicate), ("rejected", rejected)):
            self._events.labels(result).inc(number)

    def count_list(self, source: str) -> None:
        """Count a recommended list."""
        self._lists.labels(source).inc()

    def exposition(self, gauges: dict[str, float], model: dict[str, str]) -> bytes:
        """All counters in the text format of Prometheus, with some gauges, and the labels of the model."""
        registry = CollectorRegistry()
        if COUNTER_FILES in os.environ:
            MultiProcessCollector(registry)
        else:
            registry.register(self._registry)
        registry.register(_Gauges(gauges, model))
        return generate_latest(registry)


class _Gauges:
    def __init__(self, gauges: dict[str, float], model: dict[str, str]) -> None:
        self._gauges, self._model = gauges, model

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("unskew_model_info", "The model that is loaded.", labels=list(self._model))
        info.add_metric(list(self._model.values()), 1)
        yield info
        for name, value in self._gauges.items():
            yield GaugeMetricFamily(f"unskew_{name}", f"{name} of the service.", value)
