"""The stored state of one lane: which batches it was given, and which process may append to it.

`reconciler/v1/lanes/<queue>.<lane>` is one JSON record in a zstd frame, replaced with If-Match. It
is the ledger of what was enqueued and the append intent for what is enqueued next:

- `life`: the owner term. A process that raises it by a swap fences all earlier owners.
- `writes`: the number of appends, over all owner terms, that are in the register.
- `pending`: the append intent: the batches of the next append, stored before it is made.

A crash between the intent and the append leaves `pending` set. The next owner reads from the
queue's register whether the append is there, so no batch is enqueued twice or forgotten.
Source: `docs/reconciler.md`, Exactly once; ADR 0042.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import zstandard

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.identity import Identity
from sluice_protocol.keys import RECONCILER
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import Digest, ETag, ObjectKey
from sluice_queue.decisions import writes_of
from sluice_queue.errors import LaneDamaged
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_reconciler.sequence_ranges import BootRanges, EnqueueStatus
from sluice_store.port import ObjectStore

STATE_BYTES_MAX: Final = 1 << 30
LANES: Final = f"{RECONCILER}lanes/"
DAMAGED_LANES: Final = f"{RECONCILER}damaged-lanes/"

_LANE: Final = re.compile(rf"{LANES}(?P<queue>[a-z0-9][a-z0-9_-]*)\.(?P<lane>\d{{3}})")


class LaneStateDamaged(InvalidRecord):
    """The stored state of a lane cannot be read: no batch can be appended to the lane."""

    def __str__(self) -> str:
        return (
            f"state of a lane is damaged: {self.reason}; stop the reconcilers and run `sluice"
            f" rebuild`, which keeps a copy, key=`{self.key}`"
        )


class StoredBoot(msgspec.Struct, frozen=True, array_like=True):
    """The enqueued batches of one (agent, boot) in the stored record."""

    agent_id: str
    boot_id: str
    ranges: BootRanges


class IntendedBatch(msgspec.Struct, frozen=True, array_like=True):
    """One batch of an append intent."""

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int


class LaneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a lane.

    Attributes:
        queue: Name of the queue.
        lane: Number of the lane.
        nonce: Fresh with every write, so that no ETag recurs.
        producer_id: 32 hex digits: the id under which every owner of this lane appends.
        owner_term: Raised by each process that takes the lane over; stored as `life`.
        writes: Appends of all owner terms that are in the register.
        pending: The batches of append number `writes + 1`, if its intent was stored.
        boots: The batches that were enqueued.
    """

    schema: Literal["sluice.reconciler_lane.v1"] = "sluice.reconciler_lane.v1"
    queue: str
    lane: int
    nonce: str
    producer_id: str
    owner_term: int = msgspec.field(name="life", default=0)
    writes: int = 0
    pending: tuple[IntendedBatch, ...] = ()
    boots: tuple[StoredBoot, ...] = ()


def lane_key(lane: Lane) -> ObjectKey:
    """Return the key of a lane's state."""
    return ObjectKey(f"{LANES}{lane.queue}.{lane.lane:03d}")


def damaged_state_key(lane: Lane, digest: Digest) -> ObjectKey:
    """Return the key of the copy of a damaged state that `sluice rebuild` replaced."""
    return ObjectKey(f"{DAMAGED_LANES}{lane.queue}.{lane.lane:03d}-{digest}")


def encode_lane(record: LaneRecord) -> bytes:
    """Return the stored bytes: canonical JSON in one zstd frame."""
    return zstandard.ZstdCompressor(level=3).compress(encode_record(record))


def decode_lane(key: ObjectKey, body: bytes) -> LaneRecord:
    """Decode the stored bytes of a lane's state.

    Raises:
        LaneStateDamaged: The bytes are not a zstd frame with a lane record.
    """
    try:
        raw = zstandard.ZstdDecompressor().decompress(body, max_output_size=STATE_BYTES_MAX)
        return decode_record(key, raw, LaneRecord)
    except zstandard.ZstdError as error:
        raise LaneStateDamaged(key, f"not a zstd frame: {error}") from error
    except InvalidRecord as error:
        raise LaneStateDamaged(key, error.reason) from error


class Ledger:
    """The batches that one lane was given, in memory."""

    def __init__(self, boots: tuple[StoredBoot, ...] = ()) -> None:
        self._boots = {(boot.agent_id, boot.boot_id): boot.ranges for boot in boots}

    def status(self, who: Identity) -> EnqueueStatus:
        """Return whether a batch was enqueued, without reading the store."""
        boot = self._boots.get((who.agent_id, who.boot_id))
        return boot.status(who.seq_start, who.seq_end) if boot is not None else EnqueueStatus.NEW

    def boot(self, agent_id: str, boot_id: str) -> BootRanges | None:
        """Return the enqueued batches of one boot, or None if there are none."""
        return self._boots.get((agent_id, boot_id))

    def add(self, batch: IntendedBatch) -> None:
        """Record a batch as enqueued."""
        boot = self._boots.setdefault((batch.agent_id, batch.boot_id), BootRanges())
        boot.add(batch.seq_start, batch.seq_end)

    def stored(self) -> tuple[StoredBoot, ...]:
        """Return the entries of the stored record, sorted by (agent, boot)."""
        return tuple(
            StoredBoot(agent_id=agent, boot_id=boot, ranges=ranges)
            for (agent, boot), ranges in sorted(self._boots.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLaneState:
    """A lane's state as it was read.

    Attributes:
        record: The state.
        etag: Its ETag, for the next swap.
    """

    record: LaneRecord
    etag: ETag


async def read_lane_state(store: ObjectStore, lane: Lane) -> StoredLaneState | None:
    """Read a lane's state; return None if the lane has none yet.

    Raises:
        LaneStateDamaged: The stored bytes are malformed.
        StoreError: The store is unreachable or refused the request.
    """
    key = lane_key(lane)
    match await store.get(key):
        case NotFound():
            return None
        case Found(info=info, body=body):
            return StoredLaneState(record=decode_lane(key, body), etag=info.etag)


async def list_lane_states(store: ObjectStore) -> list[Lane]:
    """Return the lanes that have a state, in order.

    Raises:
        StoreError: The store is unreachable or refused the request.
    """
    matches = [_LANE.fullmatch(one.key) async for page in store.list(LANES) for one in page.objects]
    return [Lane(queue=one["queue"], lane=int(one["lane"])) for one in matches if one is not None]


async def read_ledger(store: ObjectStore, lane: Lane) -> tuple[Ledger, bool]:
    """Read what a lane was given, without taking the lane over.

    Batches of an append intent are included if the register contains the append. If the register is
    damaged, they are not: the lane is halted until a rebuild enqueues every batch again.

    Returns:
        The ledger, and whether any process has ever owned the lane.

    Raises:
        LaneStateDamaged: The state is malformed.
        StoreError: The store is unreachable or refused the request.
    """
    stored = await read_lane_state(store, lane)
    if stored is None:
        return Ledger(), False
    record = stored.record
    ledger = Ledger(record.boots)
    if record.pending and await _is_appended(store, lane, record):
        for batch in record.pending:
            ledger.add(batch)
    return ledger, record.owner_term > 0


async def _is_appended(store: ObjectStore, lane: Lane, record: LaneRecord) -> bool:
    """Return True if the register contains the append whose intent the state contains."""
    try:
        view = await read_lane(store, lane.queue, lane.lane, entries_max=0)
    except LaneDamaged:
        return False
    writer = view.state.writer(bytes.fromhex(record.producer_id))
    return writer is not None and writes_of(writer.counter) > record.writes
