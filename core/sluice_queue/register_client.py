"""One lane's register on a store: reads, creation, swaps and segments.

Segments are immutable objects with the older entries of a lane whose register is full;
`docs/queue.md` has the table of their bytes.

Source: ADR 23.
"""

import random  # noqa: TID251 - the type, and the default source of jitter
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ulid import ULID

from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import InvalidRecord, InvariantViolated, StoreUnavailable
from sluice_protocol.keys import segment_key
from sluice_protocol.outcomes import Applied, Exists, Found, NotFound, ReplaceOutcome, Unknown
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_queue.errors import LaneDamaged, RegisterLost
from sluice_queue.lane import Lane
from sluice_queue.register import (
    Descriptor,
    Register,
    RegisterRead,
    SegmentRef,
    check_checksum,
    check_object_head,
    decode_entries,
    decode_register,
    encode_register,
    is_other_register,
    seal_checksum,
    skip_entries,
)
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, RetryBudget, RetrySettings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class QueueMetrics:
    """The counters of the queue, in one registry; without an argument in a private one."""

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        # Readers of a queue count nothing, and a command should start fast.
        from prometheus_client import CollectorRegistry, Counter  # noqa: PLC0415

        on = registry if registry is not None else CollectorRegistry()
        by_role = ["queue", "role"]
        self.swaps = Counter("sluice_queue_swaps", "register writes tried", by_role, registry=on)
        self.conflicts = Counter(
            "sluice_queue_conflicts", "swaps that found another state", by_role, registry=on
        )
        self.unknown = Counter(
            "sluice_queue_unknown", "swaps without a known outcome", by_role, registry=on
        )
        self.entries = Counter("sluice_queue_entries", "entries appended", ["queue"], registry=on)
        self.register_bytes = Counter(
            "sluice_queue_register_bytes",
            "bytes of registers sent by producers",
            ["queue"],
            registry=on,
        )
        self.maybe_doubled = Counter(
            "sluice_queue_maybe_doubled",
            "appends repeated after an eviction",
            ["queue"],
            registry=on,
        )
        self.segments = Counter("sluice_queue_segments", "segments written", ["queue"], registry=on)
        self.fenced = Counter("sluice_queue_fenced", "consumers overtaken", ["queue"], registry=on)
        self.collected = Counter(
            "sluice_queue_collected", "objects deleted", ["queue", "kind"], registry=on
        )


SWAP_RETRY: Final = RetrySettings()
"""Bounds of one swap of a register, for which several writers may compete."""
SEGMENT_MAGIC: Final = b"LMQS"
SEGMENT_VERSION: Final = 2
_HEADER: Final = struct.Struct("<4sHHQQI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill:
    """The older half of a full register, to be moved into a segment.

    The same state results in the same bytes. `after` still has the old revision and nonce, because
    it is never written alone: the append that follows is the same swap.
    """

    ref: SegmentRef
    body: bytes
    after: Register


def spill(key: str, state: Register) -> Spill:
    """Move the older half of the entries out of the register."""
    half = state.count // 2
    if half == 0:
        raise InvariantViolated("register has too few entries to move to a segment")
    cut = skip_entries(key, state.entries, 0, half)
    first, last = state.first_held, state.first_held + half - 1
    header = _HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, 0, first, last, 0)
    body = seal_checksum(header, state.entries[:cut])
    ref = SegmentRef(first=first, last=last, size_bytes=len(body))
    after = replace(
        state,
        count=state.count - half,
        segments=(*state.segments, ref),
        entries=state.entries[cut:],
    )
    return Spill(ref=ref, body=body, after=after)


