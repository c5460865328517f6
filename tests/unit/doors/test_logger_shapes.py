"""The JSON of usual loggers as they write it has the common fields that it states.

`test_same_event.py` sends one event through every door. Here each logger has the names of its
documentation, and states what it can.
"""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent_formats import ARRIVED_NS, read_whole

from sluice_doors.decoded import DecodedRecords
from sluice_doors.json.elasticsearch import decode_bulk
from sluice_doors.json.firehose import decode_firehose
from sluice_doors.json.hec import decode_events
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields
from sluice_lake.records import derived_arrays
from sluice_protocol.columns import LogColumns
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.records import LogRecord, logs_from_records
from sluice_protocol.units import UnixNs

RECEIVED = UnixNs(1_790_000_000_000_000_000)
NS = 1_764_316_800_123_000_000
SECOND = 1_764_316_800_000_000_000
ISO = "2025-11-28T08:00:00.123Z"
SPAN = "00f067aa0ba902b7"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ASKED = ("service", "host", "instance", "trace_id", "span_id", "request", "level")
USUAL = {"ts": NS, "body": "payment failed", "level": "error"}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "structlog": (
        {
            "event": "payment failed",
            "level": "error",
            "logger": "shop",
            "timestamp": ISO,
            "func_name": "pay",
            "lineno": 3,
            "exception": "Traceback...",
        },
        {},
    ),
    "loguru": (
        {
            "text": "2025-11-28 08:00:00.123 | ERROR    | shop:pay:3 - payment failed\n",
            "record": {
                "elapsed": {"repr": "0:00:00.1", "seconds": 0.1},
                "exception": None,
                "extra": {"order": 7},
                "file": {"name": "shop.py", "path": "/app/shop.py"},
                "function": "pay",
                "level": {"icon": "x", "name": "ERROR", "no": 40},
                "line": 3,
                "message": "payment failed",
                "module": "shop",
                "name": "shop",
                "process": {"id": 1, "name": "MainProcess"},
                "thread": {"id": 1, "name": "MainThread"},
                "time": {"repr": "2025-11-28 08:00:00.123000+00:00", "timestamp": 1764316800.123},
            },
        },
        {},
    ),
    "python-json-logger": (
        {
            "asctime": "2025-11-28 08:00:00,123",
            "levelname": "ERROR",
            "name": "shop",
            "message": "payment failed",
            "trace_id": TRACE,
        },
        {"trace_id": TRACE},
    ),
    "ecs-logging": (
        {
            "@timestamp": ISO,
            "log.level": "error",
            "message": "payment failed",
            "ecs.version": "1.6.0",
            "log": {
                "logger": "shop",
                "origin": {"file": {"line": 3, "name": "a.py"}, "function": "pay"},
                "original": "payment failed",
            },
            "process": {"name": "MainProcess", "pid": 1},
            "trace": {"id": TRACE},
            "service": {"name": "shop"},
        },
        {"service": "shop", "trace_id": TRACE},
    ),
    "zap prod": (
        {
            "level": "error",
            "ts": 1764316800.123,
            "logger": "shop",
            "caller": "shop/pay.go:3",
            "msg": "payment failed",
            "stacktrace": "main.main\n\t/x.go:3",
        },
        {},
    ),
    "zap stackdriver": (
        {
            "severity": "ERROR",
            "timestamp": ISO,
            "message": "payment failed",
            "logging.googleapis.com/trace": f"projects/p/traces/{TRACE}",
            "serviceContext": {"service": "shop"},
        },
        {"service": "shop", "trace_id": TRACE},
    ),
    "logrus": (
        {"level": "error", "msg": "payment failed", "time": ISO, "service": "shop"},
        {"service": "shop"},
    ),
    "zerolog": (
        {"level": "error", "service": "shop", "time": 1764316800, "message": "payment failed"},
        {"service": "shop", "ts": SECOND},
    ),
    "slog": (
        {
            "time": "2025-11-28T08:00:00.123+00:00",
            "level": "ERROR",
            "source": {"function": "main.f", "file": "x.go", "line": 3},
            "msg": "payment failed",
            "service": "shop",
        },
        {"service": "shop"},
    ),
    "hclog": (
        {
            "@level": "error",
            "@message": "payment failed",
            "@module": "shop",
            "@timestamp": "2025-11-28T08:00:00.123000Z",
        },
        {},
    ),
    "log4j2 JsonLayout": (
        {
            "instant": {"epochSecond": 1764316800, "nanoOfSecond": 123000000},
            "thread": "main",
            "level": "ERROR",
            "loggerName": "com.shop.Pay",
            "message": "payment failed",
            "endOfBatch": False,
            "loggerFqcn": "x",
            "contextMap": {"traceId": TRACE},
            "threadId": 1,
            "threadPriority": 5,
        },
        {"trace_id": TRACE},
    ),
    "log4j2 JsonLayout millis": (
        {
            "timeMillis": 1764316800123,
            "thread": "main",
            "level": "ERROR",
            "loggerName": "com.shop.Pay",
            "message": "payment failed",
            "endOfBatch": False,
        },
        {},
    ),
    "log4j2 ecs": (
        {
            "@timestamp": ISO,
            "ecs.version": "1.2.0",
            "log.level": "ERROR",
            "message": "payment failed",
            "process.thread.name": "main",
            "log.logger": "com.shop.Pay",
            "service.name": "shop",
            "trace.id": TRACE,
        },
        {"service": "shop", "trace_id": TRACE},
    ),
    "log4j2 JsonTemplate LogstashV1": (
        {
            "@version": 1,
            "@timestamp": ISO,
            "message": "payment failed",
            "logger_name": "com.shop.Pay",
            "thread_name": "main",
            "level": "ERROR",
            "level_value": 40000,
            "source_host": "web-1",
        },
        {"host": "web-1"},
    ),
    "log4j2 gelf": (
        {
            "version": "1.1",
            "host": "web-1",
            "short_message": "payment failed",
            "full_message": "payment failed\nat x",
            "timestamp": 1764316800.123,
            "level": 3,
            "_logger": "com.shop.Pay",
            "_thread": "main",
        },
        {"host": "web-1"},
    ),
    "log4j2 gcp": (
        {
            "timestamp": ISO,
            "severity": "ERROR",
            "message": "payment failed",
            "logging.googleapis.com/labels": {},
            "logging.googleapis.com/trace": TRACE,
            "_exception": {},
            "_thread": "main",
            "_logger": "com.shop",
        },
        {"trace_id": TRACE},
    ),
    "logstash-logback": (
        {
            "@timestamp": ISO,
            "@version": "1",
            "message": "payment failed",
            "logger_name": "com.shop.Pay",
            "thread_name": "main",
            "level": "ERROR",
            "level_value": 40000,
            "HOSTNAME": "web-1",
            "application_name": "shop",
            "traceId": TRACE,
        },
        {"service": "shop", "host": "web-1", "trace_id": TRACE},
    ),
    "logback JsonEncoder": (
        {
            "sequenceNumber": 0,
            "timestamp": 1764316800123,
            "nanoseconds": 123000000,
            "level": "ERROR",
            "threadName": "main",
            "loggerName": "com.shop",
            "context": {"name": "default", "birthdate": 1, "properties": {"HOSTNAME": "web-1"}},
            "mdc": {"traceId": TRACE},
            "message": "payment failed",
            "throwable": None,
        },
        {"host": "web-1", "trace_id": TRACE},
    ),
    "spring boot logstash": (
        {
            "@timestamp": ISO,
            "@version": "1",
            "message": "payment failed",
            "logger_name": "com.shop",
            "thread_name": "main",
            "level": "ERROR",
            "level_value": 40000,
            "traceId": TRACE,
            "spanId": SPAN,
        },
        {"trace_id": TRACE, "span_id": SPAN},
    ),
    "spring boot ecs": (
        {
            "@timestamp": ISO,
            "log": {"level": "ERROR", "logger": "com.shop"},
            "process": {"pid": 1, "thread": {"name": "main"}},
            "service": {
                "name": "shop",
                "version": "1",
                "environment": "prod",
                "node": {"name": "shop-7"},
            },
            "message": "payment failed",
            "ecs": {"version": "8.11"},
        },
        {"service": "shop"},
    ),
    "quarkus/jboss": (
        {
            "timestamp": ISO,
            "sequence": 1,
            "loggerClassName": "org.jboss.logging.Logger",
            "loggerName": "com.shop",
            "level": "ERROR",
            "message": "payment failed",
            "threadName": "main",
            "threadId": 1,
            "mdc": {"traceId": TRACE},
            "ndc": "",
            "hostName": "web-1",
            "processName": "shop",
            "processId": 1,
        },
        {"host": "web-1", "trace_id": TRACE},
    ),
    "serilog CLEF": (
        {
            "@t": "2025-11-28T08:00:00.1230000Z",
            "@mt": "payment {What}",
            "@l": "Error",
            "What": "failed",
            "@tr": TRACE,
            "@sp": SPAN,
            "@x": "System.Exception",
        },
        {"trace_id": TRACE, "span_id": SPAN, "body": "payment {What}"},
    ),
    "serilog CLEF rendered": (
        {
            "@t": "2025-11-28T08:00:00.1230000Z",
            "@m": "payment failed",
            "@i": "a",
            "@l": "Error",
            "SourceContext": "Shop.Pay",
            "Application": "shop",
            "MachineName": "web-1",
        },
        {"service": "shop", "host": "web-1"},
    ),
    "serilog JsonFormatter": (
        {
            "Timestamp": "2025-11-28T08:00:00.1230000+00:00",
            "Level": "Error",
            "MessageTemplate": "payment {What}",
            "RenderedMessage": "payment failed",
            "TraceId": TRACE,
            "SpanId": SPAN,
            "Exception": "x",
            "Properties": {"What": "failed", "Application": "shop", "MachineName": "web-1"},
        },
        {"service": "shop", "host": "web-1", "trace_id": TRACE, "span_id": SPAN},
    ),
    ".NET JsonConsole": (
        {
            "Timestamp": ISO,
            "EventId": 0,
            "LogLevel": "Error",
            "Category": "Shop.Pay",
            "Message": "payment failed",
            "State": {"Message": "payment failed", "{OriginalFormat}": "payment failed"},
        },
        {},
    ),
    "NLog": (
        {
            "time": "2025-11-28 08:00:00.1230",
            "level": "ERROR",
            "logger": "Shop",
            "message": "payment failed",
        },
        {},
    ),
    "winston": (
        {"level": "error", "message": "payment failed", "service": "shop", "timestamp": ISO},
        {"service": "shop"},
    ),
    "winston http": (
        {"level": "http", "message": "GET /", "timestamp": ISO},
        {"body": "GET /", "level": "debug"},
    ),
    "pino": (
        {
            "level": 50,
            "time": 1764316800123,
            "pid": 1,
            "hostname": "web-1",
            "name": "shop",
            "msg": "payment failed",
        },
        {"service": "shop", "host": "web-1"},
    ),
    "bunyan": (
        {
            "name": "shop",
            "hostname": "web-1",
            "pid": 1,
            "level": 50,
            "msg": "payment failed",
            "time": ISO,
            "v": 0,
            "src": {"file": "a.js", "line": 3},
        },
        {"service": "shop", "host": "web-1"},
    ),
    "monolog": (
        {
            "message": "payment failed",
            "context": {"order": 7},
            "level": 400,
            "level_name": "ERROR",
            "channel": "shop",
            "datetime": "2025-11-28T08:00:00.123000+00:00",
            "extra": {},
        },
        {},
    ),
    "monolog logstash": (
        {
            "@timestamp": "2025-11-28T08:00:00.123000+00:00",
            "@version": 1,
            "host": "web-1",
            "message": "payment failed",
            "type": "shop",
            "channel": "app",
            "level": "ERROR",
            "monolog_level": 400,
        },
        {"host": "web-1"},
    ),
    "ruby logger json": (
        {
            "severity": "ERROR",
            "time": "2025-11-28 08:00:00 UTC",
            "progname": "shop",
            "message": "payment failed",
            "pid": 1,
        },
        {"service": "shop", "ts": SECOND},
    ),
    "ougai (ruby bunyan)": (
        {
            "name": "shop",
            "hostname": "web-1",
            "pid": 1,
            "level": 50,
            "time": ISO,
            "v": 0,
            "msg": "payment failed",
        },
        {"service": "shop", "host": "web-1"},
    ),
    "semantic_logger": (
        {
            "host": "web-1",
            "application": "shop",
            "environment": "prod",
            "timestamp": ISO,
            "level": "error",
            "level_index": 4,
            "pid": 1,
            "thread": "main",
            "name": "Pay",
            "message": "payment failed",
        },
        {"service": "shop", "host": "web-1"},
    ),
    "rust tracing": (
        {
            "timestamp": "2025-11-28T08:00:00.123000Z",
            "level": "ERROR",
            "fields": {"message": "payment failed", "order": 7},
            "target": "shop::pay",
            "span": {"name": "x"},
        },
        {},
    ),
    "rust bunyan": (
        {
            "v": 0,
            "name": "shop",
            "msg": "payment failed",
            "level": 50,
            "hostname": "web-1",
            "pid": 1,
            "time": ISO,
            "target": "shop",
        },
        {"service": "shop", "host": "web-1"},
    ),
    "rust slog-json": ({"msg": "payment failed", "level": "ERRO", "ts": ISO}, {}),
    "elixir logger_json": (
        {
            "time": ISO,
            "severity": "error",
            "message": "payment failed",
            "metadata": {"request_id": "r-42"},
        },
        {"request": "r-42"},
    ),
    "caddy": (
        {
            "level": "info",
            "ts": 1764316800.123,
            "logger": "http.log.access",
            "msg": "handled request",
            "request": {"remote_ip": "1.2.3.4", "method": "GET", "host": "example.com", "uri": "/"},
            "status": 200,
            "duration": 0.1,
        },
        {"body": "handled request", "level": "info"},
    ),
    "mongodb": (
        {
            "t": {"$date": "2025-11-28T08:00:00.123+00:00"},
            "s": "E",
            "c": "NETWORK",
            "id": 22943,
            "ctx": "listener",
            "msg": "payment failed",
            "attr": {"a": 1},
        },
        {},
    ),
    "mongodb debug": (
        {
            "t": {"$date": "2025-11-28T09:00:00.123+01:00"},
            "s": "D2",
            "c": "STORAGE",
            "id": 22430,
            "ctx": "initandlisten",
            "svc": "S",
            "msg": "WiredTiger message",
        },
        {"body": "WiredTiger message", "level": "debug"},
    ),
    "no mongodb": (
        {"t": 1764316800123, "s": "E", "c": "3", "msg": "payment failed"},
        {"level": None},
    ),
    "postgres jsonlog": (
        {
            "timestamp": "2025-11-28 08:00:00.123 UTC",
            "pid": 1,
            "error_severity": "ERROR",
            "message": "payment failed",
            "application_name": "shop",
            "backend_type": "client backend",
        },
        {"service": "shop"},
    ),
    "journald export json": (
        {
            "__REALTIME_TIMESTAMP": "1764316800123000",
            "MESSAGE": "payment failed",
            "PRIORITY": "3",
            "_HOSTNAME": "web-1",
            "SYSLOG_IDENTIFIER": "shop",
        },
        {"service": "shop", "host": "web-1"},
    ),
    "serilog CLEF information": (
        {"@t": "2025-11-28T08:00:00.1230000Z", "@mt": "payment {What}", "What": "taken"},
        {"body": "payment {What}", "level": "info"},
    ),
    "gcp numbers": (
        {"severity": 500, "time": ISO, "message": "payment failed"},
        {},
    ),
    "gcp LogEntry": (
        {
            "insertId": "42",
            "jsonPayload": {"message": "payment failed", "request_id": "r-42"},
            "resource": {
                "type": "k8s_container",
                "labels": {"container_name": "shop", "pod_name": "shop-7", "cluster_name": "c"},
            },
            "timestamp": ISO,
            "severity": 500,
            "labels": {"k8s-pod/app": "shop"},
            "logName": "projects/p/logs/stdout",
            "trace": f"projects/p/traces/{TRACE}",
            "spanId": SPAN,
            "receiveTimestamp": "2025-11-28T08:00:01Z",
        },
        {
            "service": "shop",
            "instance": "shop-7",
            "trace_id": TRACE,
            "span_id": SPAN,
            "request": "r-42",
        },
    ),
    "gcp LogEntry without severity": (
        {
            "insertId": "42",
            "textPayload": "payment failed",
            "resource": {"type": "cloud_run_revision", "labels": {"service_name": "shop"}},
            "timestamp": ISO,
            "severity": 0,
            "logName": "projects/p/logs/run.googleapis.com%2Fstdout",
        },
        {"service": "shop", "level": "info"},
    ),
    "azure resource log": (
        {
            "time": ISO,
            "resourceId": "/SUBSCRIPTIONS/S/RESOURCEGROUPS/G/PROVIDERS/MICROSOFT.WEB/SITES/SHOP",
            "operationName": "Microsoft.Web/sites/log",
            "category": "AppServiceConsoleLogs",
            "level": "Error",
            "resultDescription": "payment failed",
            "correlationId": "r-42",
        },
        {"request": "r-42"},
    ),
    "azure EventLevel": (
        {"time": ISO, "EventLevel": 2, "properties": {"message": "payment failed"}},
        {},
    ),
    "azure application insights": (
        {
            "time": ISO,
            "itemType": "trace",
            "message": "payment failed",
            "severityLevel": 3,
            "operation_Id": TRACE,
            "cloud_RoleName": "shop",
            "cloud_RoleInstance": "shop-7",
        },
        {"service": "shop", "instance": "shop-7", "trace_id": TRACE},
    ),
    ".NET LogLevel as a number": (
        {"Timestamp": ISO, "LogLevel": 4, "Message": "payment failed"},
        {},
    ),
    "fluent bit winevtlog": (
        {
            "ProviderName": "Shop",
            "EventID": 7,
            "Level": 2,
            "Computer": "web-1",
            "Message": "payment failed",
            "timestamp": ISO,
        },
        {"host": "web-1"},
    ),
    "aws lambda powertools": (
        {
            "level": "ERROR",
            "location": "handler:3",
            "message": "payment failed",
            "timestamp": "2025-11-28 08:00:00,123+0000",
            "service": "shop",
            "function_name": "shop-prod",
            "function_request_id": "r-42",
            "xray_trace_id": "1-4bf92f35-77b34da6a3ce929d0e0e4736",
        },
        {"service": "shop", "request": "r-42", "trace_id": TRACE},
    ),
    "aws lambda java": (
        {"timestamp": ISO, "level": "ERROR", "message": "payment failed", "AWSRequestId": "r-42"},
        {"request": "r-42"},
    ),
    "aws lambda platform": (
        {
            "time": ISO,
            "type": "platform.start",
            "record": {"requestId": "r-42", "version": "$LATEST"},
        },
        {"body": "", "level": None, "request": "r-42"},
    ),
    "cloudflare": (
        {
            "ClientIP": "192.0.2.1",
            "ClientRequestHost": "example.com",
            "ClientRequestMethod": "GET",
            "EdgeResponseStatus": 403,
            "EdgeStartTimestamp": 1764316800123000000,
            "RayID": "48b371889c489b2c",
        },
        {"body": "", "level": None, "request": "48b371889c489b2c"},
    ),
    "nginx": (
        {
            "time_iso8601": "2025-11-28T09:00:00+01:00",
            "remote_addr": "192.0.2.1",
            "request": "GET / HTTP/1.1",
            "status": "200",
            "request_id": "r-42",
        },
        {"ts": SECOND, "body": "GET / HTTP/1.1", "level": None, "request": "r-42"},
    ),
    "request without an address": (
        {"time": ISO, "request": "r-42", "status": "ok"},
        {"body": "", "level": None},
    ),
    "nginx msec": (
        {"msec": "1764316800.123", "request_uri": "/", "status": 200},
        {"body": "", "level": None},
    ),
    "envoy": (
        {
            "start_time": ISO,
            "method": "GET",
            "path": "/",
            "response_code": 200,
            "response_flags": "-",
            "request_id": "r-42",
            "upstream_cluster": "inbound|8000||",
            "traceparent": f"00-{TRACE}-{SPAN}-01",
        },
        {"body": "", "level": None, "request": "r-42", "trace_id": TRACE, "span_id": SPAN},
    ),
    "traefik access": (
        {
            "ClientHost": "192.0.2.1",
            "DownstreamStatus": 200,
            "RequestHost": "example.com",
            "ServiceName": "shop@docker",
            "StartUTC": ISO,
            "TraceId": TRACE,
            "level": "info",
            "msg": "",
            "time": "2025-11-28T08:00:00Z",
        },
        {"ts": SECOND, "body": "", "level": "info", "service": "shop@docker", "trace_id": TRACE},
    ),
    "ecs with a transaction": (
        {
            "@timestamp": ISO,
            "log.level": "error",
            "message": "payment failed",
            "event.duration": 1000,
            "service.name": "shop",
            "trace.id": TRACE,
            "transaction.id": SPAN,
            "url.path": "/pay",
        },
        {"service": "shop", "trace_id": TRACE, "span_id": SPAN},
    ),
    "kubernetes audit": (
        {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": "r-42",
            "stage": "ResponseComplete",
            "requestURI": "/api/v1/namespaces",
            "verb": "list",
            "user": {"username": "admin"},
            "requestReceivedTimestamp": "2025-11-28T07:59:59.000000Z",
            "stageTimestamp": "2025-11-28T08:00:00.123000Z",
        },
        {"body": "", "level": "metadata", "request": "r-42"},
    ),
    "klog": (
        {
            "ts": 1764316800123.0,
            "caller": "node/status.go:3",
            "msg": "payment failed",
            "v": 4,
            "pod": {"name": "shop-7", "namespace": "default"},
        },
        {"level": "debug"},
    ),
    "klog error": (
        {"ts": 1764316800123.0, "caller": "a.go:3", "msg": "payment failed", "err": "timeout"},
        {},
    ),
    "rails semantic_logger": (
        {
            "host": "web-1",
            "application": "shop",
            "timestamp": ISO,
            "level": "error",
            "level_index": 4,
            "message": "payment failed",
            "named_tags": {"request_id": "r-42"},
            "duration_ms": 3.5,
        },
        {"service": "shop", "host": "web-1", "request": "r-42"},
    ),
    "lograge logstash": (
        {
            "method": "GET",
            "path": "/",
            "controller": "HomeController",
            "status": 200,
            "duration": 58.33,
            "request_id": "r-42",
            "@timestamp": ISO,
            "@version": "1",
            "message": "[200] GET / (HomeController#index)",
        },
        {"body": "[200] GET / (HomeController#index)", "level": None, "request": "r-42"},
    ),
    "rust tracing flattened": (
        {
            "timestamp": ISO,
            "level": "ERROR",
            "message": "payment failed",
            "target": "shop::pay",
            "spans": [{"name": "request"}],
            "threadId": "ThreadId(1)",
        },
        {},
    ),
    "aws lambda": (
        {
            "timestamp": "2025-11-28T08:00:00Z",
            "level": "ERROR",
            "message": "payment failed",
            "requestId": "r-42",
        },
        {"request": "r-42", "ts": SECOND},
    ),
    "gcp": (
        {
            "severity": "ERROR",
            "message": "payment failed",
            "time": ISO,
            "logging.googleapis.com/trace": f"projects/p/traces/{TRACE}",
            "logging.googleapis.com/spanId": SPAN,
            "httpRequest": {"requestMethod": "GET"},
        },
        {"trace_id": TRACE, "span_id": SPAN},
    ),
    "logstash": (
        {
            "@timestamp": ISO,
            "@version": "1",
            "host": {"hostname": "web-1"},
            "message": "payment failed",
            "event": {"original": "payment failed"},
            "log": {"level": "error"},
        },
        {"host": "web-1"},
    ),
    "logstash old": (
        {
            "@timestamp": ISO,
            "@version": "1",
            "host": "web-1",
            "message": "payment failed",
            "type": "shop",
            "tags": ["x"],
            "loglevel": "ERROR",
        },
        {"host": "web-1"},
    ),
    "python-logstash-async": (
        {
            "@timestamp": ISO,
            "@version": "1",
            "host": "web-1",
            "level": "ERROR",
            "logsource": "web-1",
            "message": "payment failed",
            "pid": 1,
            "program": "shop",
            "type": "python-logstash",
            "extra": {"logger_name": "x"},
        },
        {"service": "shop", "host": "web-1"},
    ),
}
"""What a logger writes, and what its record has in addition to `USUAL`, or instead."""


