"""The settings of an agent and of its parts: values only, so that help and errors are quick."""

import re
import socket
from dataclasses import dataclass, field
from datetime import tzinfo
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final, Literal
from urllib.parse import parse_qsl

from sluice_doors.table import DoorName
from sluice_protocol.errors import BadUsage
from sluice_protocol.identity import check_sender_id
from sluice_protocol.settings_checks import check_effects, check_number, is_base_url
from sluice_web.addresses import (
    LOOPBACK_NAMES,
    check_distinct,
    is_loopback,
    parse_allowed_hosts,
    parse_listen,
)

BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""A larger batch of incompressible bytes could exceed the maximum size of a frame."""
FRESH_RECORDS_MAX: Final = 300_000
"""Records of a batch that is cut by freshness: about as many as empty lines fit into its bytes."""
FRESHNESS_S_MAX: Final = 3600.0
BLOCK_READ_BYTES_MIN: Final = 16 * 1024
BLOCK_COST_BYTES_MAX: Final = 4 * 1024 * 1024
"""One block fills a batch of the default size: each costs a fixed time, and joining copies them."""
SPOOL_BYTES_LEAST: Final = 20 * 1024 * 1024
"""Room for one frame of the maximum size and its header."""

DOORS_LISTEN: Final = "127.0.0.1:4318"
_SYSLOG_FILES: Final = frozenset({"cert", "key", "client_ca"})

Zone = tzinfo | None
"""A time zone; None is the system's zone."""
SyslogTransport = Literal["tcp", "udp", "tls"]


class Durability(StrEnum):
    """When `forward` treats its input as safe.

    `fast`: the spool survives a kill, but not a power cut. `durable`: the spool survives a power
    cut too; batches that are not sent in time remain for the next run. `accepted`: the command
    ends only when a gateway has accepted every batch.
    """

    FAST = "fast"
    DURABLE = "durable"
    ACCEPTED = "accepted"


class WhenFull(StrEnum):
    """The treatment of new records while the spool is full."""

    BLOCK = "block"
    DROP_NEWEST = "drop_newest"


