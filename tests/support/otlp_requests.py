"""Random OTLP requests, their JSON encoding, and damage to encoded bytes.

Also here: an OTLP request of each signal in which every field of every message is set.
"""

import base64
import json
import random
from collections.abc import Iterator

from google.protobuf import json_format, text_format
from google.protobuf.message import Message
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.logs.v1 import logs_pb2 as logs
from opentelemetry.proto.metrics.v1 import metrics_pb2 as metrics
from opentelemetry.proto.resource.v1 import resource_pb2 as resource
from opentelemetry.proto.trace.v1 import trace_pb2 as trace

_RESOURCE = """
  resource {
    attributes { key: "service.name" value { string_value: "shop" } }
    attributes { key: "n" value { int_value: 5 } }
    dropped_attributes_count: 3
    entity_refs { type: "service" id_keys: "service.name" schema_url: "https://x/e" }
  }
  schema_url: "https://x/1"
"""
_SCOPE = """
    scope {
      name: "lib" version: "1.2"
      attributes { key: "kind" value { string_value: "test" } }
      dropped_attributes_count: 4
    }
    schema_url: "https://x/2"
"""
_TEXT_POINT = """
  attributes { key: "host" value { string_value: "a" } }
  start_time_unix_nano: 1763769600000000000 time_unix_nano: 1763769601000000000
"""
_TEXT_EXEMPLAR = """
  exemplars {
    filtered_attributes { key: "user" value { string_value: "u1" } }
    time_unix_nano: 1763769600500000000 as_double: 0.5
    trace_id: "0123456789abcdef" span_id: "01234567"
  }
"""
LOG_REQUEST = text_format.Parse(
    f"""
resource_logs {{ {_RESOURCE}
  scope_logs {{ {_SCOPE}
    log_records {{
      time_unix_nano: 1763769600000000001 observed_time_unix_nano: 1763769600000000009
      severity_number: SEVERITY_NUMBER_ERROR severity_text: "ERR"
      body {{ string_value: "it broke: ü" }}
      attributes {{ key: "n" value {{ double_value: 1.5 }} }}
      attributes {{ key: "ok" value {{ bool_value: false }} }}
      attributes {{ key: "raw" value {{ bytes_value: "\\x00\\xff" }} }}
      attributes {{ key: "none" value {{ }} }}
      dropped_attributes_count: 2 flags: 1
      trace_id: "0123456789abcdef" span_id: "01234567" event_name: "crash"
    }}
    log_records {{
      observed_time_unix_nano: 1763769600000000002
      body {{ kvlist_value {{
        values {{ key: "b" value {{ array_value {{
          values {{ int_value: 1 }} values {{ string_value: "x" }} values {{ }} }} }} }}
        values {{ key: "a" value {{ double_value: inf }} }}
      }} }}
    }}
  }}
}}
resource_logs {{
  resource {{ attributes {{ key: "service.name" value {{ string_value: "shop" }} }} }}
  scope_logs {{ log_records {{ time_unix_nano: 3 body {{ string_value: "other" }} }} }}
}}
""",
    ExportLogsServiceRequest(),
)
TRACE_REQUEST = text_format.Parse(
    f"""
resource_spans {{ {_RESOURCE}
  scope_spans {{ {_SCOPE}
    spans {{
      trace_id: "0123456789abcdef" span_id: "01234567" parent_span_id: "fedcba98"
      trace_state: "a=1,b=2" flags: 257 name: "GET /cart/{{id}}" kind: SPAN_KIND_SERVER
      start_time_unix_nano: 1763769600000000001 end_time_unix_nano: 1763769600250000003
      attributes {{ key: "n" value {{ double_value: 1.5 }} }}
      attributes {{ key: "raw" value {{ bytes_value: "\\x00\\xff" }} }}
      dropped_attributes_count: 2 dropped_events_count: 3 dropped_links_count: 4
      events {{ time_unix_nano: 1763769600000000009 name: "exception"
        attributes {{ key: "exception.message" value {{ string_value: "it broke: ü" }} }}
        attributes {{ key: "n" value {{ int_value: 5 }} }} dropped_attributes_count: 1 }}
      events {{ }}
      links {{ trace_id: "fedcba9876543210" span_id: "76543210" trace_state: "c=3" flags: 1
        attributes {{ key: "why" value {{ string_value: "retry" }} }}
        dropped_attributes_count: 1 }}
      status {{ code: STATUS_CODE_ERROR message: "timed out" }}
    }}
    spans {{ name: "short" start_time_unix_nano: 1763769600000000002 kind: 9
      end_time_unix_nano: 1763769600000000001 status {{ code: 7 }} }}
    spans {{ start_time_unix_nano: 1763769600000000003 }}
  }}
}}
resource_spans {{
  resource {{ attributes {{ key: "service.name" value {{ string_value: "shop" }} }} }}
  scope_spans {{ spans {{ end_time_unix_nano: 3 name: "other" }} }}
}}
""",
    ExportTraceServiceRequest(),
)
METRIC_REQUEST = text_format.Parse(
    f"""
resource_metrics {{ {_RESOURCE}
  scope_metrics {{ {_SCOPE}
    metrics {{
      name: "temperature" description: "how warm" unit: "Cel"
      metadata {{ key: "origin" value {{ string_value: "probe" }} }}
      gauge {{ data_points {{ {_TEXT_POINT} as_double: 21.5 flags: 2 }} }}
    }}
    metrics {{
      name: "requests" unit: "1"
      sum {{
        aggregation_temporality: AGGREGATION_TEMPORALITY_CUMULATIVE is_monotonic: true
        data_points {{ {_TEXT_POINT} as_int: 7 {_TEXT_EXEMPLAR} }}
        data_points {{ time_unix_nano: 1763769602000000000 flags: 1 }}
      }}
    }}
    metrics {{
      name: "latency" unit: "s"
      histogram {{
        aggregation_temporality: AGGREGATION_TEMPORALITY_DELTA
        data_points {{ {_TEXT_POINT} count: 6 sum: 9.5 min: 0.1 max: 4
          bucket_counts: 1 bucket_counts: 2 bucket_counts: 3
          explicit_bounds: 0.5 explicit_bounds: 2 {_TEXT_EXEMPLAR} }}
      }}
    }}
    metrics {{
      name: "sizes"
      exponential_histogram {{
        aggregation_temporality: AGGREGATION_TEMPORALITY_CUMULATIVE
        data_points {{ {_TEXT_POINT} count: 12 sum: 3 min: -8 max: 30 scale: 0
          zero_count: 2 zero_threshold: 0.25
          positive {{ offset: 1 bucket_counts: [3, 0, 0, 4] }}
          negative {{ offset: 1 bucket_counts: 1 bucket_counts: 2 }} }}
      }}
    }}
    metrics {{
      name: "old"
      summary {{ data_points {{ {_TEXT_POINT} count: 3 sum: 1.5
        quantile_values {{ quantile: 0.5 value: 0.4 }}
        quantile_values {{ quantile: 0.99 value: 0.9 }} }} }}
    }}
  }}
}}
""",
    ExportMetricsServiceRequest(),
)


