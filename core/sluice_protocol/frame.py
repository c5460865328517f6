"""The frame: header, envelope and columns. Agents send it, and `raw-blobs/` stores it permanently.

A frame is not trusted: it is checked in full before anything is written, and a length is used only
after a check that its bytes exist. The envelope describes the batch and where its columns are, as
one array of CBOR. cbor2 reads and writes it. What was read is encoded again and compared, so an
envelope has exactly one encoding: that of RFC 8949, section 4.2.1.
Source: `docs/protocol.md`, Frame.

`join_columns_of` decodes the columns of many small frames together: one numpy operation serves all
of them. A query over 2,000 pending batches of 10 records needs 0.44 s of processor time, and 1.8 s
if each frame is decoded alone (`benchmarks/waiting.py`). Every rule is checked. If one of the
frames may break a rule, the result is None, and the caller decodes each with `decode_frame`, which
names the field.
"""

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from types import NoneType
from typing import Any, Final, NoReturn

import cbor2
import msgspec
import numpy as np
import numpy.typing as npt

from sluice_protocol.column_codings import (
    COUNTS,
    NAMES,
    TEXTS,
    WIDTH_MAXIMA,
    ZSTD,
    RawColumns,
    StoredColumn,
    decode_columns,
    encode_columns,
    key_order,
    read_columns,
    width_of,
    width_place,
    write_columns,
)
from sluice_protocol.columns import (
    FEW,
    I32,
    U8,
    U32,
    AttributeColumns,
    Columns,
    ColumnValues,
    NameColumn,
    TextColumn,
    check_columns,
    kind_of,
    make_columns,
    number_type,
)
from sluice_protocol.errors import InvalidFrame, TooLarge, UnsupportedVersion
from sluice_protocol.fields import KINDS, Field, FieldType, Kind
from sluice_protocol.identity import Identity
from sluice_protocol.units import ENVELOPE_BYTES_MAX, FRAME_BYTES_MAX, RAW_BYTES_MAX

WIRE_VERSION: Final = 1
"""The version of the envelope, which manifests state; each version of frames has one."""
RESOURCE_ENTRIES_MAX: Final = 64
ENCODER_KEY: Final = "sluice.encoder"
"""The pair of a resource with the version of what encoded a frame; it belongs to no user."""
DEPTH_MAX: Final = 2
"""Levels of an envelope: itself, and the resource or the directory of columns."""

_FIELDS: Final = (
    *("agent_id", "boot_id", "seq_start", "seq_end", "count", "kind", "min_ts", "max_ts"),
    *("resource", "columns"),
)
"""The items of an envelope, in order, by their names in records, errors and documentation."""
_TYPES: Final = (str, str, int, int, int, str, int, int, dict, list)
_WITHOUT_TIMES: Final = (str, str, int, int, int, str, NoneType, NoneType, dict, list)
_KNOWN_TYPES: Final = (_TYPES, _WITHOUT_TIMES)
_SHOWN: Final = {str: "a text", int: "an integer", dict: "a map", list: "an array"}
_I64: Final = range(-(2**63), 2**63)
_ENTRY_TYPES: Final = (str, int, int, int, int, bytes, int)
_ENTRY_ITEMS: Final = len(_ENTRY_TYPES)
_CHECKSUM_BYTES: Final = 4
_NAME_SHOWN_MAX: Final = 40
_ARRAY_OF_TEN: Final = 0x80 + len(_FIELDS)

