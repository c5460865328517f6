"""The payload of a frame: one CBOR map of typed columns, read and written without copies of values.

A decoder copies a column at most once, as a whole: an array that is aligned is used in place, any
other is copied in one piece.
"""

import itertools
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from sluice_protocol.cbor import (
    CborReader,
    encode_bytes_head,
    encode_map_head,
    encode_text,
    encode_texts,
    encode_typed_array_head,
    key_order,
    shown,
)
from sluice_protocol.columns import (
    SEVERITY_MAX,
    AttributeColumns,
    Columns,
    EntryColumns,
    LogColumns,
    MetricColumns,
    TextColumn,
    check_columns,
)
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.manifests import Kind
from sluice_protocol.payload_layout import BYTES, LAYOUTS, TAG_OF, TEXTS, PayloadLayout
from sluice_protocol.short_cbor import ShortValue, read_short_map

_USED_BY: Final = {"names": "name", "attr_names": "attr_key"}
"""The index that uses a list of names. It sorts before the list, so it bounds the list's length."""
_INDEX_BYTES: Final = 4
_TS_MIN: Final = -(2**63)
_TS_MAX: Final = 2**63 - 1
_FEW: Final = 64
_PLAIN_LOGS: Final = frozenset({"ts", "body", "severity"})
_MAPS_OF_PLAIN_LOGS: Final = (0xA3, 0xA4)
"""The first byte of a map of three or four columns."""

_Part = npt.NDArray[np.generic] | bytes | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Raw:
    """The columns of one payload by name, as views of the payload."""

    layout: PayloadLayout
    views: Mapping[str, memoryview]
    texts: Mapping[str, tuple[str, ...]]

    def __contains__(self, name: str) -> bool:
        return name in self.views or name in self.texts

    def view(self, name: str) -> memoryview:
        if name not in self.views:
            raise InvalidFrame(name, "is missing")
        return self.views[name]

    def names(self, name: str) -> tuple[str, ...]:
        if name not in self.texts:
            raise InvalidFrame(name, "is missing")
        return self.texts[name]

    def array(self, name: str, dtype: str) -> npt.NDArray[np.generic]:
        view = self.view(name)
        if len(view) % np.dtype(dtype).itemsize:
            raise InvalidFrame(name, "is not a whole number of values")
        found = np.frombuffer(view, dtype)
        return found if found.flags.aligned else found.copy()

    def i64(self, name: str) -> npt.NDArray[np.int64]:
        return self.array(name, "<i8").view(np.int64)

    def i32(self, name: str) -> npt.NDArray[np.int32]:
        return self.array(name, "<i4").view(np.int32)

    def u32(self, name: str) -> npt.NDArray[np.uint32]:
        return self.array(name, "<u4").view(np.uint32)

    def u8(self, name: str) -> npt.NDArray[np.uint8]:
        return self.array(name, "<u1").view(np.uint8)

    def f64(self, name: str) -> npt.NDArray[np.float64]:
        return self.array(name, "<f8").view(np.float64)

    def times(self) -> npt.NDArray[np.int64]:
        found = self.i64("ts")
        # The sum wraps around as the differences do, so every time has exactly one encoding.
        return np.cumsum(found) if self.layout.has_differences else found

    def offsets(self, name: str, count: int, end: int) -> npt.NDArray[np.int32]:
        """Return count + 1 offsets into values of length `end`; those of version 1 unchecked."""
        ends = self.layout.ends_name(name)
        if not self.layout.has_differences:
            return self.i32(ends)
        lengths = self.u32(ends)
        if len(lengths) != count:
            raise InvalidFrame(ends, f"must have {count} lengths, has {len(lengths)}")
        if int(lengths.sum(dtype=np.int64)) != end:
            raise InvalidFrame(ends, f"does not add up to {end}")
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(lengths, dtype=np.int32, out=offsets[1:])
        return offsets

    def strings(self, name: str, count: int) -> TextColumn:
        data = bytes(self.view(name))
        return TextColumn(offsets=self.offsets(name, count, len(data)), data=data)


