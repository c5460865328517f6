"""Read OTLP in protobuf into messages, with `protobuf` and a Python loop.

This decoder needs no Arrow. It serves small bodies, installations without the extra `doors`, and
requests that Arrow leaves to it.

The types are those of `opentelemetry-proto` with two changes that keep the wire format. Strings are
bytes, because a parser refuses a whole request for one string that is not UTF-8; such bytes become
surrogates (`surrogateescape`). Some parts are bytes, to be read one by one: arrays and maps inside
a value, because Arrow has no recursive types, and resources and scopes, because they are few.
"""

import base64
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from sluice_doors.attributes import LazyMessages, RawRecord, ScopeGroup
from sluice_doors.decoded import REASON_CHARACTERS_MAX, BodyUnreadable, check_count
from sluice_doors.otlp.messages import (
    AnyValue,
    ArrayValue,
    Buckets,
    DataPoint,
    EntityRef,
    Exemplar,
    KeyValue,
    KeyValues,
    Metric,
    OtlpLog,
    OtlpResource,
    OtlpSpan,
    PartlyReadPoint,
    Points,
    Quantile,
    Scope,
    SpanEvent,
    SpanLink,
    SpanStatus,
)
from sluice_doors.protobuf import FOREIGN, base64_of_message, is_foreign
from sluice_doors.rows import PIECE_ROWS, readable

_THEIRS: Final = "opentelemetry.proto."
_OURS: Final = "sluice_doors.otlp."
LOGS_REQUEST: Final = f"{_OURS}collector.logs.v1.ExportLogsServiceRequest"
METRICS_REQUEST: Final = f"{_OURS}collector.metrics.v1.ExportMetricsServiceRequest"
TRACES_REQUEST: Final = f"{_OURS}collector.trace.v1.ExportTraceServiceRequest"
RESOURCE_LOGS: Final = f"{_OURS}logs.v1.ResourceLogs"
NESTED_ARRAY: Final = f"{_OURS}common.v1.ArrayValue"
NESTED_MAP: Final = f"{_OURS}common.v1.KeyValueList"
RESOURCE: Final = f"{_OURS}resource.v1.Resource"
SCOPE: Final = f"{_OURS}common.v1.InstrumentationScope"
_UNREAD: Final = {f".{name}" for name in (NESTED_ARRAY, NESTED_MAP, RESOURCE, SCOPE)}


@cache
def message_type(name: str) -> Descriptor:
    """Return the descriptor of a message."""
    return _pool().FindMessageTypeByName(name)


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for module in (logs_service_pb2, metrics_service_pb2, trace_service_pb2):
        _add(pool, module.DESCRIPTOR)
    return pool


def _add(pool: DescriptorPool, theirs: FileDescriptor) -> None:
    for dependency in theirs.dependencies:
        _add(pool, dependency)
    ours = FileDescriptorProto()
    theirs.CopyToProto(ours)
    ours.name = _OURS + theirs.name
    ours.package = ours.package.replace(_THEIRS, _OURS)
    ours.ClearField("options")
    ours.ClearField("service")
    for place, name in enumerate(ours.dependency):
        ours.dependency[place] = _OURS + name
    for message in ours.message_type:
        _change(message)
    pool.Add(ours)


def _change(message: DescriptorProto) -> None:
    for nested in message.nested_type:
        _change(nested)
    for field in message.field:
        if field.HasField("type_name"):
            field.type_name = field.type_name.replace(_THEIRS, _OURS)
        if field.type == FieldDescriptorProto.TYPE_STRING or field.type_name in _UNREAD:
            field.type = FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")


NESTING_MAX: Final = 100
"""Limit of arrays and maps inside each other, as parsers of protobuf have it."""
_Message = TypeVar("_Message", OtlpLog, Metric, OtlpSpan)
_Proto = Any
"""A message: its class is made at run time."""


def log_groups(body: bytes) -> list[ScopeGroup[OtlpLog | RawRecord]]:
    """Return the log records of a body by scope."""
    request = _parse(LOGS_REQUEST, body)
    return [
        group
        for each in request.resource_logs
        for group in _groups(
            each, each.scope_logs, lambda scope: LazyMessages(scope.log_records, _log)
        )
    ]


