"""Convert OTLP requests in JSON to records, as pure functions.

The attributes of a record are those of its resource, then `otel.scope.name`, then those of the
record; later values replace earlier ones. Values that are not strings are written as JSON. A
histogram becomes the points `<name>.count`, `<name>.sum` and one `<name>.bucket` for each bound
(`le`, cumulative as in Prometheus). A summary becomes count, sum and one `<name>` for each
`quantile`. Exponential histograms are rejected and counted; nothing is approximated.

Source: OpenTelemetry protocol 1.x, JSON encoding; ADR 0034.
"""

import base64
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from sluice_agent.otlp_messages import (
    AnyValue,
    DataPoint,
    KeyValue,
    LogsRequest,
    Metric,
    MetricsRequest,
    Number,
    OtlpLog,
    Points,
    Scope,
)
from sluice_protocol.columns import SEVERITY_MAX
from sluice_protocol.errors import BadUsage
from sluice_protocol.records import LogRecord, MetricPoint
from sluice_protocol.units import UnixNs

_LOGS: Final = msgspec.json.Decoder(LogsRequest)
_METRICS: Final = msgspec.json.Decoder(MetricsRequest)
GAUGE, DELTA, CUMULATIVE = 0, 1, 2
_TS_END: Final = 2**63
_TEMPORALITY: Final = {
    1: DELTA,
    2: CUMULATIVE,
    "AGGREGATION_TEMPORALITY_DELTA": DELTA,
    "AGGREGATION_TEMPORALITY_CUMULATIVE": CUMULATIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpMetrics:
    """The points of a request, and the number of points rejected."""

    points: tuple[MetricPoint, ...]
    refused: int


def logs_from_otlp(body: bytes, *, arrived_ns: UnixNs) -> list[LogRecord]:
    """Decode a logs request.

    Raises:
        BadUsage: It is not OTLP in JSON, or a value is out of range.
    """
    try:
        request = _LOGS.decode(body)
        return [
            _log(log, {**_attributes(each.resource.attributes), **_scope(scoped.scope)}, arrived_ns)
            for each in request.resource_logs
            for scoped in each.scope_logs
            for log in scoped.log_records
        ]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadUsage(f"body is not OTLP logs in JSON: {error}") from error


def metrics_from_otlp(body: bytes, *, arrived_ns: UnixNs) -> OtlpMetrics:
    """Decode a metrics request.

    Raises:
        BadUsage: It is not OTLP in JSON, or a value is out of range.
    """
    try:
        request = _METRICS.decode(body)
        named = [
            (metric, {**_attributes(each.resource.attributes), **_scope(scoped.scope)})
            for each in request.resource_metrics
            for scoped in each.scope_metrics
            for metric in scoped.metrics
        ]
        points = tuple(p for metric, shared in named for p in _points(metric, shared, arrived_ns))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadUsage(f"body is not OTLP metrics in JSON: {error}") from error
    refused = sum(
        len(metric.exponential_histogram.data_points)
        for metric, _ in named
        if metric.exponential_histogram is not None
    )
    return OtlpMetrics(points=points, refused=refused)


def _log(log: OtlpLog, shared: dict[str, str], arrived_ns: UnixNs) -> LogRecord:
    extra = {
        "trace_id": log.trace_id,
        "span_id": log.span_id,
        "severity_text": log.severity_text,
    }
    own = {**{k: v for k, v in extra.items() if v}, **_attributes(log.attributes)}
    severity = log.severity_number if isinstance(log.severity_number, int) else 0
    return LogRecord(
        ts_ns=_time(log.time_unix_nano) or _time(log.observed_time_unix_nano) or arrived_ns,
        body=_text(log.body),
        severity=severity if 0 <= severity <= SEVERITY_MAX else 0,
        attributes={**shared, **own},
    )


def _points(metric: Metric, shared: dict[str, str], arrived_ns: UnixNs) -> Iterator[MetricPoint]:
    if not metric.name:
        raise ValueError("a metric has no name")
    for points, kind in ((metric.gauge, GAUGE), (metric.sum, None)):
        for point, attributes in _with_attributes(points, shared):
            value = point.as_double if point.as_double is not None else point.as_int
            if value is not None:
                type_ = _type(points) if kind is None else kind
                yield _point(metric.name, value, type_, point, attributes, arrived_ns)
    for point, attributes in _with_attributes(metric.histogram, shared):
        yield from _histogram(metric, point, attributes, arrived_ns)
    for point, attributes in _with_attributes(metric.summary, shared):
        yield _point(f"{metric.name}.count", point.count, CUMULATIVE, point, attributes, arrived_ns)
        yield _point(
            f"{metric.name}.sum", point.sum or 0.0, CUMULATIVE, point, attributes, arrived_ns
        )
        for each in point.quantile_values:
            named = {**attributes, "quantile": str(each.quantile)}
            yield _point(metric.name, each.value, GAUGE, point, named, arrived_ns)


def _histogram(
    metric: Metric, point: DataPoint, attributes: dict[str, str], arrived_ns: UnixNs
) -> Iterator[MetricPoint]:
    kind = _type(metric.histogram)
    yield _point(f"{metric.name}.count", point.count, kind, point, attributes, arrived_ns)
    if point.sum is not None:
        yield _point(f"{metric.name}.sum", point.sum, kind, point, attributes, arrived_ns)
    counts = itertools.accumulate(int(count) for count in point.bucket_counts)
    for bound, count in zip((*point.explicit_bounds, math.inf), counts, strict=False):
        named = {**attributes, "le": "+Inf" if bound == math.inf else str(bound)}
        yield _point(f"{metric.name}.bucket", count, kind, point, named, arrived_ns)


def _point(
    name: str,
    value: Number,
    kind: int,
    point: DataPoint,
    attributes: dict[str, str],
    arrived_ns: UnixNs,
) -> MetricPoint:
    return MetricPoint(
        ts_ns=_time(point.time_unix_nano) or arrived_ns,
        name=name,
        value=float(value),
        type=kind,
        attributes=attributes,
    )


def _with_attributes(
    points: Points | None, shared: dict[str, str]
) -> Iterable[tuple[DataPoint, dict[str, str]]]:
    found: Sequence[DataPoint] = () if points is None else points.data_points
    return ((point, {**shared, **_attributes(point.attributes)}) for point in found)


def _type(points: Points | None) -> int:
    return _TEMPORALITY.get(points.aggregation_temporality if points else 0, CUMULATIVE)


def _time(text: int | str) -> UnixNs:
    value = int(text)
    if not 0 <= value < _TS_END:
        raise ValueError("a time is outside 1970 to 2262")
    return UnixNs(value)


def _scope(scope: Scope) -> dict[str, str]:
    return {"otel.scope.name": scope.name} if scope.name else {}


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, str]:
    return {pair.key: _text(pair.value) for pair in pairs if pair.key}


def _text(value: AnyValue) -> str:
    if value.string_value is not None:
        return value.string_value
    plain = _json_value(value)
    return "" if plain is None else msgspec.json.encode(plain).decode()


def _json_value(value: AnyValue) -> object:
    """Return the value as JSON represents it; bytes remain base64, integers become numbers."""
    if value.int_value is not None:
        return int(value.int_value)
    if value.array_value is not None:
        return [_json_value(each) for each in value.array_value.values]
    if value.kvlist_value is not None:
        return {each.key: _json_value(each.value) for each in value.kvlist_value.values}
    if value.bytes_value is not None:
        base64.b64decode(value.bytes_value, validate=True)
    scalars = (value.string_value, value.bool_value, value.double_value, value.bytes_value)
    return next((each for each in scalars if each is not None), None)
