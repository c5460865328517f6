"""Read OTLP in JSON.

A record of the wrong form is kept as text, together with the reason. Only a body that is not a
request at all is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from sluice_doors.any_values import json_text
from sluice_doors.decoded import REASON_CHARACTERS_MAX, BodyUnreadable
from sluice_doors.otlp_attributes import RawRecord, ScopeGroup
from sluice_doors.otlp_messages import (
    LogsRequest,
    Metric,
    MetricsRequest,
    OtlpLog,
    OtlpResource,
    ResourceLogs,
    ResourceMetrics,
    Scope,
    ScopeLogs,
    ScopeMetrics,
)
from sluice_protocol.json_errors import UNREADABLE_JSON

_LOGS: Final = msgspec.json.Decoder(LogsRequest)
_METRICS: Final = msgspec.json.Decoder(MetricsRequest)
_Message = TypeVar("_Message", OtlpLog, Metric)
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def log_groups(body: bytes) -> list[ScopeGroup[OtlpLog | RawRecord]]:
    """Return the log records of a body by scope.

    Raises:
        BodyUnreadable: The body is not a request in JSON.
    """
    try:
        request = _LOGS.decode(body)
    except msgspec.ValidationError:
        return list(_tolerant(body, ("resourceLogs", "scopeLogs", "logRecords"), OtlpLog))
    except UNREADABLE_JSON as error:
        raise _unreadable(error) from error
    return [
        _group(each, scoped, scoped.log_records)
        for each in request.resource_logs
        for scoped in each.scope_logs
    ]


def metric_groups(body: bytes) -> list[ScopeGroup[Metric | RawRecord]]:
    """Return the metrics of a body by scope.

    Raises:
        BodyUnreadable: The body is not a request in JSON.
    """
    try:
        request = _METRICS.decode(body)
    except msgspec.ValidationError:
        return list(_tolerant(body, ("resourceMetrics", "scopeMetrics", "metrics"), Metric))
    except UNREADABLE_JSON as error:
        raise _unreadable(error) from error
    return [
        _group(each, scoped, scoped.metrics)
        for each in request.resource_metrics
        for scoped in each.scope_metrics
    ]


def _group(
    each: ResourceLogs | ResourceMetrics,
    scoped: ScopeLogs | ScopeMetrics,
    records: Sequence[_Message],
) -> ScopeGroup[_Message | RawRecord]:
    return ScopeGroup(
        resource=each.resource,
        resource_schema_url=each.schema_url,
        scope=scoped.scope,
        scope_schema_url=scoped.schema_url,
        records=records,
    )


def _unreadable(error: Exception) -> BodyUnreadable:
    return BodyUnreadable(f"cannot read body as OTLP in JSON: {error}")


def _tolerant(
    body: bytes, names: tuple[str, str, str], form: type[_Message]
) -> Iterator[ScopeGroup[_Message | RawRecord]]:
    """Yield the groups of a body of which some part has the wrong form.

    Raises:
        BodyUnreadable: The body is not an object with a list of resources.
    """
    try:
        request = _without_nulls(msgspec.json.decode(body))
    except UNREADABLE_JSON as error:
        raise _unreadable(error) from error
    if not isinstance(request, dict) or not isinstance(request.get(names[0]), list):
        raise BodyUnreadable(
            f"cannot read body as OTLP in JSON: it is not an object with a list `{names[0]}`"
        )
    for each in request[names[0]]:
        resource = _part(each, "resource", OtlpResource)
        scopes = _list_of(each, names[1])
        if resource is None or scopes is None:
            yield _raw_group(each, f"resource or `{names[1]}` has the wrong form")
            continue
        for scoped in scopes:
            yield _tolerant_scope(resource, each, scoped, names[2], form)


def _tolerant_scope(
    resource: OtlpResource,
    outer: Mapping[str, object],
    scoped: object,
    name: str,
    form: type[_Message],
) -> ScopeGroup[_Message | RawRecord]:
    scope = _part(scoped, "scope", Scope)
    records = _list_of(scoped, name)
    if scope is None or records is None or not isinstance(scoped, dict):
        return _raw_group(scoped, f"scope or `{name}` has the wrong form", resource)
    return ScopeGroup(
        resource=resource,
        resource_schema_url=_text_of(outer, "schemaUrl"),
        scope=scope,
        scope_schema_url=_text_of(scoped, "schemaUrl"),
        records=[_record(one, form) for one in records],
    )


def _without_nulls(plain: object) -> object:
    """Return JSON without null fields: they are fields that are not set, as in protobuf's JSON."""
    match plain:
        case dict():
            return {key: _without_nulls(one) for key, one in plain.items() if one is not None}
        case list():
            return [_without_nulls(one) for one in plain]
        case _:
            return plain


def _record(plain: object, form: type[_Message]) -> _Message | RawRecord:
    try:
        return msgspec.convert(plain, form)
    except msgspec.ValidationError as error:
        return RawRecord(text=json_text(plain), reason=str(error)[:REASON_CHARACTERS_MAX])


def _raw_group(
    plain: object, reason: str, resource: OtlpResource | None = None
) -> ScopeGroup[RawRecord]:
    return ScopeGroup(
        resource=resource or OtlpResource(),
        resource_schema_url="",
        scope=Scope(),
        scope_schema_url="",
        records=[RawRecord(text=json_text(plain), reason=reason)],
    )


def _part(plain: object, name: str, form: type[_Struct]) -> _Struct | None:
    if not isinstance(plain, dict):
        return None
    try:
        return msgspec.convert(plain.get(name, {}), form)
    except msgspec.ValidationError:
        return None


def _list_of(plain: object, name: str) -> list[object] | None:
    found = plain.get(name, []) if isinstance(plain, dict) else None
    return found if isinstance(found, list) else None


def _text_of(plain: Mapping[str, object], name: str) -> str:
    found = plain.get(name, "")
    return found if isinstance(found, str) else json_text(found)
