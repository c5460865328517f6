"""The spool's file formats: an entry, which is one sealed batch, and the state.

Frame and checkpoints share one file, so that one rename makes both durable or neither. Otherwise a
crash between two writes would lose lines or send them twice.

An entry:

| offset | bytes | field |
|---|---|---|
| 0 | 4 | magic `SLE1` |
| 4 | 4 | size of the header, little-endian, at most 16 MiB |
| 8 | 32 | sha256 of the header |
| 40 | … | header (JSON), then the frame until the end of the file |

Every version keeps this prefix and the digest of the state. So a process can read `version`, and
refuses a spool of another version instead of treating its files as damaged.

The state contains the checkpoints and high-water marks of all entries up to the order `through`,
and the window of their requests (`request_window`).
Recovery adds the later entries that still exist, so an entry may be removed only once a durable
state covers it.

Source: ADR 17.
"""

import contextlib
import hashlib
import struct
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Final

import msgspec

from sluice_agent.errors import CorruptEntry
from sluice_agent.spool.request_window import add_requests
from sluice_protocol.errors import UNREADABLE_JSON, UnsupportedVersion
from sluice_protocol.fields import Kind
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.units import Digest

MAGIC: Final = b"SLE1"
PREFIX: Final = struct.Struct("<4sI32s")
HEADER_BYTES_MAX: Final = 16 * 1024 * 1024
SUFFIX: Final = ".batch"
_DIGEST_CHARS: Final = 64
FORMAT_VERSION: Final = 3
JOURNAL_SOURCE: Final = "journal"
"""The source of the position in the journal of systemd, whose cursor is the `path`."""


class FileCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The position reached in one file, and the digest of what was read of it.

    Attributes:
        source: `<device>:<inode>` of the file.
        path: The path at which it was last found, as `file_names.stored_path` returns it.
        start: Byte offset at which the batch with this checkpoint began to read.
        offset: Byte offset of the first byte that is in no sealed batch.
        begin: The first byte that the digests cover; above 0 only with `from_end`.
        base: Where the block before the last one begins (`file_identity`).
        base_sha256: Digest of the bytes from `begin` to `base`, in hexadecimal.
        sha256: Digest of the bytes from `begin` to `offset`: the file's identity.
        size_bytes: The size of the file before its bytes up to `offset` were read; -1 if unknown.
        modified_ns: The time of its last modification then.
        changed_ns: The time of the last change of its inode then.
        target: The file that `path` led to, if that is another name; stored as `path` is.
    """

    source: str
    path: str
    start: int
    offset: int
    begin: int = 0
    base: int = 0
    base_sha256: str = ""
    sha256: str = ""
    size_bytes: int = -1
    modified_ns: int = 0
    changed_ns: int = 0
    target: str = ""


class EntryHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of an entry.

    Attributes:
        order: Ordinal of the batch among all that this spool ever sealed.
        checkpoints: The position of each file that the batch contains lines of; stored as `marks`.
        requests: The digests of the requests to doors whose records the batch contains, as a
            `request_window`.
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
    requests: bytes = b""

    @property
    def identity(self) -> Identity:
        """The identity of the batch."""
        return Identity.of(self)

    @property
    def name(self) -> str:
        """The name of the entry's file; names sort in the order of sealing."""
        span = f"{self.seq_start:020d}-{self.seq_end:020d}"
        return f"{self.order:020d}-{self.boot_id}-{span}{SUFFIX}"

    @property
    def size_bytes(self) -> int:
        """The size of the entry's file."""
        return PREFIX.size + len(encode_header(self)) + self.frame_bytes


def encode_header(header: EntryHeader) -> bytes:
    """Encode a header."""
    return msgspec.json.encode(header)


def encode_spool_entry(header: EntryHeader, frame: bytes) -> tuple[bytes, bytes]:
    """Return the two parts of an entry's file; the frame is not copied."""
    body = encode_header(header)
    head = PREFIX.pack(MAGIC, len(body), hashlib.sha256(body).digest())
    return head + body, frame