def json_door(found: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    return decode_json(json.dumps(found).encode(), RecordFields(received_ns=RECEIVED))


def bulk(found: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    body = b'{"create":{}}\n' + json.dumps(found).encode() + b"\n"
    return decode_bulk(body, received_ns=RECEIVED).records


def answers(columns: LogColumns, resource: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    """Return the time, the body and the derived fields of one record."""
    found = {
        name: array.to_pylist()[0]
        for name, array in derived_arrays([columns], [resource], [1]).items()
        if name in ASKED
    }
    stated = {name: value for name, value in found.items() if value is not None}
    return {"ts": int(columns.ts[0]), "body": columns.body.data.decode(), **stated}


def wanted(expected: dict[str, Any]) -> dict[str, Any]:
    """Return the expected fields, without those that the logger does not state."""
    return {key: one for key, one in {**USUAL, **expected}.items() if one is not None}


def splunk(found: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    return decode_events(json.dumps({"event": found}).encode(), received_ns=RECEIVED)


def firehose(found: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    data = base64.b64encode(json.dumps(found).encode()).decode()
    body = json.dumps({"records": [{"data": data}]}).encode()
    return decode_firehose(body, {}, received_ns=RECEIVED)


@pytest.mark.daily(100)
@pytest.mark.parametrize("door", [json_door, bulk, splunk, firehose])
@pytest.mark.parametrize("logger", SHAPES)
def test_the_doors_of_objects_know_the_names_of_each_logger(
    logger: str, door: Callable[[dict[str, Any]], tuple[DecodedRecords, ...]]
) -> None:
    sent, expected = SHAPES[logger]
    [one] = door(sent)
    assert isinstance(one.columns, LogColumns)
    found = answers(one.columns, tuple(one.resource))
    assert found == wanted(expected)
    assert one.unreadable == 0


@pytest.mark.parametrize("logger", SHAPES)
def test_the_agent_recognizes_the_lines_of_each_logger(logger: str, tmp_path: Path) -> None:
    """A program that writes these lines to a file needs no setting."""
    sent, expected = SHAPES[logger]
    line = json.dumps(sent).encode() + b"\n"
    [(ts_ns, body, severity, attributes)] = read_whole(tmp_path / "a.log", line)
    assert ts_ns != ARRIVED_NS
    record = LogRecord(ts_ns=ts_ns, body=body, severity=severity, attributes=attributes)
    assert answers(logs_from_records([record])) == wanted(expected)


def test_a_time_that_is_no_time_of_the_record_is_an_attribute() -> None:
    """A start of a job must not move its record to the past; a part of a second must be one."""
    [one] = json_door({"message": "done", "startTime": "2020-01-01T00:00:00Z"})
    assert not one.timed
    [one] = json_door({"message": "m", "instant": {"epochSecond": 1764316800, "nanoOfSecond": -1}})
    assert isinstance(one.columns, LogColumns)
    assert int(one.columns.ts[0]) == SECOND


@pytest.mark.parametrize("nested", [True, False])
def test_a_second_whose_rest_is_after_the_last_time_is_no_time(*, nested: bool) -> None:
    """A sum beyond 64 bits would fail the request, or the frame that it shares with others."""
    instant = {"epochSecond": 9_223_372_036, "nanoOfSecond": 999_999_999}
    flat = {f"instant.{key}": value for key, value in instant.items()}
    [one] = json_door({"message": "m", **({"instant": instant} if nested else flat)})
    assert isinstance(one.columns, LogColumns)
    assert not one.timed
    [row] = attribute_rows(one.columns.attributes, 1)
    assert row == {key: str(value) for key, value in flat.items()}
