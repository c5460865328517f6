"""The register of one lane: the bytes that every producer and the one consumer swap.

`HEADER` is the table of the bytes of its header, and `docs/queue.md` shows it. The entries of the
body are the newest `count`; older entries after `acked_through` are in the segments. Append and
dequeue copy entries as bytes and never decode them. Pure: no I/O, clock or randomness.

Source: ADR 23.
"""

import struct
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sluice_protocol.errors import InvariantViolated, UnsupportedVersion
from sluice_queue.entries import Descriptor, Draft, decode_entries, encode_queue_entry, skip_entries
from sluice_queue.errors import LaneDamaged

MAGIC: Final = b"LMQ1"
VERSION: Final = 1
ENTRIES_MAX: Final = 4096
WRITERS_MAX: Final = 64
SEGMENTS_MAX: Final = 4096
ID_BYTES: Final = 16
NO_OWNER: Final = bytes(ID_BYTES)


class HeaderField(NamedTuple):
    """One field of the header; `code` is its layout as `struct` has it, little-endian."""

    name: str
    code: str
    meaning: str


HEADER: Final = (
    HeaderField("magic", "4s", f"`{MAGIC.decode()}`"),
    HeaderField("version", "H", f"{VERSION}; any other value is refused"),
    HeaderField("reserved", "H", "0"),
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
    HeaderField("reserved_2", "H", "0"),
    HeaderField("segments", "I", f"at most {SEGMENTS_MAX}"),
    HeaderField("entry_bytes", "I", "length of the entries below"),
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
    epoch: int = 0
    owner: bytes = NO_OWNER
    next_sequence: int = 1
    acked_through: int = 0
    count: int = 0
    writers: tuple[Writer, ...] = ()
    segments: tuple[SegmentRef, ...] = ()
    entries: bytes = b""

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
        "reserved": 0,
        "revision": state.revision,
        "nonce": state.nonce,
        "epoch": state.epoch,
        "owner": state.owner,
        "next_sequence": state.next_sequence,
        "acked_through": state.acked_through,
        "count": state.count,
        "writers": len(state.writers),
        "reserved_2": 0,
        "segments": len(state.segments),
        "entry_bytes": len(state.entries),
    }
    parts = [_HEADER.pack(*[values[name] for name in _NAMES])]
    parts += [_WRITER.pack(w.producer_id, w.counter, w.first_sequence) for w in state.writers]
    parts += [_SEGMENT.pack(s.first, s.last, s.size_bytes) for s in state.segments]
    parts.append(state.entries)
    return b"".join(parts)


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


def decode_register(key: str, body: bytes) -> Register:
    """Decode the header of a register; the entries stay bytes."""
    check_object_head(
        key, body, what="queue register", magic=MAGIC, version=VERSION, size=_HEADER.size
    )
    found = dict(zip(_NAMES, _HEADER.unpack_from(body), strict=True))
    if found["reserved"] or found["reserved_2"]:
        raise LaneDamaged(key, "reserved bytes of the queue register are not 0")
    segments_at = _HEADER.size + found["writers"] * _WRITER.size
    entries_at = segments_at + found["segments"] * _SEGMENT.size
    if len(body) != entries_at + found["entry_bytes"]:
        raise LaneDamaged(key, "queue register does not end where its header states")
    state = Register(
        revision=found["revision"],
        nonce=found["nonce"],
        epoch=found["epoch"],
        owner=found["owner"],
        next_sequence=found["next_sequence"],
        acked_through=found["acked_through"],
        count=found["count"],
        writers=_writers(body[_HEADER.size : segments_at]),
        segments=_segments(body[segments_at:entries_at]),
        entries=body[entries_at:],
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
