"""The frame: header, envelope and columns. Agents send it, and `raw-blobs/` stores it permanently.

A frame is not trusted: it is checked in full before anything is written, and a length is used only
after a check that its bytes exist. Source: `docs/protocol.md`, Frame.
"""

import struct
from dataclasses import dataclass
from typing import Final

import msgspec

from sluice_protocol.column_codings import ZSTD, StoredColumn
from sluice_protocol.columns import FEW, Columns, check_columns, kind_of
from sluice_protocol.envelope import Envelope, Resource, decode_envelope, encode_envelope
from sluice_protocol.errors import InvalidFrame, TooLarge, UnsupportedVersion
from sluice_protocol.frame_columns import (
    RawColumns,
    decode_columns,
    encode_columns,
    read_columns,
    write_columns,
)
from sluice_protocol.identity import Identity
from sluice_protocol.units import ENVELOPE_BYTES_MAX, FRAME_BYTES_MAX, RAW_BYTES_MAX

MAGIC: Final = b"LMB1"
FRAME_VERSION: Final = 3
"""The one version of frames; 1 and 2 were never released."""
_HEADER: Final = struct.Struct("<4sHH")
HEADER_BYTES: Final = _HEADER.size
HEAD_BYTES_MAX: Final = HEADER_BYTES + ENVELOPE_BYTES_MAX
"""This many leading bytes of a frame always contain its header and envelope."""

Span = tuple[int, int] | tuple[None, None]
"""The smallest and largest `ts`, Unix ns, or a pair of None if there is no `ts`."""


