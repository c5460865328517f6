"""The bytes of each column of a frame, by the types of `fields`.

A column that a later build adds is one more row of that table: frames keep their version, and a
reader without the row refuses the frame by the name of the column.

A column has a type, which is the layout of its bytes, and a coding, which is what was done to them
afterwards. Each set of values has exactly one encoding before compression: counts, lengths and
indexes have the smallest width that holds them. Source: `docs/protocol.md`, Frame.
"""

import itertools
import zlib
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sluice_protocol.columns import (
    FEW,
    I32,
    I64,
    U32,
    AttributeColumns,
    Columns,
    ColumnValues,
    NameColumn,
    SignalColumns,
    TextColumn,
    check_columns,
    largest_of,
    make_columns,
)
from sluice_protocol.compression import compress_column, decompress_column
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.fields import KINDS, FieldType, Kind

U8, U16, U32_TYPE, I64_TYPE, F64_TYPE = range(1, 6)
"""Types of numbers, little-endian."""
TEXT_U8, TEXT_U16, TEXT_U32 = range(6, 9)
"""Types of strings: n lengths of this width, then the strings end to end."""
NAMES_U8, NAMES_U16, NAMES_U32 = range(9, 12)
"""Types of n texts of which many are equal: n indexes, then the length of each distinct text, both
of this width, then the distinct texts end to end.
"""
DIFFERENCES: Final = 1
"""Coding: each number is the difference to the number before, modulo 2^64; the first is itself."""
ZSTD: Final = 2
"""Coding: one zstd frame."""
COMPRESSED_BYTES_MIN: Final = 48
"""A shorter column is never compressed: the header of zstd would cost more than it saves."""
_ENTRY_BYTES: Final = 2
"""What the size before compression adds to the entry of a column, about."""

_WIDTHS: Final = ("<u1", "<u2", "<u4")
_DTYPES: Final[dict[int, np.dtype[np.unsignedinteger]]] = dict(
    enumerate(map(np.dtype, (*_WIDTHS, "<i8", "<f8", *_WIDTHS, *_WIDTHS)), 1)
)
WIDTH_MAXIMA: Final = (0xFF, 0xFFFF)
"""The largest number of each width but the last."""
_I64_MIN: Final = -(2**63)
_I64_MAX: Final = 2**63 - 1


class ColumnForm(NamedTuple):
    """What a column may contain; its writer chooses the first type that is wide enough."""

    types: tuple[int, ...]
    has_differences: bool = False


TIMES: Final = ColumnForm((I64_TYPE,), has_differences=True)
BYTES: Final = ColumnForm((U8,))
FLOATS: Final = ColumnForm((F64_TYPE,))
LONGS: Final = ColumnForm((I64_TYPE,))
COUNTS: Final = ColumnForm((U8, U16, U32_TYPE))
TEXTS: Final = ColumnForm((TEXT_U8, TEXT_U16, TEXT_U32))
NAMES: Final = ColumnForm((NAMES_U8, NAMES_U16, NAMES_U32))


class ColumnBytes(NamedTuple):
    """A column before compression: its layout, `DIFFERENCES` or 0, and its bytes."""

    type: int
    coding: int
    data: bytes


class StoredColumn(NamedTuple):
    """One entry of a frame's directory of columns.

    Attributes:
        coding: A sum of `DIFFERENCES` and `ZSTD`.
        offset: Where its bytes begin, counted from the end of the envelope.
        checksum: CRC-32 of its bytes as stored, four bytes, little-endian.
        uncompressed_length: Number of its bytes before compression; 0 if it is not compressed.
    """

    name: str
    type: int
    coding: int
    offset: int
    length: int
    checksum: bytes
    uncompressed_length: int

    @property
    def raw_length(self) -> int:
        """Number of its bytes before compression."""
        return self.uncompressed_length or self.length


def width_of(kind: int) -> np.dtype[np.unsignedinteger]:
    """Return the numbers of a type, or those at the beginning of its bytes."""
    return _DTYPES[kind]


def width_place(largest: int) -> int:
    """Return the place, 0 to 2, of the smallest width that holds numbers up to this one."""
    return bisect_left(WIDTH_MAXIMA, largest)


def checksum_of(data: bytes | memoryview) -> bytes:
    """Return the checksum of a column's stored bytes."""
    return zlib.crc32(data).to_bytes(4, "little")


