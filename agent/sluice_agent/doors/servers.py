"""The listeners of an agent's doors: HTTP, OTLP over gRPC, and Fluent's forward protocol.

An address is bound by one process only, so that a second agent fails to start and does not receive
a part of the requests. When the agent stops, requests that it has received have time to become
durable and to be answered.
"""

import math
import os
import re
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from sluice_agent.doors.service import LOCAL_SENDER, AgentDoors, DoorPorts, TokenSenders
from sluice_agent.settings import DoorSettings
from sluice_doors.api import DoorsApi
from sluice_doors.forward.handshake import ForwardIdentity, SharedKey
from sluice_protocol.errors import BadUsage
from sluice_web.addresses import parse_listen
from sluice_web.application import make_application
from sluice_web.connection_guard import (
    BodyPace,
    BoundedServer,
    ConnectionLimits,
    listening_bounded,
    make_room,
    watch_connection,
)
from sluice_web.listening import BoundedAccepts, TlsFiles, bind_setting, server_tls
from sluice_web.problems import problem_middleware
from sluice_web.process_limits import port_connections_max
from sluice_web.rare_warnings import RareWarnings
from sluice_web.tokens import parse_operators

KEY_CHARS_MIN: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)


class KeySenders:
    """The senders of connections (`ForwardSenders`)."""

    def __init__(self, keys: Iterable[SharedKey]) -> None:
        """Without keys, every connection is accepted."""
        self._keys = tuple(keys)

    def of_connection(self, certificate: Mapping[str, object] | None) -> ForwardIdentity | None:
        """Return the identity of every connection if no key is required, else None."""
        del certificate
        return None if self._keys else ForwardIdentity(name=LOCAL_SENDER)

    def shared_keys(self) -> Iterable[SharedKey]:
        """Return the keys."""
        return self._keys

    def of_identity(self, identity: ForwardIdentity) -> str:
        """Return the name of the sender."""
        return identity.key_id or identity.name


def read_forward_keys(path: Path) -> tuple[SharedKey, ...]:
    """Return the keys of a file; an error contains no key.

    Each line is `NAME=KEY`; empty lines and lines that begin with `#` are left out. The handshake
    needs the text of a key on both ends (ADR 21), so the file must be readable by the agent only.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"cannot read forward_keys: {error}, path=`{path}`") from error
    keys: dict[str, SharedKey] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        name, _, key = line.partition("=")
        if _NAME.fullmatch(name) is None or len(key) < KEY_CHARS_MIN:
            raise BadUsage(
                f"invalid line in forward_keys: use NAME=KEY with a key of at least"
                f" {KEY_CHARS_MIN} characters, path=`{path}` line=`{number}`"
            )
        if name in keys:
            raise BadUsage(
                f"a name occurs twice in forward_keys: use one line for each sender,"
                f" path=`{path}` name=`{name}`"
            )
        keys[name] = SharedKey(id=name, shared_key=key)
    if not keys:
        raise BadUsage(f"forward_keys contains no key: add a line NAME=KEY, path=`{path}`")
    return tuple(keys.values())


SHUTDOWN_S: Final = 2.0
"""Time to answer what was received before the agent was stopped."""
HANDSHAKE_S: Final = 10.0
"""Time for a handshake, and for a request head."""
HTTP_IDLE_S: Final = 75.0
FORWARD_IDLE_S: Final = 1800.0
PACE: Final = BodyPace(grace_s=10.0, rate_min=16 * 1024)
HOSTNAME: Final = "sluice/agent"
"""The host name in Fluent's handshake, whose clients refuse a server with their own name."""

log = structlog.get_logger("sluice.agent.doors")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDoors:
    """Where clients reach the doors; a port that is not open is None."""

    urls: tuple[str, ...] = ()
    otlp_grpc_port: int | None = None
    forward_port: int | None = None


@asynccontextmanager
async def serve_doors(settings: DoorSettings, ports: DoorPorts) -> AsyncIterator[OpenDoors]:
    """Serve the open doors while the context is active."""
    if not settings.doors:
        yield OpenDoors()
        return
    senders = TokenSenders(parse_operators(settings.tokens))
    doors = AgentDoors(ports, senders, body_bytes_max=settings.body_bytes_max)
    async with AsyncExitStack() as stack:
        stack.callback(doors.close)
        urls: tuple[str, ...] = ()
        grpc_port = forward_port = None
        if settings.http_doors:
            urls = await stack.enter_async_context(_serve_http(settings, doors, ports))
        if settings.otlp_grpc_listen:
            grpc_port = await stack.enter_async_context(_serve_grpc(settings, doors, senders))
        if settings.forward_listen:
            forward_port = await stack.enter_async_context(_serve_forward(settings, doors, ports))
        stack.callback(doors.stop)  # the first step of the end
        yield OpenDoors(urls=urls, otlp_grpc_port=grpc_port, forward_port=forward_port)


