"""The listeners of an agent's doors: HTTP, OTLP over gRPC, and Fluent's forward protocol.

An address is bound by one process only, so that a second agent fails to start and does not receive
a part of the requests. When the agent stops, requests that it has received have time to become
durable and to be answered.
"""

import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from sluice_agent.door_senders import TokenSenders
from sluice_agent.doors import AgentDoors, DoorPorts
from sluice_agent.listen_settings import DoorPortSettings, DoorSettings
from sluice_door_http.api import DoorsApi
from sluice_web.addresses import parse_listen
from sluice_web.application import make_application
from sluice_web.connection_guard import BodyPace, ConnectionLimits
from sluice_web.listening import (
    ServerOptions,
    TlsFiles,
    bind_setting,
    listening,
    server_tls,
)
from sluice_web.problems import problem_middleware
from sluice_web.tokens import parse_operators

SHUTDOWN_S: Final = 2.0
"""Time to answer what was received before the agent was stopped."""
CONNECTIONS_MAX: Final = 1024
"""Connections of gRPC, and of Fluent; further ones are closed, and their clients try again."""
HANDSHAKE_S: Final = 10.0
FORWARD_IDLE_S: Final = 1800.0
PACE: Final = BodyPace(grace_s=10.0, rate_min=16 * 1024)
HOSTNAME: Final = "sluice/agent"
"""In the handshake of Fluent, whose clients refuse a server with their host name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDoors:
    """Where clients reach the doors.

    Attributes:
        urls: Of the doors over HTTP.
        otlp_grpc_port: None if it is not open.
        forward_port: None if it is not open.
    """

    urls: tuple[str, ...] = ()
    otlp_grpc_port: int | None = None
    forward_port: int | None = None


@asynccontextmanager
async def serve_doors(
    settings: DoorSettings, separate: DoorPortSettings, ports: DoorPorts
) -> AsyncIterator[OpenDoors]:
    """Serve the open doors while the context is active.

    Raises:
        BadUsage: An address, the tokens or the keys have another form, an address cannot be bound,
            or a file cannot be read.
    """
    if not settings.doors:
        yield OpenDoors()
        return
    tokens = parse_operators(settings.tokens)
    senders = TokenSenders(tokens)
    doors = AgentDoors(ports, senders, body_bytes_max=settings.body_bytes_max)
    tls = _tls_files(separate)
    async with AsyncExitStack() as stack:
        stack.callback(doors.close)
        enter = stack.enter_async_context
        urls: tuple[str, ...] = ()
        if settings.http_doors:
            urls = await enter(_serve_http(settings, doors, has_tokens=bool(tokens), tls=tls))
        opened = OpenDoors(
            urls=urls,
            otlp_grpc_port=await enter(_serve_grpc(separate.otlp_grpc_listen, doors, senders, tls))
            if separate.otlp_grpc_listen
            else None,
            forward_port=await enter(_serve_forward(separate, doors, ports, tls))
            if separate.forward_listen
            else None,
        )
        stack.callback(doors.stop)  # the first step of the end
        yield opened


def _tls_files(separate: DoorPortSettings) -> TlsFiles | None:
    if separate.tls_cert is None:
        return None
    return TlsFiles(certificate=separate.tls_cert, key=separate.tls_key or separate.tls_cert)


def _serve_http(
    settings: DoorSettings, doors: AgentDoors, *, has_tokens: bool, tls: TlsFiles | None
) -> AbstractAsyncContextManager[tuple[str, ...]]:
    # With tokens, each request contains something that a page of another origin cannot send.
    api = DoorsApi(doors, settings.http_doors, open_host=has_tokens)
    app = make_application(
        list(api.endpoints()),
        middlewares=[problem_middleware()],
        title="sluice agent: doors",
        allowed_hosts=settings.allowed_hosts,
        body_bytes_max=settings.body_bytes_max,
    )
    options = ServerOptions(shutdown_s=SHUTDOWN_S)
    return listening(app, settings.listen, options, tls=server_tls(tls))


def _serve_grpc(
    listen: str, doors: AgentDoors, senders: TokenSenders, tls: TlsFiles | None
) -> AbstractAsyncContextManager[int]:
    from sluice_door_ports.grpc_messages import MessageReader, slow_max  # noqa: PLC0415 - an extra
    from sluice_door_ports.grpc_server import (  # noqa: PLC0415
        GrpcRules,
        OtlpMethods,
        serving_otlp_grpc,
    )

    if parse_listen(listen)[1]:  # gRPC does not tell why it cannot bind an address
        bind_setting("otlp_grpc_listen", listen, is_shared=False).close()
    budget = doors.budget
    messages = MessageReader(
        budget,
        PACE,
        message_bytes_max=doors.body_bytes_max,
        slow_max=slow_max(doors.body_bytes_max, budget.bytes_max),
    )
    rules = GrpcRules(connections_max=CONNECTIONS_MAX, handshake_s=HANDSHAKE_S, end_s=SHUTDOWN_S)
    return serving_otlp_grpc(OtlpMethods(doors, senders, messages), listen, rules, tls=tls)


def _serve_forward(
    separate: DoorPortSettings, doors: AgentDoors, ports: DoorPorts, tls: TlsFiles | None
) -> AbstractAsyncContextManager[int]:
    from sluice_agent.forward_keys import KeySenders, read_forward_keys  # noqa: PLC0415 - an extra
    from sluice_door_ports.forward_server import (  # noqa: PLC0415
        ForwardRules,
        ForwardServer,
        serving_forward,
    )

    keys = () if separate.forward_keys is None else read_forward_keys(separate.forward_keys)
    rules = ForwardRules(
        hostname=HOSTNAME,
        message_bytes_max=doors.body_bytes_max,
        login_s=HANDSHAKE_S,
        pace=PACE,
        retry_s_max=math.inf,  # an agent drops nothing while its spool is full
        end_s=SHUTDOWN_S,
    )
    limits = ConnectionLimits(
        connections_max=CONNECTIONS_MAX,
        per_address_max=CONNECTIONS_MAX,
        head_timeout_s=HANDSHAKE_S,
        idle_timeout_s=FORWARD_IDLE_S,
        opened=ports.metrics.door_connections,
        closed=ports.metrics.door_connections_closed,
    )
    server = ForwardServer(doors=doors, senders=KeySenders(keys), rules=rules)
    return serving_forward(server, separate.forward_listen, limits, tls=tls)