SPOOL_DEFAULT: Final = Path(".sluice-agent/spool")
ONCE_GIVE_UP_S: Final = 60.0
"""A run with `once` ends with an error after uploads, or the spool, have failed for this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits at which a batch is cut.

    Attributes:
        bytes_max: Approximate size before compression; at most 8 MiB.
        freshness_s: Seconds since the first record, if every record may wait: see
            `RecordBlock.may_wait`. 0 means `age_s_max`.

    Raises:
        BadUsage: A limit would produce frames that no gateway accepts.
    """

    bytes_max: int = 4 * 1024 * 1024
    records_max: int = 100_000
    age_s_max: float = 1.0
    freshness_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.bytes_max <= BATCH_BYTES_MAX:
            raise BadUsage(
                f"batch bytes must be 1 to {BATCH_BYTES_MAX}, batch_bytes=`{self.bytes_max}`"
            )
        if self.records_max < 1 or self.age_s_max < 0:
            raise BadUsage("batch records must be at least 1 and batch age must not be negative")
        if not 0 <= self.freshness_s <= FRESHNESS_S_MAX:
            raise BadUsage(
                f"freshness must be 0 to {FRESHNESS_S_MAX:g} s, freshness_s=`{self.freshness_s}`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLimits:
    """How much of a file or pipe is read and parsed together. A block has at least one line."""

    read_bytes: int = 256 * 1024
    cost_bytes_max: int = BLOCK_COST_BYTES_MAX
    records_max: int = 100_000

    @classmethod
    def of(cls, batch: BatchLimits) -> "BlockLimits":
        """Return the limits of equal blocks that fill a batch without exceeding it."""
        blocks = -(-batch.bytes_max // BLOCK_COST_BYTES_MAX)
        cost_bytes_max = batch.bytes_max // blocks
        return cls(
            read_bytes=max(BLOCK_READ_BYTES_MIN, cost_bytes_max),
            cost_bytes_max=cost_bytes_max,
            records_max=batch.records_max,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolSettings:
    """Where and how a spool stores its batches.

    Attributes:
        directory: The spool's directory; one process at a time locks it.
        agent_id: The agent's id, part of every identity.
        resource: Attributes of every frame.
        bytes_max: Maximum bytes of batches, including parked ones.
        sync: Make a commit durable against a power cut, not only against a kill.
        give_up_s: End with an error after an operation has failed for this long, seconds; 0 never.
    """

    directory: Path
    agent_id: str
    resource: tuple[tuple[str, str], ...] = ()
    bytes_max: int = 1024 * 1024 * 1024
    sync: bool = True
    give_up_s: float = 0.0


class Format(StrEnum):
    """What a program writes into a file; `auto` is recognized by its first lines."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    LOGFMT = "logfmt"
    CRI = "cri"
    DOCKER = "docker"
    SYSLOG = "syslog"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Which files are followed.

    Attributes:
        patterns: Glob patterns, including `**`; a format and a colon may be before one.
        format: The format of files whose pattern states none.
        multiline_start: A regex of RE2 that is in the first line of each record of text; empty for
            the rules of `inputs.grouping`.
        exclude: fnmatch patterns of paths to exclude.
        from_end: Read files that exist when the spool is new from their end.
        zone: The time zone of timestamps that specify none; None is the system's zone.
        rotated_wait_s: A renamed file is closed after this many seconds without new lines.
        block: How much of a file is read and parsed together.
    """

    patterns: tuple[str, ...]
    format: Format = Format.AUTO
    multiline_start: str = ""
    exclude: tuple[str, ...] = ("*.gz", "*.xz", "*.bz2", "*.zst", "*.zip")
    from_end: bool = False
    zone: Zone = None
    rotated_wait_s: float = 60.0
    block: BlockLimits = field(default_factory=BlockLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploaderSettings:
    """How batches are sent.

    Attributes:
        uploads_max: Number of concurrent uploads; 1 sends batches strictly in order.
        stop_when_refused: End with an error on 401 and `forbidden_agent`, instead of keeping
            all batches and sending one a minute until it is accepted.
        give_up_s: End with an error after uploads have failed for this long, seconds; 0 never.
    """

    uploads_max: int = 4
    stop_when_refused: bool = False
    give_up_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """Which requests of other clients are accepted, and where.

    Attributes:
        doors: The protocols; empty serves nothing.
        listen: `HOST:PORT` of the listener that those over HTTP share.
        otlp_grpc_listen: `HOST:PORT` of OTLP over gRPC; empty for none.
        forward_listen: `HOST:PORT` of Fluent's forward protocol; empty for none.
        forward_keys: The file of shared keys; None accepts every connection.
        tokens: The senders, as in `AgentSettings.door_tokens`; empty accepts every request.
        allowed_hosts: Names under which clients reach the listener.
        tls_cert: The certificate chain of every listener of doors, PEM; None serves plain text.
        tls_key: Its key; None is the certificate's file.
        connections_max: For each port of doors.

    Raises:
        BadUsage: A port belongs to no open door, the door `forward` has none, or a port would be
            open to other machines without proof of who sends.
    """

    doors: tuple[DoorName, ...]
    listen: str
    otlp_grpc_listen: str
    forward_listen: str
    forward_keys: Path | None
    tokens: str
    allowed_hosts: frozenset[str]
    tls_cert: Path | None
    tls_key: Path | None
    body_bytes_max: int
    connections_max: int

    @property
    def http_doors(self) -> tuple[DoorName, ...]:
        """The protocols over HTTP."""
        return tuple(door for door in self.doors if door != "forward")

    def __post_init__(self) -> None:
        if self.otlp_grpc_listen and "otlp" not in self.doors:
            raise BadUsage("otlp_grpc_listen needs otlp in doors")
        if self.forward_listen and "forward" not in self.doors:
            raise BadUsage("forward_listen needs forward in doors")
        if "forward" in self.doors and not self.forward_listen:
            raise BadUsage(
                "the door forward needs a port: set forward_listen, such as 127.0.0.1:24224"
            )
        if self.forward_keys is not None and not self.forward_listen:
            raise BadUsage("forward_keys needs forward_listen")
        if self.tls_key is not None and self.tls_cert is None:
            raise BadUsage("door_tls_key needs door_tls_cert")
        by_http = self.listen if self.http_doors else ""
        _check_reach("doors_listen", by_http, "door_tokens", self.tokens)
        _check_reach("otlp_grpc_listen", self.otlp_grpc_listen, "door_tokens", self.tokens)
        _check_reach("forward_listen", self.forward_listen, "forward_keys", self.forward_keys)


def _check_reach(name: str, listen: str, proof: str, value: object) -> None:
    """Refuse a port that other machines reach without proof of who sends."""
    if listen and not _is_local(parse_listen(listen)[0]) and not value:
        raise BadUsage(f"set {proof} to listen beyond this machine, {name}=`{listen}`")


def _is_local(host: str) -> bool:
    return host in LOOPBACK_NAMES or is_loopback(host)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyslogAddress:
    """Where syslog is received; port 0 selects a free port.

    Attributes:
        certificate: The chain of a `tls` socket, PEM; None for other transports.
        key: Its key; None is in the certificate's file.
        client_ca: Authorities of client certificates; None accepts every client.
    """

    transport: SyslogTransport
    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

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
    """

    addresses: tuple[SyslogAddress, ...]
    message_bytes_max: int
    zone: tzinfo | None


def parse_syslog_address(text: str) -> SyslogAddress:
    """Return the address of `udp://HOST:PORT`, `tcp://HOST:PORT` or `tls://HOST:PORT?cert=FILE`."""
    transport, separator, rest = text.partition("://")
    address, _, query = rest.partition("?")
    match transport:
        case "tcp" | "udp" | "tls" if separator:
            host, port = parse_listen(address)
        case _:
            raise BadUsage(
                "syslog must be udp://HOST:PORT, tcp://HOST:PORT or tls://HOST:PORT?cert=FILE,"
                f" syslog=`{text[:80]}`"
            )
    files = {name: Path(value) for name, value in parse_qsl(query)}
    wrong = ""
    if transport != "tls" and query:
        wrong = "files of TLS need an address tls://HOST:PORT"
    elif files.keys() - _SYSLOG_FILES:
        wrong = "unknown file of TLS: there are cert, key and client_ca"
    elif transport == "tls" and "cert" not in files:
        wrong = "syslog over TLS needs a certificate: write tls://HOST:PORT?cert=FILE"
    if wrong:
        raise BadUsage(f"{wrong}, syslog=`{text[:80]}`")
    return SyslogAddress(
        transport=transport,
        host=host,
        port=port,
        certificate=files.get("cert"),
        key=files.get("key"),
        client_ca=files.get("client_ca"),
    )


_BRACES: Final = re.compile(r"(?<!\[)\{[^{}]*(?:,|\.\.)[^{}]*\}")
"""Alternatives as shells have them, unless the brace is quoted as `[{]`."""


def default_agent_id() -> str:
    """Return the host's name."""
    return socket.gethostname()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of `sluice agent run`; `forward` has the same without the file inputs.

    Attributes:
        gateway: Base URLs of equivalent gateways, separated by commas; a name that resolves to
            several addresses is that many gateways.
        spool: Directory of the spool.
        key: File of the Ed25519 key; default is the key that `sluice agent init` created here.
        agent_id: The id under which records are accepted; default is the host's name.
        paths: Glob patterns of files to follow, including `**`; `{a,b}` is refused. A format may be
            before one, as in `json:/var/log/shop/*.log`.
        format: What the files of other patterns contain: `auto` recognizes each file by its first
            lines, `text`, `json`, `logfmt`, `cri`, `docker` or `syslog`.
        multiline_start: A regex of RE2, such as `^[0-9]{4}-`, that is in the first line of each
            record of text; default are rules for indented lines and for the traces of Java, Python,
            Go, Node and .NET.
        journal: Also read the journal of systemd, with `journalctl`.
        exclude: Patterns of paths to exclude; `*` also matches `/`, and `{a,b}` is refused.
        from_end: Read files that exist when the spool is new from their end, and the journal.
        once: Read every input to its end, send it, and exit.
        doors: Protocols in which other clients may send: `otlp`, `prometheus`, `loki`,
            `elasticsearch`, `hec`, `firehose`, `json`, `forward`. A request succeeds when its
            records are in the spool.
        doors_listen: `host:port` of the doors over HTTP.
        otlp_grpc_listen: `host:port` of OTLP over gRPC, usually 127.0.0.1:4317; empty for none.
        forward_listen: `host:port` of Fluent's forward protocol, usually 127.0.0.1:24224.
        forward_keys: File with a line `NAME=KEY` for each client of that protocol, the shared keys
            of its handshake; without it every client is accepted, on a loopback address only.
        door_tls_cert: File of the certificate of all doors, PEM; without it they use no TLS.
        door_tls_key: File of its key; default is the certificate's file.
        door_tokens: Clients that may use the doors, `name=<sha256 of the token>`, separated by
            commas; empty accepts every client, on a loopback address only.
        syslog: `udp://HOST:PORT`, `tcp://HOST:PORT` or `tls://HOST:PORT?cert=FILE&key=FILE` on
            which to receive syslog of RFC 5424 and RFC 3164; may be repeated. The files are PEM; a
            missing `key` is in the certificate's file, and with `client_ca=FILE` clients need a
            certificate of these authorities.
        host_metrics_s: Seconds between samples of the host's metrics; 0 disables them.
        freshness_s: How old lines of files and samples of the host may be when their batch is cut,
            seconds; fewer and larger batches, of up to 8 MiB, cost fewer requests. Records that
            cannot be read again are still cut after a second. 0 cuts every batch after a second or
            with 4 MiB.
        uploads: Number of concurrent uploads; 1 sends batches in order.
        spool_bytes: Maximum size of the spool; when it is reached, inputs are blocked.
        when_full: What to do while the spool is full: `block`, or `drop_newest` (counted).
        timezone: Zone of timestamps that specify none, such as `Europe/Berlin`; empty is the
            system's.
        resource: `key=value` attributes of every record.
        health: `host:port` of /livez, /readyz and /metrics; empty disables them.
        allowed_hosts: Names under which clients reach the service, without ports, separated by
            commas. The address of the connection is always allowed.
        tls_ca: File of CA certificates, PEM; default is the system's.
        tls_cert: File of the client certificate for mTLS, PEM.
        tls_key: File of the client certificate's key; default is the certificate's file.
    """

    gateway: str
    spool: Path = SPOOL_DEFAULT
    key: Path | None = None
    agent_id: str = field(default_factory=default_agent_id)
    paths: tuple[str, ...] = ()
    format: Format = Format.AUTO
    multiline_start: str = ""
    journal: bool = False
    exclude: tuple[str, ...] = ("*.gz", "*.xz", "*.bz2", "*.zst", "*.zip")
    from_end: bool = False
    once: bool = False
    doors: tuple[DoorName, ...] = ()
    doors_listen: str = DOORS_LISTEN
    otlp_grpc_listen: str = ""
    forward_listen: str = ""
    forward_keys: Path | None = None
    door_tls_cert: Path | None = None
    door_tls_key: Path | None = None
    door_tokens: str = ""
    syslog: tuple[str, ...] = ()
    host_metrics_s: float = 10.0
    freshness_s: float = 0.0
    uploads: int = 4
    spool_bytes: int = 1024 * 1024 * 1024
    when_full: WhenFull = WhenFull.BLOCK
    timezone: str = ""
    resource: tuple[str, ...] = ()
    health: str = ""
    allowed_hosts: str = ""
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    batch_bytes: ClassVar[int] = 4 * 1024 * 1024
    """Size of a batch before compression, about: larger ones save no request in a second. A single
    line, a part of a request to a door or one read of syslog may exceed it, alone."""
    batch_age_s: ClassVar[float] = 1.0
    """A batch is cut this long after its first record; `freshness_s` selects longer times."""
    drain_s: ClassVar[float] = 5.0
    """Time to keep sending after a stop; the rest stays in the spool. Docker kills a container 10 s
    after a stop."""
    pipe_drain_s: ClassVar[float] = 10.0
    """The same for `sluice forward`: nothing sends the rest before its next run."""
    door_connections: ClassVar[int] = 1024
    """Open connections of each port of doors; more clients wait in the kernel's queue."""
    syslog_message_bytes: ClassVar[int] = 64 * 1024
    """Longest message, as of a UDP datagram; the rest of a longer one is kept as raw records."""
    door_body_bytes: ClassVar[int] = 20 * 1024 * 1024
    """Largest request or message to a door, compressed and decompressed: as of a gateway."""
    host_metrics_batch_s: ClassVar[float] = 60.0
    """A batch of samples is cut this long after its first one, or after `freshness_s` if that is
    longer: a batch costs two PUTs. The first sample of a run is sent after `batch_age_s`."""
    batch_records: ClassVar[int] = 100_000
    """Records of a batch: lines of 40 bytes fill it."""
    upload_s: ClassVar[float] = 60.0
    """Longest upload: twice the time that a gateway may take."""

    def __post_init__(self) -> None:
        if not self.gateways or not all(is_base_url(url) for url in self.gateways):
            raise BadUsage(
                f"gateways must be base URLs such as http://host:port, gateway=`{self.gateway}`"
            )
        check_sender_id(self.agent_id)
        if self.spool_bytes < SPOOL_BYTES_LEAST:
            raise BadUsage(
                f"spool must have at least {SPOOL_BYTES_LEAST} bytes, "
                f"spool_bytes=`{self.spool_bytes}`"
            )
        check_patterns("paths", self.paths)
        check_patterns("exclude", self.exclude)
        if self.uploads < 1:
            raise BadUsage(f"uploads must be at least 1, uploads=`{self.uploads}`")

    @property
    def gateways(self) -> tuple[str, ...]:
        """The gateways' base URLs."""
        return tuple(url.strip() for url in self.gateway.split(",") if url.strip())

    def zone(self) -> Zone:
        """Return the time zone of timestamps that specify none."""
        if not self.timezone:
            return None
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - rarely needed

        try:
            return ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise BadUsage(f"no such time zone, timezone=`{self.timezone}`") from error

    def for_spool(self, *, sync: bool = True) -> SpoolSettings:
        """Return the settings of the spool."""
        return SpoolSettings(
            directory=self.spool,
            agent_id=self.agent_id,
            resource=self._resource(),
            bytes_max=self.spool_bytes,
            sync=sync,
            give_up_s=ONCE_GIVE_UP_S if self.once else 0.0,
        )

    def for_doors(self) -> DoorSettings:
        """Return the settings of the doors.

        Raises:
            BadUsage: Doors would be open to other machines without a token, or the settings of a
                port are wrong.
        """
        return DoorSettings(
            doors=tuple(dict.fromkeys(self.doors)),
            listen=self.doors_listen,
            otlp_grpc_listen=self.otlp_grpc_listen,
            forward_listen=self.forward_listen,
            forward_keys=self.forward_keys,
            tokens=self.door_tokens,
            allowed_hosts=parse_allowed_hosts(self.allowed_hosts),
            tls_cert=self.door_tls_cert,
            tls_key=self.door_tls_key,
            body_bytes_max=self.door_body_bytes,
            connections_max=self.door_connections,
        )

    def for_syslog(self) -> SyslogSettings:
        """Return the settings of syslog."""
        if self.syslog and self.once:
            raise BadUsage("syslog has no end: do not set once together with syslog")
        return SyslogSettings(
            addresses=tuple(parse_syslog_address(text) for text in self.syslog),
            message_bytes_max=self.syslog_message_bytes,
            zone=self.zone(),
        )

    def for_files(self) -> FileSettings:
        """Return the settings of the file input."""
        return FileSettings(
            patterns=self.paths,
            format=self.format,
            multiline_start=self.multiline_start,
            exclude=self.exclude,
            from_end=self.from_end,
            zone=self.zone(),
            block=self.for_blocks(),
        )

    def for_blocks(self) -> BlockLimits:
        """Return how much of a file or pipe is read together."""
        return BlockLimits.of(self.for_batching())

    def for_batching(self) -> BatchLimits:
        """Return the limits at which batches are cut."""
        if not self.freshness_s:
            return BatchLimits(
                bytes_max=self.batch_bytes,
                records_max=self.batch_records,
                age_s_max=self.batch_age_s,
            )
        return BatchLimits(
            bytes_max=BATCH_BYTES_MAX,
            records_max=FRESH_RECORDS_MAX,
            age_s_max=self.batch_age_s,
            freshness_s=self.freshness_s,
        )

    def for_uploader(self, *, stop_when_refused: bool, give_up_s: float = 0.0) -> UploaderSettings:
        """Return the settings of the uploader."""
        return UploaderSettings(
            uploads_max=self.uploads,
            stop_when_refused=stop_when_refused,
            give_up_s=give_up_s,
        )

    def _resource(self) -> tuple[tuple[str, str], ...]:
        pairs = dict(_pair(text) for text in self.resource)
        return tuple(sorted({"host.name": socket.gethostname(), **pairs}.items()))


def split_format(pattern: str, default: Format = Format.AUTO) -> tuple[Format, str]:
    """Return the format that is stated before a pattern, else the default, and the pattern."""
    name, colon, rest = pattern.partition(":")
    return (Format(name), rest) if colon and name in list(Format) else (default, pattern)


def check_patterns(setting: str, patterns: tuple[str, ...]) -> None:
    """Refuse patterns with `{a,b}` or `{1..3}`: shells expand them, glob patterns do not."""
    for pattern in patterns:
        if _BRACES.search(pattern):
            raise BadUsage(
                "patterns have no alternatives in braces: write one pattern for each alternative,"
                f" or `[{{]` if a name contains a brace, {setting}=`{pattern}`"
            )


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise BadUsage(f"resource attribute must be key=value, resource=`{text}`")
    return name, value


def check_agent_settings(settings: AgentSettings) -> None:
    """Check the settings before anything is opened."""
    check_number("host_metrics_s", settings.host_metrics_s, 0)
    _check_effects(settings)
    settings.for_syslog()
    doors = settings.for_doors()
    check_distinct(
        [
            ("doors_listen", doors.listen if doors.http_doors else ""),
            ("otlp_grpc_listen", doors.otlp_grpc_listen),
            ("forward_listen", doors.forward_listen),
            ("health", settings.health),
        ]
    )
    if doors.doors and settings.door_body_bytes > settings.spool_bytes:
        raise BadUsage(
            "the largest request of a door never fits into the spool: raise spool_bytes to"
            f" {settings.door_body_bytes} or more, spool_bytes=`{settings.spool_bytes}`"
        )


def _check_effects(settings: AgentSettings) -> None:
    doors = settings.for_doors()
    has_https = any(url.startswith("https:") for url in settings.gateways)
    by_http = "a door over HTTP or gRPC in doors"
    moved = settings.doors_listen != DOORS_LISTEN
    check_effects(
        [
            ("tls_key", settings.tls_key, "tls_cert", settings.tls_cert),
            ("tls_cert", settings.tls_cert, "a gateway with https://", has_https),
            ("tls_ca", settings.tls_ca, "a gateway with https://", has_https),
            ("doors_listen", moved, by_http, doors.http_doors),
            ("door_tokens", settings.door_tokens, by_http, doors.http_doors),
            ("door_tls_cert", settings.door_tls_cert, "doors", doors.doors),
            ("from_end", settings.from_end, "paths or journal", settings.paths or settings.journal),
            ("format", settings.format is not Format.AUTO, "paths", settings.paths),
            ("multiline_start", settings.multiline_start, "paths", settings.paths),
        ]
    )
