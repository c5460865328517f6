"""The metrics of an agent as values, and their export."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sluice_agent.health import AgentCollector
from sluice_agent.metrics import AgentMetrics, LabelledMetric


def exported(metrics: AgentMetrics) -> list[str]:
    registry = CollectorRegistry()
    registry.register(AgentCollector(metrics))
    return generate_latest(registry).decode().splitlines()


def test_values_are_exported_under_their_types_and_labels() -> None:
    metrics = AgentMetrics()
    metrics.answers.labels("park", "too_large").inc()
    metrics.answers.labels("park", "too_large").inc(2)
    metrics.refused.set(1)
    lines = exported(metrics)
    assert "# TYPE sluice_agent_answers_total counter" in lines
    assert 'sluice_agent_answers_total{reaction="park",reason="too_large"} 3.0' in lines
    assert "# TYPE sluice_agent_refused gauge" in lines
    assert "sluice_agent_refused 1.0" in lines


def test_metrics_without_labels_are_exported_before_their_first_change() -> None:
    lines = exported(AgentMetrics())
    assert "sluice_agent_accepted_bytes_total 0.0" in lines
    assert not any(line.startswith("sluice_agent_answers_total{") for line in lines)


def test_a_function_is_read_at_each_export() -> None:
    metrics, sizes = AgentMetrics(), iter([3, 5])
    registry = CollectorRegistry()
    registry.register(AgentCollector(metrics))
    metrics.listed[[one.name for one in metrics.listed].index("spool_bytes")].set_function(
        lambda: next(sizes)
    )
    assert "sluice_agent_spool_bytes 3.0" in generate_latest(registry).decode()
    assert "sluice_agent_spool_bytes 5.0" in generate_latest(registry).decode()


def test_a_wrong_number_of_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="one"):
        LabelledMetric("answers", "", ("reaction", "reason"), counter=True).labels("one")
