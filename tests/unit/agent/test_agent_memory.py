"""When a busy agent returns freed memory."""

from sluice_agent.memory import BUSY_BYTES, IDLE_S, IdleRelease
from sluice_agent.metrics import AgentMetrics


def test_memory_is_released_once_after_a_busy_period() -> None:
    metrics = AgentMetrics()
    memory = IdleRelease(metrics=metrics)
    metrics.sealed_bytes = BUSY_BYTES
    assert not memory.is_due(now_s=100)
    assert not memory.is_due(now_s=100 + IDLE_S - 1)
    assert memory.is_due(now_s=100 + IDLE_S)
    assert not memory.is_due(now_s=100 + 2 * IDLE_S)


def test_an_agent_that_stays_busy_keeps_its_memory() -> None:
    metrics = AgentMetrics()
    memory = IdleRelease(metrics=metrics)
    for second in range(60):
        metrics.sealed_bytes += BUSY_BYTES
        assert not memory.is_due(now_s=second)
    assert memory.is_due(now_s=59 + IDLE_S)


def test_small_batches_alone_release_nothing() -> None:
    """Samples of host metrics free no large blocks."""
    metrics = AgentMetrics()
    memory = IdleRelease(metrics=metrics)
    for second in range(0, 3600, 10):
        metrics.sealed_bytes += 200
        assert not memory.is_due(now_s=second)
