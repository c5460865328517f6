"""The frame: header, envelope and payload. Agents send it, and `raw-blobs/` stores it permanently.

A frame is not trusted: it is checked in full before anything is written, and a length is used only
after a check that its bytes exist. The layout is stored, so a change is a new version with its
own row in `FRAME_DECODERS` (`docs/protocol.md`, Frame).
"""

import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

from sluice_protocol.columns import Columns, check_columns, kind_of
from sluice_protocol.compression import compress_payload, decompress_payload
from sluice_protocol.envelope import Envelope, Resource, decode_envelope, encode_envelope
from sluice_protocol.errors import InvalidFrame, TooLarge
from sluice_protocol.identity import Identity
from sluice_protocol.payload import decode_payload, encode_payload, span_of_short_logs
from sluice_protocol.payload_layout import LAYOUTS, PayloadLayout
from sluice_protocol.units import ENVELOPE_BYTES_MAX, FRAME_BYTES_MAX, PAYLOAD_RAW_BYTES_MAX
from sluice_protocol.versions import decoder_for

MAGIC: Final = b"LMB1"
FRAME_VERSION: Final = 1
"""The version of new frames unless their writer chooses another one."""
FLAG_ZSTD: Final = 1
_HEADER: Final = struct.Struct("<4sHHIIII")
_VERSION: Final = struct.Struct("<4sH")
HEADER_BYTES: Final = _HEADER.size
HEAD_BYTES_MAX: Final = HEADER_BYTES + ENVELOPE_BYTES_MAX
"""This many leading bytes of a frame always contain its header and envelope."""

Span = tuple[int, int] | tuple[None, None]
"""The smallest and largest `ts`, Unix ns, or a pair of None if there is no `ts`."""


