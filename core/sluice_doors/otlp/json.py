"""Read OTLP in JSON, by the rules of protobuf's JSON.

A record of the wrong form is kept as text, together with the reason. Only a body that is not a
request at all is refused. A field has two names, `timeUnixNano` and `time_unix_nano`. A null is a
field that is not set. An integer may be a text, or a number such as `5.0` or `5e0`. Unknown fields
are ignored and reported, so that the record is also kept as text.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Final, Generic, TypeVar, Union, cast, get_args, get_origin

import msgspec

from sluice_doors.attributes import RawRecord, ScopeGroup, json_text
from sluice_doors.decoded import REASON_CHARACTERS_MAX, BodyUnreadable
from sluice_doors.json.records import value_as_text
from sluice_doors.json.values import Unread, decimal_of, integer_of, read_tolerantly
from sluice_doors.otlp.messages import (
    DataPoint,
    LogsRequest,
    Metric,
    MetricsRequest,
    OtlpLog,
    OtlpResource,
    OtlpSpan,
    PartlyReadLog,
    PartlyReadPoint,
    PartlyReadSpan,
    Points,
    ResourceLogs,
    ResourceMetrics,
    ResourceSpans,
    Scope,
    ScopeLogs,
    ScopeMetrics,
    ScopeSpans,
    TracesRequest,
)
from sluice_doors.otlp.metrics import has_points
from sluice_protocol.errors import UNREADABLE_JSON

_UNIONS: Final = (Union, UnionType)


class Fitted(msgspec.Struct, frozen=True):
    """Plain JSON with the names and types of a message, and the names that are not known."""

    plain: Any
    unknown: tuple[str, ...]


def fitted(plain: object, form: object) -> Fitted:
    """Return JSON as a message needs it; raise `ValueError` if a field has both of its names."""
    unknown: dict[str, None] = {}
    found = _fit(plain, form, unknown)
    return Fitted(found, tuple(unknown))


def without_either(plain: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object without a field, whose name is that of protobuf's JSON."""
    return {key: one for key, one in plain.items() if key not in (name, _snake(name))}


