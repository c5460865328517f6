"""Conversion of decoded frames to Arrow tables, without touching a single record in Python.

The large columns (bodies, values, attributes) are wrapped without a copy, one chunk per frame. What
is the same for a whole batch (agent, boot, resource) becomes a dictionary with run-length codes.

Many small batches are verified and decoded together into one table: the work per batch is a few
appends to lists, everything else is one numpy operation for all (ADR 36). The result is the same as
decoding each blob alone. If a blob cannot be used, the result is None, and the caller decodes each
alone to find the bad one and the reason.

Derived fields are computed over whole columns (`sluice_protocol.meaning` has the rule). A text is a
code into a few distinct ones: those of a resource are never repeated for each record, and only
distinct levels and ids are visited in Python.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase, digits
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice_lake.blobs import states_times_of
from sluice_lake.schemas import ARROW, TEXT_MAP, arrow_schema, coded, number_array, text_array
from sluice_lake.tables import FIELD_TYPES, RECORD_TABLES
from sluice_protocol.column_codings import RawColumns
from sluice_protocol.columns import (
    FEW,
    U8,
    AttributeColumns,
    Columns,
    ColumnValues,
    LogColumns,
    NameColumn,
    SignalColumns,
    TextColumn,
    join_attributes,
    slice_columns,
)
from sluice_protocol.errors import InvalidFrame, TooLarge, UnsupportedVersion
from sluice_protocol.fields import KINDS, Field, FieldType, Kind
from sluice_protocol.frame import (
    Envelope,
    Frame,
    decode_head,
    join_columns_of,
    raw_columns,
    span_of,
)
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.meaning import (
    BESIDE,
    DERIVED_KEYS,
    ID_BYTES_MAX,
    IMPLIED_SEVERITIES,
    LEVEL_CHARACTERS_MAX,
    LEVELS,
    NUMBERS_A_LEVEL,
    OBSERVED_KEY,
    SEVERITY_KEYS,
    level_of,
    plain_id,
    severity_of,
)
from sluice_protocol.values import LABELS

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Pairs = Sequence[tuple[str, str]]
_IDS: Final = ("trace_id", "span_id")
_DICTIONARY: Final = pa.dictionary(pa.int32(), pa.string())
_LOWER: Final = (digits + ascii_lowercase).encode()


class Stated(NamedTuple):
    """The texts that records have under one key: `texts[codes[i]]` is that of `records[i]`.

    Texts of a key whose values are usually distinct may be repeated.
    """

    records: Ints
    codes: Codes
    texts: pa.Array

    def only(self, wanted: npt.NDArray[np.bool_]) -> "Stated":
        """Return the wanted ones."""
        if wanted.all():
            return self
        return Stated(self.records[wanted], self.codes[wanted], self.texts)


class _Source:
    """Where the values of derived fields are: attributes of records, resources of their batches."""

    def __init__(
        self,
        attributes: AttributeColumns | None,
        resources: Sequence[Pairs],
        counts: Sequence[int],
    ) -> None:
        self.count = int(sum(counts))
        self._attributes = found = attributes
        self._places = {} if found is None else {name: at for at, name in enumerate(found.names)}
        distinct, codes = coded(list(map(tuple, resources)))
        self._resources: list[Mapping[str, str]] = [dict(pairs) for pairs in distinct]
        self._resource_codes = np.repeat(codes, counts)
        self.keys = self._places.keys() | set().union(*self._resources)
        self._records: Ints | None = None
        self._every: Ints | None = None
        self._values: Any = None

    def in_attributes(self, key: str, *, distinct: bool = True) -> Stated | None:
        """Return the texts of records under a key."""
        found, place = self._attributes, self._places.get(key)
        if found is None or place is None:
            return None
        if self._records is None:
            sizes = np.diff(found.offsets)
            self._records = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
            self._values = text_array(found.values, pa.string())
        edges = found.values.offsets
        pairs = np.flatnonzero((found.keys == place) & (edges[:-1] < edges[1:]))
        texts = self._values.take(number_array(pairs))
        if not distinct:
            return Stated(self._records[pairs], np.arange(len(pairs), dtype=np.int32), texts)
        coded = texts.dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False)
        return Stated(self._records[pairs], codes, coded.dictionary)

    def in_resources(self, key: str) -> Stated | None:
        """Return the texts that the batches of records have under a key."""
        found = [pairs.get(key) or None for pairs in self._resources]
        if not any(found):
            return None
        texts, codes = coded([text for text in found if text is not None])
        if self._every is None:
            self._every = np.arange(self.count, dtype=np.int64)
        if len(codes) == len(found):
            return Stated(self._every, codes[self._resource_codes], pa.array(texts, pa.string()))
        is_present = np.array([text is not None for text in found])
        all_codes = np.zeros(len(found), np.int32)
        all_codes[is_present] = codes
        every = Stated(self._every, all_codes[self._resource_codes], pa.array(texts, pa.string()))
        return every.only(is_present[self._resource_codes])

    def stated(
        self, key: str, *, distinct: bool = True, beside: Sequence[str] = ()
    ) -> Iterator[Stated]:
        """Yield what the attributes state under a key, and then the resources.

        Only records with all the keys `beside` count.
        """
        if key not in self.keys or not self.keys.issuperset(beside):
            return
        for found in (self.in_attributes(key, distinct=distinct), self.in_resources(key)):
            if found is not None and len(found.records):
                yield found.only(self.having(beside)[found.records]) if beside else found

    def having(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which records have a text under each of some keys."""
        found = np.ones(self.count, np.bool_)
        for key in keys:
            present = np.zeros(self.count, np.bool_)
            for stated in self.stated(key):
                present[stated.records] = True
            found &= present
        return found


