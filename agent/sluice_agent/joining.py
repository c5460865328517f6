"""Parts of batches put end to end into the columns of one frame."""

from collections.abc import Sequence

import numpy as np

from sluice_protocol.columns import (
    I32,
    U8,
    U32,
    AttributeColumns,
    LogColumns,
    MetricColumns,
    TextColumn,
)


def join_logs(parts: Sequence[LogColumns]) -> LogColumns:
    """Puts log columns end to end, in order."""
    if len(parts) == 1:
        return parts[0]
    return LogColumns(
        ts=np.concatenate([part.ts for part in parts]),
        body=join_text([part.body for part in parts]),
        severity=_join_severity(parts),
        attributes=_join_attributes([(len(part), part.attributes) for part in parts]),
    )


def join_metrics(parts: Sequence[MetricColumns]) -> MetricColumns:
    """Puts metric columns end to end, in order; names are told apart once for all."""
    if len(parts) == 1:
        return parts[0]
    names, index = _join_names([(part.names, part.name) for part in parts])
    return MetricColumns(
        ts=np.concatenate([part.ts for part in parts]),
        names=names,
        name=index,
        value=np.concatenate([part.value for part in parts]),
        type=np.concatenate([part.type for part in parts]),
        attributes=_join_attributes([(len(part), part.attributes) for part in parts]),
    )


def join_text(parts: Sequence[TextColumn]) -> TextColumn:
    """Puts text columns end to end."""
    return TextColumn(
        offsets=_join_offsets([part.offsets for part in parts]),
        data=b"".join(part.data for part in parts),
    )


def _join_offsets(parts: Sequence[I32]) -> I32:
    ends = np.cumsum([0, *(int(part[-1]) for part in parts)])
    moved = [part[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    return np.concatenate([[0], *moved]).astype(np.int32)


def _join_severity(parts: Sequence[LogColumns]) -> U8 | None:
    """Lets a part without severity count as 0, which OpenTelemetry calls unspecified."""
    if all(part.severity is None for part in parts):
        return None
    zero = np.uint8(0)
    return np.concatenate(
        [np.full(len(part), zero) if part.severity is None else part.severity for part in parts]
    )


def _join_attributes(
    parts: Sequence[tuple[int, AttributeColumns | None]],
) -> AttributeColumns | None:
    held = [columns for _, columns in parts if columns is not None]
    if not held:
        return None
    names, keys = _join_names([(columns.names, columns.keys) for columns in held])
    offsets = [
        np.zeros(count + 1, np.int32) if columns is None else columns.offsets
        for count, columns in parts
    ]
    return AttributeColumns(
        names=names,
        offsets=_join_offsets(offsets),
        keys=keys,
        values=join_text([columns.values for columns in held]),
    )


def _join_names(parts: Sequence[tuple[tuple[str, ...], U32]]) -> tuple[tuple[str, ...], U32]:
    numbers: dict[str, int] = {}
    moved = []
    for names, index in parts:
        places = [numbers.setdefault(name, len(numbers)) for name in names]
        moved.append(np.array(places, np.uint32)[index])
    return tuple(numbers), np.concatenate(moved)