def decode_segment(key: str, body: bytes) -> tuple[Descriptor, ...]:
    """Decode a segment and all of its entries."""
    what, size = "queue segment", _HEADER.size
    check_object_head(key, body, what=what, magic=SEGMENT_MAGIC, version=SEGMENT_VERSION, size=size)
    check_checksum(key, body, what=what, size=size)
    _, _, reserved, first, last, _ = _HEADER.unpack_from(body)
    if reserved:
        raise LaneDamaged(key, "reserved bytes of the queue segment are not 0")
    found = decode_entries(key, memoryview(body)[_HEADER.size :], first)
    if not found or found[-1].sequence != last:
        raise LaneDamaged(key, "queue segment does not end at its last sequence")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Time, ids, random numbers and metrics, which a simulation replaces.

    The clock is for waits and bounds; it proves nothing. The ids are for nonces, owners and names
    of work lists.
    """

    clock: Clock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=SystemIds)
    rng: random.Random = field(default_factory=random.Random)
    metrics: QueueMetrics = field(default_factory=QueueMetrics)

    def backoff(self, settings: RetrySettings) -> Backoff:
        """Return the pauses and bounds of one operation."""
        return Backoff(clock=self.clock, rng=self.rng, settings=settings)

    def id_bytes(self) -> bytes:
        """Return 16 fresh bytes."""
        return bytes(ULID.from_str(self.ids.ulid()))


class RegisterClient:
    """A client of one lane's register that keeps the latest time that the store reported."""

    def __init__(self, store: ObjectStore, lane: Lane, runtime: Runtime) -> None:
        self.store = store
        self.lane = lane
        self.runtime = runtime
        self.date_ns = UnixNs(0)
        self._dated_at_ns = 0

    def observe_date(self, date_ns: UnixNs) -> None:
        """Record the store's clock in a response."""
        self.date_ns = UnixNs(max(self.date_ns, date_ns))
        self._dated_at_ns = self.runtime.clock.monotonic_ns()

    @property
    def store_now_ns(self) -> UnixNs:
        """The store's clock in its last response plus the time since."""
        return UnixNs(self.date_ns + self.runtime.clock.monotonic_ns() - self._dated_at_ns)

    async def read(self) -> RegisterRead | None:
        """Read the register, or return None if none exists."""
        match await self.store.get(self.lane.key):
            case NotFound(date_ns=date_ns):
                self.observe_date(date_ns)
                return None
            case Found(info=info, body=body):
                self.observe_date(info.date_ns)
                return RegisterRead(state=decode_register(self.lane.key, body), etag=info.etag)

    async def read_as(self, producer_id: bytes, counter: int, retries: RetryBudget) -> RegisterRead:
        """Read the register as a producer whose last applied write has this counter."""
        seen = await self.read() if counter else None
        if is_other_register(seen.state if seen is not None else None, producer_id, counter):
            raise RegisterLost(self.lane.key)
        return seen if seen is not None else await self.read_or_create(retries)

    async def read_or_create(self, retries: RetryBudget) -> RegisterRead:
        """Read the register; create an empty one first if none exists."""
        while True:
            try:
                seen = await self.read()
                if seen is not None:
                    return seen
                empty = Register(
                    revision=1,
                    nonce=self.runtime.id_bytes(),
                    layout=self.lane.layout,
                    next_sequence=self.lane.after + 1,
                    acked_through=self.lane.after,
                )
                # Whatever the outcome, the next read returns the one register that exists.
                await self.store.create(self.lane.key, encode_register(empty))
            except StoreUnavailable as error:
                await retries.wait_or_raise(error)
                continue
            await retries.wait_or_raise()

    async def swap(self, seen: RegisterRead, state: Register) -> ReplaceOutcome:
        """Replace the register that was read by `state`."""
        return await self.store.replace(self.lane.key, encode_register(state), if_match=seen.etag)

    async def write_segment(self, moved: Spill) -> None:
        """Write a segment of the lane; after `StoreUnavailable` it may exist and be invisible."""
        key = segment_key(self.lane.queue, self.lane.lane, moved.ref.first, moved.ref.last)
        match await self.store.create(key, moved.body):
            case Applied():
                self.runtime.metrics.segments.labels(self.lane.queue).inc()
            case Exists() | Unknown():
                # A sequence is assigned once, so every writer of this key writes the same bytes.
                await self._check_segment(key, moved.body)

    async def _check_segment(self, key: ObjectKey, body: bytes) -> None:
        match await self.store.get(key):
            case Found(body=found) if found == body:
                return
            case Found():
                raise InvalidRecord(key, "segment of these sequences has other bytes")
            case NotFound():
                raise StoreUnavailable("create", key, "segment is not visible yet, try again")
