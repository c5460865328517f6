"""The payload of a frame: one CBOR map of typed columns, read and written without copies of values.

A decoder copies a column at most once, as a whole: an array that is aligned is used in place, any
other is copied in one piece.
"""

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
from sluice_protocol.short_cbor import (
    ShortForm,
    ShortKey,
    ShortValue,
    read_short_map,
    short_keys,
)

_TAG_OF: Final = {"<u1": 64, "<u4": 70, "<i4": 78, "<i8": 79, "<f8": 86}
"""RFC 8746 tags of the little-endian arrays that version 1 defines."""
_BYTES: Final = "bytes"
_TEXTS: Final = "texts"
_ATTRIBUTE_FORMS: Final = {
    "attr_names": _TEXTS,
    "attr_off": "<i4",
    "attr_key": "<u4",
    "attr_val_off": "<i4",
    "attr_val": _BYTES,
}
_FORMS: Final[Mapping[Kind, Mapping[str, str]]] = {
    "logs": {"ts": "<i8", "body_off": "<i4", "body": _BYTES, "severity": "<u1"} | _ATTRIBUTE_FORMS,
    "metrics": {"ts": "<i8", "names": _TEXTS, "name": "<u4", "value": "<f8", "type": "<u1"}
    | _ATTRIBUTE_FORMS,
    "entries": {
        "key_off": "<i4",
        "key": _BYTES,
        "val_off": "<i4",
        "val": _BYTES,
        "ts": "<i8",
    },
}
"""Every column of every kind with its form, as in `docs/protocol.md`, Frame."""
_USED_BY: Final = {"names": "name", "attr_names": "attr_key"}
"""The index that uses a list of names. It sorts before the list, so it bounds the list's length."""
_INDEX_BYTES: Final = 4

_Part = npt.NDArray[np.generic] | bytes | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Raw:
    """The columns of one payload by name, as views of the payload."""

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

    def strings(self, name: str) -> TextColumn:
        return TextColumn(offsets=self.i32(f"{name}_off"), data=bytes(self.view(name)))


def decode_payload(kind: Kind, payload: memoryview, count: int) -> Columns:
    """Decode and check the columns of a payload.

    Args:
        kind: The kind that the envelope names.
        payload: The payload after decompression.
        count: The number of records that the envelope names.

    Raises:
        InvalidFrame: The payload breaks a rule; the error names the column.
    """
    raw = _read_short(kind, payload) or _read(kind, payload)
    columns: Columns
    match kind:
        case "logs":
            columns = _logs(raw)
        case "metrics":
            columns = _metrics(raw)
        case "entries":
            columns = _entries(raw)
    check_columns(columns, count)
    return columns


def _short_keys(kind: Kind) -> tuple[ShortKey, ...]:
    forms = {_BYTES: ShortForm.BYTES, _TEXTS: ShortForm.TEXTS}
    return short_keys(
        (name, forms.get(form, ShortForm.BYTES), _TAG_OF.get(form))
        for name, form in _FORMS[kind].items()
    )


_SHORT_KEYS: Final[Mapping[Kind, tuple[ShortKey, ...]]] = {
    kind: _short_keys(kind) for kind in _FORMS
}


def read_short_payload(kind: Kind, payload: memoryview) -> dict[str, ShortValue] | None:
    """Return the columns of a small payload by name, unchecked; None if `_read` has to decide.

    Args:
        kind: The kind that the envelope names.
        payload: The payload after decompression.
    """
    found = read_short_map(payload, _SHORT_KEYS[kind])
    if found is None:
        return None
    for names, index in _USED_BY.items():
        if names in found:
            # The index bounds the number of names, as in `_read`.
            listed = cast("tuple[str, ...]", found[names])
            if len(listed) > len(cast("memoryview", found.get(index, b""))) // _INDEX_BYTES:
                return None
    return found


def _read_short(kind: Kind, payload: memoryview) -> _Raw | None:
    found = read_short_payload(kind, payload)
    if found is None:
        return None
    return _Raw(
        {name: one for name, one in found.items() if isinstance(one, memoryview)},
        {name: cast("tuple[str, ...]", found[name]) for name in _USED_BY if name in found},
    )


