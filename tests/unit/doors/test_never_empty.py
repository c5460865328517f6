"""A body that is not empty and yields no record is never a success: each door, shape and coding."""

import gzip
import json
import zlib
from collections.abc import Callable, Sequence

import cramjam
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.door_bodies import (
    BULK,
    FIREHOSE,
    HEC,
    LOKI,
    LOKI_JSON,
    NDJSON,
    REMOTE_WRITE,
    REMOTE_WRITE_2,
    double,
    integer,
    label,
    part,
)
from support.otlp_requests import LOG_REQUEST, METRIC_REQUEST, TRACE_REQUEST, otlp_json

from sluice_doors import protobuf
from sluice_doors.content_coding import decompress
from sluice_doors.decoded import BodyTooLarge, BodyUnreadable, DecodedRecords
from sluice_doors.forward.messages import decode_forward
from sluice_doors.json.elasticsearch import decode_bulk, decode_document
from sluice_doors.json.firehose import decode_firehose
from sluice_doors.json.hec import decode_events, decode_raw
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields
from sluice_doors.loki.push import decode_loki
from sluice_doors.otlp.http import (
    JSON,
    PROTOBUF,
    decode_otlp_logs,
    decode_otlp_metrics,
    decode_otlp_traces,
)
from sluice_doors.prometheus.write import VERSION_2, decode_remote_write
from sluice_doors.requests import DoorRequest, canonical_records
from sluice_doors.table import DoorName
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.units import UnixNs

NOW = UnixNs(1_763_000_000_000_000_000)
MIB = 1024 * 1024
Decode = Callable[[bytes, UnixNs], Sequence[DecodedRecords]]

DOORS: dict[str, tuple[DoorName, Decode]] = {
    "otlp logs json": ("otlp", lambda b, t: decode_otlp_logs(b, JSON, received_ns=t)),
    "otlp metrics json": ("otlp", lambda b, t: decode_otlp_metrics(b, JSON, received_ns=t)),
    "otlp logs": ("otlp", lambda b, t: decode_otlp_logs(b, PROTOBUF, received_ns=t)),
    "otlp metrics": ("otlp", lambda b, t: decode_otlp_metrics(b, PROTOBUF, received_ns=t)),
    "otlp traces json": ("otlp", lambda b, t: decode_otlp_traces(b, JSON, received_ns=t)),
    "otlp traces": ("otlp", lambda b, t: decode_otlp_traces(b, PROTOBUF, received_ns=t)),
    "json": (
        "json",
        lambda b, t: decode_json(b, RecordFields(received_ns=t)),
    ),
    "bulk": ("elasticsearch", lambda b, t: decode_bulk(b, received_ns=t).records),
    "document": (
        "elasticsearch",
        lambda b, t: decode_document(b, "index", index="i", id_="", received_ns=t).records,
    ),
    "loki json": ("loki", lambda b, t: decode_loki(b, JSON, received_ns=t)),
    "loki": ("loki", lambda b, t: decode_loki(b, PROTOBUF, received_ns=t)),
    "write 1": ("prometheus", lambda b, t: decode_remote_write(b, PROTOBUF, received_ns=t).records),
    "write 2": (
        "prometheus",
        lambda b, t: decode_remote_write(
            b, f"{PROTOBUF};proto={VERSION_2}", received_ns=t
        ).records,
    ),
    "hec": ("hec", lambda b, t: decode_events(b, received_ns=t)),
    "hec raw": ("hec", lambda b, t: decode_raw(b, {}, received_ns=t)),
    "firehose": ("firehose", lambda b, t: decode_firehose(b, {}, received_ns=t)),
    "forward": ("forward", lambda b, t: decode_forward(b, received_ns=t, bytes_max=MIB)),
}  # fmt: skip
OF_PROTOBUF = ("otlp logs", "otlp metrics", "otlp traces", "loki", "write 1", "write 2")
"""The doors whose large bodies are decoded through Arrow."""

CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": lambda body: bytes(cramjam.zstd.compress(body)),
    "snappy": lambda body: bytes(cramjam.snappy.compress_raw(body)),
}


def spans(name: str) -> bytes:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = b"t" * 16, b"s" * 8, name
    span.start_time_unix_nano, span.end_time_unix_nano = 5, 6
    span.attributes.add(key="k").value.string_value = "v"
    return request.SerializeToString()


def text(value: object) -> bytes:
    return json.dumps(value).encode()


