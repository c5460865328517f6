"""What one lane of one queue has been given: runs per (agent, boot), as a stored record.

`reconciler/v1/lanes/<queue>.<lane>` is zstd over one JSON record, swapped with If-Match. It is at
once the ledger of what was enqueued and the note of what is about to be:

- `life`: which process may append; whoever raises it by a swap fences the others off;
- `writes`: how many appends of all lives have landed;
- `pending`: the batches of the append that comes next, written down before it is made.

A crash between the note and the append leaves a pending one; the next life learns from the queue's
register whether it landed, and nothing is enqueued twice or forgotten.
Source: `docs/reconciler.md`, Exactly once; ADR 0042.
"""

from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import zstandard

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.identity import Identity
from sluice_protocol.keys import RECONCILER
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import ETag, ObjectKey
from sluice_queue.decisions import is_other_register, writes_of
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_queue.register import decode_register
from sluice_reconciler.sequence_ranges import BootRanges, EnqueueStatus
from sluice_store.port import ObjectStore

STATE_BYTES_MAX: Final = 1 << 30
LANES: Final = f"{RECONCILER}lanes/"


class StoredBoot(msgspec.Struct, frozen=True, array_like=True):
    """One (agent, boot) of the stored record."""

    agent_id: str
    boot_id: str
    runs: BootRanges


class PendingBatch(msgspec.Struct, frozen=True, array_like=True):
    """One batch of the append that comes next."""

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
        producer_id: 32 hex digits: under which id this state's owner appends, for ever.
        life: Raised by each process that takes the lane over.
        writes: Appends of all lives that have landed.
        pending: The batches of append number `writes + 1`, if it was begun.
        boots: What is enqueued.
    """

    schema: Literal["sluice.reconciler_lane.v1"] = "sluice.reconciler_lane.v1"
    queue: str
    lane: int
    nonce: str
    producer_id: str
    life: int = 0
    writes: int = 0
    pending: tuple[PendingBatch, ...] = ()
    boots: tuple[StoredBoot, ...] = ()


def lane_key(lane: Lane) -> ObjectKey:
    """Gives the key of a lane's state."""
    return ObjectKey(f"{LANES}{lane.queue}.{lane.lane:03d}")


def encode_lane(record: LaneRecord) -> bytes:
    """Gives the stored bytes: canonical JSON in one zstd frame."""
    return zstandard.ZstdCompressor(level=3).compress(encode_record(record))


def decode_lane(key: ObjectKey, body: bytes) -> LaneRecord:
    """Reads the stored bytes.

    Raises:
        InvalidRecord: They are not that.
    """
    try:
        raw = zstandard.ZstdDecompressor().decompress(body, max_output_size=STATE_BYTES_MAX)
    except zstandard.ZstdError as error:
        raise InvalidRecord(key, f"not a zstd frame: {error}") from error
    return decode_record(key, raw, LaneRecord)


class Ledger:
    """The batches that one lane was given, in memory."""

    def __init__(self, boots: tuple[StoredBoot, ...] = ()) -> None:
        """Starts from a stored record."""
        self._boots = {(boot.agent_id, boot.boot_id): boot.runs for boot in boots}

    def standing(self, who: Identity) -> EnqueueStatus:
        """Tells whether a batch was enqueued."""
        boot = self._boots.get((who.agent_id, who.boot_id))
        return boot.standing(who.seq_start, who.seq_end) if boot is not None else EnqueueStatus.NEW

    def boot(self, agent_id: str, boot_id: str) -> BootRanges | None:
        """Gives what is known of one boot."""
        return self._boots.get((agent_id, boot_id))

    def add(self, one: PendingBatch) -> None:
        """Marks a batch as enqueued."""
        boot = self._boots.setdefault((one.agent_id, one.boot_id), BootRanges())
        boot.add(one.seq_start, one.seq_end)

    def items(self) -> list[tuple[str, str, BootRanges]]:
        """Gives every (agent, boot) in order."""
        return [(agent, boot, runs) for (agent, boot), runs in sorted(self._boots.items())]

    def stored(self) -> tuple[StoredBoot, ...]:
        """Gives the record's form, in order."""
        return tuple(StoredBoot(agent_id=a, boot_id=b, runs=runs) for a, b, runs in self.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLaneState:
    """A lane's state as it was read."""

    record: LaneRecord
    etag: ETag


async def read_lane_state(store: ObjectStore, lane: Lane) -> StoredLaneState | None:
    """Reads a lane's state, or gives None where none stands.

    Raises:
        InvalidRecord: The bytes are no state.
        StoreError: The store did not answer.
    """
    key = lane_key(lane)
    match await store.get(key):
        case NotFound():
            return None
        case Found(info=info, body=body):
            return StoredLaneState(record=decode_lane(key, body), etag=info.etag)


async def read_ledger(store: ObjectStore, lane: Lane) -> tuple[Ledger, bool]:
    """Gives what a lane was given, without taking it, and whether somebody ever took it.

    A pending append counts when the register shows that it landed.

    Raises:
        InvalidRecord: The state or the register is malformed.
        StoreError: The store did not answer.
    """
    stored = await read_lane_state(store, lane)
    if stored is None:
        return Ledger(), False
    record = stored.record
    ledger = Ledger(record.boots)
    if record.pending:
        view = await read_lane(store, lane.queue, lane.lane, entries_max=0)
        writer = view.state.writer(bytes.fromhex(record.producer_id))
        if writer is not None and writes_of(writer.counter) > record.writes:
            for one in record.pending:
                ledger.add(one)
    return ledger, record.life > 0


async def is_register_lost(store: ObjectStore, lane: Lane) -> bool:
    """Tells whether the register that a lane's appends landed in is gone, or another one.

    Raises:
        InvalidRecord: The state or the register is malformed.
        StoreError: The store did not answer.
    """
    stored = await read_lane_state(store, lane)
    if stored is None:
        return False
    read = await store.get(lane.key)
    state = decode_register(lane.key, read.body) if isinstance(read, Found) else None
    record = stored.record
    wrote = record.writes or int(bool(record.pending) and state is None)
    return is_other_register(state, bytes.fromhex(record.producer_id), wrote)