def store_column(
    name: str, column: ColumnBytes, offset: int, *, compress: bool
) -> tuple[StoredColumn, bytes]:
    """Return the entry of a column and the bytes to store: compressed if that is smaller."""
    kind, coding, stored = column
    uncompressed_length = 0
    if compress and len(stored) >= COMPRESSED_BYTES_MIN:
        packed = compress_column(stored)
        if len(packed) + _ENTRY_BYTES < len(stored):
            uncompressed_length, stored, coding = len(stored), packed, coding | ZSTD
    length, checksum = len(stored), checksum_of(stored)
    return StoredColumn(name, kind, coding, offset, length, checksum, uncompressed_length), stored


def load_column(entry: StoredColumn, body: memoryview) -> memoryview:
    """Check the checksum of a stored column, and return its bytes before compression."""
    stored = body[entry.offset : entry.offset + entry.length]
    if checksum_of(stored) != entry.checksum:
        raise InvalidFrame(entry.name, "does not match its checksum")
    if entry.coding & ZSTD:
        return memoryview(decompress_column(entry.name, stored, entry.uncompressed_length))
    return stored


def encode_times(values: npt.NDArray[Any]) -> ColumnBytes:
    """Encode times as differences, so that equal steps are equal bytes."""
    differences = values.astype("<i8")
    np.subtract(values[1:], values[:-1], out=differences[1:])
    return ColumnBytes(I64_TYPE, DIFFERENCES, differences.tobytes())


def decode_times(data: memoryview, field: str) -> I64:
    """Decode times; the sum wraps around as the differences do."""
    differences = _numbers(data, I64_TYPE, field)
    if len(differences) <= FEW:
        times = list(itertools.accumulate(differences.tolist()))
        if not times or (min(times) >= _I64_MIN and max(times) <= _I64_MAX):
            return np.array(times, np.int64)
    return np.cumsum(differences, dtype=np.int64)


def encode_numbers(kind: int, values: npt.NDArray[np.generic]) -> ColumnBytes:
    """Encode numbers of a fixed width, `U8`, `I64_TYPE` or `F64_TYPE`."""
    return ColumnBytes(kind, 0, np.ascontiguousarray(values, _DTYPES[kind]).tobytes())


def decode_numbers(kind: int, data: memoryview, field: str) -> npt.NDArray[Any]:
    """Decode numbers of a fixed width; every bit pattern is kept."""
    found = _numbers(data, kind, field)
    return found if found.flags.aligned else found.copy()


def encode_counts(values: npt.NDArray[np.integer]) -> ColumnBytes:
    """Encode numbers from 0 to 2^32 - 1 in the smallest width."""
    kind = COUNTS.types[width_place(largest_of(values))]
    return ColumnBytes(kind, 0, values.astype(_DTYPES[kind]).tobytes())


def decode_counts(kind: int, data: memoryview, field: str) -> npt.NDArray[np.unsignedinteger]:
    """Decode numbers from 0 to 2^32 - 1, which must have the smallest width."""
    values = _numbers(data, kind, field)
    _check_width(values, COUNTS.types.index(kind), field)
    return values


def encode_texts(column: TextColumn) -> ColumnBytes:
    """Encode strings."""
    lengths = column.offsets[1:] - column.offsets[:-1]
    kind = TEXTS.types[width_place(largest_of(lengths))]
    return ColumnBytes(kind, 0, lengths.astype(_DTYPES[kind]).tobytes() + column.data)


def decode_texts(kind: int, data: memoryview, count: int, field: str) -> TextColumn:
    """Decode `count` strings; their characters are not checked."""
    lengths, rest = _head_numbers(kind, data, count, field)
    _check_width(lengths, TEXTS.types.index(kind), field)
    return TextColumn(offsets=offsets_of(lengths, len(rest), field), data=bytes(rest))


def encode_names(names: tuple[str, ...], indexes: U32) -> ColumnBytes:
    """Encode texts of which many are equal: the distinct ones, each used, and indexes."""
    texts = [name.encode() for name in names]
    lengths = list(map(len, texts))
    kind = NAMES.types[width_place(max(len(names) - 1, *lengths))]
    dtype = _DTYPES[kind]
    head = indexes.astype(dtype).tobytes() + np.array(lengths, dtype).tobytes()
    return ColumnBytes(kind, 0, head + b"".join(texts))


