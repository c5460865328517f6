"""Read OTLP logs in protobuf through Arrow, without a Python loop over records.

`ptars` parses the wire into Arrow arrays, and numpy maps these to columns. The result is the
same as that of `otlp_protobuf` and `otlp_logs`, which also decode every request that this road
leaves to them: one with text that is not UTF-8, or with a time that is out of range.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import ptars
import pyarrow as pa

from sluice_doors import otlp_wire
from sluice_doors.arrow_texts import (
    ArrowArray,
    NotPlain,
    check_text,
    decimal_texts,
    hex_texts,
    integers,
    lengths,
    list_offsets,
    text_of,
    value_texts,
)
from sluice_doors.decoded import DecodedRecords
from sluice_doors.otlp_attributes import (
    OWN,
    RESOURCE,
    SCOPE,
    resource_pairs,
    scope_pairs,
    shared_resource,
)
from sluice_doors.otlp_pieces import (
    CUT_BYTES,
    PIECE_BYTES,
    NotCut,
    cut_request,
    find_records,
)
from sluice_doors.otlp_protobuf import read_resource, read_resource_of_logs, read_scope
from sluice_doors.otlp_times import OBSERVED_KEY, TS_END
from sluice_doors.pair_sources import (
    Names,
    PairSource,
    field_source,
    joined_attributes,
    shared_source,
)
from sluice_doors.tally import Tally
from sluice_protocol.column_joins import join_columns
from sluice_protocol.columns import I64, SEVERITY_MAX, LogColumns
from sluice_protocol.envelope import Resource

_PANIC: Final = "PanicException"
"""What a defect of a Rust library raises; it is not an `Exception`."""


@cache
def _handler(name: str) -> ArrowArray:
    message = otlp_wire.message_type(name)
    return ptars.HandlerPool([message.file]).get_for_message(message)


def parse_request(name: str, body: bytes) -> ArrowArray:
    """Return the elements of a request's only list, as a struct array.

    Raises:
        NotPlain: The body cannot be parsed on this road.
    """
    try:
        return _handler(name).list_to_record_batch([body]).column(0).flatten()
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == _PANIC:
            raise NotPlain from error
        raise


def decode_logs(
    body: bytes, *, received_ns: int, cut_bytes: int = CUT_BYTES, piece_bytes: int = PIECE_BYTES
) -> DecodedRecords | None:
    """Return the records of a logs request; None if it has none.

    Args:
        body: The request.
        received_ns: The time of records that contain none.
        cut_bytes: Size of a request from which it is decoded in pieces.
        piece_bytes: About the size of a piece.

    Raises:
        NotPlain: The request has to be mapped record by record.
        BodyUnreadable: A nested value, a resource or a scope is not valid.
        BodyTooLarge: The records expand to more than the limits.
    """
    pieces: Iterable[bytes] = (body,)
    shared: Resource | None = None
    if len(body) >= cut_bytes:
        with suppress(NotCut):
            resources = find_records(body, piece_bytes=piece_bytes)
            shared = shared_resource(
                [resource_pairs(*read_resource_of_logs(one.fields)) for one in resources]
            )
            pieces = cut_request(body, resources, piece_bytes=piece_bytes)
    tally = Tally()
    found = [
        mapped
        for piece in pieces
        if (mapped := _mapped(piece, shared, tally, received_ns)) is not None
    ]
    if not found:
        return None
    return tally.decoded(join_columns([one.columns for one in found]), found[0].shared)


class _Mapped(NamedTuple):
    """The records of a request, and the pairs that all its resources have."""

    columns: LogColumns
    shared: Resource


def _mapped(body: bytes, shared: Resource | None, tally: Tally, received_ns: int) -> _Mapped | None:
    """Return the records of a request or a piece of one, of which `shared` is known."""
    scopes = _Scopes(parse_request(otlp_wire.LOGS_REQUEST, body), "scope_logs", "log_records")
    if not len(scopes.records):
        return None
    names = Names()
    ts, observed, stated = _times(scopes.records, received_ns)
    tally.timed = tally.timed and bool(stated.all())
    severity, severity_source = _severity(scopes.records, names)
    shared, outer = scopes.sources(names, shared)
    body_text = text_of(value_texts(scopes.records.field("body"), unset=b""))
    check_text(body_text)
    tally.add_sizes(0, len(body_text.data))
    fields = [*severity_source, *_fields(scopes.records, names)]
    if observed.any():
        texts = decimal_texts(
            scopes.records.field("observed_time_unix_nano").filter(pa.array(observed))
        )
        fields.append(field_source(names.number(OBSERVED_KEY), observed, texts))
    sources = [_own(scopes.records, names), *fields, *outer]
    columns = LogColumns(
        ts=ts,
        body=body_text,
        severity=severity,
        attributes=joined_attributes(sources, names, tally),
    )
    return _Mapped(columns, shared)


class _Scopes:
    """The records of a request, and the scope and resource of each.

    Attributes:
        records: The records of all scopes.
    """

    def __init__(self, resources: ArrowArray, scopes: str, records: str) -> None:
        self._resources = resources
        listed = resources.field(scopes)
        self._scopes = listed.flatten()
        self._resource_of_scope = np.repeat(
            np.arange(len(resources)), np.diff(list_offsets(listed))
        )
        of_scope = self._scopes.field(records)
        self._counts = np.diff(list_offsets(of_scope))
        self.records = of_scope.flatten()

    def sources(self, names: Names, shared: Resource | None) -> tuple[Resource, list[PairSource]]:
        """Return the shared resource, and the sources of scopes and of the rest of resources."""
        filled = np.flatnonzero(self._counts)
        owner = np.repeat(np.arange(len(filled)), self._counts[filled])
        of_scope = self._resource_of_scope[filled]
        resources = _rows(self._resources, "resource", of_scope, _resource_row)
        if shared is None:
            shared = shared_resource(resources)
        common = set(shared)
        rest = [
            {key: value for key, value in row.items() if (key, value) not in common}
            for row in resources
        ]
        scopes = _rows(self._scopes, "scope", filled, _scope_row)
        return shared, [
            shared_source(SCOPE, scopes, owner, names),
            shared_source(RESOURCE, rest, owner, names),
        ]


def _resource_row(data: bytes, schema_url: str) -> dict[str, str]:
    return resource_pairs(read_resource(data), schema_url)


def _scope_row(data: bytes, schema_url: str) -> dict[str, str]:
    return dict(scope_pairs(read_scope(data), schema_url))


def _rows(
    parents: ArrowArray, name: str, places: I64, read: Callable[[bytes, str], dict[str, str]]
) -> list[dict[str, str]]:
    """Return the pairs of each of these resources or scopes; equal bytes are read once."""
    # Each field separately: the structs contain all records.
    parts = parents.field(name).take(pa.array(places)).to_pylist()
    urls = parents.field("schema_url").take(pa.array(places)).to_pylist()
    known: dict[tuple[bytes, bytes], dict[str, str]] = {}
    found = []
    for part, url in zip(parts, urls, strict=True):
        key = (part or b"", url)
        if key not in known:
            known[key] = read(key[0], url.decode(errors="surrogateescape"))
        found.append(known[key])
    return found


def _times(
    records: ArrowArray, received_ns: int
) -> tuple[I64, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the times, where the observed time is an attribute, and where a time is set."""
    time = integers(records.field("time_unix_nano"))
    observed = integers(records.field("observed_time_unix_nano"))
    if int(time.max()) >= TS_END or int(observed.max()) >= TS_END:
        raise NotPlain
    ts = np.where(time != 0, time, observed)
    stated = ts != 0
    ts = np.where(stated, ts, np.uint64(received_ns)).astype(np.int64)
    return ts, (observed != 0) & (observed != ts.view(np.uint64)), stated