KEYS = st.sampled_from(
    ["", "a", "b", "c", "trace_id", "otel.scope.name", "le", "duplicate.a", "resource.a", "ü"]
)
TEXTS = st.sampled_from(["", "x", "true", "0", "héllo", "日本", "a,b", '"quoted"', "\0"])
TIMES = st.sampled_from([0, 1, 1_763_769_600_123_456_789, 2**63 - 1, 2**63, 2**64 - 1])
COUNTS = st.sampled_from([0, 1, 3, 2**32 - 1])
DOUBLES = st.sampled_from([0.0, -0.0, 1.0, 1.5, 1e300, 1e22, float("inf"), float("nan"), 5e-324])
IDS = st.sampled_from([b"", b"\0" * 16, bytes(range(16)), b"\xff"])
INTEGERS = st.sampled_from([0, -1, 2**63 - 1, -(2**63)])


def any_values() -> st.SearchStrategy[common.AnyValue]:
    return st.recursive(
        st.builds(common.AnyValue)
        | st.builds(common.AnyValue, string_value=TEXTS)
        | st.builds(common.AnyValue, bool_value=st.booleans())
        | st.builds(common.AnyValue, int_value=INTEGERS)
        | st.builds(common.AnyValue, double_value=DOUBLES)
        | st.builds(common.AnyValue, bytes_value=st.binary(max_size=4)),
        lambda inner: (
            st.builds(
                lambda values: common.AnyValue(array_value=common.ArrayValue(values=values)),
                st.lists(inner, max_size=3),
            )
            | st.builds(
                lambda keys, values: common.AnyValue(
                    kvlist_value=common.KeyValueList(
                        values=[
                            common.KeyValue(key=key, value=value)
                            for key, value in zip(keys, values, strict=False)
                        ]
                    )
                ),
                st.lists(KEYS, max_size=3),
                st.lists(inner, max_size=3),
            )
        ),
        max_leaves=5,
    )


