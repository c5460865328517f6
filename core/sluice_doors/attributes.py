"""The attributes of a record, the texts and types of their values, its time, and the resource.

The sources of a record are its attributes, its fields, its scope and its resource, in this order.
An earlier source keeps its name. A later value of the same name is renamed with the prefix of its
source, or with a number if that is taken too. In a frame of several requests, what their resources
do not share becomes attributes. The time is that of the record, of its observation, or of receipt.

A value is its text, and what it is (`sluice_protocol.values`): strings as they are, all others as
canonical JSON. Maps are sorted by key. A key that a map has twice is kept under `<key>#2`. Bytes
are base64, and NaN and infinities are the strings of OTLP's JSON encoding. Values of a resource
have no type, because whether a pair is in the resource depends on the records next to it.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar

import msgspec

from sluice_doors.decoded import BodyUnreadable, DecodedRecords
from sluice_doors.json.values import Unread, decimal_of, integer_of
from sluice_doors.otlp.messages import (
    AnyValue,
    EntityRef,
    KeyValue,
    OtlpNumber,
    OtlpResource,
    Scope,
)
from sluice_protocol.frame import RESOURCE_ENTRIES_MAX, Resource
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.records import attribute_columns
from sluice_protocol.times import TS_END
from sluice_protocol.values import (
    NOT_FINITE,
    BooleanText,
    BytesText,
    FloatText,
    IntegerText,
    TypedText,
    is_base64,
    nested_text,
    number_text,
)


def _kept(value: object) -> str:
    """Return damaged JSON inside a value, or what became a text before, as a text."""
    if isinstance(value, Unread):
        return value.text
    if isinstance(value, TypedText):
        return str(value)
    raise NotImplementedError(type(value).__name__)


_JSON: Final = msgspec.json.Encoder(order="sorted", decimal_format="number", enc_hook=_kept)


def json_text(value: object) -> str:
    """Return the canonical JSON text of a value; surrogates in it remain."""
    try:
        return _encoded(value)
    except RecursionError as error:
        raise BodyUnreadable("cannot read body: a value is nested too deeply") from error


def _encoded(value: object) -> str:
    with suppress(UnicodeEncodeError):
        try:
            return _JSON.encode(value).decode()
        except OverflowError:  # an integer of more than 64 bits
            return _JSON.encode(_with_decimals(value)).decode()
    # Surrogates are in text of protocols that are no JSON, so this value has no decimal.
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def _with_decimals(value: object) -> object:
    """Return a value with a decimal in place of each integer, which has no limit."""
    match value:
        case dict():
            return {key: _with_decimals(one) for key, one in value.items()}
        case list() | tuple():
            return [_with_decimals(one) for one in value]
        case bool():
            return value
        case int():
            return Decimal(value)
        case _:
            return value


_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1
"""Integers of JSON libraries; only a longer one may be longer than Python converts to text."""


def typed_text(value: object) -> str:
    """Return the text of a value of JSON, of the class of its type."""
    match value:
        case TypedText():
            return value
        case str():
            return value
        case Unread():
            return value.text
        case bool():
            return BooleanText("true" if value else "false")
        case int() | float() | Decimal():
            is_short = isinstance(value, int) and _INTEGER_MIN <= value <= _INTEGER_MAX
            return IntegerText(value) if is_short else number_text(json_text(value))
        case _:
            return nested_text(json_text(value))


def value_text(value: AnyValue) -> str:
    """Return the text of a value, of the class of its type."""
    if value.string_value is not None:
        return value.string_value
    if value.bytes_value is not None:
        is_known = is_base64(value.bytes_value)
        return BytesText(value.bytes_value) if is_known else value.bytes_value
    if value.double_value is not None and value.int_value is None and value.bool_value is None:
        plain = _double(value.double_value)
        is_number = not isinstance(plain, str) or plain in NOT_FINITE
        return FloatText(json_text_of(plain)) if is_number else str(plain)
    return typed_text(json_value(value))


def json_text_of(value: float | str) -> str:
    """Return the text of a double that `json_double` has returned."""
    return value if isinstance(value, str) else json_text(value)


def json_value(value: AnyValue) -> object:  # noqa: PLR0911 - one for each type
    """Return the value as JSON represents it; text that is not a number remains text."""
    if value.string_value is not None:
        return value.string_value
    if value.int_value is not None:
        return _integer(value.int_value)
    if value.bool_value is not None:
        return value.bool_value
    if value.double_value is not None:
        return _double(value.double_value)
    if value.array_value is not None:
        return [json_value(each) for each in value.array_value.values]
    if value.kvlist_value is not None:
        return json_map(value.kvlist_value.values)
    if value.string_value_strindex is not None:
        return {"stringValueStrindex": value.string_value_strindex}
    return value.bytes_value


def json_map(pairs: tuple[KeyValue, ...]) -> dict[str, object]:
    """Return pairs as one map; a later value of a key is kept under `<key>#2` and so on."""
    found: dict[str, object] = {}
    next_number: dict[str, int] = {}
    for pair in pairs:
        found[free_name(key_of(pair), found, next_number)] = json_value(pair.value)
    return found


def key_of(pair: KeyValue) -> str:
    """Return the key of a pair."""
    return pair.key or (f"#{pair.key_strindex}" if pair.key_strindex else "")


def entities_text(references: tuple[EntityRef, ...]) -> str:
    """Return the references of a resource as canonical JSON text."""
    return json_text([msgspec.to_builtins(one) for one in references])


def free_name(name: str, taken: "dict[str, object] | dict[str, str]", after: dict[str, int]) -> str:
    """Return the name, or `<name>#2` and so on if it is taken.

    `after` has the number to continue with for each name. The caller keeps it, so that many equal
    names do not take quadratic time.
    """
    if name not in taken:
        return name
    place = after.get(name, 2)
    while f"{name}#{place}" in taken:
        place += 1
    after[name] = place + 1
    return f"{name}#{place}"


def number(value: OtlpNumber | Decimal) -> float:
    """Return a number as a double.

    A text is a number by JSON's grammar, or NaN or an infinity as protobuf's JSON has them.
    """
    if isinstance(value, str):
        if value in NOT_FINITE:
            return float(value)
        stated = decimal_of(value)
        if stated is None:
            raise ValueError(f"text is not a number: {value[:40]}")
        value = stated
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if isinstance(value, int | Decimal) and math.isinf(found):
        raise ValueError("number is out of range")
    return found


def _integer(value: int | str) -> int | str:
    found = integer_of(value)
    return value if found is None else found


def _double(value: OtlpNumber) -> float | str:
    try:
        return json_double(number(value))
    except ValueError:
        return str(value)


def json_double(value: float) -> float | str:
    """Return a double as JSON represents it; a text of the class of floats if it is not finite."""
    if math.isfinite(value):
        return value
    return FloatText("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity")


def double_text(value: float) -> str:
    """Return the text of a double: the shortest that reads as the same double."""
    return str(json_text_of(json_double(value)))


EMPTY_KEY: Final = "sluice.empty_key"
OWN, FIELD, SCOPE, RESOURCE = "duplicate.", "otlp.", "scope.", "resource."
"""The prefixes of renamed values, by source."""
RESOURCE_PAIRS_MAX: Final = RESOURCE_ENTRIES_MAX - 1
"""One pair of the frame is left for the version of the encoder."""
RESOURCE_BYTES_MAX: Final = 48 * 1024
"""Limit of a shared resource; the rest of the envelope needs room below its own limit."""

Pairs = Sequence[tuple[str, str]]
Sources = tuple[tuple[str, Pairs], ...]
_Message = TypeVar("_Message")
_Message_co = TypeVar("_Message_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """A record that has another form than its protocol defines.

    `text` is the record as it was sent, in canonical JSON; `raw` is the record in base64, in place
    of a text. `is_foreign` is True for a message of another kind.
    """

    text: str
    reason: str
    raw: str = ""
    name: str = ""
    is_foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeGroup(Generic[_Message_co]):
    """The messages of one scope of one resource."""

    resource: OtlpResource
    resource_schema_url: str
    scope: Scope
    scope_schema_url: str
    records: Collection[_Message_co]


class LazyMessages(Collection[_Message]):
    """Messages that are read while they are iterated: an object takes 20 times the memory.

    `records_min` is the least number of records that they become.
    """

    __slots__ = ("_parts", "_read", "records_min")

    def __init__(
        self,
        parts: Sequence[Any],
        read: Callable[[Any], _Message],
        *,
        records_min: int | None = None,
    ) -> None:
        """Bind the parsed messages of a library; `read` returns the object of one.

        Without `records_min`, each message becomes a record.
        """
        self._parts = parts
        self._read = read
        self.records_min = len(parts) if records_min is None else records_min

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._parts)

    def __contains__(self, one: object) -> bool:
        """Return whether a message is equal to an object."""
        return any(one == other for other in self)

    def __iter__(self) -> Iterator[_Message]:
        """Read the messages one by one."""
        return map(self._read, self._parts)


def merged(sources: Iterable[tuple[str, Pairs]]) -> dict[str, str]:
    """Return the values of all sources by name; each source has the prefix of renamed values."""
    found: dict[str, str] = {}
    after: dict[str, int] = {}
    for prefix, pairs in sources:
        for key, value in pairs:
            name = key or EMPTY_KEY
            found[free_name(prefix + name, found, after) if name in found else name] = value
    return found


def pairs_of(attributes: Iterable[KeyValue], prefix: str = "") -> list[tuple[str, str]]:
    """Return attributes as texts, with a prefix before each key."""
    return [(prefix + (key_of(one) or EMPTY_KEY), value_text(one.value)) for one in attributes]


def scope_pairs(scope: Scope, schema_url: str) -> list[tuple[str, str]]:
    """Return what identifies a scope, under the names of OpenTelemetry's conventions."""
    stated = (
        ("otel.scope.name", scope.name),
        ("otel.scope.version", scope.version),
        ("otel.scope.schema_url", schema_url),
        ("otel.scope.dropped_attributes_count", count_text(scope.dropped_attributes_count)),
    )
    fields = [(key, value) for key, value in stated if value]
    return list(
        merged([(SCOPE, fields), (SCOPE, pairs_of(scope.attributes, "otel.scope."))]).items()
    )