def decode_names(
    kind: int, data: memoryview, count: int, field: str
) -> tuple[tuple[str, ...], U32]:
    """Decode `count` texts of which many are equal, at least one.

    Return the distinct texts, and the index of each value into them.
    """
    indexes, rest = _head_numbers(kind, data, count, field)
    distinct = largest_of(indexes) + 1
    if distinct > count:
        raise InvalidFrame(field, f"points past the {count} texts that its values can use")
    lengths, rest = _head_numbers(kind, rest, distinct, field)
    sizes = lengths.tolist()
    if width_place(max(distinct - 1, *sizes)) != NAMES.types.index(kind):
        raise InvalidFrame(field, "has a smaller type for these values")
    if sum(sizes) != len(rest):
        raise _uneven(field, len(rest))
    ends = itertools.accumulate(sizes)
    try:
        names = tuple(
            [str(rest[end - size : end], "utf-8") for size, end in zip(sizes, ends, strict=True)]
        )
    except UnicodeDecodeError as error:
        raise InvalidFrame(field, "contains a text that is not valid UTF-8") from error
    return names, indexes.astype(np.uint32, copy=False)


def offsets_of(lengths: npt.NDArray[np.unsignedinteger], end: int, field: str) -> I32:
    """Return where each value begins and ends, of values with these lengths."""
    if len(lengths) <= FEW:
        edges = [0, *itertools.accumulate(lengths.tolist())]
        if edges[-1] != end:
            raise _uneven(field, end)
        return np.array(edges, np.int32)
    if int(lengths.sum(dtype=np.int64)) != end:
        raise _uneven(field, end)
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, dtype=np.int32, out=offsets[1:])
    return offsets


def _uneven(field: str, end: int) -> InvalidFrame:
    return InvalidFrame(field, f"has lengths that do not add up to its {end} bytes")


def _numbers(data: memoryview, kind: int, field: str) -> npt.NDArray[np.unsignedinteger]:
    """Return the numbers of a column, which may not be aligned."""
    dtype = _DTYPES[kind]
    if len(data) % dtype.itemsize:
        raise InvalidFrame(field, "is not a whole number of values")
    return np.frombuffer(data, dtype)


def _head_numbers(
    kind: int, data: memoryview, count: int, field: str
) -> tuple[npt.NDArray[np.unsignedinteger], memoryview]:
    """Return the numbers at the beginning of a column, and the bytes behind them."""
    dtype = _DTYPES[kind]
    end = count * dtype.itemsize
    if end > len(data):
        reason = f"must begin with {count} numbers, has bytes for {len(data) // dtype.itemsize}"
        raise InvalidFrame(field, reason)
    return np.frombuffer(data, dtype, count), data[end:]


def _check_width(values: npt.NDArray[np.unsignedinteger], place: int, field: str) -> None:
    if place and width_place(largest_of(values)) != place:
        raise InvalidFrame(field, "has a smaller type for these values")


def key_order(key: str) -> tuple[int, bytes]:
    """Return the sort key of a text key: the order of the bytes of its encoding.

    Source: RFC 8949, section 4.2.1; the head of a text grows with its length.
    """
    raw = key.encode()
    return len(raw), raw


FORMS: Final = {
    FieldType.TIME: TIMES,
    FieldType.NAME: NAMES,
    FieldType.BYTE: BYTES,
    FieldType.LONG: LONGS,
    FieldType.FLOAT: FLOATS,
    FieldType.TEXT: TEXTS,
    FieldType.OPAQUE: TEXTS,
}
"""The form of the column of each type of fields."""
_ATTRIBUTES: Final = {"attrs": COUNTS, "attr_key": NAMES, "attr_val": TEXTS, "attr_type": BYTES}


COLUMNS: Final[Mapping[Kind, Mapping[str, ColumnForm]]] = {
    name: {field.column: FORMS[field.type] for field in kind.fields}
    | (_ATTRIBUTES if kind.has_attributes else {})
    for name, kind in KINDS.items()
}
"""The form of each column, by kind and name."""
_KNOWN_CODINGS: Final = DIFFERENCES | ZSTD


class RawColumn(NamedTuple):
    """The bytes of a column before compression, and their layout."""

    type: int
    data: memoryview


RawColumns = Mapping[str, RawColumn]


def write_columns(
    columns: Mapping[str, ColumnBytes], *, compress: bool
) -> tuple[tuple[StoredColumn, ...], list[bytes]]:
    """Return the directory of columns, and their bytes as stored, in its order."""
    directory: list[StoredColumn] = []
    pieces: list[bytes] = []
    end = 0
    for name in _in_order(tuple(columns)):
        entry, stored = store_column(name, columns[name], end, compress=compress)
        directory.append(entry)
        pieces.append(stored)
        end += entry.length
    return tuple(directory), pieces


@lru_cache(maxsize=32)
def _in_order(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names, key=key_order))