Resource = tuple[tuple[str, str], ...]


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a batch, in front of its columns.

    Attributes:
        agent_id: The agent that sent it.
        boot_id: The boot of that agent.
        seq_start: First sequence number.
        seq_end: Last sequence number, inclusive.
        count: Number of records.
        kind: Kind of the records.
        min_ts_ns: Smallest `ts`, Unix ns; None when entries have no `ts`.
        max_ts_ns: Largest `ts`, Unix ns; None when entries have no `ts`.
        resource: Pairs of the resource, in the order of the frame.
    """

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    count: int
    kind: Kind
    min_ts_ns: int | None
    max_ts_ns: int | None
    resource: Resource = ()

    @property
    def identity(self) -> Identity:
        """The identity that the frame claims."""
        return Identity.of(self)

    @property
    def shown_resource(self) -> Resource:
        """The resource as its sender stated it, which consumers see."""
        return tuple(pair for pair in self.resource if pair[0] != ENCODER_KEY)


def encode_envelope(envelope: Envelope, columns: Sequence[StoredColumn]) -> bytes:
    """Return the encoding of an envelope, with the resource sorted.

    Args:
        envelope: The description of the batch.
        columns: The directory of its columns, in `key_order`.

    Raises:
        InvalidFrame: The resource has too many entries, a key twice, or text that is not UTF-8; or
            the envelope would be too large.
    """
    _check_resource(envelope.resource)
    try:
        encoded = cbor2.dumps(
            (
                envelope.agent_id,
                envelope.boot_id,
                envelope.seq_start,
                envelope.seq_end,
                envelope.count,
                envelope.kind,
                envelope.min_ts_ns,
                envelope.max_ts_ns,
                dict(sorted(envelope.resource, key=_pair_order)),
                tuple(chain.from_iterable(columns)),
            )
        )
    except UnicodeEncodeError as error:
        raise InvalidFrame("resource", "text is not valid UTF-8") from error
    if len(encoded) > ENVELOPE_BYTES_MAX:
        raise InvalidFrame("resource", f"makes the envelope larger than {ENVELOPE_BYTES_MAX} bytes")
    return encoded


def _pair_order(pair: tuple[str, str]) -> tuple[int, bytes]:
    return key_order(pair[0])


def _check_resource(resource: Resource) -> None:
    if len(dict(resource)) != len(resource):
        raise InvalidFrame("resource", "has a key twice")
    if len(resource) > RESOURCE_ENTRIES_MAX:
        raise InvalidFrame("resource", f"has more than {RESOURCE_ENTRIES_MAX} entries")


def decode_envelope(data: bytes) -> tuple[Envelope, tuple[StoredColumn, ...]]:
    """Decode an envelope strictly.

    Returns:
        The description of the batch, and the directory of its columns, whose bytes follow each
        other without gaps. Whether its kind has such columns is not checked here.

    Raises:
        InvalidFrame: It breaks a rule; the error names the field.
        TooLarge: The columns exceed a limit.
    """
    try:
        found: object = cbor2.loads(
            data,
            semantic_decoders=_NO_TAGS,
            max_depth=DEPTH_MAX,
            allow_indefinite=False,
            allow_duplicate_keys=False,
        )
    except (cbor2.CBORError, *_OTHER_ERRORS) as error:
        raise _fault_in(data) from error
    envelope, entries = _build(found)
    columns = _directory(entries)
    given = envelope.resource
    is_in_order = len(given) <= 1 or list(given) == sorted(given, key=_pair_order)
    if cbor2.dumps(found) != data or not is_in_order:
        raise _fault_in(data)
    return envelope, columns


class _HasTag(ValueError):
    """An item has a tag."""


class _NoTags(dict[int, Callable[[object, bool], object]]):
    """A table of decoders of tags in which each look-up fails."""

    def __missing__(self, tag: int) -> NoReturn:
        raise _HasTag(tag)


_NO_TAGS: Final = _NoTags()
_OTHER_ERRORS: Final = (ValueError, TypeError, OverflowError)
"""What cbor2 raises next to its own errors."""


def _build(found: object) -> tuple[Envelope, list[object]]:
    """Return the description of the batch, and the items of the directory."""
    if type(found) is not list or len(found) != len(_FIELDS):
        raise InvalidFrame("envelope", f"must be an array of {len(_FIELDS)} items")
    types = tuple(map(type, found))
    if types not in _KNOWN_TYPES:
        raise _wrong_type(types)
    agent_id, boot_id, seq_start, seq_end, count, kind, min_ts_ns, max_ts_ns, resource, entries = (
        found
    )
    if kind not in KINDS:
        raise InvalidFrame("kind", f"must be one of {', '.join(KINDS)}, kind=`{_shown(kind)}`")
    _check_times(kind, min_ts_ns, max_ts_ns)
    envelope = Envelope(
        agent_id=agent_id,
        boot_id=boot_id,
        seq_start=seq_start,
        seq_end=seq_end,
        count=count,
        kind=kind,
        min_ts_ns=min_ts_ns,
        max_ts_ns=max_ts_ns,
        resource=_texts_of(resource),
    )
    if count != envelope.identity.count:
        raise InvalidFrame("count", "is not seq_end - seq_start + 1")
    return envelope, entries


def _check_times(kind: Kind, min_ts_ns: int | None, max_ts_ns: int | None) -> None:
    if min_ts_ns is None or max_ts_ns is None:
        if KINDS[kind].has_every_time:
            raise InvalidFrame("min_ts", f"is missing: {kind} need it")
    elif min_ts_ns not in _I64 or max_ts_ns not in _I64:
        field = "max_ts" if min_ts_ns in _I64 else "min_ts"
        raise InvalidFrame(field, "is outside the range of a 64-bit integer")


def _texts_of(resource: dict[object, object]) -> Resource:
    if len(resource) > RESOURCE_ENTRIES_MAX:
        raise InvalidFrame("resource", f"map has more than {RESOURCE_ENTRIES_MAX} pairs")
    pairs: list[tuple[str, str]] = []
    for key, value in resource.items():
        if type(key) is not str or type(value) is not str:
            raise InvalidFrame("resource", "must be a map from text to text")
        pairs.append((key, value))
    return tuple(pairs)


def _wrong_type(types: tuple[type, ...]) -> InvalidFrame:
    for name, found, wanted in zip(_FIELDS, types, _TYPES, strict=True):
        if found is not wanted and not (found is NoneType and name in {"min_ts", "max_ts"}):
            return InvalidFrame(name, f"must be {_SHOWN[wanted]}")
    return InvalidFrame("min_ts", "must be null exactly if max_ts is")


def _directory(  # noqa: C901 - a line per rule
    found: list[object],
) -> tuple[StoredColumn, ...]:
    """Return the directory of columns: an array of seven items for each."""
    if not found or len(found) % _ENTRY_ITEMS:
        raise InvalidFrame("columns", f"must be an array of {_ENTRY_ITEMS} items for each column")
    columns: list[StoredColumn] = []
    end = raw_bytes = 0
    before = (-1, b"")
    for items in zip(*[iter(found)] * _ENTRY_ITEMS, strict=True):
        if tuple(map(type, items)) != _ENTRY_TYPES:
            raise InvalidFrame("columns", "has an item of another type in an entry")
        name, _, coding, offset, length, checksum, uncompressed_length = items
        if offset != end:
            raise InvalidFrame(name, f"begins at {offset}, and not behind the column before")
        if len(checksum) != _CHECKSUM_BYTES:
            raise InvalidFrame(name, "must have a checksum of four bytes")
        if length <= 0:
            raise InvalidFrame(name, "is empty")
        if (
            coding < 0
            or (uncompressed_length > 0) != bool(coding & ZSTD)
            or uncompressed_length < 0
        ):
            reason = "must have the length before compression if it is compressed, and 0 otherwise"
            raise InvalidFrame(name, reason)
        order = key_order(name)
        if order <= before:
            reason = "occurs twice" if order == before else "is out of order"
            raise InvalidFrame(name, reason)
        before, end = order, end + length
        raw_bytes += uncompressed_length or length
        columns.append(StoredColumn(*items))
    if end > FRAME_BYTES_MAX:
        raise TooLarge("columns", end, FRAME_BYTES_MAX)
    if raw_bytes > RAW_BYTES_MAX:
        raise TooLarge("columns before compression", raw_bytes, RAW_BYTES_MAX)
    return tuple(columns)


def _fault_in(data: bytes) -> InvalidFrame:
    """Return the error of an envelope that cannot be read or is encoded in another way.

    The items are read one after another, so that the error names the first wrong one.
    """
    if not data or data[0] != _ARRAY_OF_TEN:
        return InvalidFrame("envelope", f"must be an array of {len(_FIELDS)} items")
    stream = BytesIO(data)
    start = stream.seek(1)
    decoder = cbor2.CBORDecoder(
        stream,
        read_size=1,
        semantic_decoders=_NO_TAGS,
        max_depth=DEPTH_MAX - 1,
        allow_indefinite=False,
        allow_duplicate_keys=False,
    )
    for field in _FIELDS:
        try:
            value = decoder.decode()
        except (cbor2.CBORError, *_OTHER_ERRORS) as error:
            return InvalidFrame(field, _reason_of(error))
        if isinstance(value, dict) and list(value) != sorted(value, key=_any_order):
            return InvalidFrame(field, "has keys out of order")
        if cbor2.dumps(value) != data[start : stream.tell()]:
            return InvalidFrame(field, "has a number or length that is not in its shortest form")
        start = stream.tell()
    return InvalidFrame("envelope", "bytes follow the last item")


def _any_order(key: object) -> tuple[int, bytes]:
    encoded = cbor2.dumps(key)
    return len(encoded), encoded


def _reason_of(error: Exception) -> str:
    if isinstance(error.__cause__ or error.__context__, _HasTag):
        return "has a tag"
    if isinstance(error, cbor2.CBORDecodeEOF):
        return "ends too early"
    return f"cannot be read: {_shown(error)}"


def _shown(value: object) -> str:
    """Return something foreign in a form that is safe in an error message: ASCII and short."""
    return ascii(str(value)[:_NAME_SHOWN_MAX])[1:-1]


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
        return sum([one.uncompressed_length or one.length for one in self.columns])

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


_Ints = npt.NDArray[np.int64]


class _NotJoined(Exception):
    """Some frame may break a rule."""


def join_columns_of(
    kind: Kind, frames: Sequence[RawColumns], counts: Sequence[int]
) -> Columns | None:
    """Return the columns of several frames as one; None if one of them may break a rule.

    The columns are those of `frame.raw_columns`. All have the same names and types, and together at
    most 2 GiB. `counts` has the number of records of each frame.
    """
    joiner = _Joiner(frames, np.array(counts, dtype=np.int64))
    try:
        columns = joiner.columns(kind)
        check_columns(columns, int(joiner.counts.sum()))
    except (_NotJoined, InvalidFrame, KeyError, UnicodeDecodeError):
        return None
    return columns


@dataclass(frozen=True, slots=True)
class _Joiner:
    frames: Sequence[RawColumns]
    counts: _Ints

    def columns(self, kind: Kind) -> Columns:
        values: dict[str, ColumnValues | AttributeColumns | None] = {
            field.name: self.values(field)
            for field in KINDS[kind].fields
            if field.column in self.frames[0] or not field.is_optional
        }
        if KINDS[kind].has_attributes:
            values["attributes"] = self.attributes()
        return make_columns(kind, values)

    def values(self, field: Field) -> ColumnValues:
        match field.type:
            case FieldType.TIME:
                return self.times(field.column)
            case FieldType.NAME:
                names, indexes = self.names(field.column, self.counts)
                return NameColumn(names=names, indexes=indexes)
            case FieldType.TEXT | FieldType.OPAQUE:
                return self.texts(field.column, self.counts)
            case _:
                return self.numbers(field.column, number_type(field.type), self.counts)

    def views(self, name: str) -> list[memoryview]:
        return [one[name].data for one in self.frames]

    def numbers(self, name: str, dtype: npt.DTypeLike, counts: _Ints) -> npt.NDArray[Any]:
        views = self.views(name)
        sizes = np.array([len(one) for one in views], dtype=np.int64)
        if (sizes != counts * np.dtype(dtype).itemsize).any():
            raise _NotJoined
        little = np.frombuffer(b"".join(views), np.dtype(dtype).newbyteorder("<"))
        return little.astype(dtype, copy=False)

    def times(self, name: str) -> _Ints:
        found = self.numbers(name, np.int64, self.counts)
        sums = np.cumsum(found, dtype=np.int64)
        firsts = np.cumsum(self.counts) - self.counts
        before: _Ints = np.repeat(sums[firsts] - found[firsts], self.counts)
        return sums - before

    def texts(self, name: str, counts: _Ints) -> TextColumn:
        place, width = self.width(name, TEXTS.types)
        lengths, rests = self.heads(name, counts, width)
        _check_widths(lengths, counts, place)
        sizes = np.array([len(one) for one in rests], dtype=np.int64)
        return TextColumn(offsets=_joined_offsets(lengths, counts, sizes), data=b"".join(rests))

    def names(self, name: str, counts: _Ints) -> tuple[tuple[str, ...], U32]:
        """Return the distinct names of all frames, and the index into them."""
        if not counts.all():
            raise _NotJoined
        place, width = self.width(name, NAMES.types)
        indexes, rests = self.heads(name, counts, width)
        codes = indexes.astype(np.int64)
        firsts = np.cumsum(counts) - counts
        sizes = np.maximum.reduceat(codes, firsts) + 1
        known: dict[bytes, tuple[str, ...]] = {}
        lists: list[tuple[str, ...]] = []
        for view, size in zip(rests, sizes.tolist(), strict=True):
            rest = bytes(view)
            found = known.get(rest)
            if found is None or len(found) != size:
                found = known[rest] = _split(rest, size, width, place)
            lists.append(found)
        flat = codes + np.repeat(np.cumsum(sizes) - sizes, counts)
        if not np.bincount(flat, minlength=int(sizes.sum())).all():
            raise _NotJoined  # a name is unused
        distinct = tuple(dict.fromkeys(itertools.chain.from_iterable(lists)))
        place_of = {text: at for at, text in enumerate(distinct)}
        places = np.array([place_of[text] for one in lists for text in one], dtype=np.uint32)
        return distinct, places[flat]

    def attributes(self) -> AttributeColumns | None:
        if not {"attrs", "attr_key", "attr_val", "attr_type"} & self.frames[0].keys():
            return None
        place, width = self.width("attrs", COUNTS.types)
        found, rests = self.heads("attrs", self.counts, width)
        if any(rests):
            raise _NotJoined
        _check_widths(found, self.counts, place)
        pairs = np.add.reduceat(found.astype(np.int64), np.cumsum(self.counts) - self.counts)
        names, keys = self.names("attr_key", pairs)
        return AttributeColumns(
            names=names,
            offsets=_joined_offsets(found, self.counts, pairs),
            keys=keys,
            values=self.texts("attr_val", pairs),
            types=self.types(pairs),
        )

    def types(self, pairs: _Ints) -> U8 | None:
        """Return what the values are; each frame has the column only if it needs it."""
        if "attr_type" not in self.frames[0]:
            return None
        found = self.numbers("attr_type", np.uint8, pairs)
        if not np.maximum.reduceat(found, np.cumsum(pairs) - pairs).all():
            raise _NotJoined
        return found

    def heads(
        self, name: str, counts: _Ints, width: np.dtype[np.unsignedinteger]
    ) -> tuple[npt.NDArray[np.unsignedinteger], list[memoryview]]:
        """Return the numbers at the beginning of a column of all frames, and each frame's rest."""
        views, ends = self.views(name), (counts * width.itemsize).tolist()
        if any(len(one) < end for one, end in zip(views, ends, strict=True)):
            raise _NotJoined
        joined = b"".join([one[:end] for one, end in zip(views, ends, strict=True)])
        rests = [one[end:] for one, end in zip(views, ends, strict=True)]
        return np.frombuffer(joined, width), rests

    def width(self, name: str, types: tuple[int, ...]) -> tuple[int, np.dtype[np.unsignedinteger]]:
        """Return the place of a column's type among those of its form, and its numbers."""
        kind = self.frames[0][name].type
        return types.index(kind), width_of(kind)