def header_end(head: bytes) -> int:
    """Return the offset of the frame, from the first bytes of a file."""
    if len(head) < PREFIX.size:
        raise CorruptEntry("shorter than its fixed prefix")
    magic, note_bytes, _ = PREFIX.unpack_from(head)
    if magic != MAGIC or note_bytes > HEADER_BYTES_MAX:
        raise CorruptEntry("magic or size of the header is wrong")
    return PREFIX.size + int(note_bytes)


def decode_header(prefix: bytes, *, file_bytes: int) -> EntryHeader:
    """Decode the header at the beginning of a file of `file_bytes`; raise `CorruptEntry` on damage.

    `prefix` has at least all bytes before the frame.
    """
    end = header_end(prefix)
    body = prefix[PREFIX.size : end]
    if hashlib.sha256(body).digest() != PREFIX.unpack_from(prefix)[2]:
        raise CorruptEntry("the digest of the header does not match")
    _check_version("spool entry", body)
    try:
        header = msgspec.json.decode(body, type=EntryHeader)
    except UNREADABLE_JSON as error:
        raise CorruptEntry("the header cannot be read") from error
    if file_bytes != end + header.frame_bytes:
        raise CorruptEntry("the size of the file differs from its header")
    return header


def decode_spool_entry(body: bytes) -> tuple[EntryHeader, bytes]:
    """Decode an entry."""
    header = decode_header(body, file_bytes=len(body))
    frame = body[len(body) - header.frame_bytes :]
    if digest_of(frame) != header.frame_sha256:
        raise CorruptEntry("the digest of the frame does not match")
    return header, frame


def is_entry(name: str) -> bool:
    """Return True if a file has the name of an entry."""
    return PurePath(name).suffix == SUFFIX


class SpoolState(msgspec.Struct, frozen=True, kw_only=True):
    """The accumulated state of all entries sealed so far.

    Attributes:
        through: The highest order included; 0 before the first entry.
        checkpoints: The latest checkpoint of each file; stored as `marks`.
        high_water: The highest sequence number sealed, by boot id.
    """

    version: int = FORMAT_VERSION
    through: int = 0
    checkpoints: Mapping[str, FileCheckpoint] = msgspec.field(default_factory=dict, name="marks")
    high_water: Mapping[str, int] = msgspec.field(default_factory=dict)
    requests: bytes = b""


def fold_entry(state: SpoolState, header: EntryHeader) -> SpoolState:
    """Return the state including one more entry; an entry already included changes nothing."""
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
        requests=add_requests(state.requests, header.requests),
    )


def prune_state(
    state: SpoolState, *, boots: Iterable[str], finished_sources: Iterable[str]
) -> SpoolState:
    """Return the state without boots and files that are no longer needed.

    `boots` are the current boot and those that still have batches; `finished_sources` are read to
    their end and no longer exist.
    """
    kept, finished = frozenset(boots), frozenset(finished_sources)
    return SpoolState(
        through=state.through,
        checkpoints={
            source: checkpoint
            for source, checkpoint in state.checkpoints.items()
            if source not in finished
        },
        high_water={boot: high for boot, high in state.high_water.items() if boot in kept},
        requests=state.requests,
    )


def encode_state(state: SpoolState) -> bytes:
    """Encode the state: JSON, a newline, and the sha256 of the JSON in hexadecimal."""
    body = msgspec.json.encode(state, order="sorted")
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def decode_state(body: bytes) -> SpoolState:
    """Decode a state."""
    text, _, digest = body.rstrip(b"\n").rpartition(b"\n")
    if len(digest) != _DIGEST_CHARS or hashlib.sha256(text).hexdigest().encode() != digest:
        raise CorruptEntry("the digest of the state does not match")
    _check_version("state of the spool", text)
    try:
        return msgspec.json.decode(text, type=SpoolState)
    except UNREADABLE_JSON as error:
        raise CorruptEntry("the state cannot be read") from error


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def _check_version(what: str, body: bytes) -> None:
    """Raise `UnsupportedVersion` if JSON states another version, whatever else it contains."""
    with contextlib.suppress(*UNREADABLE_JSON):
        found = msgspec.json.decode(body, type=_Versioned).version
        if found != FORMAT_VERSION:
            raise UnsupportedVersion(what, found, FORMAT_VERSION)


class ParkedReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch was parked; stored as JSON next to the batch."""

    reason: str
    gateway: str
    status: int
    parked_at_unix_ns: int
    answer: str = ""