def either(plain: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return a field by the first of its names that is set; None if neither is."""
    found = plain.get(name)
    return plain.get(_snake(name)) if found is None else found


@cache
def _snake(name: str) -> str:
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in name)


@cache
def _fields(form: type[msgspec.Struct]) -> dict[str, tuple[str, Any]]:
    """Return the field of each name: its name in JSON, and its type."""
    found: dict[str, tuple[str, Any]] = {}
    for one in msgspec.structs.fields(form):
        found[one.encode_name] = found[one.name] = (one.encode_name, one.type)
    return found


@cache
def _choices(form: object) -> tuple[object, ...]:
    """Return the types that a value may have, without None."""
    listed = get_args(form) if get_origin(form) in _UNIONS else (form,)
    return tuple(one for one in listed if one is not NoneType)


def _fit(plain: object, form: object, unknown: dict[str, None]) -> object:
    choices = _choices(form)
    first = choices[0]
    if isinstance(first, type) and issubclass(first, msgspec.Struct):
        return _fit_object(plain, first, unknown) if isinstance(plain, dict) else plain
    if get_origin(first) in (tuple, Collection):
        element = get_args(first)[0]
        return [_fit(one, element, unknown) for one in plain] if isinstance(plain, list) else plain
    if float in choices:
        return _fit_double(plain)
    if int in choices:
        return _fit_integer(plain, is_text_known=str in choices)
    return plain


def _fit_object(
    plain: dict[str, Any], form: type[msgspec.Struct], unknown: dict[str, None]
) -> dict[str, Any]:
    known = _fields(form)
    found: dict[str, Any] = {}
    for key, value in plain.items():
        if key not in known:
            unknown[key] = None
        elif value is not None:
            name, type_ = known[key]
            if name in found:
                raise ValueError(f"field is set twice: {name}")
            found[name] = _fit(value, type_, unknown)
    return found


def _fit_double(plain: object) -> object:
    """Return a number as msgspec converts it; the decimals of the reader are doubles here."""
    if isinstance(plain, str | bool | int):
        return plain
    return float(plain) if hasattr(plain, "as_integer_ratio") else plain  # type: ignore[arg-type]


def _fit_integer(plain: object, *, is_text_known: bool) -> object:
    """Return an integer; other text remains, for example the name of an enumeration."""
    if isinstance(plain, str) and (is_text_known and decimal_of(plain) is None):
        return plain
    found = integer_of(plain)
    if found is None:
        return plain
    return str(found) if is_text_known and isinstance(plain, str) else found


_decoder = cache(msgspec.json.Decoder)
_RECORD_LEVEL: Final = 6
"""The records in a request: of a list, of a scope, of a list, of a resource, of a list."""
_KINDS: Final = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")
_SPAN_LISTS: Final = ("resourceSpans", "scopeSpans", "spans")
_LOG_LISTS: Final = ("resourceLogs", "scopeLogs", "logRecords")
_Message = TypeVar("_Message", OtlpLog, Metric, OtlpSpan)
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def metric_groups(body: bytes) -> list[ScopeGroup[Metric | RawRecord]]:
    """Return the metrics of a body by scope."""
    try:
        request = _decoder(MetricsRequest).decode(body)
    except UNREADABLE_JSON:
        return list(_tolerant(body, ("resourceMetrics", "scopeMetrics", "metrics"), _metric))
    groups = [
        _group(each, scoped, scoped.metrics)
        for each in request.resource_metrics
        for scoped in each.scope_metrics
    ]
    whole = all(each.scope_metrics for each in request.resource_metrics)
    filled = all(group.records and all(map(has_points, group.records)) for group in groups)
    if not whole or not groups or not filled:
        return list(_tolerant(body, ("resourceMetrics", "scopeMetrics", "metrics"), _metric))
    return groups


def _group(
    each: ResourceLogs | ResourceMetrics | ResourceSpans,
    scoped: ScopeLogs | ScopeMetrics | ScopeSpans,
    records: Sequence[_Message],
) -> ScopeGroup[_Message | RawRecord]:
    return ScopeGroup(
        resource=each.resource,
        resource_schema_url=each.schema_url,
        scope=scoped.scope,
        scope_schema_url=scoped.schema_url,
        records=records,
    )


def _tolerant(
    body: bytes,
    names: tuple[str, str, str],
    read: Callable[[object], Iterator[_Message | RawRecord]],
) -> Iterator[ScopeGroup[_Message | RawRecord]]:
    """Yield the groups of a body that is damaged or has another form in some part."""
    request = read_tolerantly(body, _RECORD_LEVEL)
    listed = either(request, names[0]) if isinstance(request, dict) else None
    if not isinstance(listed, list):
        reason = request.reason if isinstance(request, Unread) else f"it has no list `{names[0]}`"
        raise BodyUnreadable(f"cannot read body as OTLP in JSON: {reason}")
    rest = without_either(request, names[0])
    if rest:
        yield _raw_group(rest, _not_known(rest))
    for each in listed:
        scopes = _list_of(each, names[1])
        if scopes is None:
            yield _raw_group(each, f"resource or `{names[1]}` has the wrong form")
            continue
        resource = _part(each, "resource", OtlpResource)
        if resource is None:
            yield _raw_group(each, f"resource or `{names[1]}` has the wrong form")
            continue
        yield from _not_read(each, (names[1], "resource", "schemaUrl"), resource)
        for scoped in scopes:
            yield from _tolerant_scope(resource.message, each, scoped, names[2], read)


def _tolerant_scope(
    resource: OtlpResource,
    outer: dict[str, Any],
    scoped: object,
    name: str,
    read: Callable[[object], Iterator[_Message | RawRecord]],
) -> Iterator[ScopeGroup[_Message | RawRecord]]:
    scope = _part(scoped, "scope", Scope)
    records = _list_of(scoped, name)
    if scope is None or records is None or not isinstance(scoped, dict):
        yield _raw_group(scoped, f"scope or `{name}` has the wrong form", resource)
        return
    yield from _not_read(scoped, (name, "scope", "schemaUrl"), scope)
    yield ScopeGroup(
        resource=resource,
        resource_schema_url=_text_of(outer, "schemaUrl"),
        scope=scope.message,
        scope_schema_url=_text_of(scoped, "schemaUrl"),
        records=[record for one in records for record in _read_or_raw(one, read)],
    )


def _read_or_raw(
    plain: object, read: Callable[[object], Iterator[_Message | RawRecord]]
) -> Iterator[_Message | RawRecord]:
    if isinstance(plain, Unread):
        yield RawRecord(text=plain.text, reason=plain.reason)
        return
    try:
        yield from read(plain)
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        yield RawRecord(text=json_text(plain), reason=str(error)[:REASON_CHARACTERS_MAX])


def _log(plain: object) -> Iterator[OtlpLog | RawRecord]:
    yield _read_or_partly(plain, OtlpLog, PartlyReadLog)


def _span(plain: object) -> Iterator[OtlpSpan | RawRecord]:
    yield _read_or_partly(plain, OtlpSpan, PartlyReadSpan)


def _read_or_partly(plain: object, form: type[_Struct], partly: type[_Struct]) -> _Struct:
    """Return a log record or span; if it has unknown fields, it is also kept as text."""
    found = fitted(plain, form)
    if not found.unknown:
        return msgspec.convert(found.plain, form)
    if not found.plain:
        raise ValueError(_not_known(found.unknown))
    stated = {**found.plain, "source": json_text(plain), "reason": _not_known(found.unknown)}
    return msgspec.convert(stated, partly)


def _groups(
    request_type: type[msgspec.Struct],
    names: tuple[str, str, str],
    read: Callable[[object], Iterator[_Message | RawRecord]],
    body: bytes,
) -> list[ScopeGroup[_Message | RawRecord]]:
    """Return the log records or spans of a body by scope."""
    try:
        request: Any = _decoder(request_type).decode(body)
    except UNREADABLE_JSON:
        return list(_tolerant(body, names, read))
    resources, scopes, records = map(_snake, names)
    listed = [(each, getattr(each, scopes)) for each in getattr(request, resources)]
    groups = [
        _group(each, scoped, getattr(scoped, records)) for each, found in listed for scoped in found
    ]
    whole = all(found for _, found in listed)
    if not whole or not groups or not all(group.records for group in groups):
        # A list that is missing is not empty: the record may have another name.
        return list(_tolerant(body, names, read))
    return groups


log_groups = partial(_groups, LogsRequest, _LOG_LISTS, _log)
span_groups = partial(_groups, TracesRequest, _SPAN_LISTS, _span)


def _metric(plain: object) -> Iterator[Metric | RawRecord]:
    """Yield a metric; if it has unknown fields, it is also kept as text."""
    found = fitted(plain, Metric)
    stated = found.plain
    name = stated.get("name") if isinstance(stated, dict) else ""
    try:
        metric = msgspec.convert(stated, Metric)
    except msgspec.ValidationError as error:
        reason = str(error)[:REASON_CHARACTERS_MAX]
        raw = RawRecord(text=json_text(plain), reason=reason)
        yield replace(raw, name=name if isinstance(name, str) else "")
        return
    data = [stated[kind] for kind in _KINDS if kind in stated]
    if not data or any("dataPoints" not in one for one in data):
        reason = "metric has no data points" if data else "metric has no data"
        if found.unknown:
            reason = f"{reason}; {_not_known(found.unknown)}"
        yield RawRecord(text=json_text(plain), reason=reason, name=metric.name)
        return
    if not found.unknown:
        yield metric
        return
    source = cast("dict[str, Any]", plain)
    around = _without_points(source)
    outside = fitted(around, Metric).unknown
    if outside:
        yield RawRecord(text=json_text(around), reason=_not_known(outside), name=metric.name)
    marked = {kind: _points(getattr(metric, kind), source, kind) for kind in _kinds_of(metric)}
    yield msgspec.structs.replace(metric, **marked)


def _points(points: Points, plain: dict[str, Any], kind: str) -> Points:
    """Return the points of a kind; a point with unknown fields also has its text."""
    name = "exponentialHistogram" if kind == "exponential_histogram" else kind
    listed = either(either(plain, name), "dataPoints")
    marked: list[DataPoint] = []
    for point, source in zip(points.data_points, listed, strict=True):
        found = fitted(source, DataPoint)
        if found.unknown:
            reason = _not_known(found.unknown)
            stated = {**found.plain, "source": json_text(source), "reason": reason}
            marked.append(msgspec.convert(stated, PartlyReadPoint))
        else:
            marked.append(point)
    return msgspec.structs.replace(points, data_points=tuple(marked))


def _kinds_of(metric: Metric) -> list[str]:
    names = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
    return [name for name in names if getattr(metric, name) is not None]


def _without_points(plain: dict[str, Any]) -> dict[str, Any]:
    return {
        key: without_either(one, "dataPoints") if isinstance(one, dict) else one
        for key, one in plain.items()
    }


def _not_known(names: Iterable[str]) -> str:
    shown = ", ".join(sorted(names))
    return f"field is not known: {shown}"[:REASON_CHARACTERS_MAX]


def _not_read(
    plain: dict[str, Any], known: tuple[str, ...], part: "_Part[Any]"
) -> Iterator[ScopeGroup[RawRecord]]:
    """Yield the parts around records that have unknown fields, as raw records."""
    rest = plain
    for name in known:
        rest = without_either(rest, name)
    if rest or part.unknown:
        shown = without_either(plain, known[0])
        yield _raw_group(shown, _not_known([*rest, *part.unknown]))


def _raw_group(
    plain: object, reason: str, resource: OtlpResource | None = None
) -> ScopeGroup[RawRecord]:
    if isinstance(plain, Unread):
        record = RawRecord(text=plain.text, reason=plain.reason)
    else:
        record = RawRecord(text=json_text(plain), reason=reason)
    return ScopeGroup(
        resource=resource or OtlpResource(),
        resource_schema_url="",
        scope=Scope(),
        scope_schema_url="",
        records=[record],
    )


@dataclass(frozen=True, slots=True)
class _Part(Generic[_Struct]):
    """A resource or scope, and the names in it that are not known."""

    message: _Struct
    unknown: tuple[str, ...]


def _part(plain: object, name: str, form: type[_Struct]) -> _Part[_Struct] | None:
    if not isinstance(plain, dict):
        return None
    try:
        found = fitted(plain.get(name) or {}, form)
        return _Part(msgspec.convert(found.plain, form), found.unknown)
    except (ValueError, msgspec.ValidationError, RecursionError):
        return None


def _list_of(plain: object, name: str) -> list[object] | None:
    found = either(plain, name) if isinstance(plain, dict) else None
    return found if isinstance(found, list) else None


def _text_of(plain: dict[str, Any], name: str) -> str:
    found = either(plain, name)
    return "" if found is None else value_as_text(found)