DEEP = 100_000
GOOD = {
    "otlp logs json": otlp_json(LOG_REQUEST),
    "otlp metrics json": otlp_json(METRIC_REQUEST),
    "otlp logs": LOG_REQUEST.SerializeToString(),
    "otlp metrics": METRIC_REQUEST.SerializeToString(),
    "otlp traces json": otlp_json(TRACE_REQUEST),
    "otlp traces": TRACE_REQUEST.SerializeToString(),
    "json": NDJSON,
    "bulk": BULK,
    "document": b'{"message":"a"}',
    "loki json": LOKI_JSON if isinstance(LOKI_JSON, bytes) else text(LOKI_JSON),
    "loki": LOKI,
    "write 1": REMOTE_WRITE,
    "write 2": REMOTE_WRITE_2,
    "hec": HEC,
    "hec raw": b"a line",
    "firehose": FIREHOSE,
    "forward": b"\x93\xa1t\x05\x81\xa1a\x01",
}
WRONG = {
    "object": b"{}",
    "array": b"[]",
    "objects": b"[{}]",
    "null": b"null",
    "number": b"7",
    "text": b"what",
    "line end": b"\n",
    "mark": b"\xef\xbb\xbf",
    "mark and object": b"\xef\xbb\xbf{}",
    "unknown member": text({"a": 1}),
    "empty lists": text({"resourceLogs": [], "resourceMetrics": [], "streams": [], "records": []}),
    "empty elements": text(
        {"resourceLogs": [{}], "resourceMetrics": [{}], "streams": [{}], "records": [{}]}
    ),
    "unknown elements": text(
        {
            "resourceLogs": [{"scope": [{"records": [{"x": 1}]}]}],
            "resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "x", "gauges": {}}]}]}],
            "streams": [{"stream": {"a": "b"}, "lines": [["1", "a"]]}],
            "records": [{"Data": "e30="}],
        }
    ),
    "spans": text({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}),
    "protobuf spans": spans("GET /"),
    "protobuf spans without a name": spans(""),
    "unknown field only": part(15, b"x"),
    "empty message": part(1, b""),
    "empty messages": part(1, part(2, b"")),
    "deep arrays": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "closed deep arrays": b"[" * DEEP + b"]" * DEEP,
    "deep groups": b"\x0b" * DEEP + b"\x0c" * DEEP,
    "deep groups in a record": part(1, part(2, part(2, b"\x5b" * DEEP + b"\x5c" * DEEP))),
    "deep msgpack": b"\x91" * DEEP + b"\x01",
    "no entries": b"\x92\xa1t\x90",
    "no packed entries": b"\x92\xa1t\xa0",
    "compressed twice": gzip.compress(b'{"message":"a"}'),
    "zeros": bytes(64),
    "delete": b'{"delete":{"_id":"1"}}\n',
    "event without event": b'{"fields":{"a":1}}',
}  # fmt: skip