def _tls_files(settings: DoorSettings) -> TlsFiles | None:
    if settings.tls_cert is None:
        return None
    return TlsFiles(certificate=settings.tls_cert, key=settings.tls_key or settings.tls_cert)


def _serve_http(
    settings: DoorSettings, doors: AgentDoors, ports: DoorPorts
) -> AbstractAsyncContextManager[tuple[str, ...]]:
    """Return the server of the doors over HTTP; it yields its URLs."""
    # With tokens, each request contains something that a page of another origin cannot send.
    api = DoorsApi(doors, settings.http_doors, open_host=bool(settings.tokens))
    accepts = _bounded_accepts(settings, ports)
    app = make_application(
        list(api.endpoints()),
        middlewares=[watch_connection, make_room(accepts), problem_middleware()],
        title="sluice agent: doors",
        allowed_hosts=settings.allowed_hosts,
        body_bytes_max=settings.body_bytes_max,
    )
    server = BoundedServer(
        accepts=accepts, limits=_limits(settings, ports, HTTP_IDLE_S), shutdown_s=SHUTDOWN_S
    )
    return listening_bounded(app, settings.listen, server, tls=server_tls(_tls_files(settings)))


def _serve_grpc(
    settings: DoorSettings, doors: AgentDoors, senders: TokenSenders
) -> AbstractAsyncContextManager[int]:
    """Return the server of OTLP over gRPC; it yields its port."""
    from sluice_doors.otlp.grpc import (  # noqa: PLC0415 - an extra
        GrpcRules,
        MessageReader,
        OtlpMethods,
        serving_otlp_grpc,
        slow_max,
    )

    listen = settings.otlp_grpc_listen
    if parse_listen(listen)[1]:  # gRPC does not tell why it cannot bind an address
        bind_setting("otlp_grpc_listen", listen, is_shared=False).close()
    messages = MessageReader(
        doors.budget,
        PACE,
        message_bytes_max=doors.body_bytes_max,
        slow_max=slow_max(doors.body_bytes_max, doors.budget.bytes_max),
    )
    rules = GrpcRules(
        connections_max=port_connections_max(settings.connections_max),
        handshake_s=HANDSHAKE_S,
        end_s=SHUTDOWN_S,
    )
    methods = OtlpMethods(doors, senders, messages)
    return serving_otlp_grpc(methods, listen, rules, tls=_tls_files(settings))


def _serve_forward(
    settings: DoorSettings, doors: AgentDoors, ports: DoorPorts
) -> AbstractAsyncContextManager[int]:
    """Return the server of Fluent's forward protocol; it yields its port."""
    from sluice_agent.doors.servers import (  # noqa: PLC0415 - an extra
        KeySenders,
        read_forward_keys,
    )
    from sluice_doors.forward.server import (  # noqa: PLC0415
        ForwardRules,
        ForwardServer,
        serving_forward,
    )

    keys = () if settings.forward_keys is None else read_forward_keys(settings.forward_keys)
    rules = ForwardRules(
        hostname=HOSTNAME,
        message_bytes_max=doors.body_bytes_max,
        login_s=HANDSHAKE_S,
        pace=PACE,
        retry_s_max=math.inf,  # an agent drops nothing while its spool is full
        end_s=SHUTDOWN_S,
    )
    server = ForwardServer(doors=doors, senders=KeySenders(keys), rules=rules)
    limits = _limits(settings, ports, FORWARD_IDLE_S)
    return serving_forward(server, settings.forward_listen, limits, tls=_tls_files(settings))


def _limits(settings: DoorSettings, ports: DoorPorts, idle_timeout_s: float) -> ConnectionLimits:
    connections_max = port_connections_max(settings.connections_max)
    return ConnectionLimits(
        connections_max=connections_max,
        per_address_max=connections_max,
        head_timeout_s=HANDSHAKE_S,
        idle_timeout_s=idle_timeout_s,
        opened=ports.metrics.door_connections,
        closed=ports.metrics.door_connections_closed,
    )


def _bounded_accepts(settings: DoorSettings, ports: DoorPorts) -> BoundedAccepts:
    may_warn = RareWarnings(ports.clock).may_warn
    connections_max = port_connections_max(settings.connections_max)

    def warn_full(_: socket.socket) -> None:
        if may_warn("full"):
            log.warning(
                "door_connections_full",
                address=settings.listen,
                connections=connections_max,
            )

    def warn_failed(error: OSError) -> None:
        if may_warn("failed"):
            log.warning("door_accept_failed", reason=os.strerror(error.errno or 0))

    return BoundedAccepts(
        connections_max, clock=ports.clock, on_full=warn_full, on_failed=warn_failed
    )
