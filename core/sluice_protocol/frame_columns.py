"""The columns of each kind of record, and their way into and out of the bytes of a frame.

`COLUMNS` is the one table of them. A column that a later build adds is one more row: frames keep
their version, and a reader without the row refuses the frame by the name of the column.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from sluice_protocol.column_codings import (
    BYTES,
    COUNTS,
    DIFFERENCES,
    F64_TYPE,
    FLOATS,
    NAMES,
    TEXTS,
    TIMES,
    U8,
    ZSTD,
    ColumnBytes,
    ColumnForm,
    StoredColumn,
    decode_bytes,
    decode_counts,
    decode_floats,
    decode_names,
    decode_texts,
    decode_times,
    encode_counts,
    encode_names,
    encode_numbers,
    encode_texts,
    encode_times,
    load_column,
    offsets_of,
    store_column,
)
from sluice_protocol.columns import (
    FEW,
    AttributeColumns,
    Columns,
    EntryColumns,
    LogColumns,
    MetricColumns,
    check_columns,
)
from sluice_protocol.envelope import key_order
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.manifests import Kind

_ATTRIBUTES: Final = {"attrs": COUNTS, "attr_key": NAMES, "attr_val": TEXTS}
COLUMNS: Final[Mapping[Kind, Mapping[str, ColumnForm]]] = {
    "logs": {"ts": TIMES, "body": TEXTS, "severity": BYTES, **_ATTRIBUTES},
    "metrics": {"ts": TIMES, "name": NAMES, "value": FLOATS, "type": BYTES, **_ATTRIBUTES},
    "entries": {"key": TEXTS, "val": TEXTS, "ts": TIMES},
}
"""The form of each column, by kind and name."""
_KNOWN_CODINGS: Final = DIFFERENCES | ZSTD


class RawColumn(NamedTuple):
    """The bytes of a column before compression, and their layout."""

    type: int
    data: memoryview


RawColumns = Mapping[str, RawColumn]


def write_columns(
    columns: Mapping[str, ColumnBytes], *, compress: bool
) -> tuple[tuple[StoredColumn, ...], list[bytes]]:
    """Return the directory of columns, and their bytes as stored, in its order."""
    directory: list[StoredColumn] = []
    pieces: list[bytes] = []
    end = 0
    for name in _in_order(tuple(columns)):
        entry, stored = store_column(name, columns[name], end, compress=compress)
        directory.append(entry)
        pieces.append(stored)
        end += entry.length
    return tuple(directory), pieces


@lru_cache(maxsize=32)
def _in_order(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names, key=key_order))


def read_columns(
    kind: Kind, directory: tuple[StoredColumn, ...], body: memoryview
) -> dict[str, RawColumn]:
    """Return the columns of a frame by name, decompressed, with checksums and forms checked.

    Args:
        kind: The kind that the envelope names.
        directory: The directory of the frame.
        body: The bytes behind the envelope, all of them.

    Raises:
        InvalidFrame: The kind has no such column, or not in this type or coding; or the bytes do
            not match the entry.
    """
    forms = COLUMNS[kind]
    found: dict[str, RawColumn] = {}
    for entry in directory:
        form = forms.get(entry.name)
        if form is None:
            shown = ascii(entry.name[:40])[1:-1]
            raise InvalidFrame("columns", f"{kind} have no such column, column=`{shown}`")
        if entry.type not in form.types:
            known = ", ".join(map(str, form.types))
            raise InvalidFrame(entry.name, f"must be of type {known}, is of type {entry.type}")
        if entry.coding & ~_KNOWN_CODINGS or (
            bool(entry.coding & DIFFERENCES) != form.has_differences
        ):
            raise InvalidFrame(entry.name, f"cannot have the coding {entry.coding}")
        found[entry.name] = RawColumn(entry.type, load_column(entry, body))
    return found


def encode_columns(columns: Columns) -> dict[str, ColumnBytes]:
    """Return the bytes of columns that `check_columns` has accepted."""
    parts: dict[str, ColumnBytes] = {}
    if columns.ts is not None:
        parts["ts"] = encode_times(columns.ts)
    match columns:
        case LogColumns():
            parts["body"] = encode_texts(columns.body)
            if columns.severity is not None:
                parts["severity"] = encode_numbers(U8, columns.severity)
        case MetricColumns():
            parts["name"] = encode_names(columns.names, columns.name)
            parts["value"] = encode_numbers(F64_TYPE, columns.value)
            parts["type"] = encode_numbers(U8, columns.type)
        case EntryColumns():
            parts["key"] = encode_texts(columns.key)
            parts["val"] = encode_texts(columns.value)
            return parts
    attributes = columns.attributes
    if attributes is not None and len(attributes.keys):
        counts = np.subtract(attributes.offsets[1:], attributes.offsets[:-1])
        parts["attrs"] = encode_counts(counts)
        parts["attr_key"] = encode_names(attributes.names, attributes.keys)
        parts["attr_val"] = encode_texts(attributes.values)
    return parts


def decode_columns(kind: Kind, raw: RawColumns, count: int) -> Columns:
    """Decode and check the columns of a frame.

    Args:
        kind: The kind that the envelope names.
        raw: What `read_columns` returned.
        count: The number of records that the envelope names.

    Raises:
        InvalidFrame: They break a rule; the error names the column.
    """
    columns: Columns
    match kind:
        case "logs":
            columns = LogColumns(
                ts=decode_times(_data(raw, "ts"), "ts"),
                body=decode_texts(*_column(raw, "body"), count, "body"),
                severity=decode_bytes(raw["severity"].data, "severity")
                if "severity" in raw
                else None,
                attributes=_attributes(raw, count),
            )
        case "metrics":
            names, name = decode_names(*_column(raw, "name"), count, "name")
            columns = MetricColumns(
                ts=decode_times(_data(raw, "ts"), "ts"),
                names=names,
                name=name,
                value=decode_floats(_data(raw, "value"), "value"),
                type=decode_bytes(_data(raw, "type"), "type"),
                attributes=_attributes(raw, count),
            )
        case "entries":
            columns = EntryColumns(
                key=decode_texts(*_column(raw, "key"), count, "key"),
                value=decode_texts(*_column(raw, "val"), count, "val"),
                ts=decode_times(raw["ts"].data, "ts") if "ts" in raw else None,
            )
    check_columns(columns, count)
    return columns


def _column(raw: RawColumns, name: str) -> RawColumn:
    if name not in raw:
        raise InvalidFrame(name, "is missing")
    return raw[name]


def _data(raw: RawColumns, name: str) -> memoryview:
    return _column(raw, name).data


def _attributes(raw: RawColumns, count: int) -> AttributeColumns | None:
    if not any(name in raw for name in _ATTRIBUTES):
        return None
    counts = decode_counts(*_column(raw, "attrs"), "attrs")
    if len(counts) != count:
        raise InvalidFrame("attrs", f"must have count={count} values, has {len(counts)}")
    pairs = sum(counts.tolist()) if len(counts) <= FEW else int(counts.sum(dtype=np.int64))
    if not pairs:
        raise InvalidFrame("attrs", "has no attribute: leave the columns out")
    if pairs > len(_data(raw, "attr_key")):
        raise InvalidFrame("attrs", "adds up to more than the keys of attributes")
    names, keys = decode_names(*_column(raw, "attr_key"), pairs, "attr_key")
    return AttributeColumns(
        names=names,
        offsets=offsets_of(counts, pairs, "attrs"),
        keys=keys,
        values=decode_texts(*_column(raw, "attr_val"), pairs, "attr_val"),
    )
