"""Samples of one metric in the text that `/metrics` serves."""

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


def samples_of(text: str, name: str) -> list[Sample]:
    """Return the samples of a metric, with their labels; other metrics are not parsed.

    Raises:
        ValueError: A line of the metric is not in the format of Prometheus.
    """
    lines = (line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
    families: list[Metric] = list(text_string_to_metric_families("\n".join([*lines, ""])))
    return [sample for family in families for sample in family.samples]
