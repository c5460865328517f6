"""Settings of the gateway that bound how often it writes."""

from pathlib import Path
from typing import Any

import pytest

from sluice_gateway.settings import GatewaySettings, check_settings
from sluice_protocol.errors import BadUsage


@pytest.mark.parametrize(
    "settings",
    [
        {"journal_interval_s": 0.5},
        {"journal_interval_s": 5.5},
        {"journal_interval_s": float("nan")},
        {"door_flush_ms": 5001},
        {"idle_timeout_s": 0.0},
        {"connections_max": 0},
        {"spool_bytes_max": -1},
        {"door_body_bytes_max": 0},
        {"drain_time_s_max": float("nan")},
        {"metrics_port": -1},
        {"metrics_port": 65_536},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    [name] = settings
    with pytest.raises(BadUsage, match=name):
        check_settings(GatewaySettings(**settings))


@pytest.mark.parametrize(
    ("flush_ms", "size"), [(1, 1 << 20), (250, 1 << 20), (1000, 4096_000), (5000, 8 << 20)]
)
def test_combined_batches_are_larger_where_requests_may_wait_longer(
    flush_ms: int, size: int
) -> None:
    assert GatewaySettings(door_flush_ms=flush_ms).door_flush_bytes == size


@pytest.mark.parametrize("interval_s", [1.0, 5.0])
def test_the_ends_of_the_journal_interval_are_accepted(interval_s: float) -> None:
    check_settings(GatewaySettings(journal_interval_s=interval_s))


def test_the_door_forward_needs_a_port() -> None:
    """Without one, nothing would listen, and no client could tell why."""
    with pytest.raises(BadUsage, match="set forward_listen"):
        check_settings(GatewaySettings(doors=("otlp", "forward")))
    check_settings(GatewaySettings(doors=("forward",), forward_listen="127.0.0.1:24224"))


PEM = Path("a.pem")
TLS = {"tls_certificate": PEM, "tls_key": PEM, "tls_client_ca": PEM}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"otlp_grpc_client_certificates": True, **TLS},
            "otlp_grpc_client_certificates has no effect without otlp_grpc_listen",
        ),
        (
            {"doors": ("json",), "forward_principal": "shop"},
            "forward_principal has no effect without forward_listen",
        ),
        ({"door_own_frame_bytes": 4096}, "door_own_frame_bytes has no effect without doors"),
        ({"metrics_port": 65_535, "workers": 2}, "metrics_port must be"),
    ],
)
def test_a_setting_without_effect_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        check_settings(GatewaySettings(**settings))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"otlp_grpc_listen": "127.0.0.1:8080"}, ["listen", "otlp_grpc_listen"]),
        ({"listen": "0.0.0.0:8080", "otlp_grpc_listen": "127.0.0.1:8080"}, ["listen"]),
        ({"forward_listen": "localhost:8080"}, ["listen", "forward_listen"]),
        ({"otlp_grpc_listen": "[::]:9", "forward_listen": "127.0.0.1:9"}, ["forward_listen"]),
        ({"metrics_port": 8080}, ["listen", "metrics_port"]),
        ({"metrics_port": 8079, "workers": 2}, ["listen", "metrics_port=`127.0.0.1:8080`"]),
    ],
)
def test_two_listeners_of_one_address_are_refused(
    settings: dict[str, Any], names: list[str]
) -> None:
    """They share the port: the kernel would send each connection to one of them, at random."""
    doors = {"doors": ("otlp", "forward"), "forward_listen": "127.0.0.1:24224"}
    with pytest.raises(BadUsage, match="one address") as found:
        check_settings(GatewaySettings(**{**doors, **settings}))
    assert all(name in str(found.value) for name in names)


def test_different_addresses_are_accepted() -> None:
    check_settings(
        GatewaySettings(
            listen="127.0.0.1:8080",
            otlp_grpc_listen="127.0.0.2:8080",
            forward_listen="[::1]:8080",
            metrics_port=9090,
            workers=3,
            doors=("otlp", "forward"),
        )
    )
    zero = {"otlp_grpc_listen": "127.0.0.1:0", "forward_listen": "127.0.0.1:0"}
    check_settings(GatewaySettings(listen="127.0.0.1:0", doors=("otlp", "forward"), **zero))
