"""How the parts of one worker are served: the HTTP port, its health port, and ports of doors."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.process.app import Gateway, body_pace
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.uploads.admission import memory_cost
from sluice_protocol.errors import BadUsage
from sluice_web.bounded_listening import listening, listening_on
from sluice_web.connection_guard import SERVER_IDLE_S, ConnectionLimits
from sluice_web.listening import ServerOptions, TlsFiles, server_tls
from sluice_web.process_limits import port_connections_max

GRPC_END_S: Final = 5.0
"""Time that running calls of gRPC have to end when the gateway stops."""
FORWARD_RETRY_S_MAX: Final = 600.0
"""Time for which messages of Fluent without a name are tried again; after it they are lost."""


@asynccontextmanager
async def serving(gateway: Gateway, sock: socket.socket) -> AsyncIterator[None]:
    """Serve on a bound socket until the block ends; open requests have a second to end."""
    settings = gateway.settings
    limits = _connection_limits(settings, gateway.metrics, settings.idle_timeout_s)
    try:
        async with listening_on(
            gateway.api.application(),
            sock,
            _server_options(SERVER_IDLE_S),
            limits,
            tls=server_tls(_tls_files(settings)),
        ):
            yield
    finally:
        gateway.uploads.frames.close()
        if gateway.doors is not None:
            await gateway.doors.close()


@asynccontextmanager
async def serving_health(gateway: Gateway, host: str, port: int) -> AsyncIterator[None]:
    """Serve the health checks and metrics of this worker on a separate port."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    application = gateway.api.health_application()
    options = _server_options(2 * gateway.settings.idle_timeout_s)
    async with listening(application, address, options):
        yield


@asynccontextmanager
async def serving_grpc(gateway: Gateway) -> AsyncIterator[int]:
    """Serve OTLP over gRPC until the block ends; yield the port."""
    from sluice_doors.otlp.grpc import (  # noqa: PLC0415 - an extra  # noqa: PLC0415
        GrpcRules,
        MessageReader,
        OtlpMethods,
        serving_otlp_grpc,
        slow_max,
    )
    from sluice_gateway.doors.senders import DoorSenders  # noqa: PLC0415

    settings, doors = gateway.settings, gateway.doors
    if doors is None:
        raise BadUsage("otlp_grpc_listen needs otlp in doors")
    cost_bytes = memory_cost(settings.door_body_bytes_max)
    messages = MessageReader(
        doors.budget,
        body_pace(settings),
        message_bytes_max=settings.door_body_bytes_max,
        slow_max=slow_max(cost_bytes, settings.inflight_bytes_max),
    )
    senders = DoorSenders(gateway.uploads.principals, doors.clock)
    rules = GrpcRules(
        connections_max=port_connections_max(settings.connections_max),
        handshake_s=settings.head_timeout_s,
        end_s=GRPC_END_S,
    )
    async with serving_otlp_grpc(
        OtlpMethods(doors, senders, messages),
        settings.otlp_grpc_listen,
        rules,
        tls=_grpc_tls_files(settings),
        is_shared=True,
    ) as port:
        yield port


@asynccontextmanager
async def serving_forward_port(gateway: Gateway) -> AsyncIterator[int]:
    """Serve Fluent's forward protocol until the block ends; yield the port."""
    from sluice_doors.forward.server import (  # noqa: PLC0415 - an extra
        ForwardRules,
        ForwardServer,
        serving_forward,
    )
    from sluice_gateway.doors.senders import DoorSenders  # noqa: PLC0415

    settings, doors = gateway.settings, gateway.doors
    if doors is None:
        raise BadUsage("forward_listen needs forward in doors")
    rules = ForwardRules(
        hostname=f"sluice/{gateway.uploads.collector_id}",  # clients refuse their host name
        message_bytes_max=settings.door_body_bytes_max,
        login_s=settings.head_timeout_s,
        pace=body_pace(settings),
        retry_s_max=FORWARD_RETRY_S_MAX,
    )
    senders = DoorSenders(
        gateway.uploads.principals, doors.clock, forward_principal=settings.forward_principal
    )
    async with serving_forward(
        ForwardServer(doors=doors, senders=senders, rules=rules),
        settings.forward_listen,
        _connection_limits(settings, gateway.metrics, settings.forward_idle_timeout_s),
        tls=_tls_files(settings),
        is_shared=True,
    ) as port:
        yield port


def _connection_limits(
    settings: GatewaySettings, metrics: GatewayMetrics, idle_timeout_s: float
) -> ConnectionLimits:
    return ConnectionLimits(
        connections_max=port_connections_max(settings.connections_max),
        per_address_max=settings.connections_per_address_max,
        head_timeout_s=settings.head_timeout_s,
        idle_timeout_s=idle_timeout_s,
        opened=metrics.connections,
        closed=metrics.closed,
    )


def _server_options(keepalive_s: float) -> ServerOptions:
    return ServerOptions(
        decompress=False,  # the digest is over the bytes as they are sent
        keepalive_s=keepalive_s,
        lingering_s=0.0,  # `send_before_body` discards, with a bound on bytes too
        shutdown_s=1.0,
    )


def _tls_files(settings: GatewaySettings) -> TlsFiles | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return TlsFiles(
        certificate=settings.tls_certificate,
        key=settings.tls_key,
        client_ca=settings.tls_client_ca,
    )


def _grpc_tls_files(settings: GatewaySettings) -> TlsFiles | None:
    files = _tls_files(settings)
    if files is None or settings.otlp_grpc_client_certificates:
        return files
    return replace(files, client_ca=None)
