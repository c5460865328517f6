"""The messages of OTLP, as JSON encodes them, with every field.

The JSON decoder builds these from a body. The protobuf decoder that needs no Arrow builds them from
the wire, so that one mapping serves both.

Source: opentelemetry-proto 1.10, `logs.proto`, `metrics.proto`, `trace.proto`, `common.proto`,
`resource.proto`.
"""

from collections.abc import Collection

import msgspec

OtlpNumber = int | float | str
"""64-bit integers are strings and other numbers are numbers; NaN and infinities are strings."""


class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False, forbid_unknown_fields=True):
    """The base of all messages.

    A body with fields that are not declared here is read again by `otlp_fields`, which ignores them
    as OTLP requires of receivers, and reports them.
    """


class AnyValue(_Struct, frozen=True):
    """A value of any type."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: OtlpNumber | None = None
    array_value: "ArrayValue | None" = None
    kvlist_value: "KeyValues | None" = None
    bytes_value: str | None = None
    string_value_strindex: int | None = None


class ArrayValue(_Struct, frozen=True):
    """A list of values."""

    values: tuple[AnyValue, ...] = ()


class KeyValue(_Struct, frozen=True):
    """An attribute."""

    key: str = ""
    value: AnyValue = AnyValue()
    key_strindex: int = 0


class KeyValues(_Struct, frozen=True):
    """A map of values."""

    values: tuple[KeyValue, ...] = ()


class EntityRef(_Struct, frozen=True):
    """A reference to the attributes that identify an entity of the resource."""

    schema_url: str = ""
    type: str = ""
    id_keys: tuple[str, ...] = ()
    description_keys: tuple[str, ...] = ()


class OtlpResource(_Struct, frozen=True):
    """The resource that produced the records."""

    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: int = 0
    entity_refs: tuple[EntityRef, ...] = ()


class Scope(_Struct, frozen=True):
    """The library that produced the records."""

    name: str = ""
    version: str = ""
    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: int = 0


class OtlpLog(_Struct, frozen=True):
    """A log record."""

    time_unix_nano: int | str = 0
    observed_time_unix_nano: int | str = 0
    severity_number: int | str = 0
    severity_text: str = ""
    body: AnyValue = AnyValue()
    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: int = 0
    flags: int = 0
    trace_id: str = ""
    span_id: str = ""
    event_name: str = ""


class PartlyReadLog(OtlpLog, frozen=True):
    """A log record with fields that are unknown or misplaced, its text, and the reason."""

    source: str = ""
    reason: str = ""


class ScopeLogs(_Struct, frozen=True):
    """The log records of one scope."""

    scope: Scope = Scope()
    log_records: tuple[OtlpLog, ...] = ()
    schema_url: str = ""


class ResourceLogs(_Struct, frozen=True):
    """The log records of one resource."""

    resource: OtlpResource = OtlpResource()
    scope_logs: tuple[ScopeLogs, ...] = ()
    schema_url: str = ""


class LogsRequest(_Struct, frozen=True):
    """The body of `POST /v1/logs`."""

    resource_logs: tuple[ResourceLogs, ...] = ()


class Quantile(_Struct, frozen=True):
    """A quantile of a summary."""

    quantile: OtlpNumber = 0.0
    value: OtlpNumber = 0.0


class Exemplar(_Struct, frozen=True):
    """A measurement that a point was made from."""

    filtered_attributes: tuple[KeyValue, ...] = ()
    time_unix_nano: int | str = 0
    as_double: OtlpNumber | None = None
    as_int: int | str | None = None
    span_id: str = ""
    trace_id: str = ""


class Buckets(_Struct, frozen=True):
    """The buckets of an exponential histogram on one side of zero."""

    offset: int = 0
    bucket_counts: tuple[int | str, ...] = ()


class DataPoint(_Struct, frozen=True):
    """A data point of any kind of metric."""

    attributes: tuple[KeyValue, ...] = ()
    start_time_unix_nano: int | str = 0
    time_unix_nano: int | str = 0
    as_double: OtlpNumber | None = None
    as_int: int | str | None = None
    exemplars: tuple[Exemplar, ...] = ()
    flags: int = 0
    count: int | str = 0
    sum: OtlpNumber | None = None
    bucket_counts: tuple[int | str, ...] = ()
    explicit_bounds: tuple[OtlpNumber, ...] = ()
    min: OtlpNumber | None = None
    max: OtlpNumber | None = None
    scale: int = 0
    zero_count: int | str = 0
    positive: Buckets = Buckets()
    negative: Buckets = Buckets()
    zero_threshold: OtlpNumber = 0.0
    quantile_values: tuple[Quantile, ...] = ()


class PartlyReadPoint(DataPoint, frozen=True):
    """A data point with fields that are not known; as `PartlyReadLog`."""

    source: str = ""
    reason: str = ""


class Points(_Struct, frozen=True):
    """The data points of a metric."""

    data_points: Collection[DataPoint] = ()
    aggregation_temporality: int | str = 0
    is_monotonic: bool = False


class Metric(_Struct, frozen=True):
    """A metric with its data points."""

    name: str = ""
    description: str = ""
    unit: str = ""
    gauge: Points | None = None
    sum: Points | None = None
    histogram: Points | None = None
    exponential_histogram: Points | None = None
    summary: Points | None = None
    metadata: tuple[KeyValue, ...] = ()


class ScopeMetrics(_Struct, frozen=True):
    """The metrics of one scope."""

    scope: Scope = Scope()
    metrics: tuple[Metric, ...] = ()
    schema_url: str = ""


class ResourceMetrics(_Struct, frozen=True):
    """The metrics of one resource."""

    resource: OtlpResource = OtlpResource()
    scope_metrics: tuple[ScopeMetrics, ...] = ()
    schema_url: str = ""


class MetricsRequest(_Struct, frozen=True):
    """The body of `POST /v1/metrics`."""

    resource_metrics: tuple[ResourceMetrics, ...] = ()


class SpanEvent(_Struct, frozen=True):
    """Something that happened during a span."""

    time_unix_nano: int | str = 0
    name: str = ""
    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: int = 0


class SpanLink(_Struct, frozen=True):
    """A span of any trace that a span refers to."""

    trace_id: str = ""
    span_id: str = ""
    trace_state: str = ""
    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: int = 0
    flags: int = 0


class SpanStatus(_Struct, frozen=True):
    """Whether the operation of a span succeeded."""

    message: str = ""
    code: int | str = 0


class OtlpSpan(_Struct, frozen=True):
    """A span."""

    trace_id: str = ""
    span_id: str = ""
    trace_state: str = ""
    parent_span_id: str = ""
    flags: int = 0
    name: str = ""
    kind: int | str = 0
    start_time_unix_nano: int | str = 0
    end_time_unix_nano: int | str = 0
    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: int = 0
    events: tuple[SpanEvent, ...] = ()
    dropped_events_count: int = 0
    links: tuple[SpanLink, ...] = ()
    dropped_links_count: int = 0
    status: SpanStatus = SpanStatus()


class PartlyReadSpan(OtlpSpan, frozen=True):
    """A span with fields that are not known; as `PartlyReadLog`."""

    source: str = ""
    reason: str = ""


class ScopeSpans(_Struct, frozen=True):
    """The spans of one scope."""

    scope: Scope = Scope()
    spans: tuple[OtlpSpan, ...] = ()
    schema_url: str = ""


class ResourceSpans(_Struct, frozen=True):
    """The spans of one resource."""

    resource: OtlpResource = OtlpResource()
    scope_spans: tuple[ScopeSpans, ...] = ()
    schema_url: str = ""


class TracesRequest(_Struct, frozen=True):
    """The body of `POST /v1/traces`."""

    resource_spans: tuple[ResourceSpans, ...] = ()