def _read(kind: Kind, payload: memoryview) -> _Raw:
    forms = _FORMS[kind]
    reader = CborReader(payload, "payload")
    views: dict[str, memoryview] = {}
    texts: dict[str, tuple[str, ...]] = {}
    name: str | None = None
    for _ in range(reader.map_size(len(forms))):
        reader.field = "payload"
        name = reader.key(name)
        if name not in forms:
            raise reader.refuse(f"{kind} have no such column, column=`{shown(name)}`")
        reader.field = name
        match forms[name]:
            case "texts":
                uses = views.get(_USED_BY[name], memoryview(b""))
                texts[name] = reader.texts(len(uses) // _INDEX_BYTES)
            case "bytes":
                views[name] = reader.bytes_view()
            case dtype:
                views[name] = reader.typed_array(_TAG_OF[dtype])
    reader.field = "payload"
    reader.end()
    return _Raw(views, texts)


def _logs(raw: _Raw) -> LogColumns:
    return LogColumns(
        ts=raw.i64("ts"),
        body=raw.strings("body"),
        severity=raw.u8("severity") if "severity" in raw else None,
        attributes=_attributes(raw),
    )


def _metrics(raw: _Raw) -> MetricColumns:
    return MetricColumns(
        ts=raw.i64("ts"),
        names=raw.names("names"),
        name=raw.u32("name"),
        value=raw.f64("value"),
        type=raw.u8("type"),
        attributes=_attributes(raw),
    )


def _entries(raw: _Raw) -> EntryColumns:
    return EntryColumns(
        key=raw.strings("key"),
        value=raw.strings("val"),
        ts=raw.i64("ts") if "ts" in raw else None,
    )


def _attributes(raw: _Raw) -> AttributeColumns | None:
    if not any(name in raw for name in _ATTRIBUTE_FORMS):
        return None
    return AttributeColumns(
        names=raw.names("attr_names"),
        offsets=raw.i32("attr_off"),
        keys=raw.u32("attr_key"),
        values=raw.strings("attr_val"),
    )


def encode_payload(columns: Columns) -> bytes:
    """Return the canonical encoding of columns that `check_columns` has accepted."""
    parts = _parts(columns)
    pieces: list[bytes | memoryview] = [encode_map_head(len(parts))]
    for name, encoded in _in_order(tuple(parts)):
        pieces.append(encoded)
        pieces.extend(_encode_part(parts[name]))
    return b"".join(pieces)


@lru_cache(maxsize=32)
def _in_order(names: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    """Return the names of columns in the order of a payload, with their encodings."""
    return tuple((name, encode_text(name)) for name in sorted(names, key=key_order))


def _parts(columns: Columns) -> dict[str, _Part]:
    parts: dict[str, _Part]
    match columns:
        case LogColumns():
            parts = {"ts": columns.ts, **_string_parts("body", columns.body)}
            if columns.severity is not None:
                parts["severity"] = columns.severity
            return parts | _attribute_parts(columns.attributes)
        case MetricColumns():
            parts = {
                "ts": columns.ts,
                "names": columns.names,
                "name": columns.name,
                "value": columns.value,
                "type": columns.type,
            }
            return parts | _attribute_parts(columns.attributes)
        case EntryColumns():
            parts = _string_parts("key", columns.key) | _string_parts("val", columns.value)
            return parts if columns.ts is None else parts | {"ts": columns.ts}


def _string_parts(name: str, column: TextColumn) -> dict[str, _Part]:
    return {f"{name}_off": column.offsets, name: column.data}


def _attribute_parts(columns: AttributeColumns | None) -> dict[str, _Part]:
    if columns is None:
        return {}
    return {
        "attr_names": columns.names,
        "attr_off": columns.offsets,
        "attr_key": columns.keys,
        **_string_parts("attr_val", columns.values),
    }


def _encode_part(part: _Part) -> tuple[bytes | memoryview, ...]:
    match part:
        case tuple():
            return (encode_texts(part),)
        case bytes():
            return encode_bytes_head(len(part)), part
        case _:
            little = np.ascontiguousarray(part, part.dtype.newbyteorder("<"))
            tag = _TAG_OF[f"<{little.dtype.kind}{little.dtype.itemsize}"]
            return encode_typed_array_head(tag, little.nbytes), little.data