def resource_pairs(resource: OtlpResource, schema_url: str) -> dict[str, str]:
    """Return the attributes and fields of a resource by name, as text."""
    stated = (
        ("otel.resource.schema_url", schema_url),
        ("otel.resource.dropped_attributes_count", count_text(resource.dropped_attributes_count)),
        (
            "otel.resource.entity_refs",
            entities_text(resource.entity_refs) if resource.entity_refs else "",
        ),
    )
    fields = [(key, value) for key, value in stated if value]
    own = [(key, str(value)) for key, value in pairs_of(resource.attributes)]
    return merged([(OWN, own), (FIELD, fields)])


def outer_sources(
    groups: Sequence[ScopeGroup[object]],
) -> tuple[Resource, list[Sources]]:
    """Return the shared resource of all groups, and the sources that each group's records need."""
    resources = [resource_pairs(each.resource, each.resource_schema_url) for each in groups]
    shared = shared_resource(resources)
    found: list[Sources] = []
    for each, resource in zip(groups, resources, strict=True):
        own = [pair for pair in resource.items() if pair not in shared]
        found.append(((SCOPE, scope_pairs(each.scope, each.scope_schema_url)), (RESOURCE, own)))
    return shared, found


def outer_pairs(sources: Sources) -> list[tuple[str, str]]:
    """Return the pairs of sources; each record of their group has all of them."""
    return [pair for _, pairs in sources for pair in pairs]


