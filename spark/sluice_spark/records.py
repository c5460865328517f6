"""Decoded frames as Arrow tables of the lake's record schemas, without touching a single record.

The big columns (bodies, values, attributes) are wrapped where they lie, one chunk per frame. What
is the same for a whole batch (agent, boot, resource) becomes a dictionary with run-length codes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
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
from sluice_protocol.lake import RECORD_TABLES, Table
from sluice_protocol.manifests import Kind
from sluice_spark.schemas import TEXT_MAP, arrow_schema

_NS_PER_US: Final = 1000
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

Ints = npt.NDArray[np.int64]
Chunks = list[pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One decoded batch and what the queue says of it.

    Attributes:
        frame: The frame.
        accepted_at_ns: When it was accepted.
        sequence: The sequence of the queue entry that brought it.
    """

    frame: Frame
    accepted_at_ns: int
    sequence: int


def text_array(column: TextColumn, kind: pa.DataType) -> pa.Array:
    """Wraps a text or bytes column as an Arrow array over the same memory."""
    offsets = np.ascontiguousarray(column.offsets, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def _repeated(values: Sequence[str], codes: npt.NDArray[np.int32], *, plain: bool) -> pa.Array:
    array = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(values, pa.string()))
    return array.cast(pa.string()) if plain else array


def _constant(texts: Sequence[str], counts: Ints, *, plain: bool) -> Chunks:
    distinct = list(dict.fromkeys(texts))
    place = {text: code for code, text in enumerate(distinct)}
    per_batch = np.fromiter((place[text] for text in texts), np.int32, len(texts))
    return [_repeated(distinct, np.repeat(per_batch, counts), plain=plain)]


def _resource(frame: Frame, *, plain: bool) -> pa.Array:
    """Gives the same map for every record of the frame."""
    count, pairs = frame.envelope.count, frame.envelope.resource
    codes = np.tile(np.arange(len(pairs), dtype=np.int32), count)
    return pa.MapArray.from_arrays(
        pa.array(np.arange(count + 1, dtype=np.int32) * len(pairs)),
        _repeated([key for key, _ in pairs], codes, plain=plain),
        _repeated([value for _, value in pairs], codes, plain=plain),
    )


def _attributes(found: AttributeColumns | None, count: int, *, plain: bool) -> pa.Array:
    if found is None:
        return pa.nulls(count, TEXT_MAP if plain else _DICTIONARY_KEYS)
    keys = _repeated(found.names, found.keys.astype(np.int32, copy=False), plain=plain)
    offsets = pa.array(np.ascontiguousarray(found.offsets, dtype=np.int32))
    return pa.MapArray.from_arrays(offsets, keys, text_array(found.values, pa.string()))


_DICTIONARY: Final = pa.dictionary(pa.int32(), pa.string())
_DICTIONARY_KEYS: Final = pa.map_(_DICTIONARY, pa.string())


def _times(batch: Decoded) -> pa.Array:
    ts = batch.frame.columns.ts
    if ts is None:
        return pa.nulls(batch.frame.envelope.count, pa.int64())
    return pa.array(ts)


def _cut(times: pa.Array) -> pa.Array:
    if times.null_count:
        return pa.nulls(len(times), _TIMESTAMP)
    cut = np.floor_divide(times.to_numpy(), _NS_PER_US)
    return pa.array(cut).view(_TIMESTAMP)


def _integers(values: npt.NDArray[np.uint8] | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.int32()) if values is None else pa.array(values.astype(np.int32))


class Names:
    """One dictionary of metric names over many frames.

    A Parquet writer that meets a second dictionary within a row group gives up dictionary encoding.
    """

    def __init__(self, batches: Sequence[Decoded], *, plain: bool) -> None:
        """Collects the distinct names of every frame."""
        found = [
            b.frame.columns.names for b in batches if isinstance(b.frame.columns, MetricColumns)
        ]
        self._distinct = list(dict.fromkeys(name for names in found for name in names))
        self._place = {name: code for code, name in enumerate(self._distinct)}
        self._plain = plain

    def encode(self, names: Sequence[str], codes: npt.NDArray[np.uint32]) -> pa.Array:
        """Gives one frame's column of names."""
        places = np.array([self._place[name] for name in names], dtype=np.int32)
        return _repeated(self._distinct, places[codes], plain=self._plain)


def _own(columns: Columns, count: int, names: Names) -> Chunks:
    match columns:
        case LogColumns():
            return [text_array(columns.body, pa.string()), _integers(columns.severity, count)]
        case MetricColumns():
            name = names.encode(columns.names, columns.name)
            return [name, pa.array(columns.value), _integers(columns.type, count)]
        case EntryColumns():
            return [text_array(columns.key, pa.binary()), text_array(columns.value, pa.binary())]


def _tail(batch: Decoded, names: Names, *, plain: bool) -> Chunks:
    columns, count = batch.frame.columns, batch.frame.envelope.count
    attributes = None if isinstance(columns, EntryColumns) else columns.attributes
    own = _own(columns, count, names)
    maps = [_attributes(attributes, count, plain=plain), _resource(batch.frame, plain=plain)]
    return [*own, *maps]


def _head(batches: Sequence[Decoded], counts: Ints, *, plain: bool) -> list[Chunks]:
    envelopes = [batch.frame.envelope for batch in batches]
    times = [_times(batch) for batch in batches]
    accepted = np.repeat([batch.accepted_at_ns // _NS_PER_US for batch in batches], counts)
    return [
        _constant([envelope.agent_id for envelope in envelopes], counts, plain=plain),
        _constant([envelope.boot_id for envelope in envelopes], counts, plain=plain),
        [pa.array(np.arange(e.seq_start, e.seq_start + e.count)) for e in envelopes],
        times,
        [_cut(chunk) for chunk in times],
        [pa.array(accepted).view(_TIMESTAMP)],
        [pa.array(np.repeat([batch.sequence for batch in batches], counts))],
    ]


def records_table(kind: Kind, batches: Sequence[Decoded], *, plain: bool = False) -> pa.Table:
    """Gives batches of one kind as a table of the lake's schema, without the partition column.

    Args:
        kind: The kind that every batch has.
        batches: Decoded batches in the order in which their records shall stand; not empty.
        plain: Whether text is plain, exactly as the schema says; else what repeats is a
            dictionary, which is what a Parquet file should be written from.
    """
    table = RECORD_TABLES[kind]
    counts = np.array([batch.frame.envelope.count for batch in batches], dtype=np.int64)
    names = Names(batches, plain=plain)
    tails = zip(*(_tail(batch, names, plain=plain) for batch in batches), strict=True)
    chunks = [*_head(batches, counts, plain=plain), *map(list, tails)]
    if plain:
        schema = arrow_schema(table, partition=False)
        return pa.Table.from_arrays([pa.chunked_array(c) for c in chunks], schema=schema)
    return pa.Table.from_arrays([pa.chunked_array(c) for c in chunks], names=_names(table))


def _names(table: Table) -> list[str]:
    return [column.name for column in table.stored_columns]
