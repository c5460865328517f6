"""One event, as many programs send it through every door, has one answer to each question."""

import base64
import json
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from sluice_doors.decoded import DecodedRecords
from sluice_doors.forward.messages import decode_forward
from sluice_doors.json.elasticsearch import decode_bulk
from sluice_doors.json.firehose import decode_firehose
from sluice_doors.json.hec import decode_events
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields
from sluice_doors.json.timed_lines import columns_of_lines, timed_lines
from sluice_doors.loki.push import decode_loki
from sluice_doors.otlp.http import decode_otlp_logs, decode_otlp_metrics, decode_otlp_traces
from sluice_doors.syslog import SyslogPiece, decode_syslog
from sluice_lake.records import derived_arrays
from sluice_protocol.columns import LogColumns, SpanColumns
from sluice_protocol.meaning import BODY_KEYS, TIME_KEYS
from sluice_protocol.units import UnixNs

RECEIVED = UnixNs(1_790_000_000_000_000_000)
NS = 1_764_316_800_123_000_000
ISO = "2025-11-28T08:00:00.123Z"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
EXPECTED = {
    "ts": NS, "body": "payment failed", "level": "error", "service": "shop", "host": "web-1",
    "instance": "shop-7", "trace_id": TRACE, "request": "r-42", "error": None,
}  # fmt: skip
COMMON = {
    "service.name": "shop", "host.name": "web-1", "service.instance.id": "shop-7",
    "trace_id": TRACE, "request_id": "r-42",
}  # fmt: skip
OBJECTS: dict[str, dict[str, Any]] = {
    "pino": {
        "level": 50, "time": 1764316800123, "pid": 1, "hostname": "web-1", "msg": "payment failed",
        "service": "shop", "reqId": "r-42", "trace_id": TRACE, "instance": "shop-7",
    },
    "bunyan": {
        "v": 0, "level": 50, "hostname": "web-1", "pid": 1, "time": ISO, "msg": "payment failed",
        "req_id": "r-42", "traceId": TRACE, "app": "shop", "pod": "shop-7",
    },
    "structlog": {"event": "payment failed", "level": "error", "timestamp": ISO, **COMMON},
    "python-json-logger": {
        "message": "payment failed", "levelname": "ERROR", "levelno": 40,
        "timestamp": "2025-11-28T08:00:00.123+00:00", **COMMON,
    },
    "zap": {"level": "error", "ts": 1764316800.123, "msg": "payment failed", **COMMON},
    "slog": {"time": "2025-11-28T09:00:00.123+01:00", "level": "ERROR", "msg": "payment failed",
             **COMMON},
    "zerolog": {"level": "error", "time": 1764316800123000, "message": "payment failed", **COMMON},
    "ecs": {
        "@timestamp": ISO, "log.level": "error", "message": "payment failed",
        "service": {"name": "shop"}, "host": {"name": "web-1"}, "trace": {"id": TRACE},
        "service.instance.id": "shop-7", "http": {"request": {"id": "r-42"}},
        "event": {"dataset": "x"},
    },
    "logstash encoder": {
        "@timestamp": ISO, "@version": "1", "message": "payment failed", "level": "ERROR",
        "level_value": 40000, **COMMON,
    },
    "serilog": {"@t": ISO, "@m": "payment failed", "@l": "Error", **COMMON},
    ".NET console": {"Timestamp": ISO, "LogLevel": "Error", "Message": "payment failed", **COMMON},
    "google": {"severity": "ERROR", "timestamp": ISO, "message": "payment failed", **COMMON},
    "docker": {"log": "payment failed", "time": ISO, "severity": 3, **COMMON},
    "java.util.logging": {"t": ISO, "text": "payment failed", "level": "SEVERE", **COMMON},
}  # fmt: skip