PAIRS = st.lists(
    st.builds(common.KeyValue, key=KEYS, value=any_values()) | st.builds(common.KeyValue, key=KEYS),
    max_size=4,
)
SCOPES = st.builds(
    common.InstrumentationScope,
    name=TEXTS,
    version=TEXTS,
    attributes=PAIRS,
    dropped_attributes_count=COUNTS,
)
RESOURCES = st.builds(
    resource.Resource,
    attributes=PAIRS,
    dropped_attributes_count=COUNTS,
    entity_refs=st.lists(
        st.builds(common.EntityRef, type=TEXTS, id_keys=st.lists(TEXTS, max_size=2)), max_size=1
    ),
)
LOGS = st.builds(
    logs.LogRecord,
    time_unix_nano=TIMES,
    observed_time_unix_nano=TIMES,
    severity_number=st.integers(1, 24) | st.sampled_from([-1, 0, 25, 26]),
    severity_text=TEXTS,
    body=any_values(),
    attributes=PAIRS,
    dropped_attributes_count=COUNTS,
    flags=COUNTS,
    trace_id=IDS,
    span_id=IDS,
    event_name=TEXTS,
)
LOG_REQUESTS = st.builds(
    ExportLogsServiceRequest,
    resource_logs=st.lists(
        st.builds(
            logs.ResourceLogs,
            resource=RESOURCES,
            schema_url=TEXTS,
            scope_logs=st.lists(
                st.builds(
                    logs.ScopeLogs,
                    scope=SCOPES,
                    schema_url=TEXTS,
                    log_records=st.lists(LOGS, max_size=4),
                ),
                max_size=2,
            ),
        ),
        max_size=3,
    ),
)
SPANS = st.builds(
    trace.Span,
    trace_id=IDS,
    span_id=IDS,
    parent_span_id=IDS,
    trace_state=TEXTS,
    flags=COUNTS,
    name=TEXTS,
    kind=st.integers(-1, 7),
    start_time_unix_nano=TIMES,
    end_time_unix_nano=TIMES,
    attributes=PAIRS,
    dropped_attributes_count=COUNTS,
    events=st.lists(
        st.builds(
            trace.Span.Event,
            time_unix_nano=TIMES,
            name=TEXTS,
            attributes=PAIRS,
            dropped_attributes_count=COUNTS,
        ),
        max_size=2,
    ),
    dropped_events_count=COUNTS,
    links=st.lists(
        st.builds(
            trace.Span.Link,
            trace_id=IDS,
            span_id=IDS,
            trace_state=TEXTS,
            attributes=PAIRS,
            dropped_attributes_count=COUNTS,
            flags=COUNTS,
        ),
        max_size=2,
    ),
    dropped_links_count=COUNTS,
    status=st.builds(trace.Status, message=TEXTS, code=st.integers(-1, 4)),
)
TRACE_REQUESTS = st.builds(
    ExportTraceServiceRequest,
    resource_spans=st.lists(
        st.builds(
            trace.ResourceSpans,
            resource=RESOURCES,
            schema_url=TEXTS,
            scope_spans=st.lists(
                st.builds(
                    trace.ScopeSpans,
                    scope=SCOPES,
                    schema_url=TEXTS,
                    spans=st.lists(SPANS, max_size=4),
                ),
                max_size=2,
            ),
        ),
        max_size=3,
    ),
)
EXEMPLARS = st.lists(
    st.builds(
        metrics.Exemplar,
        filtered_attributes=PAIRS,
        time_unix_nano=TIMES,
        as_double=DOUBLES,
        trace_id=IDS,
        span_id=IDS,
    ),
    max_size=1,
)
_POINT = {
    "attributes": PAIRS,
    "start_time_unix_nano": TIMES,
    "time_unix_nano": TIMES,
    "flags": st.sampled_from([0, 1, 2, 3]),
}
NUMBER_POINTS = st.lists(
    st.builds(metrics.NumberDataPoint, as_double=DOUBLES, exemplars=EXEMPLARS, **_POINT)
    | st.builds(metrics.NumberDataPoint, as_int=INTEGERS, **_POINT)
    | st.builds(metrics.NumberDataPoint, **_POINT),
    max_size=3,
)
_HISTOGRAM = {"count": COUNTS, "sum": DOUBLES, "min": DOUBLES, "max": DOUBLES, **_POINT}
HISTOGRAM_POINTS = st.lists(
    st.builds(
        metrics.HistogramDataPoint,
        bucket_counts=st.lists(COUNTS, max_size=3),
        explicit_bounds=st.lists(DOUBLES, max_size=2),
        exemplars=EXEMPLARS,
        **_HISTOGRAM,
    )
    | st.builds(metrics.HistogramDataPoint, **_POINT),
    max_size=3,
)
_BUCKETS = st.builds(
    metrics.ExponentialHistogramDataPoint.Buckets,
    offset=st.sampled_from([0, -3, 5, 2**31 - 1, -(2**31)]),
    bucket_counts=st.lists(COUNTS, max_size=4),
)
EXPONENTIAL_POINTS = st.lists(
    st.builds(
        metrics.ExponentialHistogramDataPoint,
        scale=st.sampled_from([0, 3, -3, 20, 1000]),
        zero_count=COUNTS,
        zero_threshold=DOUBLES,
        positive=_BUCKETS,
        negative=_BUCKETS,
        **_HISTOGRAM,
    ),
    max_size=2,
)
SUMMARY_POINTS = st.lists(
    st.builds(
        metrics.SummaryDataPoint,
        count=COUNTS,
        sum=DOUBLES,
        quantile_values=st.lists(
            st.builds(metrics.SummaryDataPoint.ValueAtQuantile, quantile=DOUBLES, value=DOUBLES),
            max_size=2,
        ),
        **_POINT,
    ),
    max_size=2,
)
_TEMPORALITY = st.sampled_from([0, 1, 2, 7])
_METRIC = {"name": TEXTS, "description": TEXTS, "unit": TEXTS, "metadata": PAIRS}
METRICS = (
    st.builds(metrics.Metric, **_METRIC)
    | st.builds(
        metrics.Metric, gauge=st.builds(metrics.Gauge, data_points=NUMBER_POINTS), **_METRIC
    )
    | st.builds(
        metrics.Metric,
        sum=st.builds(
            metrics.Sum,
            data_points=NUMBER_POINTS,
            aggregation_temporality=_TEMPORALITY,
            is_monotonic=st.booleans(),
        ),
        **_METRIC,
    )
    | st.builds(
        metrics.Metric,
        histogram=st.builds(
            metrics.Histogram, data_points=HISTOGRAM_POINTS, aggregation_temporality=_TEMPORALITY
        ),
        **_METRIC,
    )
    | st.builds(
        metrics.Metric,
        exponential_histogram=st.builds(
            metrics.ExponentialHistogram,
            data_points=EXPONENTIAL_POINTS,
            aggregation_temporality=_TEMPORALITY,
        ),
        **_METRIC,
    )
    | st.builds(
        metrics.Metric, summary=st.builds(metrics.Summary, data_points=SUMMARY_POINTS), **_METRIC
    )
)
_USUAL_POINT = {
    "attributes": PAIRS,
    "start_time_unix_nano": st.sampled_from([0, 1_763_769_600_000_000_001]),
    "time_unix_nano": st.sampled_from([0, 1_763_769_600_123_456_789]),
    "flags": st.sampled_from([0, 1]),
}
USUAL_POINTS = st.lists(
    st.builds(metrics.NumberDataPoint, as_double=DOUBLES, **_USUAL_POINT)
    | st.builds(metrics.NumberDataPoint, as_int=st.integers(1 - 2**53, 2**53 - 1), **_USUAL_POINT),
    min_size=1,
    max_size=3,
)
USUAL_METRICS = st.builds(
    metrics.Metric, gauge=st.builds(metrics.Gauge, data_points=USUAL_POINTS), **_METRIC
) | st.builds(
    metrics.Metric,
    sum=st.builds(
        metrics.Sum,
        data_points=USUAL_POINTS,
        aggregation_temporality=_TEMPORALITY,
        is_monotonic=st.booleans(),
    ),
    **_METRIC,
)