def records_of(door: str, plain: bytes) -> list[DecodedRecords] | None:
    """Return the records of a body; None where it is refused."""
    name, decode = DOORS[door]
    wanted = DoorRequest(door=name, decode=decode, coding="identity")
    try:
        return [one.records for one in canonical_records(plain, wanted, NOW)]
    except (BodyUnreadable, BodyTooLarge):
        return None


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    ("road", "door"),
    [*(("rows", door) for door in DOORS), *(("arrow", door) for door in OF_PROTOBUF)],
)
def test_a_body_that_is_not_empty_has_a_record_or_is_refused(
    door: str, road: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the bodies of other doors; damage and deep nesting raise only the two errors."""
    if road == "arrow":
        monkeypatch.setattr(protobuf, "ARROW_BYTES_MIN", 0)
    empty: list[str] = []
    for shape, whole in {**GOOD, **WRONG}.items():
        body = whole
        if door == "forward" and shape != "deep msgpack":
            body = whole[:2000]  # each byte of other protocols may be a message
        found = records_of(door, body)
        if found is not None and sum(len(one.columns) for one in found) == 0:
            empty.append(shape)
        if shape == door:
            assert found
    assert empty == []


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("coding", CODINGS)
def test_every_coding_has_the_same_outcome(door: str, coding: str) -> None:
    for body in (*WRONG.values(), GOOD[door]):
        if len(body) < DEEP:
            plain = decompress(CODINGS[coding](body), coding, bytes_max=MIB)
            assert plain == body
    empty = decompress(CODINGS[coding](b""), coding, bytes_max=MIB)
    assert empty == b""


@pytest.mark.parametrize(
    ("sent", "door"),
    [
        ("protobuf spans", "otlp logs"), ("protobuf spans without a name", "otlp logs"),
        ("otlp logs", "otlp metrics"), ("otlp metrics", "otlp logs"),
        ("write 1", "write 2"), ("write 2", "write 1"), ("write 1", "loki"), ("loki", "write 1"),
        ("otlp logs json", "otlp metrics json"), ("spans", "otlp logs json"),
        ("otlp logs json", "loki json"), ("loki json", "otlp logs json"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("road", ["rows", "arrow"])
def test_a_request_of_another_kind_is_refused(
    sent: str, door: str, road: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if road == "arrow":
        monkeypatch.setattr(protobuf, "ARROW_BYTES_MIN", 0)
    assert records_of(door, WRONG.get(sent) or GOOD[sent]) is None


def lines(found: list[DecodedRecords] | None) -> list[dict]:
    assert found is not None
    return [json.loads(line) for one in found for line in ndjson_from_columns(one.columns)]


@pytest.mark.parametrize("road", ["rows", "arrow"])
def test_a_span_among_log_records_is_kept_raw(road: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if road == "arrow":
        monkeypatch.setattr(protobuf, "ARROW_BYTES_MIN", 0)
    found = lines(records_of("otlp logs", LOG_REQUEST.SerializeToString() + spans("")))
    raw = [one for one in found if "another kind" in one["attributes"].get("sluice.error", "")]
    assert len(raw) == 1
    assert len(found) > 1
    assert raw[0]["attributes"]["sluice.raw"]


def test_a_good_stream_of_loki_next_to_the_old_form() -> None:
    old = {"labels": '{job="x"}', "entries": [{"ts": "2024-11-26T07:07:43.5Z", "line": "a"}]}
    good = {"stream": {"job": "x"}, "values": [["1", "b"]]}
    unknown = {"stream": {"job": "x"}, "lines": [["1", "c"]]}
    (alone,) = lines(records_of("loki json", text({"streams": [old]})))
    assert (alone["ts"], alone["body"]) == ("2024-11-26T07:07:43.500000000Z", "a")
    first, second, third = lines(records_of("loki json", text({"streams": [good, old, unknown]})))
    assert (first["body"], second["body"]) == ("b", "a")
    assert first["attributes"] == second["attributes"] == {"job": "x"}
    assert json.loads(third["body"]) == unknown
    assert "no list of lines" in third["attributes"]["sluice.error"]


def test_a_damaged_line_of_loki_costs_no_other() -> None:
    body = b'{"streams":[{"stream":{"a":"b"},"values":[["1","x"],["2",NaN],["3","z"]]}]}'
    assert [one["body"] for one in lines(records_of("loki json", body))] == ["x", '["2",NaN]', "z"]


@pytest.mark.parametrize("door", ["otlp logs json", "otlp metrics json"])
def test_both_names_of_each_field_of_otlp(door: str) -> None:
    """Every key is renamed: the lower camel case of protobuf's JSON, and the names of the files."""

    def renamed(value: object) -> object:
        if isinstance(value, list):
            return [renamed(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            "".join(f"_{one.lower()}" if one.isupper() else one for one in key): renamed(one)
            for key, one in value.items()
        }

    body = GOOD[door]
    snake = text(renamed(json.loads(body)))
    assert b"time_unix_nano" in snake
    assert lines(records_of(door, snake)) == lines(records_of(door, body))


def metric_body(*metrics: object) -> bytes:
    return text({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]})


def log_body(*records: object) -> bytes:
    return text({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]})


@pytest.mark.parametrize(
    "bad",
    [{"name": "x", "gauges": {"dataPoints": [{"asInt": "1"}]}}, {"name": "x"},
     {"name": "x", "gauge": {"points": [{"asInt": "1"}]}}, {"name": "x", "gauge": {}}],
)  # fmt: skip
def test_a_metric_without_data_that_is_known_is_kept_raw(bad: dict) -> None:
    good = {"name": "y", "gauge": {"dataPoints": [{"asInt": "1", "timeUnixNano": "5"}]}}
    for others in ((), (good,)):
        found = lines(records_of("otlp metrics json", metric_body(bad, *others)))
        assert found[0]["name"] == "x"
        assert json.loads(found[0]["attributes"]["sluice.raw"]) == bad
        assert "metric has no data" in found[0]["attributes"]["sluice.error"]
        assert [one["name"] for one in found[1:]] == ["y", "y_metadata"] * len(others)


def test_a_point_whose_value_has_an_unknown_name_is_kept_as_it_came() -> None:
    point = {"timeUnixNano": "5", "asInteger": "7", "attributes": []}
    body = metric_body({"name": "x", "gauge": {"dataPoints": [point]}})
    raw, *_ = lines(records_of("otlp metrics json", body))
    assert json.loads(raw["attributes"]["sluice.raw"]) == point
    assert raw["attributes"]["sluice.error"] == "point has no value; field is not known: asInteger"


def test_a_point_with_two_values_is_kept_raw() -> None:
    point = {"timeUnixNano": "5", "asInt": "7", "asDouble": 2.0}
    body = metric_body({"name": "x", "gauge": {"dataPoints": [point]}})
    raw, *_ = lines(records_of("otlp metrics json", body))
    assert json.loads(raw["attributes"]["sluice.raw"]) == {"as_int": 7, "as_double": 2.0}
    assert raw["attributes"]["sluice.error"] == "point has two values: asDouble and asInt"


