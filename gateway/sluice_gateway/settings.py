"""The settings of a gateway: values only, read once at start."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
        acceptance: The acceptance mode; must agree with the authority.
        spool: In `local_spool`, the directory that accepts, as a `file://` URL.
        spool_bytes_max: In `local_spool`, maximum bytes of batches that are not transferred; 0 for
            no maximum.
        spool_free_bytes_min: In `local_spool`, free space of the disk that uploads must leave for
            the transfer.
        object_landing_interval_ms: In `local_spool`, pause between two transfer passes.
        switch_settle_s: In `local_spool`, time after a mode switch before the spool accepts, so
            that gateways of the old mode stop; less than 60 only when all of them are stopped.
        frame_bytes_max: Largest frame, at most 16 MiB; a larger one is refused with 413.
        inflight_bytes_max: Bytes of bodies that one worker has in memory, each counted 1.25
            times for its copies; further uploads are refused with 503.
        connections_max: Most open connections of one worker.
        connections_per_address_max: Most open connections from one address.
        head_timeout_s: Time from a connection, or the first byte of a request, to its last header.
        idle_timeout_s: Time that a connection may be idle between two requests.
        body_grace_s: Time that a body may take before its rate is checked.
        body_rate_min_bytes_per_s: Minimum rate of a body after that.
        upload_time_s_max: Total time of the store calls of one upload; at most 30 s, because the
            safety margin of the authority depends on it.
        drain_time_s_max: Time that running uploads have to end after SIGTERM.
        journal_interval_s: Time between two journal objects of a worker that has something to
            report, at most 10 s. Each is a write to the store; batches are found, and
            `accepted_until` advances, this much later. An object is written earlier for 64 batches.
        journal_fence_s: Age of the newest journal object after which a worker registers again
            before it responds 200; at most 60 s, because readers rely on it; less only in tests.
        cache_entries_max: Accepted frames that a worker remembers for duplicates; 0 for none.
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
        forward_idle_timeout_s: Time that a connection to that port may be idle.
        door_body_bytes_max: Largest body of a door's request, compressed and decompressed; a
            larger one is refused with 413.
        door_own_frame_bytes: Size of the records of a request from which it becomes a separate
            batch; smaller requests are combined. Must be equal in all gateways. 0 combines none.
        door_flush_ms: Time for which the first request of a combined batch is kept. While requests
            keep coming, also the time between two combined batches of one sender and kind.
        door_flush_bytes: Size of the requests from which a combined batch is made without waiting
            longer; at most 8 MiB.
        skip_probe: Serve on a store that the doctor has not examined; every log line reports it.
    """

    listen: str = "127.0.0.1:8080"
    allowed_hosts: str = ""
    workers: int = 1
    principals: Path = Path("principals.toml")
    collector_id: str = ""
    acceptance: AcceptanceMode = "s3_manifest"
    spool: str = ""
    spool_bytes_max: int = 0
    spool_free_bytes_min: int = 64 * 1024 * 1024
    object_landing_interval_ms: int = 1000
    switch_settle_s: float = 60.0
    frame_bytes_max: int = FRAME_BYTES_MAX
    inflight_bytes_max: int = 256 * 1024 * 1024
    connections_max: int = 4096
    connections_per_address_max: int = 1024
    head_timeout_s: float = 10.0
    idle_timeout_s: float = 30.0
    body_grace_s: float = 10.0
    body_rate_min_bytes_per_s: int = 16 * 1024
    upload_time_s_max: float = float(UPLOAD_TIME_S_MAX)
    drain_time_s_max: float = 40.0
    journal_interval_s: float = JOURNAL_INTERVAL_S
    journal_fence_s: float = FENCE_S
    cache_entries_max: int = 100_000
    metrics_port: int = 0
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    doors: tuple[DoorName, ...] = ()
    otlp_grpc_listen: str = ""
    otlp_grpc_client_certificates: bool = False
    forward_listen: str = ""
    forward_principal: str = ""
    forward_idle_timeout_s: float = 1800.0
    door_body_bytes_max: int = 20 * 1024 * 1024
    door_own_frame_bytes: int = 0
    door_flush_ms: int = 250
    door_flush_bytes: int = 1024 * 1024
    skip_probe: bool = False


def check_settings(settings: GatewaySettings) -> None:
    """Check the settings.

    Raises:
        BadUsage: A limit is out of range, one of two dependent options is missing, an option has no
            effect, or two listeners have one address.
    """
    _check_limits(settings)
    _check_numbers(settings)
    _check_doors(settings)
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise BadUsage("set both tls_certificate and tls_key, or neither")
    if settings.tls_client_ca is not None and settings.tls_certificate is None:
        raise BadUsage("tls_client_ca needs tls_certificate and tls_key")
    if (settings.acceptance == "local_spool") != bool(settings.spool):
        raise BadUsage("set spool with acceptance local_spool, and only then")
    if settings.spool_bytes_max < 0 or settings.spool_free_bytes_min < 0:
        raise BadUsage("spool_bytes_max and spool_free_bytes_min must not be negative")
    if settings.acceptance == "local_spool" and settings.workers != 1:
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
    if not 1 <= settings.door_flush_bytes <= FLUSH_BYTES_MAX:
        raise BadUsage(f"door_flush_bytes must be 1 to {FLUSH_BYTES_MAX}")


def _check_numbers(settings: GatewaySettings) -> None:
    for name in ("head_timeout_s", "idle_timeout_s", "forward_idle_timeout_s"):
        check_number(name, getattr(settings, name), 0, above=True)
    for name in ("body_grace_s", "drain_time_s_max", "switch_settle_s", "cache_entries_max"):
        check_number(name, getattr(settings, name), 0)
    for name in (
        *("connections_max", "connections_per_address_max", "body_rate_min_bytes_per_s"),
        *("door_body_bytes_max", "object_landing_interval_ms"),
    ):
        check_number(name, getattr(settings, name), 1)
    check_number("metrics_port", settings.metrics_port, 0, PORT_MAX + 1 - settings.workers)


def _check_limits(settings: GatewaySettings) -> None:
    if not 1 <= settings.frame_bytes_max <= FRAME_BYTES_MAX:
        raise BadUsage(f"frame_bytes_max must be 1 to {FRAME_BYTES_MAX}")
    if 4 * settings.inflight_bytes_max < 5 * settings.frame_bytes_max:
        raise BadUsage("inflight_bytes_max must be at least 1.25 times frame_bytes_max")
    if not 0 < settings.upload_time_s_max <= UPLOAD_TIME_S_MAX:
        raise BadUsage(f"upload_time_s_max must be above 0 and at most {UPLOAD_TIME_S_MAX}")
    if not 0 < settings.journal_fence_s <= FENCE_S:
        raise BadUsage(f"journal_fence_s must be above 0 and at most {FENCE_S:g}")
    if not JOURNAL_INTERVAL_S <= settings.journal_interval_s <= JOURNAL_INTERVAL_S_MAX:
        raise BadUsage(
            "journal_interval_s must be"
            f" {JOURNAL_INTERVAL_S:g} to {JOURNAL_INTERVAL_S_MAX:g} seconds"
        )
    if settings.workers < 1:
        raise BadUsage("workers must be at least 1")
