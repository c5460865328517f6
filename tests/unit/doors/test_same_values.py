"""One value, sent through every door that has types, has one text and one type."""

import base64
import json
from collections.abc import Callable

import msgpack
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from support.otlp_requests import otlp_json

from sluice_doors.attributes import with_resource_in_records
from sluice_doors.decoded import DecodedRecords
from sluice_doors.forward.messages import decode_forward
from sluice_doors.json.elasticsearch import decode_bulk
from sluice_doors.json.firehose import decode_firehose
from sluice_doors.json.hec import decode_events
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields
from sluice_doors.loki.push import decode_loki
from sluice_doors.otlp import arrow_logs, protobuf
from sluice_doors.otlp.http import JSON, decode_otlp_logs, decode_otlp_metrics
from sluice_doors.otlp.logs import logs_from_groups
from sluice_protocol.columns import MetricColumns
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.units import UnixNs
from sluice_protocol.values import TypedText

RECEIVED = UnixNs(1_790_000_000_000_000_000)
Decoded = tuple[DecodedRecords, ...]
OF_JSON: dict[str, tuple[str, str, str]] = {
    "integer": ("42", "integer", "42"),
    "negative": ("-7", "integer", "-7"),
    "beyond 64 bits": ("18446744073709551616", "integer", "18446744073709551616"),
    "float": ("1.5", "float", "1.5"),
    "whole float": ("2.0", "float", "2.0"),
    "negative zero": ("-0.0", "float", "-0.0"),
    "digits of no double": ("0.12345678901234567891", "float", "0.12345678901234567891"),
    "true": ("true", "boolean", "true"),
    "false": ("false", "boolean", "false"),
    "word": ('"true"', "text", "true"),
    "number in quotes": ('"500"', "text", "500"),
    "null": ("null", "json", "null"),
    "list": ('[1, "a", null]', "json", '[1,"a",null]'),
    "empty map": ("{}", "json", "{}"),
    "deep list": ("[" * 200 + "]" * 200, "text", "[" * 200 + "]" * 200),
}
"""JSON that is sent, and the type and text that a record has."""


def value_of(decoded: Decoded | DecodedRecords | None, key: str = "k") -> tuple[str, str]:
    assert decoded is not None
    one = decoded if isinstance(decoded, DecodedRecords) else decoded[0]
    [row] = attribute_rows(one.columns.attributes, 1)
    value = row[key]
    return (value.type.label if isinstance(value, TypedText) else "text", str(value))


def json_door(text: str) -> Decoded:
    body = f'{{"message":"m","k":{text}}}'.encode()
    return decode_json(body, RecordFields(received_ns=RECEIVED))


def json_odd(text: str) -> Decoded:
    """A body that is no text makes the record alone, and not with others as columns."""
    return decode_json(f'{{"message":1,"k":{text}}}'.encode(), RecordFields(received_ns=RECEIVED))


def bulk(text: str) -> Decoded:
    body = f'{{"create":{{}}}}\n{{"message":"m","k":{text}}}\n'.encode()
    return decode_bulk(body, received_ns=RECEIVED).records


def hec_event(text: str) -> Decoded:
    return decode_events(f'{{"event":{{"message":"m","k":{text}}}}}'.encode(), received_ns=RECEIVED)


def hec_fields(text: str) -> Decoded:
    return decode_events(f'{{"event":"m","fields":{{"k":{text}}}}}'.encode(), received_ns=RECEIVED)


def firehose(text: str) -> Decoded:
    data = base64.b64encode(f'{{"message":"m","k":{text}}}'.encode()).decode()
    body = json.dumps({"records": [{"data": data}]}).encode()
    return decode_firehose(body, {}, received_ns=RECEIVED)


@pytest.mark.parametrize("door", [json_door, json_odd, bulk, hec_event, hec_fields, firehose])
@pytest.mark.parametrize("name", OF_JSON)
def test_a_value_of_json_has_one_type_through_every_door(
    name: str, door: Callable[[str], Decoded]
) -> None:
    sent, kind, text = OF_JSON[name]
    assert value_of(door(sent)) == (kind, text)