def derived_arrays(
    parts: Sequence[SignalColumns], resources: Sequence[Pairs], counts: Sequence[int]
) -> dict[str, pa.Array]:
    """Return the derived fields of records by name, and of logs their severity.

    `parts` are the columns of the records, and `resources` and `counts` those of their batches, in
    the same order. Names are dictionaries.
    """
    attributes = join_attributes([(one.attributes, len(one)) for one in parts])
    source = _Source(attributes, resources, counts)
    found = {
        field.name: _field(source, field)
        for field in parts[0].kind.derived
        if field.name in DERIVED_KEYS
    }
    if logs := [one for one in parts if isinstance(one, LogColumns)]:
        sent = [
            np.zeros(len(one), np.uint8) if one.severity is None else one.severity for one in logs
        ]
        numbers = np.concatenate(sent).astype(np.int32)
        found["severity"], found["level"] = _severities(numbers, source)
        first = _first_of(source, (OBSERVED_KEY,), distinct=False)
        found["observed_ns"] = first.texts(_only_numbers).cast(pa.int64())
    return found


class _First:
    """For each record the first of the texts that are added for it."""

    def __init__(self, count: int) -> None:
        self._codes = np.full(count, -1, np.int32)
        self._texts: list[pa.Array] = []
        self._size = 0
        self.left = count

    def add(self, found: Stated) -> None:
        if self.left < len(self._codes):
            found = found.only(self._codes[found.records] < 0)
        self._codes[found.records] = found.codes + self._size
        if len(found.records):
            self._texts.append(found.texts)
            self._size += len(found.texts)
            self.left -= len(found.records)

    def names(self) -> pa.DictionaryArray:
        """Return the text of each record as a dictionary."""
        if not self._size:
            return pa.nulls(len(self._codes), _DICTIONARY)
        codes, texts = self._places(), self._joined()
        # A writer of Parquet relies on distinct texts, and refuses a null among them.
        if self._size > FEW or len({None, *texts.to_pylist()}) <= self._size:
            unique = texts.dictionary_encode()
            codes, texts = unique.indices.take(codes), unique.dictionary
        return pa.DictionaryArray.from_arrays(codes, texts)

    def texts(self, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
        """Return the text of each record after a change."""
        if not self._size:
            return pa.nulls(len(self._codes), pa.string())
        texts = change(self._joined())
        in_order = self._size == len(self._codes) and bool(
            (self._codes == np.arange(self._size)).all()
        )
        return texts if in_order else texts.take(self._places())

    def _places(self) -> pa.Array:
        return number_array(self._codes, self._codes >= 0 if self.left else None)

    def _joined(self) -> pa.Array:
        return self._texts[0] if len(self._texts) == 1 else pa.concat_arrays(self._texts)


def _first_of(source: _Source, keys: Sequence[str], *, distinct: bool) -> _First:
    """Return for each record its first text under some keys.

    Unless they are `distinct`, a text of a resource will be repeated for each record, so a long one
    does not count.
    """
    first = _First(source.count)
    for key in [key for key in keys if key in source.keys]:
        for found in source.stated(key, distinct=distinct, beside=BESIDE.get(key, ())):
            first.add(found if distinct else _short(found))
        if not first.left:
            break
    return first


def _short(found: Stated) -> Stated:
    sizes = pc.fill_null(pc.binary_length(found.texts), 0).to_numpy(zero_copy_only=False)
    return found.only((sizes <= ID_BYTES_MAX)[found.codes])


def _field(source: _Source, field: Field) -> pa.Array:
    is_name = field.type is FieldType.NAME
    first = _first_of(source, DERIVED_KEYS[field.name], distinct=is_name)
    if is_name:
        return first.names()
    if field.name in _IDS:
        return first.texts(lambda texts: _plain_ids(texts, field.name))
    return first.texts(lambda texts: texts)


def _plain_ids(texts: pa.Array, field: str) -> pa.Array:
    # No text is empty, so one check of all of them together shows what each is.
    _, offsets, data = texts.buffers()
    edges = np.frombuffer(offsets, np.int32)[texts.offset :]
    joined = data.to_pybytes()[edges[0] : edges[len(texts)]]
    if not joined.translate(None, _LOWER):
        return texts
    if joined.isalnum():  # only the case changes
        return pc.ascii_lower(texts)
    plain = [None if one is None else plain_id(field, one) or None for one in texts.to_pylist()]
    return pa.array(plain, pa.string())


def _severities(numbers: Codes, source: _Source) -> tuple[pa.Array, pa.Array]:
    """Return the severity of each record, null if it is not known, and its level.

    `numbers` are what the frames state, 0 for nothing.
    """
    unknown = _First(source.count)
    is_open = numbers == 0
    for key in [key for key in SEVERITY_KEYS if key.name in source.keys]:
        for stated in source.stated(key.name, beside=key.beside):
            found = stated.only(is_open[stated.records])
            texts = found.texts.to_pylist()
            known = np.array(  # a long text is no level, and must not be remembered
                [
                    severity_of(text, key.scale)
                    if text and len(text) <= LEVEL_CHARACTERS_MAX
                    else 0
                    for text in texts
                ],
                np.int32,
            )
            numbers[found.records] = known[found.codes]
            is_open[found.records] = False
            odd = found.only(known[found.codes] == 0)
            if len(odd.records):
                levels = [level_of(0, text or "") or None for text in texts]
                unknown.add(Stated(odd.records, odd.codes, pa.array(levels, pa.string())))
    for implied in IMPLIED_SEVERITIES:
        if source.keys.issuperset(implied.keys):
            found_open = is_open & source.having(implied.keys)
            numbers[found_open] = implied.severity
            is_open &= ~found_open
    # The level of each number, and of records without one what was sent.
    numbered = np.flatnonzero(numbers)
    codes = (numbers[numbered] - 1) // NUMBERS_A_LEVEL
    # Only levels in use: a Parquet writer takes twice the time for a dictionary with others.
    used = np.flatnonzero(np.bincount(codes, minlength=len(LEVELS)))
    rank = np.zeros(len(LEVELS), np.int32)
    rank[used] = np.arange(len(used), dtype=np.int32)
    levels_used = pa.array([LEVELS[place] for place in used.tolist()], pa.string())
    unknown.add(Stated(numbered, rank[codes], levels_used))
    return number_array(numbers, numbers > 0), unknown.names()


def _only_numbers(texts: pa.Array) -> pa.Array:
    is_number = pc.match_substring_regex(texts, "^(?:[0-9]{1,18}|[1-8][0-9]{18})$")
    return pc.if_else(is_number, texts, pa.scalar(None, pa.string()))


_NS_PER_US: Final = 1000
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_DICTIONARY_KEYS: Final = pa.map_(_DICTIONARY, pa.string())
_DICTIONARY_MAP: Final = pa.map_(_DICTIONARY, _DICTIONARY)
_CODED: Final = {"resource": pa.dictionary(pa.int32(), TEXT_MAP)} | {
    field.name: _DICTIONARY
    for kind in KINDS.values()
    for field in kind.derived
    if field.type is FieldType.NAME
}
"""Columns whose texts may be those of a resource, as dictionaries: it may have 60 KB, and its batch
200,000 records.
"""
_PLAIN_SCHEMAS: Final = {
    kind: pa.schema(
        field.with_type(_CODED.get(field.name, field.type))
        for field in arrow_schema(table, partition=False)
    )
    for kind, table in RECORD_TABLES.items()
}
"""The schemas of plain records."""

Chunks = list[pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """A decoded batch with its acceptance time and queue sequence; 0 if the caller needs none."""

    frame: Frame
    accepted_at_ns: int
    sequence: int


def records_table(kind: Kind, batches: Sequence[DecodedBatch], *, plain: bool = False) -> pa.Table:
    """Return batches of one kind as a table of the lake's schema, without the partition column.

    The order of the rows is that of the batches. `plain` text has the plain type of the schema,
    except what may come from a resource. Otherwise repeated text is a dictionary, the form from
    which a Parquet file should be written.
    """
    counts = np.array([batch.frame.envelope.count for batch in batches], dtype=np.int64)
    columns = [batch.frame.columns for batch in batches]
    resources = [batch.frame.envelope.shown_resource for batch in batches]
    sizes = counts.tolist()
    chunks = [
        *_head(batches, counts, plain=plain),
        *_fields(columns, sizes, resources, sizes, plain=plain),
        *_attributes(columns, sizes, plain=plain),
    ]
    if plain:
        chunks.append([resource_array(resources, counts)])
        return pa.Table.from_arrays(
            list(map(pa.chunked_array, chunks)), schema=_PLAIN_SCHEMAS[kind]
        )
    chunks.append([_resource(batch.frame) for batch in batches])
    fields = arrow_schema(RECORD_TABLES[kind], partition=False)
    arrays = [
        _joined(pa.chunked_array(chunk), field.type)
        for chunk, field in zip(chunks, fields, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=_PLAIN_SCHEMAS[kind].names)


def _joined(array: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Give all chunks one dictionary: at a second one, a Parquet writer stops encoding with it.

    The keys and values of maps have dictionaries too. Nulls need none, and are cheaper without.
    """
    if array.null_count == len(array):
        return pa.chunked_array([pa.nulls(len(array), kind)])
    has_one = pa.types.is_dictionary(array.type) or pa.types.is_map(array.type)
    return array.unify_dictionaries() if has_one else array


def payload_arrays(
    columns: Columns, resources: Sequence[Pairs], counts: Sequence[int]
) -> dict[str, pa.Array]:
    """Return, by name, the columns that depend on the kind, plain, and the attributes.

    `resources` and `counts` are those of the batches whose records follow each other.
    """
    count = sum(counts)
    found = _fields([columns], [count], resources, counts, plain=True)
    found += _attributes([columns], [count], plain=True)
    names = [*(field.name for field in columns.kind.read_fields), "attributes", "attribute_types"]
    return {name: array for name, [array] in zip(names, found, strict=True)}


def _fields(
    parts: Sequence[Columns],
    sizes: Sequence[int],
    resources: Sequence[Pairs],
    counts: Sequence[int],
    *,
    plain: bool,
) -> list[Chunks]:
    """Return the arrays of each field of records that were read; derived ones are one array.

    `sizes` are those of the parts, `resources` and `counts` those of the batches.
    """
    kind = parts[0].kind
    found = {
        field.name: [
            _field_array(field, getattr(one, field.name), size, plain=plain)
            for one, size in zip(parts, sizes, strict=True)
        ]
        for field in kind.own_fields
    }
    if signals := [one for one in parts if isinstance(one, SignalColumns)]:
        derived = derived_arrays(signals, resources, counts)
        found |= {name: [one] for name, one in derived.items()}
    return [found[field.name] for field in kind.read_fields]


def _repeated(values: Sequence[str], codes: npt.NDArray[np.int32], *, plain: bool) -> pa.Array:
    array = pa.DictionaryArray.from_arrays(number_array(codes), pa.array(values, pa.string()))
    return array.cast(pa.string()) if plain else array


def _constant(texts: Sequence[str], counts: Ints, *, plain: bool) -> Chunks:
    distinct, codes = coded(texts)
    return [_repeated(distinct, np.repeat(codes, counts), plain=plain)]


def _resource(frame: Frame) -> pa.Array:
    """Return the same map for every record of the frame."""
    count, pairs = frame.envelope.count, frame.envelope.shown_resource
    codes = np.tile(np.arange(len(pairs), dtype=np.int32), count)
    return pa.MapArray.from_arrays(
        number_array(np.arange(count + 1, dtype=np.int32) * len(pairs)),
        _repeated([key for key, _ in pairs], codes, plain=False),
        _repeated([value for _, value in pairs], codes, plain=False),
    )


def _attributes(
    parts: Sequence[Columns], sizes: Sequence[int], *, plain: bool
) -> tuple[Chunks, Chunks]:
    """Return the attributes of records, and the types of those that are not text."""
    empty = TEXT_MAP if plain else _DICTIONARY_KEYS
    untyped = TEXT_MAP if plain else _DICTIONARY_MAP
    attributes: Chunks = []
    types: Chunks = []
    before = 0
    for columns, count in zip(parts, sizes, strict=True):
        found = columns.attributes if isinstance(columns, SignalColumns) else None
        if found is None:
            attributes.append(pa.nulls(count, empty))
        else:
            keys = _repeated(found.names, found.keys.astype(np.int32, copy=False), plain=plain)
            offsets = number_array(found.offsets.astype(np.int32, copy=False))
            values = text_array(found.values, pa.string())
            attributes.append(pa.MapArray.from_arrays(offsets, keys, values))
        if found is None or found.types is None:
            before += count
            continue
        if before:
            types.append(pa.nulls(before, untyped))
            before = 0
        types.append(_types(found, found.types, plain=plain))
    if before:
        types.append(pa.nulls(before, untyped))
    return attributes, types


def _types(columns: AttributeColumns, types: U8, *, plain: bool) -> pa.Array:
    """Return for each record the types of its values that are not text, null without any."""
    places = np.flatnonzero(types)
    offsets = np.searchsorted(places, columns.offsets).astype(np.int32)
    return pa.MapArray.from_arrays(
        number_array(offsets),
        _repeated(columns.names, columns.keys[places].astype(np.int32), plain=plain),
        _repeated(LABELS, types[places].astype(np.int32), plain=plain),
        mask=pa.array(offsets[1:] == offsets[:-1]),
    )


def _exact_times(ts_ns: Ints | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.int64()) if ts_ns is None else number_array(ts_ns)


def _truncated_times(ts_ns: Ints | None, count: int) -> pa.Array:
    if ts_ns is None:
        return pa.nulls(count, _TIMESTAMP)
    return number_array(np.floor_divide(ts_ns, _NS_PER_US)).view(_TIMESTAMP)


def _field_array(field: Field, values: ColumnValues | None, count: int, *, plain: bool) -> pa.Array:
    match values:
        case None:
            return pa.nulls(count, ARROW[FIELD_TYPES[field.type]])
        case NameColumn():
            return _repeated(values.names, values.indexes.astype(np.int32), plain=plain)
        case TextColumn():
            return text_array(
                values, ARROW[FIELD_TYPES[field.type]], empty_is_null=field.is_optional
            )
        case _:
            return number_array(values.astype(np.int32) if values.dtype == np.uint8 else values)


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


def kept_batches(frame: Frame, manifest: AcceptedManifest, sequence: int) -> list[DecodedBatch]:
    """Return the kept records of a batch, each range of them as a batch; usually one."""
    frames = [frame]
    if manifest.repeated:
        frames = [_cut(frame, start, end) for start, end in manifest.kept]
    return [
        DecodedBatch(frame=one, accepted_at_ns=manifest.accepted_at_unix_ns, sequence=sequence)
        for one in frames
    ]


def _cut(frame: Frame, start: int, end: int) -> Frame:
    whole = frame.envelope
    columns = slice_columns(frame.columns, start, end)
    min_ts_ns, max_ts_ns = span_of(columns)
    envelope = msgspec.structs.replace(
        whole,
        seq_start=whole.seq_start + start,
        seq_end=whole.seq_start + end - 1,
        count=end - start,
        min_ts_ns=min_ts_ns,
        max_ts_ns=max_ts_ns,
    )
    share = frame.raw_bytes * (end - start) // whole.count
    return replace(frame, envelope=envelope, columns=columns, raw_bytes=share)


@dataclass(frozen=True, slots=True)
class BatchHead:
    """What every record of a batch has in common."""

    envelope: Envelope
    accepted_at_ns: int
    sequence: int


def head_arrays(batches: Sequence[BatchHead], counts: Ints, ts: Ints | None) -> list[pa.Array]:
    """Return the first columns of a record table: agent, boot, sequence numbers and times."""
    envelopes = [batch.envelope for batch in batches]
    total = int(counts.sum())
    starts = np.array([one.seq_start for one in envelopes], dtype=np.int64)
    firsts = np.cumsum(counts) - counts
    accepted = np.array([one.accepted_at_ns // _NS_PER_US for one in batches], dtype=np.int64)
    sequences = np.array([one.sequence for one in batches], dtype=np.int64)
    exact = pa.nulls(total, pa.int64()) if ts is None else number_array(ts)
    cut = (
        pa.nulls(total, pa.int64()) if ts is None else number_array(np.floor_divide(ts, _NS_PER_US))
    )
    return [
        *_constant([one.agent_id for one in envelopes], counts, plain=True),
        *_constant([one.boot_id for one in envelopes], counts, plain=True),
        number_array(np.repeat(starts - firsts, counts) + np.arange(total)),
        exact,
        cut.view(_TIMESTAMP),
        number_array(np.repeat(accepted, counts)).view(_TIMESTAMP),
        number_array(np.repeat(sequences, counts)),
    ]


def resource_array(resources: Sequence[Pairs], counts: Ints) -> pa.DictionaryArray:
    """Return each batch's resource for each of its records, as a dictionary of maps."""
    distinct, codes = coded(list(map(tuple, resources)))
    return pa.DictionaryArray.from_arrays(
        number_array(np.repeat(codes, counts)), pa.array(distinct, TEXT_MAP)
    )


@dataclass(frozen=True, slots=True)
class _SmallBatch:
    envelope: Envelope
    columns: RawColumns
    accepted_at_ns: int


def small_blobs_table(
    kind: Kind, manifests: Sequence[AcceptedManifest], bodies: Sequence[bytes | None]
) -> pa.Table | None:
    """Return the records of small blobs; None if one is missing or cannot be used."""
    by_columns: dict[tuple[tuple[str, int], ...], list[_SmallBatch]] = {}
    for manifest, body in zip(manifests, bodies, strict=True):
        batch = _decode(kind, manifest, body)
        if batch is None:
            return None
        types = tuple([(name, one.type) for name, one in batch.columns.items()])
        by_columns.setdefault(types, []).append(batch)
    tables = [_table(kind, group) for group in by_columns.values()]
    found = [table for table in tables if table is not None]
    return pa.concat_tables(found) if len(found) == len(tables) else None


def _decode(kind: Kind, manifest: AcceptedManifest, body: bytes | None) -> _SmallBatch | None:
    if manifest.repeated:
        return None
    if body is None or hashlib.sha256(body).hexdigest() != manifest.frame_sha256:
        return None
    try:
        head = decode_head(body)
        columns = raw_columns(head, body)
    except (InvalidFrame, UnsupportedVersion, TooLarge):
        return None
    one = head.envelope
    named = (one.agent_id, one.boot_id, one.seq_start, one.seq_end, one.kind)
    wanted = (manifest.agent_id, manifest.boot_id, manifest.seq_start, manifest.seq_end, kind)
    if named != wanted or not states_times_of(manifest, one):
        return None
    return _SmallBatch(one, columns, manifest.accepted_at_unix_ns)


def _table(kind: Kind, batches: Sequence[_SmallBatch]) -> pa.Table | None:
    envelopes = [one.envelope for one in batches]
    counts = np.array([one.count for one in envelopes], dtype=np.int64)
    columns = join_columns_of(kind, [one.columns for one in batches], counts.tolist())
    if columns is None or not _are_spans(envelopes, columns.ts, counts):
        return None
    heads = [BatchHead(one.envelope, one.accepted_at_ns, 0) for one in batches]
    resources = [one.shown_resource for one in envelopes]
    arrays = [
        *head_arrays(heads, counts, columns.ts),
        *payload_arrays(columns, resources, counts.tolist()).values(),
        resource_array(resources, counts),
    ]
    return pa.Table.from_arrays(arrays, schema=_PLAIN_SCHEMAS[kind])


def _are_spans(envelopes: Sequence[Envelope], ts: Ints | None, counts: Ints) -> bool:
    """Return True if each envelope states the span of its times."""
    stated = [(one.min_ts_ns, one.max_ts_ns) for one in envelopes]
    if ts is None:
        return all(span == (None, None) for span in stated)
    firsts = np.cumsum(counts) - counts
    least, most = np.minimum.reduceat(ts, firsts), np.maximum.reduceat(ts, firsts)
    return stated == list(zip(least.tolist(), most.tolist(), strict=True))
