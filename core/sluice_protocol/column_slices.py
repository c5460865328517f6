"""Cut and join columns: a range of records, or those of several requests, as valid columns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sluice_protocol.columns import (
    I32,
    U32,
    AttributeColumns,
    Columns,
    ColumnValues,
    NameColumn,
    SignalColumns,
    TextColumn,
    number_type,
)
from sluice_protocol.fields import FieldType
from sluice_protocol.values import joined_types, some_types

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