OF_MSGPACK: dict[str, tuple[object, str, str]] = {
    "integer": (42, "integer", "42"),
    "large": (2**63, "integer", "9223372036854775808"),
    "float": (1.5, "float", "1.5"),
    "far": (1e300, "float", "1e300"),
    "nan": (float("nan"), "float", "NaN"),
    "infinity": (float("-inf"), "float", "-Infinity"),
    "true": (True, "boolean", "true"),
    "word": ("true", "text", "true"),
    "nil": (None, "json", "null"),
    "list": ([1, float("nan"), b"\xff"], "json", '[1,"NaN","/w=="]'),
    "bytes": (b"\x00\xff", "bytes", "AP8="),
    "text as bytes": (b"abc", "text", "abc"),
}


@pytest.mark.parametrize("name", OF_MSGPACK)
def test_a_value_of_messagepack_keeps_its_type(name: str) -> None:
    sent, kind, text = OF_MSGPACK[name]
    body = msgpack.packb(["tag", [[1, {"message": "m", "k": sent}]]])
    found = decode_forward(body, received_ns=RECEIVED, bytes_max=1 << 24)
    assert value_of(found) == (kind, text)


def any_value(value: object) -> AnyValue:  # noqa: PLR0911 - one for each type
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case list():
            found = AnyValue()
            found.array_value.values.extend(map(any_value, value))
            return found
        case dict():
            found = AnyValue()
            found.kvlist_value.values.extend(
                [KeyValue(key=key, value=any_value(one)) for key, one in value.items()]
            )
            return found
        case _:
            return AnyValue()


OF_OTLP: dict[str, tuple[object, str, str]] = {
    "integer": (42, "integer", "42"),
    "smallest": (-(2**63), "integer", "-9223372036854775808"),
    "largest": (2**63 - 1, "integer", "9223372036854775807"),
    "float": (1.5, "float", "1.5"),
    "whole float": (2.0, "float", "2.0"),
    "negative zero": (-0.0, "float", "-0.0"),
    "far": (1e300, "float", "1e300"),
    "nan": (float("nan"), "float", "NaN"),
    "infinity": (float("inf"), "float", "Infinity"),
    "true": (True, "boolean", "true"),
    "false": (False, "boolean", "false"),
    "word": ("true", "text", "true"),
    "number in quotes": ("500", "text", "500"),
    "empty": ("", "text", ""),
    "not set": (None, "json", "null"),
    "list": ([1, "a", True, 1.5], "json", '[1,"a",true,1.5]'),
    "map": ({"b": 1, "a": [None]}, "json", '{"a":[null],"b":1}'),
    "bytes": (b"\x00\xff", "bytes", "AP8="),
    "no bytes": (b"", "bytes", ""),
}


def log_request(**found: object) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=1)
    record.body.string_value = "m"
    record.attributes.extend(
        [KeyValue(key=key, value=any_value(one)) for key, one in found.items()]
    )
    return request


def by_arrow(request: ExportLogsServiceRequest) -> DecodedRecords | None:
    return arrow_logs.decode_logs(request.SerializeToString(), received_ns=RECEIVED)


def by_record(request: ExportLogsServiceRequest) -> DecodedRecords | None:
    groups = protobuf.log_groups(request.SerializeToString())
    return logs_from_groups(groups, received_ns=RECEIVED)


def by_json(request: ExportLogsServiceRequest) -> Decoded:
    return decode_otlp_logs(otlp_json(request), JSON, received_ns=RECEIVED)


@pytest.mark.parametrize("road", [by_arrow, by_record, by_json])
@pytest.mark.parametrize("name", OF_OTLP)
def test_a_value_of_otlp_has_one_type_on_every_road(
    name: str, road: Callable[[ExportLogsServiceRequest], Decoded]
) -> None:
    sent, kind, text = OF_OTLP[name]
    assert value_of(road(log_request(k=sent))) == (kind, text)


