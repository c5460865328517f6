"""The register of one lane: the bytes that every producer and the one consumer swap.

`HEADER` is the table of the bytes of its header, and `docs/queue.md` shows it. The entries of the
body are the newest `count`; older entries after `acked_through` are in the segments. Append and
dequeue copy entries as bytes and never decode them. Pure: no I/O, clock or randomness.

An entry is the key of a work list and a summary of its batches.

A read of the register proves what happened to a write whose response was lost or was "mismatch".
All these decisions follow from one rule. A swap names the ETag that it replaces, and no ETag ever
recurs, because no two bodies are ever equal (revision and nonce). If a read returns another ETag
than a write replaces, the write was applied already or never will be.

Producers. The `writers` of the register distinguish a write from a rival's by id and write counter.
The list contains the 64 latest producers and survives dequeues. A producer is evicted from it only
by at least 64 later writes. If there were fewer, its write was never applied.

Consumers. An epoch belongs to a consumer only together with its owner id.

Source: `docs/queue.md`, Unknown outcomes; ADR 23.
"""

import struct
import zlib
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sluice_protocol.errors import BadUsage, InvariantViolated, UnsupportedVersion
from sluice_protocol.units import ETag, ObjectKey, UnixNs
from sluice_queue.errors import LaneDamaged