def decode_payload(
    kind: Kind,
    payload: memoryview,
    count: int,
    layout: PayloadLayout,
    names_max: int = sys.maxsize,
) -> Columns:
    """Decode and check the columns of a payload.

    Args:
        kind: The kind that the envelope names.
        payload: The payload after decompression.
        count: The number of records that the envelope names.
        layout: The layout of the frame's version.
        names_max: The number of names in a list up to which it is read, at least
            `SHORT_TEXTS_MAX`.

    Raises:
        InvalidFrame: The payload breaks a rule; the error names the column.
        TooManyTexts: A list has more names, and nothing was decided.
    """
    raw = _read_short(kind, payload, layout) or _read(kind, payload, layout, names_max)
    columns: Columns
    match kind:
        case "logs":
            columns = _logs(raw, count)
        case "metrics":
            columns = _metrics(raw, count)
        case "entries":
            columns = _entries(raw, count)
    try:
        check_columns(columns, count)
    except InvalidFrame as error:
        if layout.has_differences and error.field.endswith("_off"):
            name = layout.ends_name(error.field.removesuffix("_off"))
            raise InvalidFrame(name, error.reason) from error
        raise
    return columns


def read_short_payload(
    kind: Kind, payload: memoryview, layout: PayloadLayout
) -> dict[str, ShortValue] | None:
    """Return the columns of a small payload by name, unchecked; None if `_read` has to decide.

    Args:
        kind: The kind that the envelope names.
        payload: The payload after decompression.
        layout: The layout of the frame's version.
    """
    found = read_short_map(payload, layout.keys[kind])
    if found is None:
        return None
    for names, index in _USED_BY.items():
        if names in found:
            # The index bounds the number of names, as in `_read`.
            listed = cast("tuple[str, ...]", found[names])
            if len(listed) > len(cast("memoryview", found.get(index, b""))) // _INDEX_BYTES:
                return None
    return found


def span_of_short_logs(
    payload: memoryview, count: int, layout: PayloadLayout
) -> tuple[int, int] | None:
    """Return the smallest and largest `ts` of a few logs without attributes, fully checked.

    It returns None where `decode_payload` has to decide: for other columns, for text that is not
    ASCII, and if a rule may be broken. For a few records numpy costs more than these checks.

    Args:
        payload: The payload after decompression.
        count: The number of records that the envelope names.
        layout: The layout of the frame's version.
    """
    is_plain = 0 < count <= _FEW and len(payload) > 0 and payload[0] in _MAPS_OF_PLAIN_LOGS
    found = read_short_payload("logs", payload, layout) if is_plain else None
    if found is None:
        return None
    ends = found.pop(layout.ends_name("body"), None)
    if not _PLAIN_LOGS.issuperset(found):
        return None
    ts, body = found.get("ts"), found.get("body")
    if not (
        isinstance(ts, memoryview)
        and isinstance(ends, memoryview)
        and isinstance(body, memoryview)
        and len(ts) == 8 * count
        and bytes(body).isascii()
        and _divides(ends, count, len(body), layout)
    ):
        return None
    severity = found.get("severity")
    if isinstance(severity, memoryview) and (
        len(severity) != count or max(severity) > SEVERITY_MAX
    ):
        return None
    times = struct.unpack(f"<{count}q", ts)
    if layout.has_differences:
        times = tuple(itertools.accumulate(times))
    least, most = min(times), max(times)
    return (least, most) if least >= _TS_MIN and most <= _TS_MAX else None


def _divides(ends: memoryview, count: int, end: int, layout: PayloadLayout) -> bool:
    """Return True if offsets or lengths divide a column of `end` bytes into `count` strings."""
    if layout.has_differences:
        return len(ends) == _INDEX_BYTES * count and sum(struct.unpack(f"<{count}I", ends)) == end
    if len(ends) != _INDEX_BYTES * (count + 1):
        return False
    offsets = struct.unpack(f"<{count + 1}i", ends)
    return offsets[0] == 0 and offsets[-1] == end and list(offsets) == sorted(offsets)


def _read_short(kind: Kind, payload: memoryview, layout: PayloadLayout) -> _Raw | None:
    found = read_short_payload(kind, payload, layout)
    if found is None:
        return None
    return _Raw(
        layout,
        {name: one for name, one in found.items() if isinstance(one, memoryview)},
        {name: cast("tuple[str, ...]", found[name]) for name in _USED_BY if name in found},
    )


