"""What decoders return, count and raise, and the canonical form `c1` of decoded records.

Two requests with the same records in the same order have the same canonical form, whatever their
compression, the order of keys in JSON, or the order of fields in protobuf. A change of this form,
or of a decoder's mapping, needs a new name: otherwise a request that is repeated across an upgrade
counts as new.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Final

import cbor2
import numpy as np

from sluice_protocol.column_codings import encode_columns
from sluice_protocol.columns import (
    I32,
    I64,
    U32,
    AttributeColumns,
    ColumnValues,
    NameColumn,
    SignalColumns,
    TextColumn,
    kind_of,
    take_pairs,
)
from sluice_protocol.errors import ErrorCode, SluiceError
from sluice_protocol.fields import Field
from sluice_protocol.frame import Resource

ERROR_ATTRIBUTE: Final = "sluice.error"
"""The attribute of a record that was kept raw; its value is the reason."""
REASON_CHARACTERS_MAX: Final = 200
"""Limit of the reason, which may quote what was sent."""
EXPANDED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Limit of the text of one decoded request. Shared attributes and histogram buckets are repeated
for each record, so a small request can describe a large one.
"""
PAIRS_MAX: Final = 4 * 1024 * 1024
"""Limit of the attributes of one decoded request, over all records: a million takes a quarter of a
second of processor time where they are repeated for each record or bucket.
"""

