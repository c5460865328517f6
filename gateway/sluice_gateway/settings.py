"""The gateway's settings: values only, read once at start."""

from dataclasses import dataclass
from pathlib import Path

from sluice_protocol.authority import UPLOAD_TIME_S_MAX, AcceptanceMode
from sluice_protocol.errors import BadUsage
from sluice_protocol.units import FRAME_BYTES_MAX
from sluice_web.listening import parse_listen


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """How one gateway serves uploads. The authority's own settings stand in the store.

    Attributes:
        listen: Address and port; port 0 takes a free one and logs it.
        workers: Processes that share the port (SO_REUSEPORT).
        principals: TOML file of who may send for which agents; read again when it changes.
        collector_id: This gateway's name in manifests; empty means the host's name.
        acceptance: Where acceptance happens; must agree with the authority.
        spool: In `local_spool`, the directory that accepts, as a `file://` URL.
        object_landing_interval_ms: In `local_spool`, pause between two landing passes.
        switch_settle_s: In `local_spool`, how long after a switch the spool waits for gateways of
            the old mode to stop; less than 60 only when all of them are known to be stopped.
        frame_bytes_max: Largest frame taken, at most 16 MiB; more is answered 413.
        inflight_bytes_max: Bytes of bodies held at once by one worker, each counted 1.25 times for
            its copies; more is answered 503.
        connections_max: Open connections of one worker.
        connections_per_address_max: Of these, from one address.
        head_timeout_s: Time from a connection, or the first byte of a request, to its last header.
        idle_timeout_s: Time that a connection may rest between two requests.
        body_grace_s: Time that a body may take before its rate is looked at.
        body_rate_min_bytes_per_s: Slowest body taken after that.
        upload_time_s_max: Total time of one upload's store calls; the authority's margin is built
            on 30 s, so it is never more.
        drain_time_s_max: Time that running uploads get after SIGTERM.
        cache_entries_max: Identities remembered per worker to answer duplicates; 0 turns it off.
        metrics_port: Port for worker 0's own health and metrics, worker n at port + n; 0 for none.
        tls_certificate: PEM chain; with `tls_key` the gateway serves TLS.
        tls_key: PEM key of the chain.
        tls_client_ca: PEM of the authorities of client certificates; turns mTLS on.
        skip_probe: Serve on a store that no doctor has proved; said in every log line.
    """

    listen: str = "127.0.0.1:8080"
    workers: int = 1
    principals: Path = Path("principals.toml")
    collector_id: str = ""
    acceptance: AcceptanceMode = "s3_manifest"
    spool: str = ""
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
    cache_entries_max: int = 100_000
    metrics_port: int = 0
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    skip_probe: bool = False


def check_settings(settings: GatewaySettings) -> None:
    """Refuses settings that cannot be served.

    Raises:
        BadUsage: A limit is out of range, or options that need each other stand alone.
    """
    _check_limits(settings)
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise BadUsage("tls_certificate and tls_key are given together or not at all")
    if settings.tls_client_ca is not None and settings.tls_certificate is None:
        raise BadUsage("tls_client_ca needs tls_certificate and tls_key")
    if (settings.acceptance == "local_spool") != bool(settings.spool):
        raise BadUsage("spool is given with acceptance local_spool, and only then")
    if settings.acceptance == "local_spool" and settings.workers != 1:
        raise BadUsage("local_spool has one writer: set workers to 1")
    parse_listen(settings.listen)


def _check_limits(settings: GatewaySettings) -> None:
    if not 1 <= settings.frame_bytes_max <= FRAME_BYTES_MAX:
        raise BadUsage(f"frame_bytes_max must be 1 to {FRAME_BYTES_MAX}")
    if 4 * settings.inflight_bytes_max < 5 * settings.frame_bytes_max:
        raise BadUsage("inflight_bytes_max must be at least 1.25 times frame_bytes_max")
    if not 0 < settings.upload_time_s_max <= UPLOAD_TIME_S_MAX:
        raise BadUsage(f"upload_time_s_max must be above 0 and at most {UPLOAD_TIME_S_MAX}")
    if settings.workers < 1:
        raise BadUsage("workers must be at least 1")
