"""Counters and gauges of the agent as values; `health.py` exports them.

An agent without `health` exports no metrics. It does not import the Prometheus client, which loads
an HTTP server and readers of the process.
"""

import threading
from collections.abc import Callable, Iterator


class MetricValue:
    """One number. Any thread may change it."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value = 0.0

    @property
    def value(self) -> float:
        """The number."""
        return self._value

    def inc(self, amount: float = 1) -> None:
        """Add an amount."""
        with self._lock:
            self._value += amount

    def set(self, value: float) -> None:
        """Replace the number."""
        with self._lock:
            self._value = float(value)


class LabelledMetric:
    """A counter or gauge with one number for each combination of labels.

    Attributes:
        name: The name, without prefix and without the `_total` of a counter.
        meaning: Its help text.
        labels_used: The names of the labels.
        is_counter: It never decreases.
    """

    def __init__(self, name: str, meaning: str, labels: tuple[str, ...], *, counter: bool) -> None:
        self.name = name
        self.meaning = meaning
        self.labels_used = labels
        self.is_counter = counter
        self._lock = threading.Lock()
        self._values: dict[tuple[str, ...], MetricValue] = {} if labels else {(): MetricValue()}
        self._read: Callable[[], float] | None = None

    def labels(self, *values: str) -> MetricValue:
        """Return the number of a combination of labels, at first 0."""
        if len(values) != len(self.labels_used):
            raise ValueError(values)
        with self._lock:
            return self._values.setdefault(values, MetricValue())

    def inc(self, amount: float = 1) -> None:
        """Add an amount to a metric without labels."""
        self.labels().inc(amount)

    def dec(self) -> None:
        """Subtract 1 from a gauge without labels."""
        self.labels().inc(-1)

    def set(self, value: float) -> None:
        """Replace the number of a metric without labels."""
        self.labels().set(value)

    def set_function(self, read: Callable[[], float]) -> None:
        """Read the number of a metric without labels at each export."""
        self._read = read

    def samples(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the labels and the number of each combination that was used."""
        with self._lock:
            values = list(self._values.items())
        for labels, one in values:
            yield labels, one.value if self._read is None else self._read()