class FrameHead(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a frame in front of the payload.

    Attributes:
        envelope: The identity and span of the batch.
        flags: Bit 0: the payload is zstd.
        envelope_bytes: Length of the envelope.
        payload_bytes: Length of the payload as stored.
        payload_raw_bytes: Length of the payload after decompression.
    """

    envelope: Envelope
    flags: int
    envelope_bytes: int
    payload_bytes: int
    payload_raw_bytes: int

    @property
    def payload_start(self) -> int:
        """Offset of the payload in the frame, in bytes."""
        return HEADER_BYTES + self.envelope_bytes

    @property
    def frame_bytes(self) -> int:
        """Length of the whole frame."""
        return self.payload_start + self.payload_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """A frame that passed every check.

    Attributes:
        envelope: The identity and span of the batch.
        columns: The records.
        flags: Bit 0: the payload was zstd.
        payload_raw_bytes: Length of the payload after decompression.
    """

    envelope: Envelope
    columns: Columns
    flags: int
    payload_raw_bytes: int

    @property
    def identity(self) -> Identity:
        """The identity that the frame claims."""
        return self.envelope.identity


def _decode_head(view: memoryview) -> FrameHead:
    if len(view) < HEADER_BYTES:
        raise InvalidFrame("magic", f"frame is shorter than its header of {HEADER_BYTES} bytes")
    _, _, flags, envelope_bytes, stored, raw, reserved = _HEADER.unpack_from(view)
    _check_header(flags, envelope_bytes, reserved)
    _check_payload_sizes(flags, stored, raw)
    envelope = view[HEADER_BYTES : HEADER_BYTES + envelope_bytes]
    if len(envelope) != envelope_bytes:
        raise InvalidFrame("envelope_bytes", "frame ends inside the envelope")
    return FrameHead(
        envelope=decode_envelope(envelope),
        flags=flags,
        envelope_bytes=envelope_bytes,
        payload_bytes=stored,
        payload_raw_bytes=raw,
    )


def _check_header(flags: int, envelope_bytes: int, reserved: int) -> None:
    if flags & ~FLAG_ZSTD:
        raise InvalidFrame("flags", "has a bit set that no version defines")
    if reserved != 0:
        raise InvalidFrame("reserved", "must be 0")
    if envelope_bytes > ENVELOPE_BYTES_MAX:
        raise InvalidFrame("envelope_bytes", f"must be at most {ENVELOPE_BYTES_MAX}")


def _check_payload_sizes(flags: int, stored: int, raw: int) -> None:
    if stored == 0:
        raise InvalidFrame("payload_bytes", "payload is empty")
    if raw == 0:
        raise InvalidFrame("payload_raw_bytes", "payload is empty")
    if stored > FRAME_BYTES_MAX:
        raise TooLarge("payload_bytes", stored, FRAME_BYTES_MAX)
    if raw > PAYLOAD_RAW_BYTES_MAX:
        raise TooLarge("payload_raw_bytes", raw, PAYLOAD_RAW_BYTES_MAX)
    if not flags & FLAG_ZSTD and stored != raw:
        raise InvalidFrame("payload_raw_bytes", "must equal payload_bytes of a plain payload")


def _raw_payload(head: FrameHead, stored: memoryview) -> memoryview:
    if head.flags & FLAG_ZSTD:
        return memoryview(decompress_payload(stored, head.payload_raw_bytes))
    return stored


def _decode_columns(layout: PayloadLayout, head: FrameHead, stored: memoryview) -> Columns:
    envelope = head.envelope
    return decode_payload(envelope.kind, _raw_payload(head, stored), envelope.count, layout)


def _checked_span(
    layout: PayloadLayout, head: FrameHead, stored: memoryview, names_max: int
) -> Span:
    raw, envelope = _raw_payload(head, stored), head.envelope
    span = None
    if envelope.kind == "logs":
        span = span_of_short_logs(raw, envelope.count, layout)
    if span is not None:
        return span
    return span_of(decode_payload(envelope.kind, raw, envelope.count, layout, names_max))


def span_of(columns: Columns) -> Span:
    """Return the smallest and largest `ts`, Unix ns, or a pair of None if there is no `ts`."""
    if columns.ts is None:
        return None, None
    return int(columns.ts.min()), int(columns.ts.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameVersionDecoder:
    """The steps that decode a frame of one version.

    Attributes:
        head: Decodes the header and the envelope; the payload may be cut off.
        columns: Decodes the stored payload into columns.
        span: Checks every rule of the stored payload and returns the span of its `ts`; the last
            argument is the `names_max` of `check_frame`.
    """

    head: Callable[[memoryview], FrameHead]
    columns: Callable[[FrameHead, memoryview], Columns]
    span: Callable[[FrameHead, memoryview, int], Span]


FRAME_DECODERS: Final[Mapping[int, FrameVersionDecoder]] = MappingProxyType(
    {
        version: FrameVersionDecoder(
            head=_decode_head,
            columns=partial(_decode_columns, layout),
            span=partial(_checked_span, layout),
        )
        for version, layout in LAYOUTS.items()
    }
)
"""The decoder of each frame version that this build reads."""


def _version_decoder(
    view: memoryview, decoders: Mapping[int, FrameVersionDecoder]
) -> FrameVersionDecoder:
    if len(view) < _VERSION.size:
        raise InvalidFrame("magic", "frame is shorter than its magic and version")
    magic, version = _VERSION.unpack_from(view)
    if magic != MAGIC:
        raise InvalidFrame("magic", "is not LMB1")
    return decoder_for(decoders, version, what="frame")


def is_compressed(data: bytes) -> bool:
    """Return True if the header of a frame, which may be wrong, states a compressed payload."""
    return len(data) >= HEADER_BYTES and bool(_HEADER.unpack_from(data)[2] & FLAG_ZSTD)


def frame_version(data: bytes) -> int:
    """Return the version of a frame whose head was decoded."""
    return int(_VERSION.unpack_from(data)[1])


def raw_payload(head: FrameHead, data: bytes) -> memoryview:
    """Return the payload of a frame after decompression; its version decides the columns.

    Args:
        head: The head of the frame.
        data: The whole frame.

    Raises:
        InvalidFrame: The payload is not one zstd frame of the stated size.
    """
    return _raw_payload(head, memoryview(data)[head.payload_start :])


def decode_head(
    data: bytes | memoryview, *, decoders: Mapping[int, FrameVersionDecoder] = FRAME_DECODERS
) -> FrameHead:
    """Decode the header and envelope of a frame whose payload may be cut off.

    Args:
        data: The first bytes of a frame; `HEAD_BYTES_MAX` of them are always enough.
        decoders: The decoder of each version to read.

    Raises:
        InvalidFrame: The header or envelope breaks a rule, or is cut off.
        UnsupportedVersion: The frame or wire version is not one that this build reads.
        TooLarge: The payload exceeds a limit of its version.
    """
    view = memoryview(data)
    return _version_decoder(view, decoders).head(view)


def decode_frame(
    data: bytes,
    *,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    decoders: Mapping[int, FrameVersionDecoder] = FRAME_DECODERS,
) -> Frame:
    """Decode a frame and check every rule of its version.

    Args:
        data: Exactly one frame.
        frame_bytes_max: Largest frame to accept, bytes; a gateway can be set to a lower limit than
            the format has.
        decoders: The decoder of each version to read.

    Raises:
        InvalidFrame: The frame breaks a rule; the error names the field and the reason.
        UnsupportedVersion: The frame or wire version is not one that this build reads.
        TooLarge: The frame exceeds `frame_bytes_max`, or its payload a limit of its version.
    """
    view = memoryview(data)
    decoder, head = _whole_head(view, frame_bytes_max, decoders)
    columns = decoder.columns(head, view[head.payload_start :])
    _check_span(head, span_of(columns))
    return Frame(
        envelope=head.envelope,
        columns=columns,
        flags=head.flags,
        payload_raw_bytes=head.payload_raw_bytes,
    )


def check_frame(
    data: bytes, *, frame_bytes_max: int = FRAME_BYTES_MAX, names_max: int = sys.maxsize
) -> Envelope:
    """Check every rule of a frame and return its envelope.

    It accepts and refuses what `decode_frame` does, and makes no columns of a few plain logs.

    Args:
        data: Exactly one frame.
        frame_bytes_max: As for `decode_frame`.
        names_max: The number of distinct names of metrics or attributes up to which they are read,
            at least `SHORT_TEXTS_MAX`. Each name becomes a separate string, so names cost more time
            than any other bytes of a frame.

    Raises:
        InvalidFrame: As `decode_frame`.
        UnsupportedVersion: As `decode_frame`.
        TooLarge: As `decode_frame`.
        TooManyTexts: The frame has more names, and nothing was decided.
    """
    view = memoryview(data)
    decoder, head = _whole_head(view, frame_bytes_max, FRAME_DECODERS)
    _check_span(head, decoder.span(head, view[head.payload_start :], names_max))
    return head.envelope


def _check_span(head: FrameHead, span: Span) -> None:
    if (head.envelope.min_ts_ns, head.envelope.max_ts_ns) != span:
        raise InvalidFrame("min_ts", "min_ts and max_ts do not match the ts column")


def _whole_head(
    view: memoryview, frame_bytes_max: int, decoders: Mapping[int, FrameVersionDecoder]
) -> tuple[FrameVersionDecoder, FrameHead]:
    """Return the head of a whole frame, and the decoder of its version."""
    if len(view) > frame_bytes_max:
        raise TooLarge("frame", len(view), frame_bytes_max)
    decoder = _version_decoder(view, decoders)
    head = decoder.head(view)
    if len(view) != head.frame_bytes:
        reason = f"frame must be exactly {head.frame_bytes} bytes, has {len(view)}"
        raise InvalidFrame("payload_bytes", reason)
    return decoder, head


def encode_frame(
    *,
    identity: Identity,
    columns: Columns,
    resource: Resource = (),
    compress: bool = True,
    version: int = FRAME_VERSION,
) -> bytes:
    """Encode a frame; the same arguments result in the same bytes.

    Args:
        identity: Identity of the batch; its range must contain exactly the records.
        columns: The records.
        resource: Pairs of the resource, at most 64, each key once, in any order.
        compress: Store the payload as zstd if that is smaller.
        version: The frame version, 1 or 2.

    Raises:
        InvalidFrame: The columns or the resource break a rule.
        TooLarge: The frame or its payload would exceed a limit of its version.
    """
    check_columns(columns, identity.count)
    envelope = encode_envelope(_envelope(identity, columns, resource))
    if len(envelope) > ENVELOPE_BYTES_MAX:
        raise InvalidFrame("resource", f"makes the envelope larger than {ENVELOPE_BYTES_MAX} bytes")
    raw = encode_payload(columns, LAYOUTS[version])
    if len(raw) > PAYLOAD_RAW_BYTES_MAX:
        raise TooLarge("payload_raw_bytes", len(raw), PAYLOAD_RAW_BYTES_MAX)
    flags, payload = _stored(raw, compress=compress)
    size_bytes = HEADER_BYTES + len(envelope) + len(payload)
    if size_bytes > FRAME_BYTES_MAX:
        raise TooLarge("frame", size_bytes, FRAME_BYTES_MAX)
    header = _HEADER.pack(MAGIC, version, flags, len(envelope), len(payload), len(raw), 0)
    return b"".join((header, envelope, payload))


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


def _stored(raw: bytes, *, compress: bool) -> tuple[int, bytes]:
    if compress:
        packed = compress_payload(raw)
        if len(packed) < len(raw):
            return FLAG_ZSTD, packed
    return 0, raw