def read_columns(
    kind: Kind, directory: tuple[StoredColumn, ...], body: memoryview
) -> dict[str, RawColumn]:
    """Return the columns of a frame by name, decompressed, with checksums and forms checked.

    `body` is all bytes behind the envelope.
    """
    forms = COLUMNS[kind]
    found: dict[str, RawColumn] = {}
    for entry in directory:
        form = forms.get(entry.name)
        if form is None:
            shown = ascii(entry.name[:40])[1:-1]
            raise InvalidFrame("columns", f"{kind} have no such column, column=`{shown}`")
        if entry.type not in form.types:
            known = ", ".join(map(str, form.types))
            raise InvalidFrame(entry.name, f"must be of type {known}, is of type {entry.type}")
        if entry.coding & ~_KNOWN_CODINGS or (
            bool(entry.coding & DIFFERENCES) != form.has_differences
        ):
            raise InvalidFrame(entry.name, f"cannot have the coding {entry.coding}")
        found[entry.name] = RawColumn(entry.type, load_column(entry, body))
    return found


def encode_columns(columns: Columns) -> dict[str, ColumnBytes]:
    """Return the bytes of columns that `check_columns` has accepted."""
    parts: dict[str, ColumnBytes] = {}
    for field in columns.kind.fields:
        values = getattr(columns, field.name)
        if values is not None:
            parts[field.column] = _encode(FORMS[field.type], values)
    attributes = columns.attributes if isinstance(columns, SignalColumns) else None
    if attributes is not None and len(attributes.keys):
        counts = np.subtract(attributes.offsets[1:], attributes.offsets[:-1])
        parts["attrs"] = encode_counts(counts)
        parts["attr_key"] = encode_names(attributes.names, attributes.keys)
        parts["attr_val"] = encode_texts(attributes.values)
        if attributes.types is not None:
            parts["attr_type"] = encode_numbers(U8, attributes.types)
    return parts


def _encode(form: ColumnForm, values: ColumnValues) -> ColumnBytes:
    match values:
        case TextColumn():
            return encode_texts(values)
        case NameColumn():
            return encode_names(values.names, values.indexes)
        case _:
            if form.has_differences:
                return encode_times(values)
            return encode_numbers(form.types[0], values)


def decode_columns(kind: Kind, raw: RawColumns, count: int) -> Columns:
    """Decode and check the columns of a frame, as `read_columns` returns them."""
    values: dict[str, ColumnValues | AttributeColumns | None] = {}
    forms = COLUMNS[kind]
    for field in KINDS[kind].fields:
        name = field.column
        if name in raw or not field.is_optional:
            values[field.name] = _decode(name, forms[name], _column(raw, name), count)
    if KINDS[kind].has_attributes:
        values["attributes"] = _attributes(raw, count)
    columns = make_columns(kind, values)
    check_columns(columns, count)
    return columns


def _decode(name: str, form: ColumnForm, raw: RawColumn, count: int) -> ColumnValues:
    if form is TEXTS:
        return decode_texts(*raw, count, name)
    if form is NAMES:
        names, indexes = decode_names(*raw, count, name)
        return NameColumn(names=names, indexes=indexes)
    if form.has_differences:
        return decode_times(raw.data, name)
    return decode_numbers(*raw, name)


def _column(raw: RawColumns, name: str) -> RawColumn:
    if name not in raw:
        raise InvalidFrame(name, "is missing")
    return raw[name]


def _data(raw: RawColumns, name: str) -> memoryview:
    return _column(raw, name).data


def _attributes(raw: RawColumns, count: int) -> AttributeColumns | None:
    if not any(name in raw for name in _ATTRIBUTES):
        return None
    counts = decode_counts(*_column(raw, "attrs"), "attrs")
    if len(counts) != count:
        raise InvalidFrame("attrs", f"must have count={count} values, has {len(counts)}")
    pairs = sum(counts.tolist()) if len(counts) <= FEW else int(counts.sum(dtype=np.int64))
    if not pairs:
        raise InvalidFrame("attrs", "has no attribute: leave the columns out")
    if pairs > len(_data(raw, "attr_key")):
        raise InvalidFrame("attrs", "adds up to more than the keys of attributes")
    names, keys = decode_names(*_column(raw, "attr_key"), pairs, "attr_key")
    return AttributeColumns(
        names=names,
        offsets=offsets_of(counts, pairs, "attrs"),
        keys=keys,
        values=decode_texts(*_column(raw, "attr_val"), pairs, "attr_val"),
        types=decode_numbers(*raw["attr_type"], "attr_type") if "attr_type" in raw else None,
    )
