"""Records as lines of JSON, for pipes and manual use (`docs/protocol.md`, NDJSON).

`ts` is an RFC 3339 time or an integer of Unix ns, exact to the nanosecond both ways. Keys and
values of entries are base64. JSON has no NaN and no infinity, so these are the strings `NaN`,
`Infinity` and `-Infinity`. Attributes are strings, numbers, booleans, objects, arrays or null;
`attribute_types` names the type of those that JSON shows as another: bytes and such floats.
"""

import base64
import binascii
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal

import msgspec

from sluice_protocol.columns import (
    AttributeColumns,
    Columns,
    ColumnValues,
    NameColumn,
    SignalColumns,
    TextColumn,
)
from sluice_protocol.errors import UNREADABLE_JSON, BadUsage, InvalidFrame
from sluice_protocol.fields import KINDS, Field, FieldType, Kind, RecordKind
from sluice_protocol.records import columns_from_rows
from sluice_protocol.timestamps import format_rfc3339, parse_rfc3339
from sluice_protocol.values import (
    CLASSES,
    LABELS,
    json_attributes,
    typed_values,
    types_not_in_json,
    value_of_json,
)

_NotFinite = Literal["NaN", "Infinity", "-Infinity"]
_NotInJson = Literal["float", "bytes"]
_ENCODER: Final = msgspec.json.Encoder()
_JSON_TYPES: Final[dict[FieldType, object]] = {
    FieldType.TIME: str | int,
    FieldType.NAME: str,
    FieldType.BYTE: int,
    FieldType.LONG: int,
    FieldType.FLOAT: float | _NotFinite,
    FieldType.TEXT: str,
    FieldType.OPAQUE: str,
}
_MISSING: Final[dict[FieldType, str | None]] = {FieldType.TIME: None, FieldType.TEXT: ""}
"""The value of an optional field that a record does not have; 0 for other types."""


def _line_type(kind: RecordKind) -> type[msgspec.Struct]:
    """Return the form of a line: the fields that it needs, then the others."""
    needed: list[Any] = []
    others: list[Any] = []
    for one in kind.fields:
        json_type: Any = _JSON_TYPES[one.type]
        if one.labels:
            others.append((one.name, Literal[one.labels], one.labels[0]))
        elif not one.is_optional:
            needed.append((one.name, json_type))
        else:
            missing = _MISSING.get(one.type, 0)
            others.append(
                (one.name, json_type if missing is not None else json_type | None, missing)
            )
    if kind.has_attributes:
        empty: dict[str, Any] = {}
        others.append(("attributes", dict[str, msgspec.Raw], empty))
        others.append(("attribute_types", dict[str, _NotInJson], empty))
    return msgspec.defstruct(
        "_Line", [*needed, *others], forbid_unknown_fields=True, omit_defaults=True
    )


_LINES: Final = {name: _line_type(kind) for name, kind in KINDS.items()}


def columns_from_ndjson(kind: Kind, lines: Iterable[str | bytes]) -> Columns:
    """Build columns from lines of JSON; empty lines are skipped.

    Raises:
        BadUsage: A line is not JSON of this kind, or there is no line; the error names the line.
        InvalidFrame: The records cannot be encoded as one frame.
    """
    rows = list(_rows(KINDS[kind], lines))
    if not rows:
        raise BadUsage("no records in the input: give at least one line of JSON")
    return columns_from_rows(KINDS[kind], rows)


def _rows(kind: RecordKind, lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.Decoder(_LINES[kind.name])
    readers = [(one.name, _reader_of(one)) for one in kind.fields]
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = msgspec.structs.asdict(decoder.decode(text))
            line |= {name: read(line[name]) for name, read in readers if read is not None}
            if kind.has_attributes:
                line["attributes"] = _attributes_of(line["attributes"], line["attribute_types"])
            yield line
        except (*UNREADABLE_JSON, UnicodeError, BadUsage, InvalidFrame) as error:
            raise BadUsage(f"line {number}: {error}") from error


def _attributes_of(stated: Mapping[str, msgspec.Raw], types: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a line with their types."""
    found = {key: value_of_json(one) for key, one in stated.items()}
    for key, label in types.items():
        if type(found.get(key)) is not str:
            raise BadUsage(f"attribute_types names no string of attributes, key=`{key}`")
        found[key] = CLASSES[LABELS.index(label)](found[key])
    return found


def _reader_of(field: Field) -> Callable[[Any], object] | None:
    """Return what makes a value of a field from its JSON; None if both are the same."""
    if field.labels:
        return field.labels.index
    match field.type:
        case FieldType.TIME:
            return _time
        case FieldType.FLOAT:
            return float
        case FieldType.OPAQUE:
            return partial(_base64, field.name)
        case _:
            return None


def _time(ts: str | int | None) -> int | None:
    return parse_rfc3339(ts) if isinstance(ts, str) else ts


def _base64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadUsage(f"{name} must be base64: {error}") from error


def ndjson_from_columns(columns: Columns) -> Iterator[str]:
    """Yield one line of JSON for each record, without line ends, in the order of the columns."""
    line, count = _LINES[columns.kind.name], len(columns)
    values: dict[str, Iterable[Any]] = {
        one.name: _json_values(one, getattr(columns, one.name), count)
        for one in columns.kind.fields
    }
    if isinstance(columns, SignalColumns):
        values["attributes"] = map(json_attributes, attribute_rows(columns.attributes, count))
        values["attribute_types"] = map(
            types_not_in_json, attribute_rows(columns.attributes, count)
        )
    for row in zip(*[values[name] for name in line.__struct_fields__], strict=True):
        yield _ENCODER.encode(line(*row)).decode()


def _json_values(field: Field, values: ColumnValues | None, count: int) -> Iterable[object]:
    """Return the values of a field in JSON."""
    match values:
        case None:
            return [_MISSING.get(field.type, 0)] * count
        case NameColumn():
            return [values.names[index] for index in values.indexes.tolist()]
        case TextColumn():
            return map(_text if field.type is FieldType.TEXT else _base64_of, values.slices())
        case _:
            return _json_numbers(field, values.tolist())


def _json_numbers(field: Field, values: list[Any]) -> Iterable[object]:
    if field.labels:
        return [field.labels[number] for number in values]
    match field.type:
        case FieldType.TIME:
            return map(format_rfc3339, values)
        case FieldType.FLOAT:
            return map(_json_number, values)
        case _:
            return values


def _text(value: bytes) -> str:
    return value.decode()


def _base64_of(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _json_number(value: float) -> float | _NotFinite:
    if value != value:  # noqa: PLR0124 - NaN is the one value that differs from itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def attribute_rows(columns: AttributeColumns | None, count: int) -> Iterator[dict[str, str]]:
    """Yield the attributes of each record as a mapping, in the order of the columns."""
    if columns is None:
        yield from ({} for _ in range(count))
        return
    edges = columns.offsets.tolist()
    names = [columns.names[key] for key in columns.keys.tolist()]
    values = typed_values([one.decode() for one in columns.values.slices()], columns.types)
    for start, end in itertools.pairwise(edges):
        yield dict(zip(names[start:end], values[start:end], strict=True))
