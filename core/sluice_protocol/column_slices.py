"""Cut and join columns: a range of records, or those of several requests, as valid columns."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from sluice_protocol.columns import (
    I32,
    U32,
    AttributeColumns,
    Columns,
    EntryColumns,
    LogColumns,
    MetricColumns,
    TextColumn,
)


def slice_columns(columns: Columns, start: int, stop: int) -> Columns:
    """Return the records `start` up to `stop`; names that no record uses are left out.

    Args:
        columns: n records that pass `check_columns`.
        start: First record, 0 or more.
        stop: The record after the last, more than `start` and at most n.
    """
    match columns:
        case LogColumns():
            return LogColumns(
                ts=columns.ts[start:stop],
                body=_texts(columns.body, start, stop),
                severity=None if columns.severity is None else columns.severity[start:stop],
                attributes=_attributes(columns.attributes, start, stop),
            )
        case MetricColumns():
            names, name = _used(columns.names, columns.name[start:stop])
            return MetricColumns(
                ts=columns.ts[start:stop],
                names=names,
                name=name,
                value=columns.value[start:stop],
                type=columns.type[start:stop],
                attributes=_attributes(columns.attributes, start, stop),
            )
        case EntryColumns():
            return EntryColumns(
                key=_texts(columns.key, start, stop),
                value=_texts(columns.value, start, stop),
                ts=None if columns.ts is None else columns.ts[start:stop],
            )


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
    )


def _used(names: tuple[str, ...], indexes: U32) -> tuple[tuple[str, ...], U32]:
    """Return the names that occur, in their order, and the indexes into them."""
    used, renumbered = np.unique(indexes, return_inverse=True)
    return tuple(names[index] for index in used.tolist()), renumbered.astype(np.uint32)


def join_columns(parts: Sequence[LogColumns | MetricColumns]) -> LogColumns | MetricColumns:
    """Return the records of all parts, in order.

    Args:
        parts: At least one; all of one kind, and each passes `check_columns`.
    """
    if len(parts) == 1:
        return parts[0]
    attributes = _join_attributes([(one.attributes, len(one)) for one in parts])
    ts = np.concatenate([one.ts for one in parts])
    if isinstance(parts[0], LogColumns):
        logs = cast("Sequence[LogColumns]", parts)
        severity = None
        if any(one.severity is not None for one in logs):
            severity = np.concatenate(
                [
                    one.severity if one.severity is not None else np.zeros(len(one), np.uint8)
                    for one in logs
                ]
            )
        body = _join_texts([one.body for one in logs])
        return LogColumns(ts=ts, body=body, severity=severity, attributes=attributes)
    metrics = cast("Sequence[MetricColumns]", parts)
    names, name = _join_names([(one.names, one.name) for one in metrics])
    return MetricColumns(
        ts=ts,
        names=names,
        name=name,
        value=np.concatenate([one.value for one in metrics]),
        type=np.concatenate([one.type for one in metrics]),
        attributes=attributes,
    )


def columns_bytes(columns: LogColumns | MetricColumns) -> int:
    """Return about the size of the payload of records; equal for equal records."""
    attributes, count = columns.attributes, len(columns)
    size_bytes = 8 * count
    if attributes is not None:
        pairs = len(attributes.keys)
        names = sum(len(name.encode()) for name in attributes.names)
        size_bytes += 4 * count + 8 * pairs + names + len(attributes.values.data)
    if isinstance(columns, LogColumns):
        return size_bytes + 5 * count + len(columns.body.data)
    return size_bytes + 13 * count + sum(len(name.encode()) for name in columns.names)


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


def _join_attributes(
    parts: Sequence[tuple[AttributeColumns | None, int]],
) -> AttributeColumns | None:
    if not any(one is not None for one, _ in parts):
        return None
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
    )
