"""Requests in protobuf as Arrow arrays: the parser, and the scope and resource of each record.

`ptars` parses the wire into Arrow arrays. Both kinds of OTLP requests have the same fields above
their records, with other names.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import ptars
import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from sluice_doors.arrow.pairs import Names, PairSource, shared_source
from sluice_doors.arrow.pieces import NotCut, cut_request, find_records
from sluice_doors.arrow.texts import (
    ArrowArray,
    NotPlain,
    integers,
    list_offsets,
    value_kinds,
    value_texts,
)
from sluice_doors.attributes import (
    OWN,
    RESOURCE,
    SCOPE,
    resource_pairs,
    scope_pairs,
    shared_resource,
)
from sluice_doors.decoded import DecodedRecords, Tally
from sluice_doors.otlp.protobuf import read_resource, read_resource_of_group, read_scope
from sluice_protocol.columns import I64, SignalColumns, join_columns
from sluice_protocol.frame import Resource

_FEW: Final = 16
_PANIC: Final = "PanicException"
"""What a defect of a Rust library raises; it is not an `Exception`."""


@cache
def _handler(message: Descriptor) -> ArrowArray:
    return ptars.HandlerPool([message.file]).get_for_message(message)


def parse_list(message: Descriptor, body: bytes) -> ArrowArray:
    """Return the elements of the first list of a request, as a struct array."""
    return _parse(message, body, 1)[0]


def parse_lists(message: Descriptor, body: bytes) -> list[ArrowArray]:
    """Return the elements of each list of a request that has no other fields."""
    return _parse(message, body, None)


def _parse(message: Descriptor, body: bytes, count: int | None) -> list[ArrowArray]:
    """Return the elements of the first lists of a request.

    `ptars` follows groups inside groups without a limit, and overflows the stack of the process.
    The parser of `protobuf` has a limit, and takes a twentieth of the time of the whole decoder.
    """
    try:
        GetMessageClass(message).FromString(body)
        parsed = _handler(message).list_to_record_batch([body])
        return [column.flatten() for column in parsed.columns[:count]]
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == _PANIC:
            raise NotPlain from error
        raise


class Pieces(NamedTuple):
    """A request in pieces; `shared` pairs are in all resources, None if there is one piece."""

    bodies: Iterable[bytes]
    shared: Resource | None


def pieces_of(body: bytes, *, cut_bytes: int, piece_bytes: int) -> Pieces:
    """Return a request of OTLP in pieces if it has at least `cut_bytes` and a usual form."""
    if len(body) >= cut_bytes:
        with suppress(NotCut):
            resources = find_records(body, piece_bytes=piece_bytes)
            shared = shared_resource(
                [resource_pairs(*read_resource_of_group(one.fields)) for one in resources]
            )
            return Pieces(cut_request(body, resources, piece_bytes=piece_bytes), shared)
    return Pieces((body,), None)


class MappedRecords(NamedTuple):
    """The records of a request or a piece of one, and the pairs that all resources have."""

    columns: SignalColumns
    shared: Resource


PieceMapper = Callable[[bytes, Resource | None, Tally], MappedRecords | None]
"""Maps a piece whose shared pairs may be known; None if it has no records."""


def decode_pieces(pieces: Pieces, mapped: PieceMapper) -> DecodedRecords | None:
    """Return the records of all pieces; None if there are none."""
    tally = Tally()
    found = [
        one for body in pieces.bodies if (one := mapped(body, pieces.shared, tally)) is not None
    ]
    if not found:
        return None
    return tally.decoded(join_columns([one.columns for one in found]), found[0].shared)


class OuterPairs(NamedTuple):
    """The pairs of the scopes and resources around records.

    `scopes` has the pairs of each scope with records, and `rest` the other pairs of its resource.
    `owner` is the scope of each record, as a place in both.
    """

    shared: Resource
    scopes: list[dict[str, str]]
    rest: list[dict[str, str]]
    owner: I64

    def sources(self, names: Names, owner: I64 | None = None) -> list[PairSource]:
        """Return the sources of scopes and of the rest of resources; by default for each record."""
        chosen = self.owner if owner is None else owner
        return [
            shared_source(SCOPE, self.scopes, chosen, names),
            shared_source(RESOURCE, self.rest, chosen, names),
        ]


class ScopedRecords:
    """The records of a request, and the scope and resource of each."""

    def __init__(self, resources: ArrowArray, scopes: str, records: str) -> None:
        """Bind the resources of a request; `scopes` and `records` are names of fields."""
        self._resources = resources
        listed = resources.field(scopes)
        self._scopes = listed.flatten()
        self._resource_of_scope = np.repeat(
            np.arange(len(resources)), np.diff(list_offsets(listed))
        )
        of_scope = self._scopes.field(records)
        self._counts = np.diff(list_offsets(of_scope))
        self.records = of_scope.flatten()

    def outer(
        self, shared: Resource | None, used: npt.NDArray[np.bool_] | None = None
    ) -> OuterPairs:
        """Return what scopes and resources add to the `used` records, or to all of them."""
        counts = self._counts
        if used is not None:
            of_record = np.repeat(np.arange(len(counts)), counts)
            counts = np.bincount(of_record[used], minlength=len(counts))
        filled = np.flatnonzero(counts)
        owner = np.repeat(np.arange(len(filled)), counts[filled])
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
        return OuterPairs(shared, scopes, rest, owner)


def _resource_row(data: bytes, schema_url: str) -> dict[str, str]:
    return resource_pairs(read_resource(data), schema_url)


def _scope_row(data: bytes, schema_url: str) -> dict[str, str]:
    return dict(scope_pairs(read_scope(data), schema_url))


def _rows(
    parents: ArrowArray, name: str, places: I64, read: Callable[[bytes, str], dict[str, str]]
) -> list[dict[str, str]]:
    """Return the pairs of each of these resources or scopes; equal bytes are read once."""
    # Each field separately: the structs contain all records.
    parts, urls = (_values_at(parents.field(field), places) for field in (name, "schema_url"))
    known: dict[tuple[bytes, bytes], dict[str, str]] = {}
    found = []
    for part, url in zip(parts, urls, strict=True):
        key = (part or b"", url)
        if key not in known:
            known[key] = read(key[0], url.decode(errors="surrogateescape"))
        found.append(known[key])
    return found


def _values_at(values: ArrowArray, places: I64) -> list[Any]:
    """Return some values; few of them one by one, because `take` needs as long as for many."""
    if len(places) <= _FEW:
        return [values[place].as_py() for place in places.tolist()]
    taken: list[Any] = values.take(pa.array(places)).to_pylist()
    return taken


def own_pairs(listed: ArrowArray, names: Names, owner: I64 | None = None) -> PairSource:
    """Return the attributes of records or points as a source.

    `owner` is the owner of each row, and the number of owners for a row without attributes; None if
    row `i` has those of owner `i`.
    """
    pairs = listed.flatten()
    if len(pairs) and integers(pairs.field("key_strindex")).any():
        raise NotPlain
    offsets = list_offsets(listed).astype(np.int64)
    return PairSource(
        prefix=OWN,
        offsets=offsets if owner is None else np.append(offsets, offsets[-1]),
        keys=names.numbers_of(pairs.field("key")),
        values=value_texts(pairs.field("value")),
        types=value_kinds(pairs.field("value")),
        owner=owner,
    )
