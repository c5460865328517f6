"""The metrics of a gateway, and the phases of an upload.

Label values are closed sets; an agent id is never a label.

| name | type | labels | meaning |
|---|---|---|---|
| sluice_accepts_total | counter | outcome | uploads that got a response, by outcome |
| sluice_accept_duration_seconds | histogram | | of an upload, from its head to its response |
| sluice_accept_phase_seconds | histogram | phase | receive, validate, blob, manifest, quarantine |
| sluice_accepted_bytes_total | counter | | frame bytes of uploads accepted for the first time |
| sluice_inflight_bytes | gauge | | announced bytes of bodies in memory |
| sluice_connections | gauge | | open connections |
| sluice_connections_closed_total | counter | reason | connections that the gateway closed |
| sluice_store_requests_total | counter | op, result | store calls |
| sluice_store_request_seconds | histogram | op | time of a store call |
| sluice_store_own_write_412_total | counter | | own write found after an unknown outcome |
| sluice_healed_blobs_total | counter | | wrong blobs found and overwritten: investigate |
| sluice_cache_hits_total | counter | | duplicates accepted without a store call |
| sluice_principals_stale | gauge | | 1 while a broken principals file is ignored |
| sluice_draining | gauge | | 1 after SIGTERM |
| sluice_spool_pending_batches | gauge | | local_spool: records not yet transferred |
| sluice_spool_landed_total | counter | result | local_spool: records transferred |
| sluice_spool_bytes | gauge | | local_spool: bytes of blobs that are not transferred |
| sluice_spool_capacity_bytes | gauge | | local_spool: `spool_bytes_max`; 0 without a maximum |
| sluice_spool_free_bytes | gauge | | local_spool: free space of the disk |
| sluice_spool_full_total | counter | | local_spool: uploads refused because the spool is full |
| sluice_spool_expired_total | counter | | local_spool: manifests removed after the retry horizon |
| sluice_journal_age_seconds | gauge | | since the newest durable journal object was begun |
| sluice_journal_waiting_entries | gauge | | accepted batches that the journal does not name yet |
| sluice_journal_objects_total | counter | | journal objects written, heartbeats included |
| sluice_journal_entries_total | counter | | accepted batches that the journal names |
| sluice_journal_failures_total | counter | | failed attempts to register or to write an object |
| sluice_journal_registrations_total | counter | | registrations; more than 1: the journal lapsed |
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sluice_protocol.clock import Clock

ACCEPTS: Final = "sluice_accepts"
ACCEPT_DURATION: Final = "sluice_accept_duration_seconds"
ACCEPT_PHASE: Final = "sluice_accept_phase_seconds"
ACCEPTED_BYTES: Final = "sluice_accepted_bytes"
INFLIGHT_BYTES: Final = "sluice_inflight_bytes"
CONNECTIONS: Final = "sluice_connections"
CONNECTIONS_CLOSED: Final = "sluice_connections_closed"
STORE_REQUESTS: Final = "sluice_store_requests"
STORE_REQUEST_SECONDS: Final = "sluice_store_request_seconds"
OWN_WRITE_412: Final = "sluice_store_own_write_412"
HEALED_BLOBS: Final = "sluice_healed_blobs"
CACHE_HITS: Final = "sluice_cache_hits"
PRINCIPALS_STALE: Final = "sluice_principals_stale"
DRAINING: Final = "sluice_draining"
SPOOL_PENDING: Final = "sluice_spool_pending_batches"
SPOOL_LANDED: Final = "sluice_spool_landed"
SPOOL_BYTES: Final = "sluice_spool_bytes"
SPOOL_CAPACITY: Final = "sluice_spool_capacity_bytes"
SPOOL_FREE: Final = "sluice_spool_free_bytes"
SPOOL_FULL: Final = "sluice_spool_full"
SPOOL_EXPIRED: Final = "sluice_spool_expired"
JOURNAL_AGE: Final = "sluice_journal_age_seconds"
JOURNAL_WAITING: Final = "sluice_journal_waiting_entries"
JOURNAL_OBJECTS: Final = "sluice_journal_objects"
JOURNAL_ENTRIES: Final = "sluice_journal_entries"
JOURNAL_FAILURES: Final = "sluice_journal_failures"
JOURNAL_REGISTRATIONS: Final = "sluice_journal_registrations"
DOOR_REQUESTS: Final = "sluice_door_requests"
DOOR_RECORDS: Final = "sluice_door_records"
DOOR_UNREADABLE: Final = "sluice_door_unreadable_records"
DOOR_COMBINED: Final = "sluice_door_combined_batches"

_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0)


class GatewayMetrics:
    """The metrics of one worker in a separate registry."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._add_uploads(registry)
        self.inflight_bytes = Gauge(
            INFLIGHT_BYTES, "Announced bytes of bodies in memory.", registry=registry
        )
        self.connections = Gauge(CONNECTIONS, "Open connections.", registry=registry)
        self.closed = Counter(
            CONNECTIONS_CLOSED,
            "Connections that the gateway closed.",
            ["reason"],
            registry=registry,
        )
        self.own_write_412 = Counter(
            OWN_WRITE_412, "Own write found after an unknown outcome.", registry=registry
        )
        self.healed = Counter(HEALED_BLOBS, "Wrong blobs found and overwritten.", registry=registry)
        self.principals_stale = Gauge(
            PRINCIPALS_STALE, "1 while an invalid principals file is ignored.", registry=registry
        )
        self.draining = Gauge(DRAINING, "1 after SIGTERM.", registry=registry)
        self._add_spool(registry)
        self._add_journal(registry)
        self._add_doors(registry)

    def _add_uploads(self, registry: CollectorRegistry) -> None:
        self.accepts = Counter(
            ACCEPTS, "Uploads that got a response.", ["outcome"], registry=registry
        )
        self.duration = Histogram(
            ACCEPT_DURATION, "Time of one upload.", buckets=_SECONDS, registry=registry
        )
        self.phase = Histogram(
            ACCEPT_PHASE, "Time of one phase.", ["phase"], buckets=_SECONDS, registry=registry
        )
        self.accepted_bytes = Counter(ACCEPTED_BYTES, "New frame bytes.", registry=registry)
        self.store_requests = Counter(
            STORE_REQUESTS, "Store calls.", ["op", "result"], registry=registry
        )
        self.store_seconds = Histogram(
            STORE_REQUEST_SECONDS,
            "Time of a store call.",
            ["op"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.cache_hits = Counter(
            CACHE_HITS, "Duplicates accepted without a store call.", registry=registry
        )

    def _add_spool(self, registry: CollectorRegistry) -> None:
        self.spool_pending = Gauge(
            SPOOL_PENDING, "Spooled records not yet transferred.", registry=registry
        )
        self.spool_landed = Counter(
            SPOOL_LANDED, "Spooled records transferred.", ["result"], registry=registry
        )
        self.spool_bytes = Gauge(SPOOL_BYTES, "Bytes of spooled blobs.", registry=registry)
        self.spool_capacity = Gauge(SPOOL_CAPACITY, "Maximum of them; 0: none.", registry=registry)
        self.spool_free = Gauge(SPOOL_FREE, "Free space of the spool's disk.", registry=registry)
        self.spool_full = Counter(SPOOL_FULL, "Uploads refused by a full spool.", registry=registry)
        self.spool_expired = Counter(
            SPOOL_EXPIRED, "Manifests removed after the retry horizon.", registry=registry
        )

    def _add_journal(self, registry: CollectorRegistry) -> None:
        self.journal_age = Gauge(JOURNAL_AGE, "Age of the newest object.", registry=registry)
        self.journal_waiting = Gauge(JOURNAL_WAITING, "Entries to write.", registry=registry)
        self.journal_objects = Counter(JOURNAL_OBJECTS, "Objects written.", registry=registry)
        self.journal_entries = Counter(JOURNAL_ENTRIES, "Entries written.", registry=registry)
        self.journal_failures = Counter(JOURNAL_FAILURES, "Failed attempts.", registry=registry)
        self.journal_registrations = Counter(
            JOURNAL_REGISTRATIONS, "Registrations.", registry=registry
        )

    def _add_doors(self, registry: CollectorRegistry) -> None:
        self.door_requests = Counter(
            DOOR_REQUESTS, "Requests to doors.", ["door", "outcome"], registry=registry
        )
        self.door_records = Counter(
            DOOR_RECORDS, "Records accepted, duplicates too.", ["door"], registry=registry
        )
        self.door_unreadable = Counter(
            DOOR_UNREADABLE, "Records kept raw.", ["door"], registry=registry
        )
        self.door_combined_batches = Counter(
            DOOR_COMBINED, "Batches of small requests accepted.", registry=registry
        )

    def finish_upload(self, phases: "UploadPhases", outcome: str) -> None:
        """Count an upload with its outcome, and observe its times."""
        self.accepts.labels(outcome).inc()
        self.duration.observe(phases.total_s())
        self.observe_phases(phases)

    def observe_phases(self, phases: "UploadPhases") -> None:
        """Observe the times of an upload, or of what several uploads of one request share."""
        for name, spent_s in phases.seconds.items():
            self.phase.labels(name).observe(spent_s)


class _PhaseBlock(AbstractContextManager[None]):
    """A block that is timed; a class, because a generator costs several times as much."""

    __slots__ = ("_clock", "_name", "_phases", "_started_ns")

    def __init__(self, phases: "UploadPhases", name: str, clock: Clock) -> None:
        self._phases, self._name, self._clock = phases, name, clock

    def __enter__(self) -> None:
        self._started_ns = self._clock.monotonic_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        spent_s = (self._clock.monotonic_ns() - self._started_ns) / 1e9
        self._phases.add({self._name: spent_s})


class UploadPhases:
    """The seconds of each phase of one upload, for `Server-Timing` and the histograms."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self.seconds: dict[str, float] = {}

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a block whose time is added to a phase."""
        return _PhaseBlock(self, name, self._clock)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add times that were measured elsewhere."""
        for name, spent_s in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + spent_s

    def total_s(self) -> float:
        """Return the seconds since the start."""
        return (self._clock.monotonic_ns() - self._started_ns) / 1e9

    def server_timing(self) -> str:
        """Return the value of the Server-Timing field (W3C), durations in milliseconds."""
        parts = [f"{name};dur={spent_s * 1e3:.2f}" for name, spent_s in self.seconds.items()]
        return ", ".join([*parts, f"total;dur={self.total_s() * 1e3:.2f}"])
