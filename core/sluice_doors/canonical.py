"""The canonical form `c1` of decoded records, and its digest.

Two requests with the same records in the same order have the same canonical form, whatever their
compression, the order of keys in JSON, or the order of fields in protobuf. A change of this form,
or of a decoder's mapping, needs a new name: otherwise a request that is repeated across an upgrade
counts as new.
"""

import hashlib
from dataclasses import replace
from typing import Final

import cbor2
import numpy as np

from sluice_doors.decoded import DecodedRecords
from sluice_protocol.columns import (
    I32,
    I64,
    U32,
    AttributeColumns,
    LogColumns,
    MetricColumns,
    TextColumn,
    kind_of,
)
from sluice_protocol.frame_columns import encode_columns


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
    attributes = _sorted_attributes(columns.attributes)
    match columns:
        case LogColumns():
            severity = columns.severity
            stated = severity is not None and bool(severity.any())
            columns = replace(columns, severity=severity if stated else None, attributes=attributes)
        case MetricColumns():
            names, name = _sorted_names(columns.names, columns.name)
            columns = replace(columns, names=names, name=name, attributes=attributes)
    return replace(records, columns=columns, resource=tuple(sorted(records.resource)))


def content_digest(records: DecodedRecords) -> bytes:
    """Return the digest of the canonical form of records.

    The digest of equal requests is equal only if the records are `timed`.
    """
    return form_digest(canonical(records))


def form_digest(form: DecodedRecords) -> bytes:
    """Return the sha256 over the form's name, the kind, the resource and the columns.

    Args:
        form: What `canonical` returned.
    """
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
    return AttributeColumns(
        names=names,
        offsets=columns.offsets,
        keys=keys[order],
        values=take_texts(columns.values, order),
    )


def pair_order(offsets: I32, keys: U32, names_count: int) -> I64 | None:
    """Return the order that sorts each record's pairs by key; None if they are sorted."""
    record = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
    place = record * names_count + keys
    if bool((place[1:] > place[:-1]).all()):
        return None
    return np.argsort(place, kind="stable")