class FrameHead(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a frame in front of its columns.

    Attributes:
        envelope: The identity and span of the batch.
        columns: The directory of its columns.
        envelope_bytes: Length of the envelope.
    """

    envelope: Envelope
    columns: tuple[StoredColumn, ...]
    envelope_bytes: int

    @property
    def body_start(self) -> int:
        """Offset of the first column in the frame, in bytes."""
        return HEADER_BYTES + self.envelope_bytes

    @property
    def frame_bytes(self) -> int:
        """Length of the whole frame."""
        last = self.columns[-1]
        return self.body_start + last.offset + last.length

    @property
    def raw_bytes(self) -> int:
        """Length of the columns before compression."""
        return sum(one.raw_length for one in self.columns)

    @property
    def is_compressed(self) -> bool:
        """Whether a column is compressed."""
        return any(one.coding & ZSTD for one in self.columns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """A frame that passed every check.

    Attributes:
        envelope: The identity and span of the batch.
        columns: The records.
        raw_bytes: Length of the columns before compression.
    """

    envelope: Envelope
    columns: Columns
    raw_bytes: int

    @property
    def identity(self) -> Identity:
        """The identity that the frame claims."""
        return self.envelope.identity


def decode_head(data: bytes | memoryview) -> FrameHead:
    """Decode the header and envelope of a frame whose columns may be cut off.

    Args:
        data: The first bytes of a frame; `HEAD_BYTES_MAX` of them are always enough.

    Raises:
        InvalidFrame: The header or envelope breaks a rule, or is cut off.
        UnsupportedVersion: The frame is of another version.
        TooLarge: The columns exceed a limit.
    """
    if len(data) < HEADER_BYTES:
        raise InvalidFrame("magic", f"frame is shorter than its header of {HEADER_BYTES} bytes")
    magic, version, envelope_bytes = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise InvalidFrame("magic", "is not LMB1")
    if version != FRAME_VERSION:
        raise UnsupportedVersion("frame", version, FRAME_VERSION)
    envelope = bytes(data[HEADER_BYTES : HEADER_BYTES + envelope_bytes])
    if len(envelope) != envelope_bytes:
        raise InvalidFrame("envelope_bytes", "frame ends inside the envelope")
    described, columns = decode_envelope(envelope)
    return FrameHead(envelope=described, columns=columns, envelope_bytes=envelope_bytes)


def decode_frame(data: bytes, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> Frame:
    """Decode a frame and check every rule.

    Args:
        data: Exactly one frame.
        frame_bytes_max: Largest frame to accept, bytes; a gateway can be set to a lower limit than
            the format has.

    Raises:
        InvalidFrame: The frame breaks a rule; the error names the field and the reason.
        UnsupportedVersion: The frame is of another version.
        TooLarge: The frame exceeds `frame_bytes_max`, or its columns a limit.
    """
    if len(data) > frame_bytes_max:
        raise TooLarge("frame", len(data), frame_bytes_max)
    head = decode_head(data)
    return decode_body(head, data)


def decode_body(head: FrameHead, data: bytes) -> Frame:
    """Decode the columns of a frame whose head was decoded, and check every rule.

    Args:
        head: The head of the frame.
        data: The whole frame.

    Raises:
        InvalidFrame: As `decode_frame`.
    """
    envelope = head.envelope
    columns = decode_columns(envelope.kind, raw_columns(head, data), envelope.count)
    if (envelope.min_ts_ns, envelope.max_ts_ns) != span_of(columns):
        raise InvalidFrame("min_ts", "min_ts and max_ts do not match the ts column")
    return Frame(envelope=envelope, columns=columns, raw_bytes=head.raw_bytes)


def raw_columns(head: FrameHead, data: bytes) -> RawColumns:
    """Return the columns of a whole frame before compression, their values not yet checked.

    Args:
        head: The head of the frame.
        data: The whole frame.

    Raises:
        InvalidFrame: The frame has another length, or a column does not match its entry.
    """
    if len(data) != head.frame_bytes:
        reason = f"frame must be exactly {head.frame_bytes} bytes, has {len(data)}"
        raise InvalidFrame("columns", reason)
    body = memoryview(data)[head.body_start :]
    return read_columns(head.envelope.kind, head.columns, body)


def span_of(columns: Columns) -> Span:
    """Return the smallest and largest `ts`, Unix ns, or a pair of None if there is no `ts`."""
    if columns.ts is None:
        return None, None
    if len(columns.ts) <= FEW:
        times = columns.ts.tolist()
        return min(times), max(times)
    return int(columns.ts.min()), int(columns.ts.max())


def encode_frame(
    *, identity: Identity, columns: Columns, resource: Resource = (), compress: bool = True
) -> bytes:
    """Encode a frame; the same arguments result in the same bytes.

    Args:
        identity: Identity of the batch; its range must contain exactly the records.
        columns: The records.
        resource: Pairs of the resource, at most 64, each key once, in any order.
        compress: Store each column as zstd if that is smaller.

    Raises:
        InvalidFrame: The columns or the resource break a rule.
        TooLarge: The frame or its columns would exceed a limit.
    """
    check_columns(columns, identity.count)
    parts = encode_columns(columns)
    raw_bytes = sum(len(one.data) for one in parts.values())
    if raw_bytes > RAW_BYTES_MAX:
        raise TooLarge("columns before compression", raw_bytes, RAW_BYTES_MAX)
    directory, pieces = write_columns(parts, compress=compress)
    envelope = encode_envelope(_envelope(identity, columns, resource), directory)
    last = directory[-1]
    size_bytes = HEADER_BYTES + len(envelope) + last.offset + last.length
    if size_bytes > FRAME_BYTES_MAX:
        raise TooLarge("frame", size_bytes, FRAME_BYTES_MAX)
    return b"".join((_HEADER.pack(MAGIC, FRAME_VERSION, len(envelope)), envelope, *pieces))


def _envelope(identity: Identity, columns: Columns, resource: Resource) -> Envelope:
    min_ts_ns, max_ts_ns = span_of(columns)
    return Envelope(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        count=identity.count,
        kind=kind_of(columns),
        min_ts_ns=min_ts_ns,
        max_ts_ns=max_ts_ns,
        resource=resource,
    )