def _check_widths(lengths: npt.NDArray[np.generic], counts: _Ints, place: int) -> None:
    """Refuse frames of which one could have a smaller type."""
    if place:
        largest = np.maximum.reduceat(lengths, np.cumsum(counts) - counts)
        if (largest <= WIDTH_MAXIMA[place - 1]).any():
            raise _NotJoined


def _split(
    rest: bytes, count: int, width: np.dtype[np.unsignedinteger], place: int
) -> tuple[str, ...]:
    """Return the distinct names of one frame, from the bytes behind its indexes."""
    start = count * width.itemsize
    if start > len(rest):
        raise _NotJoined
    sizes = np.frombuffer(rest, width, count).tolist()
    if width_place(max(count - 1, *sizes)) != place:
        raise _NotJoined
    edges = list(itertools.accumulate(sizes, initial=start))
    names = tuple([rest[a:b].decode() for a, b in itertools.pairwise(edges)])
    if edges[-1] != len(rest) or len(set(names)) != count or "" in names:
        raise _NotJoined
    return names


def _joined_offsets(lengths: npt.NDArray[np.generic], counts: _Ints, ends: _Ints) -> I32:
    """Return the offsets of all frames into their joined data."""
    sums = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=sums[1:])
    last = np.cumsum(counts)
    if (sums[last] - sums[last - counts] != ends).any():
        raise _NotJoined
    return sums.astype(np.int32)
