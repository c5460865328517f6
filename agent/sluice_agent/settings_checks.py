"""Checks of the settings of an agent that concern several of them together."""

from typing import TYPE_CHECKING

from sluice_protocol.errors import BadUsage
from sluice_protocol.settings_checks import check_effects, check_number
from sluice_web.addresses import check_distinct

if TYPE_CHECKING:
    from sluice_agent.settings import AgentSettings


def check_agent_settings(settings: "AgentSettings") -> None:
    """Check the settings before anything is opened.

    Raises:
        BadUsage: A setting has no effect because another one is missing, a number is out of range,
            two listeners have one address, or a request to a door could never fit into the spool.
    """
    check_number("drain_s", settings.drain_s, 0)
    check_number("host_metrics_s", settings.host_metrics_s, 0)
    _check_effects(settings)
    doors = settings.for_doors()
    separate = settings.for_door_ports()
    check_distinct(
        [
            ("doors_listen", doors.listen if doors.http_doors else ""),
            ("otlp_grpc_listen", separate.otlp_grpc_listen),
            ("forward_listen", separate.forward_listen),
            ("health", settings.health),
        ]
    )
    if doors.doors and settings.door_body_bytes > settings.spool_bytes:
        raise BadUsage(
            "the largest request of a door never fits into the spool: raise spool_bytes to"
            f" {settings.door_body_bytes} or more, spool_bytes=`{settings.spool_bytes}`"
        )


def _check_effects(settings: "AgentSettings") -> None:
    doors = settings.for_doors()
    syslog = settings.for_syslog()
    has_tls = any(one.transport == "tls" for one in syslog.addresses)
    has_https = any(url.startswith("https:") for url in settings.gateways)
    by_http = "a door over HTTP or gRPC in doors"
    over_tls = "a syslog address tls://HOST:PORT"
    check_effects(
        [
            ("tls_key", settings.tls_key, "tls_cert", settings.tls_cert),
            ("tls_cert", settings.tls_cert, "a gateway with https://", has_https),
            ("tls_ca", settings.tls_ca, "a gateway with https://", has_https),
            ("doors_listen", settings.doors_listen, by_http, doors.http_doors),
            ("door_tokens", settings.door_tokens, by_http, doors.http_doors),
            ("door_tls_cert", settings.door_tls_cert, "doors", doors.doors),
            ("syslog_tls_cert", settings.syslog_tls_cert, over_tls, has_tls),
            ("syslog_tls_key", settings.syslog_tls_key, over_tls, has_tls),
            ("syslog_client_ca", settings.syslog_client_ca, over_tls, has_tls),
            ("from_end", settings.from_end, "paths", settings.paths),
        ]
    )
