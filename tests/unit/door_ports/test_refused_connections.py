"""Connections whose client proved no key are logged at most once a minute, with their number."""

from structlog.testing import capture_logs

from sluice_door_ports.forward_server import RefusedConnections
from sluice_protocol.units import NS_PER_S


def test_a_line_a_minute_states_the_number_since_the_last_one() -> None:
    refused = RefusedConnections()
    with capture_logs() as logs:
        for second in (0, 1, 59, 60, 61, 119):
            refused.add("no key", "10.0.0.1", second * NS_PER_S)
    assert [(one["event"], one["connections"], one["log_level"]) for one in logs] == [
        ("forward_connections_refused", 1, "warning"),
        ("forward_connections_refused", 3, "warning"),
    ]
