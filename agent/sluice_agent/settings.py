"""Everything a person can set on an agent."""

import socket
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from yarl import URL

from sluice_agent.batching import BatchLimits, WhenFull
from sluice_agent.files import FileSettings
from sluice_agent.spool import SpoolSettings
from sluice_agent.timestamps import Zone
from sluice_agent.uploader import UploaderSettings
from sluice_protocol.errors import BadUsage

SPOOL_BYTES_LEAST = 20 * 1024 * 1024
"""One frame of the largest size, its note, and some room."""


class Durability(StrEnum):
    """When `forward` may take its input as safe.

    `fast`: written to the spool, which survives a kill and not a power cut. `durable`: the spool
    survives a power cut too; what could not be sent in time waits for the next run. `accepted`:
    it ends only when a gateway has accepted every batch.
    """

    FAST = "fast"
    DURABLE = "durable"
    ACCEPTED = "accepted"


def default_agent_id() -> str:
    """Gives the host's name."""
    return socket.gethostname()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of `sluice agent run`; `forward` has the same without the files.

    Attributes:
        gateway: Base URLs of gateways, separated by commas; all are equal.
        spool: Directory of the spool.
        key: File of the Ed25519 key; default what `sluice agent init` made in this directory.
        agent_id: The id under which records are accepted; default the host's name.
        paths: Glob patterns of files to follow.
        exclude: Patterns of paths to leave out.
        from_end: Read files that stand there when the spool is new from their end.
        once: Read everything to its end, send it, and stop.
        otlp: `host:port` on which OTLP/HTTP logs and metrics in JSON are taken; empty takes none.
        host_metrics_s: Seconds between samples of the host's metrics; 0 takes none.
        batch_bytes: Cut a batch at about so many bytes before compression.
        batch_records: Cut a batch at so many records.
        batch_age_s: Cut a batch so many seconds after its first record.
        uploads: Batches in flight at once; 1 keeps them in order.
        spool_bytes: Most bytes in the spool; then inputs wait.
        when_full: What a full spool does: `block`, or `drop_newest` (counted).
        drain_s: Seconds that a stopping agent goes on sending; the rest waits in the spool.
        timezone: Zone of timestamps that name none, as in `Europe/Berlin`; empty is the machine's.
        resource: `key=value` attributes of every record.
        health: `host:port` of /livez, /readyz and /metrics; empty serves none.
        tls_ca: File of CA certificates, PEM; empty uses the system's.
        tls_cert: File of the client certificate for mTLS, PEM, its key in `tls_key`.
        tls_key: File of the client certificate's key.
        upload_s: Seconds that one upload may take.
    """

    gateway: str
    spool: Path = Path(".sluice-agent/spool")
    key: Path | None = None
    agent_id: str = field(default_factory=default_agent_id)
    paths: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ("*.gz", "*.xz", "*.bz2", "*.zst", "*.zip")
    from_end: bool = False
    once: bool = False
    otlp: str = ""
    host_metrics_s: float = 10.0
    batch_bytes: int = 4 * 1024 * 1024
    batch_records: int = 100_000
    batch_age_s: float = 1.0
    uploads: int = 4
    spool_bytes: int = 1024 * 1024 * 1024
    when_full: WhenFull = WhenFull.BLOCK
    drain_s: float = 5.0
    timezone: str = ""
    resource: tuple[str, ...] = ()
    health: str = ""
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    upload_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuses what cannot work, before anything is touched."""
        if not self.gateways or not all(_is_base_url(url) for url in self.gateways):
            raise BadUsage(f"name gateways as http://host:port, gateway=`{self.gateway}`")
        if self.spool_bytes < SPOOL_BYTES_LEAST:
            raise BadUsage(
                f"spool must hold at least {SPOOL_BYTES_LEAST} bytes,"
                f" spool_bytes=`{self.spool_bytes}`"
            )
        if self.uploads < 1:
            raise BadUsage(f"uploads must be at least 1, uploads=`{self.uploads}`")

    @property
    def gateways(self) -> tuple[str, ...]:
        """Gives the gateways' URLs."""
        return tuple(url.strip() for url in self.gateway.split(",") if url.strip())

    def zone(self) -> Zone:
        """Gives the zone of timestamps that name none.

        Raises:
            BadUsage: There is no such zone.
        """
        if not self.timezone:
            return None
        try:
            return ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise BadUsage(f"no such time zone, timezone=`{self.timezone}`") from error

    def for_spool(self, *, sync: bool = True) -> SpoolSettings:
        """Gives the spool's settings."""
        return SpoolSettings(
            directory=self.spool,
            agent_id=self.agent_id,
            resource=self._resource(),
            bytes_max=self.spool_bytes,
            sync=sync,
        )

    def for_files(self) -> FileSettings:
        """Gives the settings of the file input."""
        return FileSettings(
            patterns=self.paths, exclude=self.exclude, from_end=self.from_end, zone=self.zone()
        )

    def for_batching(self) -> BatchLimits:
        """Gives when batches are cut."""
        return BatchLimits(
            bytes_max=self.batch_bytes, records_max=self.batch_records, age_s_max=self.batch_age_s
        )

    def for_uploader(self, *, stop_when_refused: bool) -> UploaderSettings:
        """Gives the sender's settings."""
        return UploaderSettings(
            gateways=self.gateways, uploads_max=self.uploads, stop_when_refused=stop_when_refused
        )

    def _resource(self) -> tuple[tuple[str, str], ...]:
        pairs = dict(_pair(text) for text in self.resource)
        return tuple(sorted({"host.name": socket.gethostname(), **pairs}.items()))


def _is_base_url(text: str) -> bool:
    try:
        url = URL(text)
    except ValueError:
        return False
    return url.scheme in {"http", "https"} and bool(url.host) and not url.query_string


def _pair(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not name or not mark:
        raise BadUsage(f"a resource attribute is key=value, resource=`{text}`")
    return name, value