METADATA_BYTES_MAX: Final = 512
LOCATION_BYTES_MAX: Final = 512
LENGTH: Final = struct.Struct("<I")
_FIXED: Final = struct.Struct("<QQIQQQQHH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An entry before a swap assigns its sequence.

    `ingested_at_ns` is the store's clock shortly before the append. `metadata` has at most 512
    bytes.
    """

    location: ObjectKey
    size_bytes: int
    batches: int
    frame_bytes: int
    first_accepted_at_ns: UnixNs
    last_accepted_at_ns: UnixNs
    ingested_at_ns: UnixNs
    metadata: bytes = b""

    def __post_init__(self) -> None:
        if len(self.metadata) > METADATA_BYTES_MAX:
            raise BadUsage(
                f"metadata is at most {METADATA_BYTES_MAX} bytes, found=`{len(self.metadata)}`"
            )
        if not 0 < len(self.location.encode()) <= LOCATION_BYTES_MAX:
            raise BadUsage(
                f"location is 1 to {LOCATION_BYTES_MAX} bytes, location=`{self.location}`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """One entry of a lane, as a consumer reads it; the other fields are those of `Draft`.

    `sequence` is its number in the lane: 1, 2, 3 … without gaps.
    """

    sequence: int
    location: ObjectKey
    size_bytes: int
    batches: int
    frame_bytes: int
    first_accepted_at_ns: UnixNs
    last_accepted_at_ns: UnixNs
    ingested_at_ns: UnixNs
    metadata: bytes = b""


def encode_queue_entry(sequence: int, draft: Draft) -> bytes:
    """Encode an entry, with its length first."""
    location = draft.location.encode()
    fixed = _FIXED.pack(
        sequence,
        draft.size_bytes,
        draft.batches,
        draft.frame_bytes,
        draft.first_accepted_at_ns,
        draft.last_accepted_at_ns,
        draft.ingested_at_ns,
        len(location),
        len(draft.metadata),
    )
    tail = location + draft.metadata
    return LENGTH.pack(len(fixed) + len(tail)) + fixed + tail


def decode_queue_entry(key: str, record: bytes) -> Descriptor:
    """Decode one entry without its length."""
    if len(record) < _FIXED.size:
        raise LaneDamaged(key, "queue entry is shorter than its fixed part")
    sequence, size, batches, frames, first, last, at, place_bytes, meta_bytes = _FIXED.unpack_from(
        record
    )
    tail = record[_FIXED.size :]
    if len(tail) != place_bytes + meta_bytes:
        raise LaneDamaged(key, f"queue entry {sequence} does not end where its lengths state")
    return Descriptor(
        sequence=sequence,
        location=_location(key, tail[:place_bytes]),
        size_bytes=size,
        batches=batches,
        frame_bytes=frames,
        first_accepted_at_ns=UnixNs(first),
        last_accepted_at_ns=UnixNs(last),
        ingested_at_ns=UnixNs(at),
        metadata=tail[place_bytes:],
    )


def _location(key: str, raw: bytes) -> ObjectKey:
    try:
        return ObjectKey(raw.decode())
    except UnicodeDecodeError as error:
        raise LaneDamaged(key, "the location of a queue entry is not UTF-8") from error


def skip_entries(key: str, body: bytes | memoryview, start: int, count: int) -> int:
    """Return the offset after `count` entries from `start`, reading only their lengths."""
    at = start
    for _ in range(count):
        if at + LENGTH.size > len(body):
            raise LaneDamaged(key, "queue entries end too early")
        at += LENGTH.size + LENGTH.unpack_from(body, at)[0]
    if at > len(body):
        raise LaneDamaged(key, "queue entries end too early")
    return at


def decode_entries(
    key: str, body: bytes | memoryview, first_sequence: int
) -> tuple[Descriptor, ...]:
    """Decode entries that fill `body` completely and count up from `first_sequence`."""
    found: list[Descriptor] = []
    at = 0
    while at < len(body):
        end = skip_entries(key, body, at, 1)
        entry = decode_queue_entry(key, bytes(body[at + LENGTH.size : end]))
        if entry.sequence != first_sequence + len(found):
            raise LaneDamaged(key, f"queue entry {entry.sequence} is out of sequence")
        found.append(entry)
        at = end
    return tuple(found)


MAGIC: Final = b"LMQ1"
VERSION: Final = 3
SEALED: Final = 0xFFFF
"""The layout in a register between two layouts, and of a lane that the present one omits."""
ENTRIES_MAX: Final = 4096
WRITERS_MAX: Final = 64
SEGMENTS_MAX: Final = 4096
ID_BYTES: Final = 16
NO_OWNER: Final = bytes(ID_BYTES)
NEVER_REBUILT: Final = UnixNs(0)


class HeaderField(NamedTuple):
    """One field of the header; `code` is its layout as `struct` has it, little-endian."""

    name: str
    code: str
    meaning: str


HEADER: Final = (
    HeaderField("magic", "4s", f"`{MAGIC.decode()}`"),
    HeaderField("version", "H", f"{VERSION}; any other value is refused"),
    HeaderField(
        "layout",
        "H",
        "how often the number of lanes was changed before; producers and consumers of another"
        " layout are refused",
    ),
    HeaderField("revision", "Q", "grows by one with every write"),
    HeaderField(
        "nonce",
        "16s",
        "fresh random bytes of the writer; together with the revision they make equal bytes"
        " impossible, so no ETag ever recurs",
    ),
    HeaderField("epoch", "Q", "of the consumer; grows with each opening"),
    HeaderField("owner", "16s", "id of the consumer that opened the epoch; zero before the first"),
    HeaderField(
        "next_sequence", "Q", "the number of the next entry; the first entry of a lane is 1"
    ),
    HeaderField(
        "acked_through",
        "Q",
        "every entry up to this number is acknowledged and removed; initially 0",
    ),
    HeaderField("count", "I", f"entries in this body, at most {ENTRIES_MAX}: the newest ones"),
    HeaderField("writers", "H", f"at most {WRITERS_MAX}"),
    HeaderField("reserved", "H", "0"),
    HeaderField("segments", "I", f"at most {SEGMENTS_MAX}"),
    HeaderField("entry_bytes", "I", "length of the entries below"),
    HeaderField(
        "rebuilt",
        "Q",
        "Unix ns by the store's clock, 0 for never: `sluice rebuild` has written this lane again,"
        " and until a full pass that began later, batches may be missing in it",
    ),
    HeaderField("checksum", "I", "CRC-32 of the whole object, with zeros in this field"),
)
_NAMES: Final = tuple(one.name for one in HEADER)
_VERSION: Final = struct.Struct("<4sH")
_HEADER: Final = struct.Struct("<" + "".join(one.code for one in HEADER))
_WRITER: Final = struct.Struct("<16sQQ")
_SEGMENT: Final = struct.Struct("<QQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The entry of one producer in the register.

    `counter` is the number of its applied writes, with its term in the upper half. `first_sequence`
    is that of the first entry of its last write.
    """

    producer_id: bytes
    counter: int
    first_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRef:
    """An immutable object with older entries; both sequences are inclusive."""

    first: int
    last: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """One state of a lane; `entries` are the bytes of the newest `count` entries, undecoded."""

    revision: int
    nonce: bytes
    layout: int = 0
    epoch: int = 0
    owner: bytes = NO_OWNER
    next_sequence: int = 1
    acked_through: int = 0
    count: int = 0
    writers: tuple[Writer, ...] = ()
    segments: tuple[SegmentRef, ...] = ()
    entries: bytes = b""
    rebuilt_ns: UnixNs = NEVER_REBUILT

    @property
    def first_held(self) -> int:
        """The sequence of the first entry of the body; `next_sequence` if the body has none."""
        return self.next_sequence - self.count

    @property
    def waiting(self) -> int:
        """Number of pending entries, which are not acknowledged."""
        return self.next_sequence - 1 - self.acked_through

    def writer(self, producer_id: bytes) -> Writer | None:
        """Return the entry of a producer, or None."""
        return next((one for one in self.writers if one.producer_id == producer_id), None)


def encode_register(state: Register) -> bytes:
    """Encode a state."""
    _check(state)
    values: dict[str, bytes | int] = {
        "magic": MAGIC,
        "version": VERSION,
        "layout": state.layout,
        "revision": state.revision,
        "nonce": state.nonce,
        "epoch": state.epoch,
        "owner": state.owner,
        "next_sequence": state.next_sequence,
        "acked_through": state.acked_through,
        "count": state.count,
        "writers": len(state.writers),
        "reserved": 0,
        "segments": len(state.segments),
        "entry_bytes": len(state.entries),
        "rebuilt": state.rebuilt_ns,
        "checksum": 0,
    }
    header = _HEADER.pack(*[values[name] for name in _NAMES])
    parts = [_WRITER.pack(w.producer_id, w.counter, w.first_sequence) for w in state.writers]
    parts += [_SEGMENT.pack(s.first, s.last, s.size_bytes) for s in state.segments]
    parts.append(state.entries)
    return seal_checksum(header, b"".join(parts))


def _check(state: Register) -> None:
    if len(state.nonce) != ID_BYTES or len(state.owner) != ID_BYTES:
        raise InvariantViolated("nonce and owner of a register are 16 bytes each")
    if state.count > ENTRIES_MAX or len(state.segments) > SEGMENTS_MAX:
        raise InvariantViolated(f"register exceeds its bounds, count=`{state.count}`")
    if reason := _inconsistency(state):
        raise InvariantViolated(f"register is inconsistent: {reason}")


def _inconsistency(state: Register) -> str | None:
    """Return the broken rule between the fields, or None."""
    if state.next_sequence < 1 or not 0 <= state.acked_through < state.next_sequence:
        return "acked_through is not below next_sequence"
    expected = state.acked_through + 1
    for index, segment in enumerate(state.segments):
        starts_right = segment.first == expected or (index == 0 and segment.first <= expected)
        if not starts_right or segment.last < max(segment.first, expected):
            return "segments do not follow one another from acked_through"
        expected = segment.last + 1
    if state.first_held != expected:
        return "entries do not begin where segments and acked_through end"
    return None


def _writers(body: bytes) -> tuple[Writer, ...]:
    return tuple(
        Writer(producer_id=who, counter=counter, first_sequence=first)
        for who, counter, first in _WRITER.iter_unpack(body)
    )


def _segments(body: bytes) -> tuple[SegmentRef, ...]:
    return tuple(
        SegmentRef(first=first, last=last, size_bytes=size)
        for first, last, size in _SEGMENT.iter_unpack(body)
    )


def check_object_head(
    key: str, body: bytes, *, what: str, magic: bytes, version: int, size: int
) -> None:
    """Check that a body begins with a magic, a version, and the rest of its header."""
    if len(body) < _VERSION.size or body[:4] != magic:
        raise LaneDamaged(key, f"not a {what}")
    found = _VERSION.unpack_from(body)[1]
    if found != version:
        raise UnsupportedVersion(what, found, version, key)
    if len(body) < size:
        raise LaneDamaged(key, f"{what} is shorter than its header")


def seal_checksum(header: bytes, rest: bytes) -> bytes:
    """Return an object whose header ends with its checksum, which is 0 in the given one."""
    checksum = zlib.crc32(rest, zlib.crc32(header))
    return b"".join((header[: -LENGTH.size], LENGTH.pack(checksum), rest))


def check_checksum(key: str, body: bytes, *, what: str, size: int) -> None:
    """Compare an object with the checksum that ends its header of this size."""
    place = size - LENGTH.size
    (stored,) = LENGTH.unpack_from(body, place)
    head = zlib.crc32(bytes(LENGTH.size), zlib.crc32(memoryview(body)[:place]))
    if zlib.crc32(memoryview(body)[size:], head) != stored:
        raise LaneDamaged(key, f"the checksum of the {what} differs")


def decode_register(key: str, body: bytes) -> Register:
    """Decode the header of a register; the entries stay bytes."""
    what, size = "queue register", _HEADER.size
    check_object_head(key, body, what=what, magic=MAGIC, version=VERSION, size=size)
    check_checksum(key, body, what=what, size=size)
    found = dict(zip(_NAMES, _HEADER.unpack_from(body), strict=True))
    if found["reserved"]:
        raise LaneDamaged(key, "reserved bytes of the queue register are not 0")
    segments_at = _HEADER.size + found["writers"] * _WRITER.size
    entries_at = segments_at + found["segments"] * _SEGMENT.size
    if len(body) != entries_at + found["entry_bytes"]:
        raise LaneDamaged(key, "queue register does not end where its header states")
    state = Register(
        revision=found["revision"],
        nonce=found["nonce"],
        layout=found["layout"],
        epoch=found["epoch"],
        owner=found["owner"],
        next_sequence=found["next_sequence"],
        acked_through=found["acked_through"],
        count=found["count"],
        writers=_writers(body[_HEADER.size : segments_at]),
        segments=_segments(body[segments_at:entries_at]),
        entries=body[entries_at:],
        rebuilt_ns=UnixNs(found["rebuilt"]),
    )
    if reason := _inconsistency(state):
        raise LaneDamaged(key, f"queue register: {reason}")
    return state


def body_descriptors(key: str, state: Register) -> tuple[Descriptor, ...]:
    """Decode the entries of the body."""
    found = decode_entries(key, state.entries, state.first_held)
    if len(found) != state.count:
        raise LaneDamaged(key, f"queue register has {len(found)} entries, not {state.count}")
    return found


# --- transitions: each returns the next state; the caller swaps it in --------------------------


def append(state: Register, drafts: tuple[Draft, ...], writer: Writer, nonce: bytes) -> Register:
    """Return the state with `drafts` appended; existing entries are copied as bytes.

    The drafts must fit within `ENTRIES_MAX`. `nonce` is 16 fresh bytes. The `first_sequence` of the
    writer is set here.
    """
    first = state.next_sequence
    added = b"".join(encode_queue_entry(first + index, draft) for index, draft in enumerate(drafts))
    me = replace(writer, first_sequence=first)
    others = tuple(one for one in state.writers if one.producer_id != writer.producer_id)
    return replace(
        state,
        revision=state.revision + 1,
        nonce=nonce,
        next_sequence=first + len(drafts),
        count=state.count + len(drafts),
        writers=(me, *others)[:WRITERS_MAX],
        entries=state.entries + added,
    )


def dequeue(key: str, state: Register, through: int, nonce: bytes) -> Register:
    """Return the state dequeued up to `through`; `acked_through < through < next_sequence`."""
    if not state.acked_through < through < state.next_sequence:
        raise InvariantViolated(
            f"dequeue is not between acked_through and next_sequence, through=`{through}`"
        )
    dropped = max(0, through + 1 - state.first_held)
    cut = skip_entries(key, state.entries, 0, dropped)
    return replace(
        state,
        revision=state.revision + 1,
        nonce=nonce,
        acked_through=through,
        count=state.count - dropped,
        segments=tuple(one for one in state.segments if one.last > through),
        entries=state.entries[cut:],
    )


def open_epoch(state: Register, owner: bytes, nonce: bytes) -> Register:
    """Return the state in which `owner` has the next epoch."""
    return replace(
        state, revision=state.revision + 1, nonce=nonce, epoch=state.epoch + 1, owner=owner
    )


def rebuilt_later(state: Register, rebuilt_ns: UnixNs, nonce: bytes) -> Register:
    """Return the state in which the rebuild of the lane ended at a later time."""
    return replace(state, revision=state.revision + 1, nonce=nonce, rebuilt_ns=rebuilt_ns)


def seal(state: Register, nonce: bytes) -> Register:
    """Return the state that no layout of lanes can use; every entry is acknowledged.

    It names no consumer, so that one which is running opens the lane again, as after a rebuild.
    """
    if state.waiting:
        raise InvariantViolated(f"lane has pending entries, waiting=`{state.waiting}`")
    return replace(
        state, revision=state.revision + 1, nonce=nonce, layout=SEALED, epoch=0, owner=NO_OWNER
    )


def continue_after(state: Register, sequence: int, layout: int, nonce: bytes) -> Register:
    """Return a sealed state in a new layout; its next entry follows a sequence."""
    if state.waiting or sequence < state.acked_through:
        raise InvariantViolated(f"lane cannot continue after this, sequence=`{sequence}`")
    return replace(
        state,
        revision=state.revision + 1,
        nonce=nonce,
        layout=layout,
        next_sequence=sequence + 1,
        acked_through=sequence,
    )


TERM_SHIFT: Final = 32
"""A counter has the producer's term above this bit, and its applied writes of all terms below."""
_WRITES_MASK: Final = (1 << TERM_SHIFT) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRead:
    """A register as read: its state and its ETag."""

    state: Register
    etag: ETag


def writes_of(counter: int) -> int:
    """Return how many writes have been applied in all terms."""
    return counter & _WRITES_MASK


def is_other_register(state: Register | None, producer_id: bytes, counter: int) -> bool:
    """Return True if a producer's writes were applied to another register.

    Such a register is missing, new or an old copy. A new one has room in its list of writers, which
    never shrinks, and does not list the producer. An old copy has fewer writes. A producer that
    continued to append would lose the pending entries of the old register.
    """
    if writes_of(counter) == 0:
        return False
    if state is None:
        return True
    me = state.writer(producer_id)
    if me is None:
        return len(state.writers) < WRITERS_MAX
    return writes_of(me.counter) < writes_of(counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAttempt:
    """One producer's write in flight: it replaces the ETag `on` and writes `revision`."""

    producer_id: bytes
    counter: int
    on: ETag
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The write is in the register."""

    first_sequence: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """The replaced state is still current: send the same bytes again; one write is applied."""


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """The write was not applied and never will be: build it again from this state."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """Too many later writes to decide. A repeated append may add the entries twice: count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFenced:
    """Another process writes under this producer's id: stop."""

    counter: int


AppendVerdict = Committed | InFlight | NotCommitted | Evicted | ProducerFenced


def decide_append(tried: AppendAttempt, seen: RegisterRead) -> AppendVerdict:
    """Decide the outcome of a write from a read made after it."""
    if seen.etag == tried.on:
        return InFlight()
    mine = seen.state.writer(tried.producer_id)
    if mine is None:
        writes_since = seen.state.revision - tried.revision
        full = len(seen.state.writers) >= WRITERS_MAX
        return Evicted() if full and writes_since >= WRITERS_MAX else NotCommitted()
    if mine.counter == tried.counter:
        return Committed(first_sequence=mine.first_sequence)
    if mine.counter > tried.counter:
        return ProducerFenced(counter=mine.counter)
    return NotCommitted()


def may_append(seen: RegisterRead, producer_id: bytes, counter: int) -> ProducerFenced | None:
    """Return `ProducerFenced` if this state has a later write of the producer than `counter`."""
    mine = seen.state.writer(producer_id)
    if mine is not None and mine.counter > counter:
        return ProducerFenced(counter=mine.counter)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochClaim:
    """A consumer's claim: the epoch that it opened, under its own id."""

    epoch: int
    owner: bytes


def owns_epoch(state: Register, holder: EpochClaim) -> bool:
    """Return True if the register has the epoch and the owner of the claim."""
    return (state.epoch, state.owner) == (holder.epoch, holder.owner)


@dataclass(frozen=True, slots=True)
class RetryOpen:
    """Another state is current: claim the epoch after the one in it."""


OpenVerdict = EpochClaim | InFlight | RetryOpen


def decide_open(claim: EpochClaim, on: ETag, seen: RegisterRead) -> OpenVerdict:
    """Decide from a later read whether a consumer's claim was applied."""
    if seen.etag == on:
        return InFlight()
    return claim if owns_epoch(seen.state, claim) else RetryOpen()


@dataclass(frozen=True, slots=True)
class Acked:
    """The register contains the acknowledgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """Another consumer opened the lane: no further change is allowed."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RetryAck:
    """The acknowledgement is not in the register: build it from this state."""


AckVerdict = Acked | Overtaken | RetryAck


def decide_ack(holder: EpochClaim, through: int, seen: RegisterRead) -> AckVerdict:
    """Decide from a read whether an acknowledgement is applied, may be tried, or is forbidden."""
    if not owns_epoch(seen.state, holder):
        return Overtaken(epoch=seen.state.epoch)
    return Acked() if seen.state.acked_through >= through else RetryAck()
