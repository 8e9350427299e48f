"""Metrics of background runs.

Knows the metrics' names. Who counts is the engine of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.observe.tally import Counter, Histogram

_STATUSES: Final = ("queued", "running", "cancelling", "completed", "failed", "cancelled", "dead")
_SECONDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)


class RunsMetrics:
    """Counts what this process does with runs, and shows how many there are.

    Args:
        registry: where they are shown.
        counts: how many runs there are by status, in all processes.
    """

    def __init__(self, registry: CollectorRegistry, counts: Callable[[], Mapping[str, int]]) -> None:
        self._ended = Counter("hermes_runs_ended_total", "Runs by how they ended.", ("status",), registry=registry)
        self._waited = Histogram(
            "hermes_run_wait_seconds",
            "Seconds from when a run was due until it was begun.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._total = Histogram(
            "hermes_run_seconds",
            "Seconds from when a run was asked for to its end.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._dropped = Counter(
            "hermes_run_messages_dropped_total", "Messages in the queue that were no run's.", registry=registry
        )
        registry.register(_Counts(counts))

    def begun(self, waited_s: float) -> None:
        """A run was begun."""
        self._waited.observe(waited_s)

    def ended(self, status: str, total_s: float) -> None:
        """A run ended."""
        self._ended.labels(status).inc()
        self._total.observe(total_s)

    def dropped(self) -> None:
        """A message was dropped."""
        self._dropped.labels().inc()


class _Counts(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("hermes_runs", "Runs by status; `dead` ones are `failed` too.", labels=("status",))
        counts = self._counts()
        for status in _STATUSES:
            family.add_metric((status,), counts.get(status, 0))
        yield family