@pytest.mark.parametrize("road", [by_arrow, by_record, by_json])
def test_a_renamed_value_keeps_its_type(
    road: Callable[[ExportLogsServiceRequest], Decoded],
) -> None:
    request = log_request(a=1)
    attributes = request.resource_logs[0].scope_logs[0].log_records[0].attributes
    attributes.append(KeyValue(key="a", value=any_value(2)))
    found = road(request)
    assert value_of(found, "a") == ("integer", "1")
    assert value_of(found, "duplicate.a") == ("integer", "2")


@pytest.mark.parametrize("road", [by_arrow, by_record, by_json])
def test_values_of_a_resource_are_text_wherever_they_are(
    road: Callable[[ExportLogsServiceRequest], Decoded],
) -> None:
    """A number in a resource has no type, also if requests share a frame and it is an attribute."""
    request = log_request(a=1)
    request.resource_logs[0].resource.attributes.append(KeyValue(key="pid", value=any_value(7)))
    found = road(request)
    assert found is not None
    one = found if isinstance(found, DecodedRecords) else found[0]
    assert one.resource == (("pid", "7"),)
    assert type(one.resource[0][1]) is str
    moved = with_resource_in_records(one)
    assert value_of(moved, "pid") == ("text", "7")
    assert value_of(moved, "a") == ("integer", "1")


def test_labels_of_loki_are_text() -> None:
    body = {"streams": [{"stream": {"a": "1"}, "values": [["1", "line", {"k": "500"}]]}]}
    found = decode_loki(json.dumps(body).encode(), JSON, received_ns=RECEIVED)
    assert value_of(found) == ("text", "500")


def test_bytes_that_are_no_base64_stay_text() -> None:
    """JSON may state anything as bytes; a frame with such bytes would be refused."""
    body = {
        "resourceLogs": [{"scopeLogs": [{"logRecords": [
            {"timeUnixNano": "1",
             "attributes": [{"key": "k", "value": {"bytesValue": "no base64"}}]}
        ]}]}]
    }  # fmt: skip
    found = decode_otlp_logs(json.dumps(body).encode(), JSON, received_ns=RECEIVED)
    assert value_of(found) == ("text", "no base64")


def test_a_key_with_values_of_two_types_keeps_both() -> None:
    body = b'{"message":"m","k":500}\n{"message":"m","k":"500"}\n{"message":"m","k":[500]}'
    [one] = decode_json(body, RecordFields(received_ns=RECEIVED))
    assert one.columns.attributes is not None
    assert one.columns.attributes.types is not None
    assert one.columns.attributes.types.tolist() == [1, 0, 4]
    assert one.columns.attributes.names == ("k",)


@pytest.mark.parametrize("content_type", [JSON, "application/x-protobuf"])
def test_an_integer_above_2_53_is_exact_in_a_metric_and_rounded_in_an_exemplar(
    content_type: str,
) -> None:
    """The two series of a point add up to the integer; the page of doors names what is rounded."""
    large = 2**53 + 1
    point = {
        "timeUnixNano": "1", "asInt": str(large),
        "exemplars": [{"timeUnixNano": "1", "asInt": str(large)}],
    }  # fmt: skip
    plain = {"timeUnixNano": "1", "asInt": str(-large)}
    metrics = [
        {"name": name, "gauge": {"dataPoints": [one]}} for name, one in (("m", point), ("n", plain))
    ]
    body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}
    request = json.dumps(body).encode()
    if content_type != JSON:
        request = json_format.Parse(request, ExportMetricsServiceRequest()).SerializeToString()
    [one] = decode_otlp_metrics(request, content_type, received_ns=RECEIVED)
    assert isinstance(one.columns, MetricColumns)
    names = [one.columns.name.names[place] for place in one.columns.name.indexes.tolist()]
    found = dict(zip(names, map(int, one.columns.value.tolist()), strict=True))
    assert found["m"] + found["m_remainder"] == large
    assert found["n"] + found["n_remainder"] == -large
    assert found["m_exemplar"] == 2**53
    assert "m_exemplar_remainder" not in found
