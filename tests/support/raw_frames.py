"""Frames from another encoder (cbor2, struct, zlib), so that any rule can be broken on purpose."""

import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import cbor2
import zstandard

U8, U16, U32, I64, F64, TEXT_U8, TEXT_U16, TEXT_U32, NAMES_U8, NAMES_U16, NAMES_U32 = range(1, 12)
DIFFERENCES, ZSTD = 1, 2
_CODES = {U8: "B", U16: "H", U32: "I", I64: "q", F64: "d"}
_WIDTHS = {
    TEXT_U8: "B",
    TEXT_U16: "H",
    TEXT_U32: "I",
    NAMES_U8: "B",
    NAMES_U16: "H",
    NAMES_U32: "I",
}
ENVELOPE = (
    *("agent_id", "boot_id", "seq_start", "seq_end", "count", "kind", "min_ts", "max_ts"),
    *("resource", "columns"),
)


class Raw(NamedTuple):
    """The bytes of a column, its type, and what was done to the values."""

    type: int
    data: bytes
    coding: int = 0


def numbers(kind: int, *values: float) -> Raw:
    return Raw(kind, struct.pack(f"<{len(values)}{_CODES[kind]}", *values))


def steps(*values: int) -> Raw:
    return Raw(I64, struct.pack(f"<{len(values)}q", *values), DIFFERENCES)


def texts(*values: bytes, kind: int = TEXT_U8) -> Raw:
    lengths = struct.pack(f"<{len(values)}{_WIDTHS[kind]}", *map(len, values))
    return Raw(kind, lengths + b"".join(values))


def names(indexes: tuple[int, ...], *values: bytes, kind: int = NAMES_U8) -> Raw:
    code = _WIDTHS[kind]
    head = struct.pack(f"<{len(indexes)}{code}", *indexes)
    return Raw(
        kind, head + struct.pack(f"<{len(values)}{code}", *map(len, values)) + b"".join(values)
    )


Columns = dict[str, Raw]


def envelope(**changes: object) -> dict[str, object]:
    """Return a valid envelope of two logs, without its directory."""
    good: dict[str, object] = {
        "agent_id": "a",
        "boot_id": "b",
        "seq_start": 5,
        "seq_end": 6,
        "count": 2,
        "kind": "logs",
        "min_ts": 10,
        "max_ts": 20,
        "resource": {},
    }
    assert changes.keys() <= good.keys()
    return good | changes


def attributes() -> Columns:
    """Return attribute columns for two records: two pairs and none."""
    return {
        "attrs": numbers(U8, 2, 0),
        "attr_key": names((0, 1), b"k", b"l"),
        "attr_val": texts(b"v", b"w"),
    }


def logs(**changes: Raw | None) -> Columns:
    good = {
        "ts": steps(10, 10),
        "body": texts("ä".encode(), "ö".encode()),
        "severity": numbers(U8, 0, 24),
        **attributes(),
    }
    return _changed(good, changes)


def metrics(**changes: Raw | None) -> Columns:
    good = {
        "ts": steps(10, 10),
        "name": names((1, 0), b"m", b"n"),
        "value": numbers(F64, 0.5, 2),
        "type": numbers(U8, 0, 2),
    }
    return _changed(good, changes)


def entries(**changes: Raw | None) -> Columns:
    good = {"ts": steps(10, 10), "key": texts(b"\xff", b""), "val": texts(b"", b"\x80\x00")}
    return _changed(good, changes)


def _changed(good: Columns, changes: Mapping[str, Raw | None]) -> Columns:
    return {name: one for name, one in (good | dict(changes)).items() if one is not None}


def entry(name: str, column: Raw, offset: int, stored: bytes) -> list[object]:
    """Return the items of one column in the directory."""
    packed = len(column.data) if column.coding & ZSTD else 0
    checksum = struct.pack("<I", zlib.crc32(stored))
    return [name, column.type, column.coding, offset, len(stored), checksum, packed]


def directory(
    columns: Columns, *, compress: bool = False, stored: Mapping[str, bytes] | None = None
) -> tuple[list[object], bytes]:
    """Return a directory and the bytes behind the envelope.

    Args:
        columns: The columns.
        compress: Store each as zstd.
        stored: Stored bytes instead of those of a column.
    """
    items: list[object] = []
    body = b""
    for name in sorted(columns, key=lambda one: (len(one.encode()), one.encode())):
        column = columns[name]
        if compress:
            column = column._replace(coding=column.coding | ZSTD)
        is_packed = bool(column.coding & ZSTD)
        kept = zstandard.ZstdCompressor().compress(column.data) if is_packed else column.data
        kept = (stored or {}).get(name, kept)
        items += entry(name, column, len(body), kept)
        body += kept
    return items, body


def encoded(head: Mapping[str, object], items: object) -> bytes:
    """Return the encoding of an envelope with this directory."""
    found = {**head, "columns": items}
    resource = found["resource"]
    if isinstance(resource, dict):
        order = sorted(resource.items(), key=lambda pair: cbor2.dumps(pair[0]))
        found["resource"] = dict(order)
    return cbor2.dumps([found[name] for name in ENVELOPE])


def assembled(head: bytes, body: bytes, **header: int | bytes) -> bytes:
    """Return a frame of an encoded envelope and what follows it; `header` overrides fields."""
    fields: dict[str, object] = {
        "magic": b"LMB1",
        "frame_version": 3,
        "envelope_bytes": len(head),
    } | header
    return struct.pack("<4sHH", *fields.values()) + head + body


def frame(
    head: Mapping[str, object],
    columns: Columns,
    *,
    compress: bool = False,
    stored: Mapping[str, bytes] | None = None,
    **header: int | bytes,
) -> bytes:
    """Return a frame of these parts; `header` overrides fields of the header."""
    items, body = directory(columns, compress=compress, stored=stored)
    return assembled(encoded(head, items), body, **header)
