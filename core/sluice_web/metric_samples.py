"""Samples of some metrics in the text that `/metrics` serves."""

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


def samples_of(text: str, *names: str) -> list[Sample]:
    """Return the samples with these names, with their labels; other samples are not parsed."""
    return parse_samples(lines_of(text, *names))


def lines_of(text: str, *names: str) -> list[str]:
    """Return the lines of the samples with these names."""
    starts = tuple(f"{name}{end}" for name in names for end in (" ", "{"))
    return [line for line in text.splitlines() if line.startswith(starts)]


def parse_samples(lines: Iterable[str]) -> list[Sample]:
    """Return the samples of lines."""
    families: list[Metric] = list(text_string_to_metric_families("\n".join([*lines, ""])))
    return [sample for family in families for sample in family.samples]