def test_unknown_fields_of_a_log_record_are_kept_as_they_came() -> None:
    record = {"timeUnixNano": "5", "bodi": {"stringValue": "x"}, "body": {"stringVal": "y"}}
    (found,) = lines(records_of("otlp logs json", log_body(record)))
    assert json.loads(found["attributes"]["sluice.raw"]) == record
    assert found["attributes"]["sluice.error"] == "field is not known: bodi, stringVal"
    assert found["ts"] == "1970-01-01T00:00:00.000000005Z"


def test_unknown_fields_around_records_are_kept_as_they_came() -> None:
    record = {"timeUnixNano": "5", "body": {"stringValue": "x"}}
    scoped = {"scopes": {"name": "s"}, "logRecords": [record]}
    body = {"resourceLogs": [{"resource": {"attribs": []}, "scopeLogs": [scoped]}], "spans": [1]}
    found = lines(records_of("otlp logs json", text(body)))
    assert [one["body"] for one in found if "sluice.error" not in one.get("attributes", {})] == [
        "x"
    ]
    kept = [json.loads(one["body"]) for one in found if one["body"] != "x"]
    assert kept == [{"spans": [1]}, {"resource": {"attribs": []}}, {"scopes": {"name": "s"}}]


@pytest.mark.parametrize("value", [5.0, "5", "5.0", "5e0", 5])
def test_forms_of_an_integer(value: object) -> None:
    record = {"timeUnixNano": value, "body": {"intValue": value}, "flags": value}
    (found,) = lines(records_of("otlp logs json", log_body(record)))
    assert found == {
        "ts": "1970-01-01T00:00:00.000000005Z", "body": "5", "attributes": {"trace_flags": "5"},
    }  # fmt: skip


@pytest.mark.parametrize("value", ["1e400", " 1", "1_0", "0x5", "inf", "nan", "01", "٣", "1."])
def test_texts_of_numbers_follow_the_rules_of_json(value: str) -> None:
    point = {"timeUnixNano": "5", "asDouble": value}
    body = metric_body({"name": "x", "gauge": {"dataPoints": [point]}})
    (found, _) = lines(records_of("otlp metrics json", body))
    assert found["attributes"]["sluice.error"]
    assert value in json.loads(found["attributes"]["sluice.raw"]).values()


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63) + 1, 2**63 - 1, 2**53 - 1])
@pytest.mark.parametrize("road", ["json", "rows", "arrow"])
def test_large_integers_stay_exact(value: int, road: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (  # noqa: PLC0415
        ExportMetricsServiceRequest,
    )

    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="x")
    metric.gauge.data_points.add(time_unix_nano=5, as_int=value)
    if road == "arrow":
        monkeypatch.setattr(protobuf, "ARROW_BYTES_MIN", 0)
    if road == "json":
        found = lines(records_of("otlp metrics json", otlp_json(request)))
    else:
        found = lines(records_of("otlp metrics", request.SerializeToString()))
    parts = [int(one["value"]) for one in found if one["name"] in ("x", "x_remainder")]
    assert sum(parts) == value
    assert len(parts) == 1 + (int(float(value)) != value)


def test_series_of_another_kind_next_to_a_good_one() -> None:
    good = part(1, part(1, label("__name__", "up")) + part(2, double(1, 1.0) + integer(2, 5)))
    bad = part(1, part(1, label("__name__", "up")) + part(2, part(1, b"x")))
    found = lines(records_of("write 1", good + bad))
    assert [one["name"] for one in found] == ["up", "sluice.unnamed"]
    assert found[1]["attributes"]["sluice.raw"]
    assert records_of("write 1", bad) is None


@pytest.mark.parametrize("wrap", ["body", "attribute", "list", "nested"])
def test_binary_text_of_fluentd_is_text(wrap: str) -> None:
    """Fluentd marks the lines of files as binary."""
    import msgpack  # noqa: PLC0415

    line = "grün".encode()
    record = {
        "body": {b"message": line}, "attribute": {b"key": line, "message": "m"},
        "list": {"list": [line], "message": "m"}, "nested": {"n": {b"k": line}, "message": "m"},
    }[wrap]  # fmt: skip
    body = msgpack.packb([b"tag", 5, record], use_bin_type=True)
    (found,) = lines(records_of("forward", body))
    assert (found["body"] if wrap == "body" else found["attributes"]) == {
        "body": "grün", "attribute": {"key": "grün"}, "list": {"list": ["grün"]},
        "nested": {"n.k": "grün"},
    }[wrap]  # fmt: skip
    other = msgpack.packb(["tag", 5, {"message": b"\xff\x00"}], use_bin_type=True)
    assert lines(records_of("forward", other))[0]["body"] == "/wA="