def metric_requests(
    chosen: st.SearchStrategy[metrics.Metric],
) -> st.SearchStrategy[ExportMetricsServiceRequest]:
    """Return requests with metrics of this form."""
    return st.builds(
        ExportMetricsServiceRequest,
        resource_metrics=st.lists(
            st.builds(
                metrics.ResourceMetrics,
                resource=RESOURCES,
                schema_url=TEXTS,
                scope_metrics=st.lists(
                    st.builds(
                        metrics.ScopeMetrics,
                        scope=SCOPES,
                        schema_url=TEXTS,
                        metrics=st.lists(chosen, max_size=3),
                    ),
                    max_size=2,
                ),
            ),
            max_size=2,
        ),
    )


METRIC_REQUESTS = metric_requests(METRICS)
USUAL_METRIC_REQUESTS = metric_requests(USUAL_METRICS)
MIXED_METRIC_REQUESTS = metric_requests(USUAL_METRICS | METRICS)


def otlp_json(request: Message) -> bytes:
    """Encode a request in OTLP's JSON, in which ids are hexadecimal and empty lists are stated."""
    text = json_format.MessageToJson(request, always_print_fields_with_no_presence=True)
    plain = json.loads(text)
    return json.dumps(_hexadecimal(plain), ensure_ascii=False).encode()


_IDS = ("traceId", "spanId", "parentSpanId")


def _hexadecimal(plain: object) -> object:
    if isinstance(plain, list):
        return [_hexadecimal(one) for one in plain]
    if not isinstance(plain, dict):
        return plain
    return {
        key: base64.b64decode(value).hex() if key in _IDS else _hexadecimal(value)
        for key, value in plain.items()
    }


def damaged(rng: random.Random, good: list[bytes], count: int) -> Iterator[bytes]:
    """Yield `count` bodies, each a valid one with one to four changes."""
    for _ in range(count):
        out = bytearray(rng.choice(good))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(out) + 1)
            match rng.randrange(6):
                case 0 if at < len(out):
                    out[at] ^= 1 << rng.randrange(8)
                case 1:
                    out[at : at + 1] = bytes((rng.randrange(256),))
                case 2:
                    out[at:at] = rng.randbytes(rng.randint(1, 3))
                case 3:
                    del out[at : at + rng.randint(1, 4)]
                case 4:
                    other = rng.randrange(len(out) + 1)
                    out[at:at] = out[other : other + rng.randint(1, 30)]
                case _:
                    del out[at:]
        yield bytes(out)
