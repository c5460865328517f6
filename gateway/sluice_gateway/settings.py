"""The settings of a gateway: values only, read once at start."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from sluice_doors.table import DoorName
from sluice_protocol.authority import UPLOAD_TIME_S_MAX, AcceptanceMode
from sluice_protocol.errors import BadUsage
from sluice_protocol.journals import FENCE_S, JOURNAL_INTERVAL_S, JOURNAL_INTERVAL_S_MAX
from sluice_protocol.settings_checks import check_effects, check_number
from sluice_protocol.units import FRAME_BYTES_MAX
from sluice_web.addresses import PORT_MAX, check_distinct, parse_allowed_hosts, parse_listen

OWN_FRAME_BYTES_MAX: Final = 1024 * 1024
FLUSH_MS_MAX: Final = 5000
FLUSH_BYTES_MAX: Final = 8 * 1024 * 1024
_FLUSH_BYTES_MIN: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """How one gateway serves uploads. The settings of the authority are in the store.

    Attributes:
        listen: Address and port; port 0 selects a free one and logs it.
        allowed_hosts: Names under which operators reach the conflicts API and metrics, without
            ports, separated by commas. The address of the connection is always allowed, and uploads
            may name any host.
        workers: Number of processes that share the port (SO_REUSEPORT).
        principals: TOML file of who may send for which agents; read again when it changes.
        collector_id: The name of this gateway in manifests; empty for the host name.
        spool: In `local_spool`, the directory that accepts, as a `file://` URL; empty where the
            store accepts. It must agree with the authority.
        spool_bytes_max: In `local_spool`, maximum bytes of batches that are not transferred; 0 for
            no maximum.
        inflight_bytes_max: Bytes of bodies that one worker has in memory, each counted 1.25
            times for its copies; further uploads are refused with 503.
        connections_max: Most open connections of one worker; one address has a quarter of them.
        idle_timeout_s: Time that a connection may be idle between two requests.
        drain_time_s_max: Time that running uploads have to end after SIGTERM.
        journal_interval_s: Time between two journal objects of a worker that has something to
            report, at most 5 s. Each is a write to the store; batches are found, and
            `accepted_until` advances, this much later. An object is written earlier for 64 batches.
        metrics_port: Port of health and metrics of worker 0; worker n uses port + n; 0 for none.
        tls_certificate: PEM chain; with `tls_key` the gateway serves TLS.
        tls_key: PEM key of the chain.
        tls_client_ca: PEM of the authorities of client certificates; turns mTLS on.
        doors: Protocols of other clients that this gateway accepts; none by default.
        otlp_grpc_listen: Address and port of OTLP over gRPC; empty for none.
        otlp_grpc_client_certificates: Require a client certificate of `tls_client_ca` over gRPC;
            its SPIFFE id is the sender where there is no token. Otherwise senders need a token.
        forward_listen: Address and port of Fluent's forward protocol; empty for none.
        forward_principal: The sender of every connection to that port, without a handshake: for
            clients that know no shared key. Empty to require a shared key or a certificate.
        door_body_bytes_max: Largest body of a door's request, compressed and decompressed; a
            larger one is refused with 413.
        door_own_frame_bytes: Size of the records of a request from which it becomes a separate
            batch; smaller requests are combined. Must be equal in all gateways. 0 combines none.
        door_flush_ms: Time for which the first request of a combined batch is kept. While requests
            keep coming, also the time between two combined batches of one sender and kind. A batch
            is made earlier at 4 KiB for each ms, 1 MiB at least and 8 MiB at most.
        skip_probe: Serve on a store that the doctor has not examined; every log line reports it.
    """

    listen: str = "127.0.0.1:8080"
    allowed_hosts: str = ""
    workers: int = 1
    principals: Path = Path("principals.toml")
    collector_id: str = ""
    spool: str = ""
    spool_bytes_max: int = 0
    inflight_bytes_max: int = 256 * 1024 * 1024
    connections_max: int = 4096
    idle_timeout_s: float = 30.0
    drain_time_s_max: float = 40.0
    journal_interval_s: float = JOURNAL_INTERVAL_S
    metrics_port: int = 0
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    doors: tuple[DoorName, ...] = ()
    otlp_grpc_listen: str = ""
    otlp_grpc_client_certificates: bool = False
    forward_listen: str = ""
    forward_principal: str = ""
    door_body_bytes_max: int = 20 * 1024 * 1024
    door_own_frame_bytes: int = 0
    door_flush_ms: int = 250
    skip_probe: bool = False

    spool_free_bytes_min: ClassVar[int] = 64 * 1024 * 1024
    """Free space that uploads leave on the disk of the spool: the transfer writes markers there."""
    object_landing_interval_ms: ClassVar[int] = 1000
    """Pause between two passes of the transfer: a pass lists the spool, a local directory."""
    switch_settle_s: ClassVar[float] = 60.0
    """Time after a mode switch before the spool accepts: gateways of the old mode exit in 30 s."""
    frame_bytes_max: ClassVar[int] = FRAME_BYTES_MAX
    """The limit of the format: an agent would park a frame that one gateway refuses."""
    head_timeout_s: ClassVar[float] = 10.0
    """Time from a connection, or the first byte of a request, to its last header."""
    body_grace_s: ClassVar[float] = 10.0
    """Time that a body may take before its rate is checked: a slow start is no attack."""
    body_rate_min_bytes_per_s: ClassVar[int] = 16 * 1024
    """Minimum rate of a body: a slower sender has its memory for more than 17 minutes."""
    upload_time_s_max: ClassVar[float] = float(UPLOAD_TIME_S_MAX)
    """Total time of the store calls of one upload; the margin of the authority depends on it."""
    journal_fence_s: ClassVar[float] = FENCE_S
    """Age of the newest journal object after which a worker registers again before a 200."""
    cache_entries_max: ClassVar[int] = 100_000
    """Accepted frames that a worker remembers for duplicates, about 20 MB."""
    forward_idle_timeout_s: ClassVar[float] = 1800.0
    """Time that a connection of Fluent may be idle: its clients keep one open between events."""

    @property
    def acceptance(self) -> AcceptanceMode:
        """Return where this gateway accepts."""
        return "local_spool" if self.spool else "s3_manifest"

    @property
    def connections_per_address_max(self) -> int:
        """Return the most open connections from one address."""
        return max(1, self.connections_max // 4)

    @property
    def door_flush_bytes(self) -> int:
        """Return the size of the requests from which a combined batch is made without waiting."""
        return min(max(_FLUSH_BYTES_MIN, 4096 * self.door_flush_ms), FLUSH_BYTES_MAX)


def check_settings(settings: GatewaySettings) -> None:
    """Check limits, dependent options, options without effect, and addresses used twice."""
    _check_limits(settings)
    _check_numbers(settings)
    _check_doors(settings)
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise BadUsage("set both tls_certificate and tls_key, or neither")
    if settings.tls_client_ca is not None and settings.tls_certificate is None:
        raise BadUsage("tls_client_ca needs tls_certificate and tls_key")
    check_number("spool_bytes_max", settings.spool_bytes_max, 0)
    if settings.spool and settings.workers != 1:
        raise BadUsage("local_spool has one writer: set workers to 1")
    _check_door_ports(settings)
    _check_addresses(settings)
    parse_allowed_hosts(settings.allowed_hosts)


def _check_door_ports(settings: GatewaySettings) -> None:
    if settings.otlp_grpc_listen:
        _check_port(settings, "otlp", "otlp_grpc_listen", settings.otlp_grpc_listen)
    if settings.forward_listen:
        _check_port(settings, "forward", "forward_listen", settings.forward_listen)
    elif "forward" in settings.doors:
        raise BadUsage("the door forward needs a port: set forward_listen, such as 0.0.0.0:24224")
    if settings.otlp_grpc_client_certificates and settings.tls_client_ca is None:
        raise BadUsage("otlp_grpc_client_certificates needs tls_client_ca")
    check_effects(
        [
            (
                *("otlp_grpc_client_certificates", settings.otlp_grpc_client_certificates),
                *("otlp_grpc_listen", settings.otlp_grpc_listen),
            ),
            (
                *("forward_principal", settings.forward_principal),
                *("forward_listen", settings.forward_listen),
            ),
            ("door_own_frame_bytes", settings.door_own_frame_bytes, "doors", settings.doors),
        ]
    )


def _check_addresses(settings: GatewaySettings) -> None:
    host, _ = parse_listen(settings.listen)
    shown = f"[{host}]" if ":" in host else host
    ports = range(settings.metrics_port, settings.metrics_port + settings.workers)
    check_distinct(
        [
            ("listen", settings.listen),
            ("otlp_grpc_listen", settings.otlp_grpc_listen),
            ("forward_listen", settings.forward_listen),
            *(("metrics_port", f"{shown}:{port}") for port in ports if settings.metrics_port),
        ]
    )


def _check_port(settings: GatewaySettings, door: DoorName, name: str, listen: str) -> None:
    _, port = parse_listen(listen)
    if door not in settings.doors:
        raise BadUsage(f"{name} needs {door} in doors")
    if port == 0 and settings.workers != 1:
        raise BadUsage(f"{name} needs a port where workers share it")


def _check_doors(settings: GatewaySettings) -> None:
    if settings.doors and 2 * settings.inflight_bytes_max < 5 * settings.door_body_bytes_max:
        raise BadUsage("inflight_bytes_max must be at least 2.5 times door_body_bytes_max")
    if not 0 <= settings.door_own_frame_bytes <= OWN_FRAME_BYTES_MAX:
        raise BadUsage(f"door_own_frame_bytes must be 0 to {OWN_FRAME_BYTES_MAX}")
    if not 1 <= settings.door_flush_ms <= FLUSH_MS_MAX:
        raise BadUsage(f"door_flush_ms must be 1 to {FLUSH_MS_MAX}")


def _check_numbers(settings: GatewaySettings) -> None:
    check_number("idle_timeout_s", settings.idle_timeout_s, 0, above=True)
    check_number("drain_time_s_max", settings.drain_time_s_max, 0)
    for name in ("connections_max", "door_body_bytes_max"):
        check_number(name, getattr(settings, name), 1)
    check_number("metrics_port", settings.metrics_port, 0, PORT_MAX + 1 - settings.workers)


def _check_limits(settings: GatewaySettings) -> None:
    if 4 * settings.inflight_bytes_max < 5 * settings.frame_bytes_max:
        raise BadUsage(f"inflight_bytes_max must be at least {5 * settings.frame_bytes_max // 4}")
    if not JOURNAL_INTERVAL_S <= settings.journal_interval_s <= JOURNAL_INTERVAL_S_MAX:
        raise BadUsage(
            "journal_interval_s must be"
            f" {JOURNAL_INTERVAL_S:g} to {JOURNAL_INTERVAL_S_MAX:g} seconds"
        )
    if settings.workers < 1:
        raise BadUsage("workers must be at least 1")
