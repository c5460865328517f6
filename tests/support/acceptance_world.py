"""Gateways, their journals and a reconciler, as the reader of journals sees them."""

from dataclasses import dataclass, field

from support.builders import manifest
from support.queue_store import SimClock, SimStore
from ulid import ULID

from sluice_protocol.identity import Identity
from sluice_protocol.journals import (
    DISCOVERY,
    FENCE_S,
    DiscoveryRecord,
    GatewayProcess,
    JournalHeader,
    ProcessProgress,
    decide_frontier,
    encode_journal,
    journal_key,
    process_name,
    registration_key,
)
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs


@dataclass
class Gateway:
    """One process."""

    process: str
    started_ns: int
    newest_ns: int
    number: int = 0
    open: list[AcceptedManifest] = field(default_factory=list)
    written: list[tuple[JournalHeader, list[AcceptedManifest]]] = field(default_factory=list)
    closed: bool = False
    processed: int = 0

    def progress(self) -> ProcessProgress:
        header = self.written[self.processed - 1][0] if self.processed else None
        through_ns = self.started_ns if header is None else header.complete_through_unix_ns
        return ProcessProgress(
            collector_id="gw",
            process=self.process,
            acceptance="s3_manifest",
            complete_through_ns=UnixNs(through_ns),
            newest_ns=UnixNs(self.newest_ns),
            closed=header is not None and header.closed,
        )


class AcceptanceWorld:
    """Every step is one atomic change of the store; `acknowledged` is the clients' record."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.store = SimStore(clock=self.clock)
        self.gateways: list[Gateway] = []
        self.acknowledged: list[tuple[AcceptedManifest, int]] = []
        self.enqueued: set[Identity] = set()
        self.record: DiscoveryRecord | None = None

    def put(self, key: ObjectKey, body: bytes) -> int:
        self.store._put(key, body)
        return self.clock.at_ns

    def wait(self, seconds: float) -> None:
        self.clock.at_ns += int(seconds * NS_PER_S)

    def register(self) -> Gateway:
        started_ns = self.clock.at_ns
        name = process_name(UnixNs(started_ns), str(ULID(bytes([len(self.gateways)]) * 16)))
        body = GatewayProcess(
            collector_id="gw",
            process=name,
            acceptance="s3_manifest",
            started_at_unix_ns=started_ns,
        )
        newest_ns = self.put(registration_key(name), encode_record(body))
        self.gateways.append(Gateway(process=name, started_ns=started_ns, newest_ns=newest_ns))
        return self.gateways[-1]

    def accept(self, gateway: Gateway) -> None:
        """Accept and acknowledge one batch, unless the process is fenced or stopped."""
        fenced = self.clock.at_ns - gateway.newest_ns > FENCE_S * NS_PER_S
        if fenced or gateway.closed:
            return
        number = len(self.acknowledged)
        one = manifest(number * 10, agent=f"host-{number % 3}", at_ns=self.clock.at_ns)
        self.put(accepted_key(one.identity), encode_record(one))
        gateway.open.append(one)
        self.acknowledged.append((one, self.clock.at_ns))

    def flush(self, gateway: Gateway, *, closed: bool = False) -> None:
        """Write the next journal object; a fenced process may still write one."""
        if gateway.closed:
            return
        gateway.number += 1
        header = JournalHeader(
            process=gateway.process,
            number=gateway.number,
            complete_through_unix_ns=self.clock.at_ns,
            closed=closed,
            batches=len(gateway.open),
        )
        body = encode_journal(header, map(encode_record, gateway.open))
        gateway.newest_ns = self.put(journal_key(gateway.process, gateway.number), body)
        gateway.written.append((header, gateway.open))
        gateway.open, gateway.closed = [], closed

    def reconcile(self, *, full: bool = False) -> None:
        """Enqueue what journals name, or everything, and publish how far that is complete."""
        now_ns = self.clock.at_ns
        for one in self.gateways:
            for _, batches in one.written[one.processed :]:
                self.enqueued.update(batch.identity for batch in batches)
            one.processed = len(one.written)
        began_ns = self.record.pass_began_unix_ns if self.record is not None else None
        if full:
            self.enqueued.update(one.identity for one, _ in self.acknowledged)
            began_ns = now_ns
        if began_ns is None:
            return
        found = decide_frontier(
            UnixNs(now_ns), [one.progress() for one in self.gateways], UnixNs(began_ns)
        )
        through_ns = now_ns if full else found.complete_through_ns
        if self.record is not None:
            through_ns = max(through_ns, self.record.complete_through_unix_ns)
        self.record = DiscoveryRecord(
            complete_through_unix_ns=through_ns,
            listed=len(self.acknowledged),
            held_by=None if found.held_by is None else found.held_by.collector_id,
            journals={one.process: one.processed for one in self.gateways if one.processed},
            pass_began_unix_ns=began_ns,
            journaled_since_unix_ns=0,
        )
        self.put(DISCOVERY, encode_record(self.record))