RECORDS_MAX: Final = 1024 * 1024
"""Limit of the records of one request; a record may be as short as one byte."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedRecords:
    """The records of one kind of one request, at least one.

    `resource` has the pairs that all records have in common, sorted by key. Unless the records are
    `timed`, some have the time of receipt, so a repetition of the request has other columns.
    `unreadable` of them were kept raw, with the attribute `sluice.error`. The columns are searched
    for what to sort unless the decoder made the canonical form (`is_canonical`).
    """

    columns: SignalColumns
    resource: Resource
    timed: bool
    unreadable: int
    is_canonical: bool = False


class BodyUnreadable(SluiceError):
    """No record of the body can be read; the same bytes can never be accepted."""

    code = ErrorCode.BAD_REQUEST

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BodyTooLarge(SluiceError):
    """The body, or what it expands to, exceeds a limit."""

    code = ErrorCode.TOO_LARGE

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def check_count(records: Sized) -> None:
    """Check the number of records while they are collected."""
    if len(records) > RECORDS_MAX:
        raise BodyTooLarge(
            f"body is too large: it has more than {RECORDS_MAX} records; send smaller requests"
        )


def check_lines(body: bytes, *, per_record: int = 1) -> None:
    """Check the number of lines, `per_record` for a record, before an object is made for each."""
    if body.count(b"\n") > RECORDS_MAX * per_record:
        raise BodyTooLarge(
            f"body is too large: it has more than {RECORDS_MAX * per_record} lines; send smaller"
            " requests"
        )


@dataclass(slots=True)
class Tally:
    """The counts of one request.

    `timed` is True while every record contains its own time. `foreign` counts messages of protobuf
    of another kind. `text_bytes` is approximate.
    """

    timed: bool = True
    unreadable: int = 0
    foreign: int = 0
    pairs: int = 0
    text_bytes: int = 0

    def add(self, attributes: Mapping[str, str], text: str = "", *, records: int = 1) -> None:
        """Count records with these attributes."""
        size = len(text) + sum(map(len, attributes.values()))
        self.add_sizes(len(attributes) * records, size * records)

    def add_sizes(self, pairs: int, text_bytes: int) -> None:
        """Count attributes and text."""
        self.pairs += pairs
        self.text_bytes += text_bytes
        self._check(self.pairs, self.text_bytes)

    def check_repeated(self, counted: Iterable[tuple[int, Sequence[tuple[str, str]]]]) -> None:
        """Check attributes that many records will have, before any of the records is made.

        The records are counted when they are made. Until then a small body could take seconds.
        `counted` has numbers of records, and the pairs that each of them will have among others.
        """
        pairs, text_bytes = self.pairs, self.text_bytes
        for records, repeated in counted:
            pairs += records * len(repeated)
            text_bytes += records * sum(len(value) for _, value in repeated)
        self._check(pairs, text_bytes)

    @staticmethod
    def _check(pairs: int, text_bytes: int) -> None:
        if pairs > PAIRS_MAX or text_bytes > EXPANDED_BYTES_MAX:
            raise BodyTooLarge(
                "body is too large: its records expand to more than"
                f" {PAIRS_MAX} attributes or {EXPANDED_BYTES_MAX} bytes; send smaller requests"
            )

    def decoded(
        self, columns: SignalColumns, resource: Resource = (), *, is_canonical: bool = False
    ) -> DecodedRecords:
        """Return the records that were counted."""
        if self.foreign and self.foreign == len(columns):
            raise BodyUnreadable(
                "cannot read body: it is a message of protobuf of another kind than this path"
                " expects; check the path, and the version in Content-Type"
            )
        return DecodedRecords(
            columns=columns,
            resource=resource,
            timed=self.timed,
            unreadable=self.unreadable,
            is_canonical=is_canonical,
        )


def take_texts(column: TextColumn, places: I64) -> TextColumn:
    """Return the strings at these places, in this order."""
    starts = column.offsets[:-1][places]
    ends = column.offsets[1:][places]
    offsets = np.zeros(len(places) + 1, np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    view = memoryview(column.data)
    pieces = [view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return TextColumn(offsets=offsets, data=b"".join(pieces))


CANONICAL_FORM: Final = "c1"


def canonical(records: DecodedRecords) -> DecodedRecords:
    """Return the same records with sorted names, attributes and resource, in the same order."""
    if records.is_canonical:
        return records
    columns = records.columns
    values: dict[str, Any] = {
        field.name: _canonical(field, getattr(columns, field.name))
        for field in columns.kind.own_fields
    }
    columns = replace(columns, attributes=_sorted_attributes(columns.attributes), **values)
    return replace(records, columns=columns, resource=tuple(sorted(records.resource)))


def _canonical(field: Field, values: ColumnValues | None) -> ColumnValues | None:
    """Return the values of a field with sorted names; None for an optional one without any."""
    if isinstance(values, NameColumn):
        names, indexes = _sorted_names(values.names, values.indexes)
        return NameColumn(names=names, indexes=indexes)
    is_empty = field.is_optional and (
        not values.data if isinstance(values, TextColumn) else values is None or not values.any()
    )
    return None if is_empty else values


def content_digest(records: DecodedRecords) -> bytes:
    """Return the digest of the canonical form; equal for equal requests only if `timed`."""
    return form_digest(canonical(records))


def form_digest(form: DecodedRecords) -> bytes:
    """Return the sha256 over the name, kind, resource and columns of a canonical form."""
    columns = encode_columns(form.columns)
    directory = [(name, one.type, one.coding, len(one.data)) for name, one in columns.items()]
    head = (CANONICAL_FORM, kind_of(form.columns), form.resource, directory)
    digest = hashlib.sha256(cbor2.dumps(head))
    for one in columns.values():
        digest.update(one.data)
    return digest.digest()


def _sorted_names(names: tuple[str, ...], index: U32) -> tuple[tuple[str, ...], U32]:
    order = sorted(range(len(names)), key=names.__getitem__)
    if order == list(range(len(names))):
        return names, index
    rank = np.empty(len(names), np.uint32)
    rank[order] = np.arange(len(names), dtype=np.uint32)
    return tuple(names[place] for place in order), rank[index]


def _sorted_attributes(columns: AttributeColumns | None) -> AttributeColumns | None:
    if columns is None or not len(columns.keys):
        return None
    names, keys = _sorted_names(columns.names, columns.keys)
    order = pair_order(columns.offsets, keys, len(names))
    if order is None:
        return replace(columns, names=names, keys=keys)
    columns = replace(columns, names=names, keys=keys)
    return take_pairs(columns, columns.offsets, order, take_texts(columns.values, order))


def pair_order(offsets: I32, keys: U32, names_count: int) -> I64 | None:
    """Return the order that sorts each record's pairs by key; None if they are sorted."""
    record = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
    place = record * names_count + keys
    if bool((place[1:] > place[:-1]).all()):
        return None
    return np.argsort(place, kind="stable")
