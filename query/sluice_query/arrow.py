"""Decoded frames as Arrow tables with the columns that an answer needs.

Only what is not in the lake yet comes this way, so it is plain rather than fast; the big columns
are still wrapped where they lie.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluice_protocol.columns import (
    AttributeColumns,
    Columns,
    EntryColumns,
    LogColumns,
    MetricColumns,
    TextColumn,
)
from sluice_protocol.frame import Frame

TEXT_MAP: Final = pa.map_(pa.string(), pa.string())
_NS_PER_US: Final = 1000


def frame_table(frame: Frame, accepted_at_ns: int) -> Any:  # noqa: ANN401 - pyarrow is not typed
    """Gives a frame's records as a table with the columns of the lake, `ts` and partition apart."""
    envelope, columns = frame.envelope, frame.columns
    count = envelope.count
    accepted = np.full(count, accepted_at_ns // _NS_PER_US, np.int64)
    shared = {
        "agent_id": _same(envelope.agent_id, count),
        "boot_id": _same(envelope.boot_id, count),
        "seq": pa.array(np.arange(envelope.seq_start, envelope.seq_start + count, dtype=np.int64)),
        "ts_ns": pa.nulls(count, pa.int64()) if columns.ts is None else pa.array(columns.ts),
        "accepted_at": pa.array(accepted).view(pa.timestamp("us", tz="UTC")),
        "attributes": attribute_column(columns, count),
        "resource": pa.array([list(envelope.resource)], TEXT_MAP).take(
            pa.array(np.zeros(count, np.int32))
        ),
    }
    return pa.table(shared | own_columns(columns, count))


def _same(text: str, count: int) -> Any:  # noqa: ANN401 - pyarrow is not typed
    return pa.repeat(pa.scalar(text, pa.string()), count)


def own_columns(columns: Columns, count: int) -> dict[str, Any]:
    """Gives the columns that a kind has of its own."""
    match columns:
        case LogColumns():
            severity = columns.severity
            levels = pa.nulls(count, pa.int32())
            if severity is not None:
                levels = pa.array(severity.astype(np.int32))
            return {"body": _texts(columns.body, pa.string()), "severity": levels}
        case MetricColumns():
            names = pa.array(columns.names, pa.string())
            return {
                "name": names.take(pa.array(columns.name)),
                "value": pa.array(columns.value),
                "type": pa.array(columns.type.astype(np.int32)),
            }
        case EntryColumns():
            return {
                "key": _texts(columns.key, pa.binary()),
                "value": _texts(columns.value, pa.binary()),
            }


def _texts(column: TextColumn, kind: Any) -> Any:  # noqa: ANN401 - pyarrow is not typed
    offsets = np.ascontiguousarray(column.offsets, np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, len(column), buffers)


def attribute_column(columns: Columns, count: int) -> Any:  # noqa: ANN401 - pyarrow is not typed
    """Gives the attributes of each record, null where a batch has none at all."""
    found: AttributeColumns | None = None
    if not isinstance(columns, EntryColumns):
        found = columns.attributes
    if found is None:
        return pa.nulls(count, TEXT_MAP)
    keys = pa.array(found.names, pa.string()).take(pa.array(found.keys))
    offsets = pa.array(np.ascontiguousarray(found.offsets, np.int32))
    return pa.MapArray.from_arrays(offsets, keys, _texts(found.values, pa.string()))