def log_records(body: bytes) -> Iterator[_Proto]:
    """Yield the log records of a body as messages of protobuf."""
    for each in _parse(LOGS_REQUEST, body).resource_logs:
        for scope in each.scope_logs:
            yield from scope.log_records


def span_groups(body: bytes) -> list[ScopeGroup[OtlpSpan | RawRecord]]:
    """Return the spans of a body by scope."""
    request = _parse(TRACES_REQUEST, body)
    return [
        group
        for each in request.resource_spans
        for group in _groups(each, each.scope_spans, lambda scope: LazyMessages(scope.spans, _span))
    ]


def span_messages(body: bytes, wanted: Iterable[bool]) -> Iterator[_Proto]:
    """Yield some of the spans of a body as messages of protobuf, in its order."""
    listed = (
        span
        for each in _parse(TRACES_REQUEST, body).resource_spans
        for scope in each.scope_spans
        for span in scope.spans
    )
    return itertools.compress(listed, wanted)


def metric_groups(body: bytes) -> list[ScopeGroup[Metric | RawRecord]]:
    """Return the metrics of a body by scope, without scopes that have no points."""
    request = _parse(METRICS_REQUEST, body)
    return [
        group
        for each in request.resource_metrics
        for group in _groups(
            each,
            filter(_has_points, each.scope_metrics),
            lambda scope: LazyMessages(
                scope.metrics, _metric, records_min=sum(map(_records_min, scope.metrics))
            ),
        )
    ]


def metrics_at(body: bytes, wanted: Iterable[bool]) -> Iterator[Metric | RawRecord]:
    """Yield some of the metrics of a body, in its order."""
    request = _parse(METRICS_REQUEST, body)
    listed = (
        metric
        for each in request.resource_metrics
        for scope in each.scope_metrics
        for metric in scope.metrics
    )
    return map(_metric, itertools.compress(listed, wanted))


def _groups(
    each: _Proto,
    scopes: Iterable[_Proto],
    read: Callable[[_Proto], LazyMessages[_Message | RawRecord]],
) -> Iterator[ScopeGroup[_Message | RawRecord]]:
    resource = read_resource(each.resource)
    for scoped in scopes:
        yield ScopeGroup(
            resource=resource,
            resource_schema_url=_text(each.schema_url),
            scope=read_scope(scoped.scope),
            scope_schema_url=_text(scoped.schema_url),
            records=read(scoped),
        )


def _has_points(scope: _Proto) -> bool:
    """Return whether a metric of a scope has points, or has no data, which is kept raw."""
    kinds = ((metric, metric.WhichOneof("data")) for metric in scope.metrics)
    return any(kind is None or getattr(metric, kind).data_points for metric, kind in kinds)


def _records_min(metric: _Proto) -> int:
    """Return the least number of records of a metric, as `sluice_doors.otlp.metrics` has it."""
    kind = metric.WhichOneof("data")
    if kind is None:
        return 1
    points = getattr(metric, kind).data_points
    if not points:
        return 0
    has_exemplars = "exemplars" in points[0].DESCRIPTOR.fields_by_name
    exemplars = sum(len(point.exemplars) for point in points) if has_exemplars else 0
    return len(points) + exemplars + 1


def read_resource(data: bytes) -> OtlpResource:
    """Return a resource."""
    found = _parse(RESOURCE, data)
    return OtlpResource(
        attributes=_pairs(found.attributes),
        dropped_attributes_count=found.dropped_attributes_count,
        entity_refs=tuple(
            EntityRef(
                schema_url=_text(one.schema_url),
                type=_text(one.type),
                id_keys=tuple(map(_text, one.id_keys)),
                description_keys=tuple(map(_text, one.description_keys)),
            )
            for one in found.entity_refs
        ),
    )


def read_resource_of_group(data: bytes) -> tuple[OtlpResource, str]:
    """Return the resource of a `ResourceLogs` or `ResourceMetrics`, and the URL of its schema."""
    found = _parse(RESOURCE_LOGS, data)
    return read_resource(found.resource), _text(found.schema_url)


def read_scope(data: bytes) -> Scope:
    """Return a scope."""
    found = _parse(SCOPE, data)
    return Scope(
        name=_text(found.name),
        version=_text(found.version),
        attributes=_pairs(found.attributes),
        dropped_attributes_count=found.dropped_attributes_count,
    )