def count_text(count: int) -> str:
    """Return a count as text; empty for 0, which is the same as a missing field."""
    return str(count) if count else ""


def shared_resource(resources: Sequence[dict[str, str]]) -> Resource:
    """Return the pairs that all resources have in common, sorted and within the limits.

    Pairs beyond the limits, and text that is not UTF-8, remain with the records.
    """
    if not resources:
        return ()
    common = set(resources[0].items()).intersection(*(one.items() for one in resources[1:]))
    kept: list[tuple[str, str]] = []
    room = RESOURCE_BYTES_MAX
    for key, value in sorted(common):
        size = encoded_bytes(key) + encoded_bytes(value)
        if len(kept) < RESOURCE_PAIRS_MAX and size <= room:
            kept.append((key, value))
            room -= size
    return tuple(kept)


def encoded_bytes(text: str) -> int:
    """Return the size of a text in UTF-8; beyond every limit if it has none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return RESOURCE_BYTES_MAX + 1


def with_resource_in_records(records: DecodedRecords) -> DecodedRecords:
    """Return the records without a resource, each with its pairs as attributes.

    A record's attribute keeps its name; the other value is renamed `resource.<key>`.
    """
    if not records.resource:
        return records
    rows = [
        merged([(OWN, list(row.items())), (RESOURCE, records.resource)])
        for row in attribute_rows(records.columns.attributes, len(records.columns))
    ]
    columns = replace(records.columns, attributes=attribute_columns(rows))
    return replace(records, columns=columns, resource=())


TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
_HEXADECIMAL: Final = re.compile("[0-9a-fA-F]*", re.ASCII)


def id_text(text: str, size_bytes: int) -> str:
    """Return the id of a trace or span in lower-case hexadecimal.

    Some clients send JSON with the base64 of the bytes, as protobuf prescribes it for other fields.
    Any other text remains as it was sent.
    """
    if _HEXADECIMAL.fullmatch(text):
        return text.lower()
    with suppress(ValueError):
        found = base64.b64decode(text, validate=True)
        if len(found) == size_bytes:
            return found.hex()
    return text


TIME_KEY: Final = "time_unix_nano"
OBSERVED_KEY: Final = "observed_time_unix_nano"
BAD_TIME: Final = "time is outside 1970 to 2262"


@dataclass(frozen=True, slots=True)
class RecordTime:
    """The time of a record.

    `timed` is True if the record contains it. `fields` are times that the column does not contain,
    as attributes. `error` is why a time is unreadable, or empty.
    """

    ts_ns: int
    timed: bool
    fields: tuple[tuple[str, str], ...] = ()
    error: str = ""


def otlp_time(value: int | str) -> int | None:
    """Return a time as Unix ns, 0 if it is not set; None if it is out of range or no number."""
    if not value:
        return 0
    found = integer_of(value)
    return found if found is not None and 0 <= found < TS_END else None


def choose_time(time: int | str, observed: int | str, *, received_ns: int) -> RecordTime:
    """Return the first of `time` and `observed` that is set and in range, else the receipt."""
    own, seen = otlp_time(time), otlp_time(observed)
    fields = [(TIME_KEY, str(time))] if own is None else []
    ts_ns = own or seen or received_ns
    if seen is None or (seen and seen != ts_ns):
        fields.append((OBSERVED_KEY, str(observed)))
    return RecordTime(
        ts_ns, bool(own or seen), tuple(fields), BAD_TIME if own is None or seen is None else ""
    )
