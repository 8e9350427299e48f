"""Counters and histograms for one thread: what prometheus-client offers, without its locks.

Everything here is touched on the event loop only, so that counting is an addition. Prometheus' own collector interface
reads it at each scrape.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

# Values that wait to be sorted into buckets.
_MOST_NEW: Final = 1024


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add `amount`, which is never negative."""
        self.value += amount


class Distribution:
    """One series of a histogram: how many values fell into each bucket, and their sum.

    Values wait and are sorted into buckets together: a thousand are sorted in less time than ten are looked up.
    """

    __slots__ = ("_bounds", "_counts", "_new", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._new: list[float] = []

    def observe(self, value: float) -> None:
        """Count one value."""
        self.add((value,))

    def add(self, values: Iterable[float]) -> None:
        """Count values."""
        self._new += values
        if len(self._new) >= _MOST_NEW:
            self._fold()

    def _fold(self) -> None:
        values = sorted(self._new)
        self._new.clear()
        self._sum += sum(values)
        below = 0
        # A bucket holds values up to and with its bound.
        for bucket, bound in enumerate(self._bounds):
            up_to = bisect_right(values, bound, below)
            self._counts[bucket] += up_to - below
            below = up_to
        self._counts[-1] += len(values) - below

    @property
    def counts(self) -> Sequence[int]:
        """How many values fell into each bucket, those above every bound last."""
        self._fold()
        return self._counts

    @property
    def sum(self) -> float:
        """The sum of all values."""
        self._fold()
        return self._sum


class Counter(Collector):
    """A counter with labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        self._name, self._text, self.label_names = name.removesuffix("_total"), text, tuple(labels)
        self._series: dict[tuple[str, ...], Count] = {}
        registry.register(self)

    def labels(self, *values: str) -> Count:
        """The series with these label values, in the labels' order."""
        return self._series.setdefault(values, Count())

    def describe(self) -> Iterator[Metric]:
        """The metric without its values: what the registry checks for double names."""
        yield CounterMetricFamily(self._name, self._text, labels=self.label_names)

    def collect(self) -> Iterator[Metric]:
        """What a scrape shows."""
        family = CounterMetricFamily(self._name, self._text, labels=self.label_names)
        for values, count in self._series.items():
            family.add_metric(values, count.value)
        yield family


class Histogram(Collector):
    """A histogram with labels. Without labels it counts from the start, so that its series is there at once."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self.label_names = name, text, tuple(labels)
        self._bounds = tuple(float(bound) for bound in buckets)
        self._series: dict[tuple[str, ...], Distribution] = {}
        if not labels:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> Distribution:
        """The series with these label values, in the labels' order."""
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = Distribution(self._bounds)
        return found

    def observe(self, value: float) -> None:
        """Count one value of a histogram without labels."""
        self._series[()].observe(value)

    def describe(self) -> Iterator[Metric]:
        """The metric without its values: what the registry checks for double names."""
        yield HistogramMetricFamily(self._name, self._text, labels=self.label_names)

    def collect(self) -> Iterator[Metric]:
        """What a scrape shows: buckets add up."""
        family = HistogramMetricFamily(self._name, self._text, labels=self.label_names)
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, seen in self._series.items():
            family.add_metric(values, list(zip(names, accumulate(seen.counts), strict=True)), seen.sum)
        yield family