def read_array(data: bytes, depth: int = 0) -> AnyValue:
    """Return an array inside a value."""
    values = _parse(NESTED_ARRAY, _bounded(data, depth)).values
    return AnyValue(array_value=ArrayValue(tuple(_any(one, depth + 1) for one in values)))


def read_map(data: bytes, depth: int = 0) -> AnyValue:
    """Return a map inside a value."""
    values = _parse(NESTED_MAP, _bounded(data, depth)).values
    return AnyValue(kvlist_value=KeyValues(_pairs(values, depth + 1)))


def _bounded(data: bytes, depth: int) -> bytes:
    if depth >= NESTING_MAX:
        raise BodyUnreadable(
            f"cannot read body as OTLP in protobuf: values are nested more than {NESTING_MAX} times"
        )
    return data


@cache
def _class(name: str) -> _Proto:
    return GetMessageClass(message_type(name))


def _parse(name: str, data: bytes) -> _Proto:
    try:
        return _class(name).FromString(data)
    except DecodeError as error:
        raise BodyUnreadable(f"cannot read body as OTLP in protobuf: {error}") from error


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _pairs(pairs: Iterable[_Proto], depth: int = 0) -> tuple[KeyValue, ...]:
    return tuple(
        KeyValue(key=_text(one.key), value=_any(one.value, depth), key_strindex=one.key_strindex)
        for one in pairs
    )


def _any(value: _Proto, depth: int = 0) -> AnyValue:
    kind = value.WhichOneof("value")
    if kind is None:
        return AnyValue()
    found = getattr(value, kind)
    match kind:
        case "string_value":
            return AnyValue(string_value=_text(found))
        case "array_value":
            return read_array(found, depth)
        case "kvlist_value":
            return read_map(found, depth)
        case "bytes_value":
            return AnyValue(bytes_value=base64.b64encode(found).decode())
        case _:
            return AnyValue(**{kind: found})


def _raw(message: _Proto, error: BodyUnreadable | None, name: str = "") -> RawRecord:
    """Return a raw record of a message that cannot be read or is of another kind."""
    return RawRecord(
        text="",
        reason=FOREIGN if error is None else error.reason[:REASON_CHARACTERS_MAX],
        raw=base64_of_message(message),
        name=name,
        is_foreign=error is None,
    )


def _log(log: _Proto) -> OtlpLog | RawRecord:
    if is_foreign(log):
        return _raw(log, None)
    try:
        return _read_log(log)
    except BodyUnreadable as error:
        return _raw(log, error)


def _read_log(log: _Proto) -> OtlpLog:
    return OtlpLog(
        time_unix_nano=log.time_unix_nano,
        observed_time_unix_nano=log.observed_time_unix_nano,
        severity_number=log.severity_number,
        severity_text=_text(log.severity_text),
        body=_any(log.body),
        attributes=_pairs(log.attributes),
        dropped_attributes_count=log.dropped_attributes_count,
        flags=log.flags,
        trace_id=log.trace_id.hex(),
        span_id=log.span_id.hex(),
        event_name=_text(log.event_name),
    )


def _span(span: _Proto) -> OtlpSpan | RawRecord:
    if is_foreign(span):
        return _raw(span, None)
    try:
        return _read_span(span)
    except BodyUnreadable as error:
        return _raw(span, error)


def span_parts(span: _Proto) -> tuple[tuple[SpanEvent, ...], tuple[SpanLink, ...]]:
    """Return the events and links of a span."""
    check_count(span.events)
    check_count(span.links)
    return tuple(map(_event, span.events)), tuple(map(_link, span.links))


def _read_span(span: _Proto) -> OtlpSpan:
    events, links = span_parts(span)
    return OtlpSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        trace_state=_text(span.trace_state),
        parent_span_id=span.parent_span_id.hex(),
        flags=span.flags,
        name=_text(span.name),
        kind=span.kind,
        start_time_unix_nano=span.start_time_unix_nano,
        end_time_unix_nano=span.end_time_unix_nano,
        attributes=_pairs(span.attributes),
        dropped_attributes_count=span.dropped_attributes_count,
        events=events,
        dropped_events_count=span.dropped_events_count,
        links=links,
        dropped_links_count=span.dropped_links_count,
        status=SpanStatus(message=_text(span.status.message), code=span.status.code),
    )


