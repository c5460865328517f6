"""The messages of OTLP in JSON, limited to the fields that the agent reads.

Source: opentelemetry-proto 1.x, `logs.proto`, `metrics.proto`, `common.proto` and its JSON
encoding; ADR 0035.
"""

import msgspec

Number = int | float | str
"""64-bit integers are strings and other numbers are numbers; NaN and infinities are strings."""


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all messages. Unknown fields are ignored, as OTLP requires of receivers."""


class AnyValue(_Struct, frozen=True):
    """A value of any type."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: Number | None = None
    array_value: "ArrayValue | None" = None
    kvlist_value: "KeyValues | None" = None
    bytes_value: str | None = None


class ArrayValue(_Struct, frozen=True):
    """A list of values."""

    values: tuple[AnyValue, ...] = ()


class KeyValue(_Struct, frozen=True):
    """An attribute."""

    key: str = ""
    value: AnyValue = AnyValue()


class KeyValues(_Struct, frozen=True):
    """A map of values."""

    values: tuple[KeyValue, ...] = ()


class Resource(_Struct, frozen=True):
    """The resource that produced the records."""

    attributes: tuple[KeyValue, ...] = ()


class Scope(_Struct, frozen=True):
    """The library that produced the records."""

    name: str = ""


class OtlpLog(_Struct, frozen=True):
    """A log record."""

    time_unix_nano: int | str = 0
    observed_time_unix_nano: int | str = 0
    severity_number: int | str = 0
    severity_text: str = ""
    body: AnyValue = AnyValue()
    attributes: tuple[KeyValue, ...] = ()
    trace_id: str = ""
    span_id: str = ""


class ScopeLogs(_Struct, frozen=True):
    """The log records of one scope."""

    scope: Scope = Scope()
    log_records: tuple[OtlpLog, ...] = ()


class ResourceLogs(_Struct, frozen=True):
    """The log records of one resource."""

    resource: Resource = Resource()
    scope_logs: tuple[ScopeLogs, ...] = ()


class LogsRequest(_Struct, frozen=True):
    """The body of `POST /v1/logs`."""

    resource_logs: tuple[ResourceLogs, ...] = ()


class Quantile(_Struct, frozen=True):
    """A quantile of a summary."""

    quantile: Number = 0.0
    value: Number = 0.0


class DataPoint(_Struct, frozen=True):
    """A data point of any kind of metric."""

    time_unix_nano: int | str = 0
    attributes: tuple[KeyValue, ...] = ()
    as_double: Number | None = None
    as_int: int | str | None = None
    count: int | str = 0
    sum: Number | None = None
    bucket_counts: tuple[int | str, ...] = ()
    explicit_bounds: tuple[Number, ...] = ()
    quantile_values: tuple[Quantile, ...] = ()


class Points(_Struct, frozen=True):
    """The data points of a metric."""

    data_points: tuple[DataPoint, ...] = ()
    aggregation_temporality: int | str = 0


class Metric(_Struct, frozen=True):
    """A metric with its data points."""

    name: str = ""
    gauge: Points | None = None
    sum: Points | None = None
    histogram: Points | None = None
    summary: Points | None = None
    exponential_histogram: Points | None = None


class ScopeMetrics(_Struct, frozen=True):
    """The metrics of one scope."""

    scope: Scope = Scope()
    metrics: tuple[Metric, ...] = ()


class ResourceMetrics(_Struct, frozen=True):
    """The metrics of one resource."""

    resource: Resource = Resource()
    scope_metrics: tuple[ScopeMetrics, ...] = ()


class MetricsRequest(_Struct, frozen=True):
    """The body of `POST /v1/metrics`."""

    resource_metrics: tuple[ResourceMetrics, ...] = ()
