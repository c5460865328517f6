"""The envelope of a frame: what a batch is, and the directory of its columns, as one array of CBOR.

cbor2 reads and writes it. What was read is encoded again and compared, so an envelope has exactly
one encoding: that of RFC 8949, section 4.2.1. Source: `docs/protocol.md`, Frame.
"""

from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import chain
from types import NoneType
from typing import Final, NoReturn, get_args

import cbor2
import msgspec

from sluice_protocol.column_codings import ZSTD, StoredColumn
from sluice_protocol.errors import InvalidFrame, TooLarge
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import Kind
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
_SHOWN: Final = {str: "a text", int: "an integer", dict: "a map", list: "an array"}
_KINDS: Final = get_args(Kind)
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
        encoded = _encode(envelope, columns)
    except UnicodeEncodeError as error:
        raise InvalidFrame("resource", "text is not valid UTF-8") from error
    if len(encoded) > ENVELOPE_BYTES_MAX:
        raise InvalidFrame("resource", f"makes the envelope larger than {ENVELOPE_BYTES_MAX} bytes")
    return encoded


def _encode(envelope: Envelope, columns: Sequence[StoredColumn]) -> bytes:
    return cbor2.dumps(
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


def key_order(key: str) -> tuple[int, bytes]:
    """Return the sort key of a text key: the order of the bytes of its encoding.

    Source: RFC 8949, section 4.2.1; the head of a text grows with its length.
    """
    raw = key.encode()
    return len(raw), raw


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
        found = _loads(data)
    except (cbor2.CBORError, *_OTHER_ERRORS) as error:
        raise _fault_in(data) from error
    envelope, entries = _build(found)
    columns = _directory(entries)
    if _encode(envelope, columns) != data:
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


def _loads(data: bytes) -> object:
    return cbor2.loads(
        data,
        semantic_decoders=_NO_TAGS,
        max_depth=DEPTH_MAX,
        allow_indefinite=False,
        allow_duplicate_keys=False,
    )


def _build(found: object) -> tuple[Envelope, list[object]]:
    """Return the description of the batch, and the items of the directory."""
    if type(found) is not list or len(found) != len(_FIELDS):
        raise InvalidFrame("envelope", f"must be an array of {len(_FIELDS)} items")
    types = tuple(map(type, found))
    if types not in {_TYPES, _WITHOUT_TIMES}:
        raise _wrong_type(types)
    agent_id, boot_id, seq_start, seq_end, count, kind, min_ts_ns, max_ts_ns, resource, entries = (
        found
    )
    if kind not in _KINDS:
        raise InvalidFrame("kind", f"must be one of {', '.join(_KINDS)}, kind=`{_shown(kind)}`")
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


def _check_times(kind: str, min_ts_ns: int | None, max_ts_ns: int | None) -> None:
    if min_ts_ns is None or max_ts_ns is None:
        if kind != "entries":
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


def _directory(found: list[object]) -> tuple[StoredColumn, ...]:
    """Return the directory of columns: an array of seven items for each."""
    if not found or len(found) % _ENTRY_ITEMS:
        raise InvalidFrame("columns", f"must be an array of {_ENTRY_ITEMS} items for each column")
    columns: list[StoredColumn] = []
    end = raw_bytes = 0
    before = (-1, b"")
    for items in zip(*[iter(found)] * _ENTRY_ITEMS, strict=True):
        if tuple(map(type, items)) != _ENTRY_TYPES:
            raise InvalidFrame("columns", "has an item of another type in an entry")
        column = StoredColumn._make(items)
        _check_entry(column, end)
        order = key_order(column.name)
        if order <= before:
            reason = "occurs twice" if order == before else "is out of order"
            raise InvalidFrame(column.name, reason)
        before, end, raw_bytes = order, end + column.length, raw_bytes + column.raw_length
        columns.append(column)
    if end > FRAME_BYTES_MAX:
        raise TooLarge("columns", end, FRAME_BYTES_MAX)
    if raw_bytes > RAW_BYTES_MAX:
        raise TooLarge("columns before compression", raw_bytes, RAW_BYTES_MAX)
    return tuple(columns)


def _check_entry(column: StoredColumn, end: int) -> None:
    name, _, coding, offset, length, checksum, uncompressed_length = column
    if offset != end:
        raise InvalidFrame(name, f"begins at {offset}, and not behind the column before")
    if len(checksum) != _CHECKSUM_BYTES:
        raise InvalidFrame(name, "must have a checksum of four bytes")
    if length <= 0:
        raise InvalidFrame(name, "is empty")
    if coding < 0 or (uncompressed_length > 0) != bool(coding & ZSTD) or uncompressed_length < 0:
        reason = "must have the length before compression if it is compressed, and 0 otherwise"
        raise InvalidFrame(name, reason)


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
