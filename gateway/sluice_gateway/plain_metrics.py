"""Counters and histograms of one thread: plain numbers that are read when the metrics are scraped.

A metric of prometheus_client takes a lock and several calls of functions for each change, and an
upload changes some fifteen. These are changed and read on the event loop only, so they need no
lock.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class PlainCounter(Collector):
    """A counter, with one number for each combination of label values.

    Attributes:
        labels: The names of the labels.
    """

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self.labels = name, text, tuple(labels)
        self._values: dict[tuple[str, ...], int] = {} if labels else {(): 0}
        registry.register(self)

    def inc(self, *labels: str, amount: int = 1) -> None:
        """Add to the number of these label values."""
        self._values[labels] = self._values.get(labels, 0) + amount

    def describe(self) -> Iterable[Metric]:
        """Return the name of the metric, so that a scrape can select it."""
        return (CounterMetricFamily(self._name, self._text, labels=self.labels),)

    def collect(self) -> Iterable[Metric]:
        """Return the numbers."""
        family = CounterMetricFamily(self._name, self._text, labels=self.labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return (family,)


class _Series:
    """The observations with one combination of label values."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total = 0.0


class PlainHistogram(Collector):
    """A histogram of seconds, with one series for each combination of label values.

    Attributes:
        labels: The names of the labels.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        bounds_s: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self.labels = name, text, tuple(labels)
        self._bounds_s: Final = tuple(bounds_s)
        self._series: dict[tuple[str, ...], _Series] = {}
        if not labels:
            self._series[()] = self._empty()
        registry.register(self)

    def observe(self, seconds: float, *labels: str) -> None:
        """Add a time to the series of these label values."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = self._empty()
        series.counts[bisect_left(self._bounds_s, seconds)] += 1
        series.total += seconds

    def describe(self) -> Iterable[Metric]:
        """Return the name of the metric, so that a scrape can select it."""
        return (HistogramMetricFamily(self._name, self._text, labels=self.labels),)

    def collect(self) -> Iterable[Metric]:
        """Return the cumulative counts of the buckets, and the sums."""
        names = [*map(str, self._bounds_s), "+Inf"]
        family = HistogramMetricFamily(self._name, self._text, labels=self.labels)
        for labels, series in self._series.items():
            buckets, count = [], 0
            for name, more in zip(names, series.counts, strict=True):
                count += more
                buckets.append((name, count))
            family.add_metric(labels, buckets, sum_value=series.total)
        return (family,)

    def _empty(self) -> _Series:
        return _Series(len(self._bounds_s) + 1)
