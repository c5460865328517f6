"""Conversion of decoded frames to Arrow tables, without touching a single record in Python.

The large columns (bodies, values, attributes) are wrapped without a copy, one chunk per frame. What
is the same for a whole batch (agent, boot, resource) becomes a dictionary with run-length codes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice_lake.schemas import TEXT_MAP, arrow_schema
from sluice_lake.tables import RECORD_TABLES, payload_columns
from sluice_protocol.columns import (
    AttributeColumns,
    Columns,
    EntryColumns,
    LogColumns,
    MetricColumns,
    TextColumn,
)
from sluice_protocol.frame import Frame
from sluice_protocol.manifests import Kind

_NS_PER_US: Final = 1000
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_DICTIONARY: Final = pa.dictionary(pa.int32(), pa.string())
_DICTIONARY_KEYS: Final = pa.map_(_DICTIONARY, pa.string())

Ints = npt.NDArray[np.int64]
Chunks = list[pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """One decoded batch and what the queue records about it.

    Attributes:
        frame: The frame.
        accepted_at_ns: When the batch was accepted.
        sequence: The sequence of the queue entry that contains it; 0 when the caller does not use
            the column.
    """

    frame: Frame
    accepted_at_ns: int
    sequence: int


def records_table(kind: Kind, batches: Sequence[DecodedBatch], *, plain: bool = False) -> pa.Table:
    """Return batches of one kind as a table of the lake's schema, without the partition column.

    Args:
        kind: The kind of every batch.
        batches: Decoded batches in the order of the rows; at least one.
        plain: Whether text has the plain type of the schema. Otherwise repeated text is a
            dictionary, the form from which a Parquet file should be written.
    """
    table = RECORD_TABLES[kind]
    counts = np.array([batch.frame.envelope.count for batch in batches], dtype=np.int64)
    names = _MetricNames([batch.frame.columns for batch in batches], plain=plain)
    tails = zip(*(_tail(batch, names, plain=plain) for batch in batches), strict=True)
    chunks = [*_head(batches, counts, plain=plain), *map(list, tails)]
    arrays = [pa.chunked_array(chunk) for chunk in chunks]
    if plain:
        return pa.Table.from_arrays(arrays, schema=arrow_schema(table, partition=False))
    return pa.Table.from_arrays(arrays, names=[column.name for column in table.stored_columns])


def payload_arrays(kind: Kind, columns: Columns, count: int) -> dict[str, pa.Array]:
    """Return, by name, the columns that depend on the kind of the records, and the attributes.

    Text has the plain type of the schema.
    """
    names = [column.name for column in payload_columns(kind)]
    arrays = _kind_arrays(columns, count, _MetricNames([columns], plain=True))
    attributes = _attributes(columns, count, plain=True)
    return dict(zip(names, arrays, strict=True)) | {"attributes": attributes}


def number_array(values: npt.NDArray[np.generic]) -> pa.Array:
    """Wrap numbers as an Arrow array over the same memory.

    `pa.array` does the same, but imports `numpy.ma`, and pandas if it exists.
    """
    dense = np.ascontiguousarray(values)
    buffers = [None, pa.py_buffer(dense)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(dense.dtype), len(dense), buffers)


def text_array(column: TextColumn, kind: pa.DataType) -> pa.Array:
    """Wrap a text or bytes column as an Arrow array over the same memory."""
    offsets = np.ascontiguousarray(column.offsets, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def _repeated(values: Sequence[str], codes: npt.NDArray[np.int32], *, plain: bool) -> pa.Array:
    array = pa.DictionaryArray.from_arrays(number_array(codes), pa.array(values, pa.string()))
    return array.cast(pa.string()) if plain else array


def _constant(texts: Sequence[str], counts: Ints, *, plain: bool) -> Chunks:
    distinct = list(dict.fromkeys(texts))
    codes = {text: code for code, text in enumerate(distinct)}
    per_batch = np.fromiter((codes[text] for text in texts), np.int32, len(texts))
    return [_repeated(distinct, np.repeat(per_batch, counts), plain=plain)]


def _resource(frame: Frame, *, plain: bool) -> pa.Array:
    """Return the same map for every record of the frame."""
    count, pairs = frame.envelope.count, frame.envelope.shown_resource
    codes = np.tile(np.arange(len(pairs), dtype=np.int32), count)
    return pa.MapArray.from_arrays(
        number_array(np.arange(count + 1, dtype=np.int32) * len(pairs)),
        _repeated([key for key, _ in pairs], codes, plain=plain),
        _repeated([value for _, value in pairs], codes, plain=plain),
    )


def _attributes(columns: Columns, count: int, *, plain: bool) -> pa.Array:
    found: AttributeColumns | None = None
    if not isinstance(columns, EntryColumns):
        found = columns.attributes
    if found is None:
        return pa.nulls(count, TEXT_MAP if plain else _DICTIONARY_KEYS)
    keys = _repeated(found.names, found.keys.astype(np.int32, copy=False), plain=plain)
    offsets = number_array(found.offsets.astype(np.int32, copy=False))
    return pa.MapArray.from_arrays(offsets, keys, text_array(found.values, pa.string()))


def _integers(values: npt.NDArray[np.uint8] | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.int32()) if values is None else number_array(values.astype(np.int32))


def _exact_times(ts_ns: Ints | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.int64()) if ts_ns is None else number_array(ts_ns)


def _truncated_times(ts_ns: Ints | None, count: int) -> pa.Array:
    if ts_ns is None:
        return pa.nulls(count, _TIMESTAMP)
    return number_array(np.floor_divide(ts_ns, _NS_PER_US)).view(_TIMESTAMP)


class _MetricNames:
    """One dictionary of metric names over several batches.

    A Parquet writer that meets a second dictionary in a row group stops dictionary encoding.
    """

    def __init__(self, columns: Sequence[Columns], *, plain: bool) -> None:
        found = [each.names for each in columns if isinstance(each, MetricColumns)]
        self._distinct = list(dict.fromkeys(name for names in found for name in names))
        self._codes = {name: code for code, name in enumerate(self._distinct)}
        self._plain = plain

    def encode(self, names: Sequence[str], codes: npt.NDArray[np.uint32]) -> pa.Array:
        shared = np.array([self._codes[name] for name in names], dtype=np.int32)
        return _repeated(self._distinct, shared[codes], plain=self._plain)


def _kind_arrays(columns: Columns, count: int, names: _MetricNames) -> Chunks:
    match columns:
        case LogColumns():
            return [text_array(columns.body, pa.string()), _integers(columns.severity, count)]
        case MetricColumns():
            name = names.encode(columns.names, columns.name)
            return [name, number_array(columns.value), _integers(columns.type, count)]
        case EntryColumns():
            return [text_array(columns.key, pa.binary()), text_array(columns.value, pa.binary())]


def _tail(batch: DecodedBatch, names: _MetricNames, *, plain: bool) -> Chunks:
    columns, count = batch.frame.columns, batch.frame.envelope.count
    return [
        *_kind_arrays(columns, count, names),
        _attributes(columns, count, plain=plain),
        _resource(batch.frame, plain=plain),
    ]


def _head(batches: Sequence[DecodedBatch], counts: Ints, *, plain: bool) -> list[Chunks]:
    envelopes = [batch.frame.envelope for batch in batches]
    own_times = [(batch.frame.columns.ts, batch.frame.envelope.count) for batch in batches]
    accepted = np.repeat([batch.accepted_at_ns // _NS_PER_US for batch in batches], counts)
    return [
        _constant([envelope.agent_id for envelope in envelopes], counts, plain=plain),
        _constant([envelope.boot_id for envelope in envelopes], counts, plain=plain),
        [number_array(np.arange(e.seq_start, e.seq_start + e.count)) for e in envelopes],
        [_exact_times(ts, count) for ts, count in own_times],
        [_truncated_times(ts, count) for ts, count in own_times],
        [number_array(accepted).view(_TIMESTAMP)],
        [number_array(np.repeat([batch.sequence for batch in batches], counts))],
    ]
