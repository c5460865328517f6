"""The settings of what other programs send to an agent: doors and syslog."""

from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from typing import Final, Literal

from sluice_doors.table import DoorName
from sluice_protocol.errors import BadUsage
from sluice_web.addresses import LOOPBACK_NAMES, is_loopback, parse_allowed_hosts, parse_listen

SyslogTransport = Literal["tcp", "udp", "tls"]
DOORS_LISTEN: Final = "127.0.0.1:4318"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """The limits of one client.

    Attributes:
        connections_max: For each port of doors.
    """

    body_bytes_max: int
    connections_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """Which requests of other clients are accepted, and where.

    Attributes:
        doors: The protocols; empty serves nothing.
        listen: `HOST:PORT` of the listener that those over HTTP share.
        tokens: The senders, as in `AgentSettings.door_tokens`; empty accepts every request.
        allowed_hosts: Names under which clients reach the listener.
        limits: The limits of bodies and connections.
    """

    doors: tuple[DoorName, ...]
    listen: str
    tokens: str
    allowed_hosts: frozenset[str]
    limits: DoorLimits

    @property
    def http_doors(self) -> tuple[DoorName, ...]:
        """The protocols over HTTP."""
        return tuple(door for door in self.doors if door != "forward")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorPortSettings:
    """The doors that have a separate port, and the certificate of all doors.

    Attributes:
        otlp_grpc_listen: `HOST:PORT` of OTLP over gRPC; empty for none.
        forward_listen: `HOST:PORT` of Fluent's forward protocol; empty for none.
        forward_keys: The file of shared keys; None accepts every connection.
        tls_cert: The certificate chain of every listener of doors, PEM; None serves plain text.
        tls_key: Its key; None is the certificate's file.
    """

    otlp_grpc_listen: str
    forward_listen: str
    forward_keys: Path | None
    tls_cert: Path | None
    tls_key: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyslogAddress:
    """Where syslog is received; port 0 selects a free port."""

    transport: SyslogTransport
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.transport}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyslogSettings:
    """How syslog is received.

    Attributes:
        addresses: The sockets; empty receives nothing.
        message_bytes_max: Longest message; the rest of a longer one follows as raw records.
        zone: The zone of times that state none.
        tls_cert: The certificate chain of TLS sockets, PEM.
        tls_key: Its key; None is the certificate's file.
        client_ca: Authorities of client certificates; None accepts every client.

    Raises:
        BadUsage: TLS has no certificate.
    """

    addresses: tuple[SyslogAddress, ...]
    message_bytes_max: int
    zone: tzinfo | None
    tls_cert: Path | None
    tls_key: Path | None
    client_ca: Path | None

    def __post_init__(self) -> None:
        if self.tls_cert is None and any(one.transport == "tls" for one in self.addresses):
            raise BadUsage("syslog over TLS needs a certificate: set syslog_tls_cert")


def parse_doors(
    *,
    doors: tuple[DoorName, ...],
    doors_listen: str,
    otlp: str,
    tokens: str,
    allowed_hosts: str,
    limits: DoorLimits,
) -> DoorSettings:
    """Return the settings of the doors; the arguments are settings of the agent.

    Raises:
        BadUsage: The addresses of `otlp` and `doors_listen` differ, or doors would be open to other
            machines without a token.
    """
    opened: dict[DoorName, None] = dict.fromkeys(doors)
    if otlp:
        opened["otlp"] = None
    listen = doors_listen or otlp or DOORS_LISTEN
    if otlp and otlp != listen:
        raise BadUsage(
            "otlp and the other doors share one address: leave otlp empty and add it to doors,"
            f" otlp=`{otlp}`, doors_listen=`{listen}`"
        )
    host = parse_listen(listen)[0] if opened else ""
    if doors and not tokens and not _is_local(host):
        raise BadUsage(f"set door_tokens to listen beyond this machine, doors_listen=`{listen}`")
    return DoorSettings(
        doors=tuple(opened),
        listen=listen,
        tokens=tokens,
        allowed_hosts=parse_allowed_hosts(allowed_hosts),
        limits=limits,
    )


def check_door_ports(separate: DoorPortSettings, settings: DoorSettings) -> None:
    """Check the separate ports of doors.

    Raises:
        BadUsage: A port belongs to no open door, the door `forward` has none, or a port would be
            open to other machines without proof of who sends.
    """
    if separate.otlp_grpc_listen and "otlp" not in settings.doors:
        raise BadUsage("otlp_grpc_listen needs otlp in doors")
    if separate.forward_listen and "forward" not in settings.doors:
        raise BadUsage("forward_listen needs forward in doors")
    if "forward" in settings.doors and not separate.forward_listen:
        raise BadUsage("the door forward needs a port: set forward_listen, such as 127.0.0.1:24224")
    if separate.forward_keys is not None and not separate.forward_listen:
        raise BadUsage("forward_keys needs forward_listen")
    if separate.tls_key is not None and separate.tls_cert is None:
        raise BadUsage("door_tls_key needs door_tls_cert")
    _check_reach("otlp_grpc_listen", separate.otlp_grpc_listen, "door_tokens", settings.tokens)
    _check_reach("forward_listen", separate.forward_listen, "forward_keys", separate.forward_keys)


def _check_reach(name: str, listen: str, proof: str, value: object) -> None:
    if listen and not _is_local(parse_listen(listen)[0]) and not value:
        raise BadUsage(f"set {proof} to listen beyond this machine, {name}=`{listen}`")


def _is_local(host: str) -> bool:
    return host in LOOPBACK_NAMES or is_loopback(host)


def parse_syslog_address(text: str) -> SyslogAddress:
    """Return the address of `udp://HOST:PORT`, `tcp://HOST:PORT` or `tls://HOST:PORT`."""
    transport, separator, address = text.partition("://")
    match transport:
        case "tcp" | "udp" | "tls" if separator:
            host, port = parse_listen(address)
            return SyslogAddress(transport=transport, host=host, port=port)
        case _:
            raise BadUsage(
                f"syslog must be udp://HOST:PORT, tcp://HOST:PORT or tls://HOST:PORT,"
                f" syslog=`{text[:80]}`"
            )