def _event(event: _Proto) -> SpanEvent:
    return SpanEvent(
        time_unix_nano=event.time_unix_nano,
        name=_text(event.name),
        attributes=_pairs(event.attributes),
        dropped_attributes_count=event.dropped_attributes_count,
    )


def _link(link: _Proto) -> SpanLink:
    return SpanLink(
        trace_id=link.trace_id.hex(),
        span_id=link.span_id.hex(),
        trace_state=_text(link.trace_state),
        attributes=_pairs(link.attributes),
        dropped_attributes_count=link.dropped_attributes_count,
        flags=link.flags,
    )


def _metric(metric: _Proto) -> Metric | RawRecord:
    name = readable(_text(metric.name))
    kind = metric.WhichOneof("data")
    if is_foreign(metric):
        return _raw(metric, None, name)
    if kind is None:
        return _raw(metric, BodyUnreadable("metric has no data"), name)
    try:
        return _read_metric(metric, kind)
    except BodyUnreadable as error:
        return _raw(metric, error, name)


def _read_metric(metric: _Proto, kind: str) -> Metric:
    data = {kind: _points(getattr(metric, kind))}
    return Metric(
        name=_text(metric.name),
        description=_text(metric.description),
        unit=_text(metric.unit),
        metadata=_pairs(metric.metadata),
        **data,
    )


def _points(data: _Proto) -> Points:
    fields = data.DESCRIPTOR.fields_by_name
    points = LazyMessages(data.data_points, _point)
    return Points(
        # Objects are used several times.
        data_points=points if len(points) > PIECE_ROWS else tuple(points),
        aggregation_temporality=(
            data.aggregation_temporality if "aggregation_temporality" in fields else 0
        ),
        is_monotonic="is_monotonic" in fields and data.is_monotonic,
    )


_PLAIN_FIELDS: Final = (
    *("start_time_unix_nano", "time_unix_nano", "flags", "count", "scale", "zero_count"),
    "zero_threshold",
)
_OPTIONAL_FIELDS: Final = ("as_double", "as_int", "sum", "min", "max")
_PART_FIELDS: Final = ("quantile_values", "exemplars")
_LIST_FIELDS: Final = ("bucket_counts", "explicit_bounds")


def _point(point: _Proto) -> DataPoint:
    """Return a data point, raw if it cannot be read or is of another kind."""
    try:
        if not is_foreign(point):
            return _read_point(point)
        reason = FOREIGN
    except BodyUnreadable as error:
        reason = error.reason[:REASON_CHARACTERS_MAX]
    return PartlyReadPoint(
        time_unix_nano=point.time_unix_nano, source=base64_of_message(point), reason=reason
    )


def _read_point(point: _Proto) -> DataPoint:
    fields = point.DESCRIPTOR.fields_by_name
    found: dict[str, Any] = {name: getattr(point, name) for name in _PLAIN_FIELDS if name in fields}
    for name in _OPTIONAL_FIELDS:
        # The sum of a summary has no presence: 0 is its default.
        if name in fields and (not fields[name].has_presence or point.HasField(name)):
            found[name] = getattr(point, name)
    for name in _LIST_FIELDS:
        if name in fields:
            found[name] = tuple(getattr(point, name))
    for name in ("positive", "negative"):
        if name in fields:
            buckets = getattr(point, name)
            found[name] = Buckets(offset=buckets.offset, bucket_counts=tuple(buckets.bucket_counts))
    found |= {name: _parts(name, getattr(point, name)) for name in _PART_FIELDS if name in fields}
    return DataPoint(attributes=_pairs(point.attributes), **found)


def _parts(name: str, parts: Iterable[_Proto]) -> tuple[Quantile, ...] | tuple[Exemplar, ...]:
    if name == "exemplars":
        return tuple(_exemplar(one) for one in parts)
    return tuple(Quantile(quantile=one.quantile, value=one.value) for one in parts)


def _exemplar(exemplar: _Proto) -> Exemplar:
    kind = exemplar.WhichOneof("value")
    return Exemplar(
        filtered_attributes=_pairs(exemplar.filtered_attributes),
        time_unix_nano=exemplar.time_unix_nano,
        span_id=exemplar.span_id.hex(),
        trace_id=exemplar.trace_id.hex(),
        **({kind: getattr(exemplar, kind)} if kind else {}),
    )