def json_door(found: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    return decode_json(json.dumps(found).encode(), RecordFields(received_ns=RECEIVED))


def json_lines(found: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    """Requests that become columns together, or alone if they cannot."""
    lines = timed_lines(json.dumps(found).encode(), TIME_KEYS, BODY_KEYS)
    if lines is None:
        return json_door(found)
    columns = columns_of_lines([lines])
    return (DecodedRecords(columns=columns, resource=(), timed=True, unreadable=0),)


def bulk(found: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    body = b'{"create":{}}\n' + json.dumps(found).encode() + b"\n"
    return decode_bulk(body, received_ns=RECEIVED).records


def hec(found: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    return decode_events(json.dumps({"event": found}).encode(), received_ns=RECEIVED)


def firehose(found: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    data = base64.b64encode(json.dumps(found).encode()).decode()
    body = json.dumps({"records": [{"data": data}]}).encode()
    return decode_firehose(body, {}, received_ns=RECEIVED)


def forward(found: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    time = msgpack.ExtType(0, (NS // 10**9).to_bytes(4, "big") + (NS % 10**9).to_bytes(4, "big"))
    body = msgpack.packb(["tag", [[time, found]]])
    return decode_forward(body, received_ns=RECEIVED, bytes_max=1 << 24)


def otlp(_: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    def pairs(**found: str) -> list[dict[str, Any]]:
        return [
            {"key": key.replace("_", "."), "value": {"stringValue": value}}
            for key, value in found.items()
        ]

    record = {
        "timeUnixNano": str(NS), "severityNumber": 17, "severityText": "ERROR",
        "body": {"stringValue": "payment failed"}, "traceId": TRACE,
        "attributes": pairs(http_request_id="r-42"),
    }  # fmt: skip
    resource = pairs(service_name="shop", host_name="web-1", service_instance_id="shop-7")
    body = {
        "resourceLogs": [
            {"resource": {"attributes": resource}, "scopeLogs": [{"logRecords": [record]}]}
        ]
    }
    return decode_otlp_logs(json.dumps(body).encode(), "application/json", received_ns=RECEIVED)


def loki(_: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    stream = {"service_name": "shop", "host": "web-1", "pod": "shop-7", "level": "error"}
    extra = {"trace_id": TRACE, "request_id": "r-42"}
    body = {"streams": [{"stream": stream, "values": [[str(NS), "payment failed", extra]]}]}
    return decode_loki(json.dumps(body).encode(), "application/json", received_ns=RECEIVED)


def syslog(_: dict[str, Any]) -> tuple[DecodedRecords, ...]:
    stated = f'[m@1 instance="shop-7" trace_id="{TRACE}" request_id="r-42"]'
    line = f"<11>1 {ISO} web-1 shop 1 - {stated} payment failed"
    found = decode_syslog([SyslogPiece(line.encode(), {})], received_ns=RECEIVED, zone=None)
    assert found is not None
    return (found,)


def answers(decoded: tuple[DecodedRecords, ...]) -> dict[str, Any]:
    [one] = decoded
    columns = one.columns
    assert isinstance(columns, LogColumns)
    found = derived_arrays([columns], [one.resource], [1])
    values = {name: array.to_pylist()[0] for name, array in found.items()}
    names = columns.attributes.names if columns.attributes is not None else ()
    return {
        "ts": int(columns.ts[0]), "body": columns.body.data.decode(),
        "error": "sluice.error" if "sluice.error" in names else None,
    } | {name: values[name] for name in EXPECTED if name in values}  # fmt: skip


@pytest.mark.parametrize("door", [json_door, json_lines, bulk, hec, firehose, forward])
@pytest.mark.parametrize("logger", OBJECTS)
def test_every_logger_through_every_door_of_objects_has_one_answer(
    logger: str, door: Callable[[dict[str, Any]], tuple[DecodedRecords, ...]]
) -> None:
    assert answers(door(OBJECTS[logger])) == EXPECTED


@pytest.mark.parametrize("door", [otlp, loki])
def test_the_doors_with_fields_of_their_own_have_the_same_answer(
    door: Callable[[dict[str, Any]], tuple[DecodedRecords, ...]],
) -> None:
    assert answers(door({})) == EXPECTED


def test_syslog_has_the_same_answer() -> None:
    """Its structured data has longer names, which stay attributes."""
    found = answers(syslog({}))
    own = {"instance", "trace_id", "request"}
    assert {key: found[key] for key in EXPECTED if key not in own} == {
        key: EXPECTED[key] for key in EXPECTED if key not in own
    }


POINT = {"name": "m", "gauge": {"dataPoints": [{"timeUnixNano": str(NS), "asInt": "1"}]}}
SENT_SPAN = {"name": "pay", "startTimeUnixNano": str(NS), "traceId": TRACE}


@pytest.mark.parametrize(
    ("decode", "group", "records"),
    [
        (decode_otlp_metrics, "Metrics", {"metrics": [POINT]}),
        (decode_otlp_traces, "Spans", {"spans": [SENT_SPAN]}),
    ],
    ids=["metrics", "spans"],
)
def test_a_point_and_a_span_of_the_program_have_the_same_answer(
    decode: Callable[..., tuple[DecodedRecords, ...]], group: str, records: dict[str, Any]
) -> None:
    """A span contains the id of its trace itself."""
    names = {key: COMMON[key] for key in ("service.name", "host.name", "service.instance.id")}
    pairs = [{"key": key, "value": {"stringValue": text}} for key, text in names.items()]
    whole = {"resource": {"attributes": pairs}, f"scope{group}": [records]}
    body = json.dumps({f"resource{group}": [whole]}).encode()
    [one] = decode(body, "application/json", received_ns=RECEIVED)
    found = {
        name: array.to_pylist()[0]
        for name, array in derived_arrays([one.columns], [one.resource], [len(one.columns)]).items()
    }
    assert found == {name: EXPECTED[name] for name in ("service", "host", "instance")}
    assert one.columns.ts.tolist()[0] == NS
    if isinstance(one.columns, SpanColumns):
        assert one.columns.trace_id.slices()[0].decode() == TRACE
