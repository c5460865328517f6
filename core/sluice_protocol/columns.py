"""The columns of a frame, as frozen values over numpy arrays and bytes, and their checks.

Arrays are read-only by convention and little-endian. The constructors check nothing.
`check_columns` checks every rule of the protocol's section on columns, over whole arrays and
without a loop over records. It runs before encoding and after decoding, so that no frame is sent
that a reader would reject. The functions that cut and join columns return valid ones.
"""

import codecs
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from sluice_protocol.errors import InvalidFrame
from sluice_protocol.fields import (
    ENTRIES,
    LOGS,
    METRICS,
    SPANS,
    Field,
    FieldType,
    Kind,
    RecordKind,
)
from sluice_protocol.values import check_types, joined_types, some_types

FEW: Final = 64
"""Up to this many values, a list of Python costs less than a call of numpy."""
_UTF8_STEP_BYTES: Final = 1 << 20
"""Text is decoded in steps: in one piece, a single wide character would make a copy of four times
the size.
"""
_CONTINUATION_MASK: Final = 0xC0
_CONTINUATION: Final = 0x80

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextColumn:
    """Strings stored end to end: string `i` is `data[offsets[i]:offsets[i + 1]]`.

    Attributes:
        offsets: i32[n + 1]; starts at 0, never decreases, ends at `len(data)`.
        data: The bytes; UTF-8 or opaque, depending on the column.
    """

    offsets: I32
    data: bytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slices(self) -> list[bytes]:
        """Return a copy of every string."""
        edges = self.offsets.tolist()
        return [self.data[a:b] for a, b in itertools.pairwise(edges)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NameColumn:
    """Texts of which many are equal: text `i` is `names[indexes[i]]`.

    Attributes:
        names: The distinct texts, each used.
        indexes: u32[n], an index into `names`.
    """

    names: tuple[str, ...]
    indexes: U32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttributeColumns:
    """Attributes of all records: record `i` has the pairs `offsets[i]:offsets[i + 1]`.

    Attributes:
        names: The distinct attribute names, each used.
        offsets: i32[n + 1] into `keys` and `values`.
        keys: u32[m], an index into `names`.
        values: m UTF-8 strings.
        types: u8[m], what each value is (`values.ValueType`); None if all are text.
    """

    names: tuple[str, ...]
    offsets: I32
    keys: U32
    values: TextColumn
    types: U8 | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogColumns:
    """n log records; an attribute for each field of `fields.LOGS`."""

    kind: ClassVar[RecordKind] = LOGS
    ts: I64
    body: TextColumn
    severity: U8 | None = None
    attributes: AttributeColumns | None = None

    def __len__(self) -> int:
        return len(self.ts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetricColumns:
    """n metric points; an attribute for each field of `fields.METRICS`."""

    kind: ClassVar[RecordKind] = METRICS
    ts: I64
    name: NameColumn
    value: F64
    type: U8
    attributes: AttributeColumns | None = None

    def __len__(self) -> int:
        return len(self.ts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntryColumns:
    """n opaque entries; an attribute for each field of `fields.ENTRIES`."""

    kind: ClassVar[RecordKind] = ENTRIES
    key: TextColumn
    value: TextColumn
    ts: I64 | None = None

    def __len__(self) -> int:
        return len(self.key)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanColumns:
    """n spans; an attribute for each field of `fields.SPANS`."""

    kind: ClassVar[RecordKind] = SPANS
    ts: I64
    name: NameColumn
    span_kind: U8
    duration_ns: I64
    status: U8
    status_message: TextColumn | None = None
    trace_id: TextColumn | None = None
    span_id: TextColumn | None = None
    parent_id: TextColumn | None = None
    trace_state: TextColumn | None = None
    events: TextColumn | None = None
    links: TextColumn | None = None
    attributes: AttributeColumns | None = None

    def __len__(self) -> int:
        return len(self.ts)


SignalColumns = LogColumns | MetricColumns | SpanColumns
"""The kinds that doors accept; their records have attributes."""
Columns = SignalColumns | EntryColumns
ColumnValues = I64 | U8 | F64 | TextColumn | NameColumn
_NUMBERS: Final = {FieldType.BYTE: np.uint8, FieldType.FLOAT: np.float64}
_CLASSES: Final[dict[Kind, type[Columns]]] = {one.kind.name: one for one in get_args(Columns)}


def number_type(kind: FieldType) -> npt.DTypeLike:
    """Return the type of the numbers of a field that is not text; by default 64-bit integers."""
    return _NUMBERS.get(kind, np.int64)


def make_columns(kind: Kind, values: dict[str, Any]) -> Columns:
    """Return the columns of a kind from the value of each of its fields, and `attributes`."""
    return _CLASSES[kind](**values)


def largest_of(values: npt.NDArray[np.integer]) -> int:
    """Return the largest of some integers that are not negative, 0 if there is none."""
    if len(values) <= FEW:
        return max(values.tolist(), default=0)
    return int(values.max())


def kind_of(columns: Columns) -> Kind:
    """Return the kind that an envelope names for these columns."""
    return columns.kind.name


def check_columns(columns: Columns, count: int) -> None:
    """Reject columns that break a rule of their kind.

    Args:
        columns: The columns of one frame.
        count: Number of records that the envelope's sequence range contains.

    Raises:
        InvalidFrame: The error names the column as `docs/protocol.md` does.
    """
    for field in columns.kind.fields:
        values: ColumnValues | None = getattr(columns, field.name)
        if values is not None:
            _check_values(field, values, count)
    if isinstance(columns, SignalColumns):
        _check_attributes(columns.attributes, count)


def _check_values(field: Field, values: ColumnValues, count: int) -> None:
    if isinstance(values, TextColumn):
        if field.type is FieldType.TEXT:
            _check_text(field.column, values, count)
        else:
            _check_offsets(field.column, values.offsets, count, len(values.data))
    elif isinstance(values, NameColumn):
        _check_length(field.column, values.indexes, count)
        _check_names(field.column, values.names, values.indexes)
    else:
        _check_length(field.column, values, count)
        if field.maximum is not None:
            _check_most(field.column, values, field.maximum)


def _check_attributes(columns: AttributeColumns | None, count: int) -> None:
    if columns is None:
        return
    pairs = len(columns.keys)
    _check_offsets("attrs", columns.offsets, count, pairs)
    _check_text("attr_val", columns.values, pairs)
    _check_names("attr_key", columns.names, columns.keys)
    _check_key_once(columns)
    if columns.types is not None:
        check_types(columns.types, columns.values.offsets, columns.values.data)


def _check_length(field: str, column: npt.NDArray[np.generic], count: int) -> None:
    if len(column) != count:
        raise InvalidFrame(field, f"must have count={count} values, has {len(column)}")


def _check_most(field: str, column: npt.NDArray[Any], most: int) -> None:
    if largest_of(column) > most:
        raise InvalidFrame(field, f"contains a value above {most}")


def _check_offsets(field: str, offsets: npt.NDArray[np.int32], count: int, end: int) -> None:
    if len(offsets) != count + 1:
        raise InvalidFrame(field, f"must have {count + 1} offsets, has {len(offsets)}")
    if offsets[0] != 0:
        raise InvalidFrame(field, "does not start at 0")
    if len(offsets) <= FEW:
        edges = offsets.tolist()
        falls = sorted(edges) != edges
    else:
        falls = bool((offsets[1:] < offsets[:-1]).any())
    if falls:
        raise InvalidFrame(field, "falls")
    if offsets[-1] != end:
        raise InvalidFrame(field, f"does not end at {end}")


def _check_text(field: str, column: TextColumn, count: int) -> None:
    _check_offsets(field, column.offsets, count, len(column.data))
    if column.data.isascii():
        return
    _check_utf8(field, column.data)
    # The whole text is valid, so a slice is valid unless it starts inside a character.
    starts = column.offsets[np.flatnonzero(column.offsets < len(column.data))]
    lead = np.frombuffer(column.data, np.uint8)[starts]
    if np.any((lead & _CONTINUATION_MASK) == _CONTINUATION):
        raise InvalidFrame(field, "cuts a UTF-8 character")


def _check_utf8(field: str, data: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(data)
    try:
        for start in range(0, len(data), _UTF8_STEP_BYTES):
            decoder.decode(view[start : start + _UTF8_STEP_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InvalidFrame(field, "is not valid UTF-8") from error


def _check_names(field: str, names: tuple[str, ...], index: U32) -> None:
    if "" in names:
        raise InvalidFrame(field, "contains an empty name")
    if len(set(names)) != len(names):
        raise InvalidFrame(field, "contains a name twice")
    last = largest_of(index) if len(index) else -1
    if last >= len(names):
        raise InvalidFrame(field, f"points past the {len(names)} names")
    if _count_used(index, last) != len(names):
        raise InvalidFrame(field, "contains a name that no record uses")


def _count_used(index: U32, last: int) -> int:
    if len(index) <= FEW:
        return len(set(index.tolist()))
    if last <= 0:
        return last + 1
    used = np.zeros(last + 1, np.bool_)
    used[index] = True
    return int(np.count_nonzero(used))


def _check_key_once(columns: AttributeColumns) -> None:
    if _is_key_once(columns):
        return
    record = np.repeat(np.arange(len(columns.offsets) - 1), np.diff(columns.offsets))
    pairs = record * len(columns.names) + columns.keys
    pairs.sort()
    if np.any(pairs[1:] == pairs[:-1]):
        raise InvalidFrame("attr_key", "a record has an attribute key twice")


def _is_key_once(columns: AttributeColumns) -> bool:
    """Return True if a short look shows that no record has a key twice; False decides nothing."""
    keys = columns.keys
    if len(keys) <= FEW and len(columns.offsets) <= FEW:
        edges, listed = columns.offsets.tolist(), keys.tolist()
        return all(len(set(listed[a:b])) == b - a for a, b in itertools.pairwise(edges))
    # Keys that increase inside each record, as our encoder writes them, need no sort.
    rises = np.ones(len(keys) + 1, np.bool_)
    rises[1:-1] = keys[1:] > keys[:-1]
    rises[columns.offsets] = True
    return bool(rises.all())


_Any = TypeVar("_Any", bound=Columns)
_Signal = TypeVar("_Signal", bound=SignalColumns)


def slice_columns(columns: _Any, start: int, stop: int) -> _Any:
    """Return the records `start` up to `stop`; names that no record uses are left out.

    `columns` has n records that pass `check_columns`, and 0 <= `start` < `stop` <= n.
    """
    values: dict[str, Any] = {
        field.name: _range(getattr(columns, field.name), start, stop)
        for field in columns.kind.fields
    }
    if isinstance(columns, SignalColumns):
        values["attributes"] = _attributes(columns.attributes, start, stop)
    return replace(columns, **values)


def _range(values: ColumnValues | None, start: int, stop: int) -> ColumnValues | None:
    match values:
        case None:
            return None
        case TextColumn():
            return _texts(values, start, stop)
        case NameColumn():
            names, indexes = _used(values.names, values.indexes[start:stop])
            return NameColumn(names=names, indexes=indexes)
        case _:
            return values[start:stop]


def _texts(column: TextColumn, start: int, stop: int) -> TextColumn:
    offsets = column.offsets[start : stop + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    return TextColumn(offsets=(offsets - first).astype(np.int32), data=column.data[first:last])


def _attributes(
    attributes: AttributeColumns | None, start: int, stop: int
) -> AttributeColumns | None:
    if attributes is None:
        return None
    offsets = attributes.offsets[start : stop + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return None
    names, keys = _used(attributes.names, attributes.keys[first:last])
    return AttributeColumns(
        names=names,
        offsets=(offsets - first).astype(np.int32),
        keys=keys,
        values=_texts(attributes.values, first, last),
        types=None if attributes.types is None else some_types(attributes.types[first:last]),
    )


def take_pairs(
    columns: AttributeColumns, offsets: I32, places: npt.NDArray[np.integer], values: TextColumn
) -> AttributeColumns:
    """Return the pairs at these places, with the records' new offsets and the values there."""
    types = columns.types
    return replace(
        columns,
        offsets=offsets,
        keys=columns.keys[places],
        values=values,
        types=None if types is None else types[places],
    )


def _used(names: tuple[str, ...], indexes: U32) -> tuple[tuple[str, ...], U32]:
    """Return the names that occur, in their order, and the indexes into them."""
    used, renumbered = np.unique(indexes, return_inverse=True)
    return tuple(names[index] for index in used.tolist()), renumbered.astype(np.uint32)


def join_columns(parts: Sequence[_Signal]) -> _Signal:
    """Return the records of all parts, in order.

    There is at least one part. All are of one kind, and each passes `check_columns`.
    """
    if len(parts) == 1:
        return parts[0]
    counts = [len(one) for one in parts]
    values: dict[str, Any] = {
        field.name: _join([getattr(one, field.name) for one in parts], counts)
        for field in parts[0].kind.fields
    }
    values["attributes"] = join_attributes([(one.attributes, len(one)) for one in parts])
    return replace(parts[0], **values)


def _join(parts: Sequence[Any], counts: Sequence[int]) -> ColumnValues | None:
    first = next((one for one in parts if one is not None), None)
    match first:
        case None:
            return None
        case TextColumn():
            listed = zip(parts, counts, strict=True)
            return _join_texts([_no_texts(count) if one is None else one for one, count in listed])
        case NameColumn():
            names, indexes = _join_names([(one.names, one.indexes) for one in parts])
            return NameColumn(names=names, indexes=indexes)
        case _:
            zeros = zip(parts, counts, strict=True)
            return np.concatenate(
                [np.zeros(count, first.dtype) if one is None else one for one, count in zeros]
            )


def columns_bytes(columns: SignalColumns) -> int:
    """Return about the size of the payload of records; equal for equal records."""
    attributes, count = columns.attributes, len(columns)
    size_bytes = text_bytes(columns)
    if attributes is not None:
        typed = attributes.types is not None
        size_bytes += 4 * count + (8 + typed) * len(attributes.keys)
    return size_bytes + count * sum(_fixed_bytes(one.type) for one in columns.kind.fields)


def _fixed_bytes(kind: FieldType) -> int:
    """Return what each value takes in addition to its text: an offset, an index or a number."""
    if kind in {FieldType.NAME, FieldType.TEXT, FieldType.OPAQUE}:
        return 4
    return np.dtype(number_type(kind)).itemsize


def text_bytes(columns: SignalColumns) -> int:
    """Return the size of all texts and names of records, with those of their attributes."""
    size_bytes = 0
    for field in columns.kind.fields:
        values = getattr(columns, field.name)
        if isinstance(values, TextColumn):
            size_bytes += len(values.data)
        elif isinstance(values, NameColumn):
            size_bytes += _names_bytes(values.names)
    if columns.attributes is not None:
        size_bytes += len(columns.attributes.values.data) + _names_bytes(columns.attributes.names)
    return size_bytes


def _names_bytes(names: tuple[str, ...]) -> int:
    return sum(len(name.encode()) for name in names)


def _no_texts(count: int) -> TextColumn:
    return TextColumn(offsets=np.zeros(count + 1, np.int32), data=b"")


def _join_texts(columns: Sequence[TextColumn]) -> TextColumn:
    return TextColumn(
        offsets=_join_offsets([one.offsets for one in columns]),
        data=b"".join(one.data for one in columns),
    )


def _join_offsets(offsets: Sequence[I32]) -> I32:
    pieces, end = [np.zeros(1, np.int32)], 0
    for one in offsets:
        pieces.append(one[1:] + np.int32(end))
        end += int(one[-1])
    return np.concatenate(pieces)


def _join_names(parts: Sequence[tuple[tuple[str, ...], U32]]) -> tuple[tuple[str, ...], U32]:
    """Return the distinct names, and the indexes of all parts into them."""
    if all(names == parts[0][0] for names, _ in parts):
        return parts[0][0], np.concatenate([indexes for _, indexes in parts])
    places: dict[str, int] = {}
    pieces: list[U32] = []
    for names, indexes in parts:
        moved = np.array([places.setdefault(name, len(places)) for name in names], dtype=np.uint32)
        pieces.append(moved[indexes] if len(moved) else indexes)
    return tuple(places), np.concatenate(pieces)


def join_attributes(
    parts: Sequence[tuple[AttributeColumns | None, int]],
) -> AttributeColumns | None:
    """Return the attributes of all parts, each with its number of records; None without any."""
    if not any(one is not None for one, _ in parts):
        return None
    if len(parts) == 1:
        return parts[0][0]
    known = [one for one, _ in parts if one is not None]
    names, keys = _join_names([(one.names, one.keys) for one in known])
    offsets = [
        one.offsets if one is not None else np.zeros(count + 1, np.int32) for one, count in parts
    ]
    return AttributeColumns(
        names=names,
        offsets=_join_offsets(offsets),
        keys=keys,
        values=_join_texts([one.values for one in known]),
        types=joined_types((one.types, len(one.keys)) for one in known),
    )
