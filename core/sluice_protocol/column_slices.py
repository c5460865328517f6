"""Cut columns: the records of a range, as columns that pass every check by themselves."""

import numpy as np

from sluice_protocol.columns import (
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
