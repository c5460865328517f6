"""The spool's file format: one sealed batch and how far its inputs stood when it was cut.

Frame and positions share one file, so that one rename makes both durable or neither: a crash
between them would lose lines or send them twice.

| offset | bytes | field |
|---|---|---|
| 0 | 4 | magic `SLE1` |
| 4 | 4 | note_bytes, little-endian, at most 16 MiB |
| 8 | 32 | sha256 of the note |
| 40 | … | note (JSON), then the frame; the file ends exactly there |

Source: ADR 0030.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Final

import msgspec

from sluice_agent.errors import CorruptEntry
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import Kind
from sluice_protocol.units import Digest

MAGIC: Final = b"SLE1"
PREFIX: Final = struct.Struct("<4sI32s")
HEADER_BYTES_MAX: Final = 16 * 1024 * 1024
SUFFIX: Final = ".batch"
FORMAT_VERSION: Final = 1


class FileCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How far one file was read, and enough of it to know it again.

    Attributes:
        source: `<device>:<inode>` of the file.
        path: The path under which it was last seen.
        start: Byte offset at which the batch that carries this mark began to read it.
        offset: Byte offset of the first byte not in any sealed batch.
        head_bytes: How many first bytes `head_sha256` is over; at most `offset`.
        head_sha256: Digest of the file's first bytes: the same inode may be another file.
        tail_bytes: How many bytes just before `offset` `tail_sha256` is over.
        tail_sha256: Digest of those: the same file may have been truncated and written anew.
    """

    source: str
    path: str
    start: int
    offset: int
    head_bytes: int = 0
    head_sha256: str = ""
    tail_bytes: int = 0
    tail_sha256: str = ""


class EntryHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a spool file says of its frame.

    Attributes:
        version: Of this format, 1.
        order: Place of the batch among all that this spool ever sealed.
        agent_id: Identity, as in the frame's envelope.
        boot_id: Identity.
        seq_start: Identity.
        seq_end: Identity.
        kind: What the frame holds.
        frame_bytes: Size of the frame.
        frame_sha256: Digest of the frame.
        sealed_at_unix_ns: When it was cut, by this machine's clock.
        marks: How far each file stood that this batch read from.
    """

    version: int
    order: int
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    kind: Kind
    frame_bytes: int
    frame_sha256: Digest
    sealed_at_unix_ns: int
    checkpoints: tuple[FileCheckpoint, ...] = msgspec.field(default=(), name="marks")

    @property
    def identity(self) -> Identity:
        """Gives the identity of the batch."""
        return Identity(
            agent_id=self.agent_id,
            boot_id=self.boot_id,
            seq_start=self.seq_start,
            seq_end=self.seq_end,
        )

    @property
    def name(self) -> str:
        """Gives the name of the spool file; names sort in the order of sealing."""
        span = f"{self.seq_start:020d}-{self.seq_end:020d}"
        return f"{self.order:020d}-{self.boot_id}-{span}{SUFFIX}"

    @property
    def size_bytes(self) -> int:
        """Gives the size of the spool file."""
        return PREFIX.size + len(encode_header(self)) + self.frame_bytes


def encode_header(header: EntryHeader) -> bytes:
    """Gives the note's bytes."""
    return msgspec.json.encode(header)


def encode_entry(header: EntryHeader, frame: bytes) -> tuple[bytes, bytes]:
    """Gives the two parts of a spool file, head with note and frame, which is not copied."""
    body = encode_header(header)
    head = PREFIX.pack(MAGIC, len(body), hashlib.sha256(body).digest())
    return head + body, frame


def header_end(head: bytes) -> int:
    """Tells from a file's first bytes where its frame begins.

    Raises:
        CorruptEntry: They are no head of a spool file.
    """
    if len(head) < PREFIX.size:
        raise CorruptEntry("shorter than its head")
    magic, note_bytes, _ = PREFIX.unpack_from(head)
    if magic != MAGIC or note_bytes > HEADER_BYTES_MAX:
        raise CorruptEntry("magic or size of the note is wrong")
    return PREFIX.size + int(note_bytes)


