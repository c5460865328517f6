"""Two OTLP requests in which every field of every message is set."""

from google.protobuf import text_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

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
_POINT = """
  attributes { key: "host" value { string_value: "a" } }
  start_time_unix_nano: 1763769600000000000 time_unix_nano: 1763769601000000000
"""
_EXEMPLAR = """
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
METRIC_REQUEST = text_format.Parse(
    f"""
resource_metrics {{ {_RESOURCE}
  scope_metrics {{ {_SCOPE}
    metrics {{
      name: "temperature" description: "how warm" unit: "Cel"
      metadata {{ key: "origin" value {{ string_value: "probe" }} }}
      gauge {{ data_points {{ {_POINT} as_double: 21.5 flags: 2 }} }}
    }}
    metrics {{
      name: "requests" unit: "1"
      sum {{
        aggregation_temporality: AGGREGATION_TEMPORALITY_CUMULATIVE is_monotonic: true
        data_points {{ {_POINT} as_int: 7 {_EXEMPLAR} }}
        data_points {{ time_unix_nano: 1763769602000000000 flags: 1 }}
      }}
    }}
    metrics {{
      name: "latency" unit: "s"
      histogram {{
        aggregation_temporality: AGGREGATION_TEMPORALITY_DELTA
        data_points {{ {_POINT} count: 6 sum: 9.5 min: 0.1 max: 4
          bucket_counts: 1 bucket_counts: 2 bucket_counts: 3
          explicit_bounds: 0.5 explicit_bounds: 2 {_EXEMPLAR} }}
      }}
    }}
    metrics {{
      name: "sizes"
      exponential_histogram {{
        aggregation_temporality: AGGREGATION_TEMPORALITY_CUMULATIVE
        data_points {{ {_POINT} count: 12 sum: 3 min: -8 max: 30 scale: 0
          zero_count: 2 zero_threshold: 0.25
          positive {{ offset: 1 bucket_counts: [3, 0, 0, 4] }}
          negative {{ offset: 1 bucket_counts: 1 bucket_counts: 2 }} }}
      }}
    }}
    metrics {{
      name: "old"
      summary {{ data_points {{ {_POINT} count: 3 sum: 1.5
        quantile_values {{ quantile: 0.5 value: 0.4 }}
        quantile_values {{ quantile: 0.99 value: 0.9 }} }} }}
    }}
  }}
}}
""",
    ExportMetricsServiceRequest(),
)
