"""Settings of the gateway that bound how often it writes."""

from typing import Any

import pytest

from sluice_gateway.settings import GatewaySettings, check_settings
from sluice_protocol.errors import BadUsage


@pytest.mark.parametrize(
    "settings",
    [
        {"journal_interval_s": 0.5},
        {"journal_interval_s": 10.5},
        {"journal_interval_s": float("nan")},
        {"door_flush_bytes": 0},
        {"door_flush_bytes": 8 * 1024 * 1024 + 1},
        {"door_flush_ms": 5001},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    [name] = settings
    with pytest.raises(BadUsage, match=name):
        check_settings(GatewaySettings(**settings))


@pytest.mark.parametrize("interval_s", [1.0, 10.0])
def test_the_ends_of_the_journal_interval_are_accepted(interval_s: float) -> None:
    check_settings(GatewaySettings(journal_interval_s=interval_s))


def test_the_door_forward_needs_a_port() -> None:
    """Without one, nothing would listen, and no client could tell why."""
    with pytest.raises(BadUsage, match="set forward_listen"):
        check_settings(GatewaySettings(doors=("otlp", "forward")))
    check_settings(GatewaySettings(doors=("forward",), forward_listen="127.0.0.1:24224"))