def _severity(
    records: ArrowArray, names: Names
) -> tuple[npt.NDArray[np.uint8] | None, list[PairSource]]:
    """Return the severity column, and the source of numbers that are out of its range."""
    found = integers(records.field("severity_number"))
    outside = (found < 0) | (found > SEVERITY_MAX)
    sources = []
    if outside.any():
        texts = decimal_texts(records.field("severity_number").filter(pa.array(outside)))
        sources.append(field_source(names.number("severity_number"), outside, texts))
    column = np.where(outside, 0, found).astype(np.uint8)
    return column if column.any() else None, sources


def _fields(records: ArrowArray, names: Names) -> list[PairSource]:
    found = []
    for name, key, convert in (
        ("severity_text", "severity_text", None),
        ("trace_id", "trace_id", hex_texts),
        ("span_id", "span_id", hex_texts),
        ("flags", "trace_flags", decimal_texts),
        ("event_name", "event_name", None),
        ("dropped_attributes_count", "dropped_attributes_count", decimal_texts),
    ):
        values = records.field(name)
        stated = integers(values) != 0 if convert is decimal_texts else lengths(values) != 0
        if stated.any():
            kept = values if stated.all() else values.filter(pa.array(stated))
            texts = kept if convert is None else convert(kept)
            found.append(field_source(names.number(key), stated, texts))
    return found


def _own(records: ArrowArray, names: Names) -> PairSource:
    listed = records.field("attributes")
    pairs = listed.flatten()
    if len(pairs) and integers(pairs.field("key_strindex")).any():
        raise NotPlain
    return PairSource(
        prefix=OWN,
        offsets=list_offsets(listed).astype(np.int64),
        keys=names.numbers_of(pairs.field("key")),
        values=value_texts(pairs.field("value")),
    )