def decode_header(prefix: bytes, *, file_bytes: int) -> EntryHeader:
    """Reads the note out of a file's beginning.

    Args:
        prefix: At least everything before the frame.
        file_bytes: The size of the whole file.

    Raises:
        CorruptEntry: Head, note or size are not those that were written.
    """
    end = header_end(prefix)
    body = prefix[PREFIX.size : end]
    if hashlib.sha256(body).digest() != PREFIX.unpack_from(prefix)[2]:
        raise CorruptEntry("the note's digest does not match")
    try:
        header = msgspec.json.decode(body, type=EntryHeader)
    except msgspec.DecodeError as error:
        raise CorruptEntry("the note is not of this version") from error
    if header.version != FORMAT_VERSION or file_bytes != end + header.frame_bytes:
        raise CorruptEntry("the file is not as long as its note says")
    return header


def decode_entry(body: bytes) -> tuple[EntryHeader, bytes]:
    """Reads a whole spool file.

    Raises:
        CorruptEntry: Note or frame are not the bytes that were written.
    """
    header = decode_header(body, file_bytes=len(body))
    frame = body[len(body) - header.frame_bytes :]
    if digest_of(frame) != header.frame_sha256:
        raise CorruptEntry("the frame's digest does not match")
    return header, frame


def is_entry(name: str) -> bool:
    """Tells whether a file's name is that of a sealed batch."""
    return PurePath(name).suffix == SUFFIX


_DIGEST_CHARS: Final = 64


class SpoolState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of all entries sealed so far.

    Attributes:
        version: Of this format, 1.
        through: The highest order folded in; 0 before the first.
        marks: The latest mark of each file.
        high_water: The highest sequence number sealed, by boot id.
    """

    version: int = FORMAT_VERSION
    through: int = 0
    checkpoints: Mapping[str, FileCheckpoint] = msgspec.field(default_factory=dict, name="marks")
    high_water: Mapping[str, int] = msgspec.field(default_factory=dict)


def fold_entry(state: SpoolState, header: EntryHeader) -> SpoolState:
    """Folds one entry in; an entry that is already covered changes nothing."""
    if header.order <= state.through:
        return state
    high = max(header.seq_end, state.high_water.get(header.boot_id, header.seq_end))
    return SpoolState(
        through=header.order,
        checkpoints={
            **state.checkpoints,
            **{each.source: each for each in header.checkpoints},
        },
        high_water={**state.high_water, header.boot_id: high},
    )


def prune_state(
    state: SpoolState, *, boots: Iterable[str], sources_gone: Iterable[str]
) -> SpoolState:
    """Drops what nobody will ask for again.

    Args:
        state: The state.
        boots: The boots that still have batches, and the running one.
        sources_gone: Files that are read to their end and are no longer there.
    """
    kept, gone = frozenset(boots), frozenset(sources_gone)
    return SpoolState(
        through=state.through,
        checkpoints={
            source: checkpoint
            for source, checkpoint in state.checkpoints.items()
            if source not in gone
        },
        high_water={boot: high for boot, high in state.high_water.items() if boot in kept},
    )


def encode_state(state: SpoolState) -> bytes:
    """Gives the file's bytes: JSON, a newline, the sha256 of the JSON in hex."""
    body = msgspec.json.encode(state, order="sorted")
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def decode_state(body: bytes) -> SpoolState:
    """Reads the file's bytes.

    Raises:
        CorruptEntry: They are not those that were written.
    """
    text, _, digest = body.rstrip(b"\n").rpartition(b"\n")
    if len(digest) != _DIGEST_CHARS or hashlib.sha256(text).hexdigest().encode() != digest:
        raise CorruptEntry("the state's digest does not match")
    try:
        return msgspec.json.decode(text, type=SpoolState)
    except msgspec.DecodeError as error:
        raise CorruptEntry("the state is not of this version") from error


class ParkedReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch was parked; it stands beside the batch as JSON."""

    reason: str
    gateway: str
    status: int
    parked_at_unix_ns: int
    answer: str = ""