def _read(kind: Kind, payload: memoryview, layout: PayloadLayout, names_max: int) -> _Raw:
    forms = layout.forms[kind]
    reader = CborReader(payload, "payload", texts_max=names_max)
    views: dict[str, memoryview] = {}
    texts: dict[str, tuple[str, ...]] = {}
    name: str | None = None
    for _ in range(reader.map_size(len(forms))):
        reader.field = "payload"
        name = reader.key(name)
        if name not in forms:
            raise reader.refuse(f"{kind} have no such column, column=`{shown(name)}`")
        reader.field = name
        form = forms[name]
        if form == TEXTS:
            uses = views.get(_USED_BY[name], memoryview(b""))
            texts[name] = reader.texts(len(uses) // _INDEX_BYTES)
        elif form == BYTES:
            views[name] = reader.bytes_view()
        else:
            views[name] = reader.typed_array(TAG_OF[form])
    reader.field = "payload"
    reader.end()
    return _Raw(layout, views, texts)


def _logs(raw: _Raw, count: int) -> LogColumns:
    return LogColumns(
        ts=raw.times(),
        body=raw.strings("body", count),
        severity=raw.u8("severity") if "severity" in raw else None,
        attributes=_attributes(raw, count),
    )


def _metrics(raw: _Raw, count: int) -> MetricColumns:
    return MetricColumns(
        ts=raw.times(),
        names=raw.names("names"),
        name=raw.u32("name"),
        value=raw.f64("value"),
        type=raw.u8("type"),
        attributes=_attributes(raw, count),
    )


def _entries(raw: _Raw, count: int) -> EntryColumns:
    return EntryColumns(
        key=raw.strings("key", count),
        value=raw.strings("val", count),
        ts=raw.times() if "ts" in raw else None,
    )


def _attributes(raw: _Raw, count: int) -> AttributeColumns | None:
    if not any(name.startswith("attr_") for name in (*raw.views, *raw.texts)):
        return None
    names, keys = raw.names("attr_names"), raw.u32("attr_key")
    return AttributeColumns(
        names=names,
        offsets=raw.offsets("attr", count, len(keys)),
        keys=keys,
        values=raw.strings("attr_val", len(keys)),
    )


def encode_payload(columns: Columns, layout: PayloadLayout = LAYOUTS[1]) -> bytes:
    """Return the canonical encoding of columns that `check_columns` has accepted."""
    parts = _parts(columns, layout)
    pieces: list[bytes | memoryview] = [encode_map_head(len(parts))]
    for name, encoded in _in_order(tuple(parts)):
        pieces.append(encoded)
        pieces.extend(_encode_part(parts[name]))
    return b"".join(pieces)


@lru_cache(maxsize=32)
def _in_order(names: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    """Return the names of columns in the order of a payload, with their encodings."""
    return tuple((name, encode_text(name)) for name in sorted(names, key=key_order))


def _parts(columns: Columns, layout: PayloadLayout) -> dict[str, _Part]:
    parts: dict[str, _Part] = {}
    if columns.ts is not None:
        parts["ts"] = _differences(columns.ts) if layout.has_differences else columns.ts
    match columns:
        case LogColumns():
            parts |= _string_parts("body", columns.body, layout)
            if columns.severity is not None:
                parts["severity"] = columns.severity
            return parts | _attribute_parts(columns.attributes, layout)
        case MetricColumns():
            parts |= {
                "names": columns.names,
                "name": columns.name,
                "value": columns.value,
                "type": columns.type,
            }
            return parts | _attribute_parts(columns.attributes, layout)
        case EntryColumns():
            parts |= _string_parts("key", columns.key, layout)
            return parts | _string_parts("val", columns.value, layout)


def _differences(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    found = values.copy()
    np.subtract(values[1:], values[:-1], out=found[1:])
    return found


def _ends(offsets: npt.NDArray[np.int32], layout: PayloadLayout) -> npt.NDArray[np.generic]:
    if layout.has_differences:
        return np.subtract(offsets[1:], offsets[:-1]).view(np.uint32)
    return offsets


def _string_parts(name: str, column: TextColumn, layout: PayloadLayout) -> dict[str, _Part]:
    return {layout.ends_name(name): _ends(column.offsets, layout), name: column.data}


def _attribute_parts(columns: AttributeColumns | None, layout: PayloadLayout) -> dict[str, _Part]:
    if columns is None:
        return {}
    return {
        "attr_names": columns.names,
        layout.ends_name("attr"): _ends(columns.offsets, layout),
        "attr_key": columns.keys,
        **_string_parts("attr_val", columns.values, layout),
    }


def _encode_part(part: _Part) -> tuple[bytes | memoryview, ...]:
    match part:
        case tuple():
            return (encode_texts(part),)
        case bytes():
            return encode_bytes_head(len(part)), part
        case _:
            little = np.ascontiguousarray(part, part.dtype.newbyteorder("<"))
            tag = TAG_OF[f"<{little.dtype.kind}{little.dtype.itemsize}"]
            return encode_typed_array_head(tag, little.nbytes), little.data
