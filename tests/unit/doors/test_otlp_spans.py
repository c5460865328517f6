"""OTLP spans to columns: each field has the place that `docs/doors.md` states."""

import base64
import json
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.golden import golden
from support.otlp_requests import LOG_REQUEST, TRACE_REQUEST, otlp_json

from sluice_doors import decoded
from sluice_doors.decoded import (
    BodyTooLarge,
    BodyUnreadable,
    DecodedRecords,
    canonical,
    content_digest,
)
from sluice_doors.otlp import messages as otlp_messages
from sluice_doors.otlp import protobuf as otlp_protobuf
from sluice_doors.otlp.http import JSON, PROTOBUF, decode_otlp_traces
from sluice_protocol.columns import SpanColumns, check_columns
from sluice_protocol.ndjson import ndjson_from_columns

NOW = 1_763_000_000_000_000_000
START = 1_763_769_600_000_000_000
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
YEAR_50000 = 48_030 * 365 * 86_400 * 10**9


def spans(*listed: object, resource: object = None) -> bytes:
    scoped = {"scopeSpans": [{"spans": listed}], "resource": resource or {}}
    return json.dumps({"resourceSpans": [scoped]}).encode()


def read(*listed: object) -> tuple[DecodedRecords, list[dict[str, Any]]]:
    (found,) = decode_otlp_traces(spans(*listed), JSON, received_ns=NOW)
    check_columns(found.columns, len(found.columns))
    return found, [json.loads(line) for line in ndjson_from_columns(found.columns)]


@pytest.mark.parametrize("form", [PROTOBUF, JSON])
def test_every_field_is_kept_where_the_golden_file_shows_it(form: str) -> None:
    """The file pins the mapping and the digest: a change needs a new canonical form."""
    request = TRACE_REQUEST
    body = request.SerializeToString() if form == PROTOBUF else otlp_json(request)
    (found,) = decode_otlp_traces(body, f"{form}; charset=utf-8", received_ns=NOW)
    shown = {
        "resource": dict(found.resource),
        "timed": found.timed,
        "unreadable": found.unreadable,
        "digest": content_digest(found).hex(),
        "records": [json.loads(one) for one in ndjson_from_columns(canonical(found).columns)],
    }
    text = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
    assert golden("doors/otlp_traces.json", text.encode()).decode() == text


def test_the_messages_declare_every_field_of_the_protocol() -> None:
    """A new field of `opentelemetry-proto` needs a place in the columns."""
    pool = otlp_protobuf.message_type(otlp_protobuf.TRACES_REQUEST).file.pool
    for name, ours in {
        "Span": otlp_messages.OtlpSpan,
        "Span.Event": otlp_messages.SpanEvent,
        "Span.Link": otlp_messages.SpanLink,
        "Status": otlp_messages.SpanStatus,
        "ScopeSpans": otlp_messages.ScopeSpans,
        "ResourceSpans": otlp_messages.ResourceSpans,
    }.items():
        theirs = pool.FindMessageTypeByName(f"sluice_doors.otlp.trace.v1.{name}")
        assert {field.name for field in theirs.fields} == set(ours.__struct_fields__), name


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (TRACE.upper(), TRACE),
        (base64.b64encode(bytes.fromhex(TRACE)).decode(), TRACE),
        ("0" * 32, "0" * 32),
        ("abc", "abc"),
        ("Not-An-Id", "Not-An-Id"),
        (base64.b64encode(b"eightbyt").decode(), base64.b64encode(b"eightbyt").decode()),
    ],
)
def test_ids_are_hexadecimal_or_as_they_were_sent(sent: str, kept: str) -> None:
    """Some clients send JSON with ids in base64; ids that are none are not changed."""
    found, (line,) = read({"name": "a", "startTimeUnixNano": "5", "traceId": sent})
    assert (line["trace_id"], found.unreadable) == (kept, 0)


@pytest.mark.parametrize(
    ("start", "end", "ts", "duration", "attributes", "timed"),
    [
        (START, START + 5, START, 5, {}, True),
        (START, START - 5, START, -5, {}, True),
        (START, 0, START, 0, {"end_time_unix_nano": "0"}, True),
        (0, START, START, 0, {"start_time_unix_nano": "0"}, True),
        (0, 0, NOW, 0, {"start_time_unix_nano": "0", "end_time_unix_nano": "0"}, False),
    ],
)
def test_start_and_duration_are_exact(
    start: int, end: int, ts: int, duration: int, attributes: dict[str, str], timed: bool
) -> None:
    """A span that has no start or no end is not one that took no time."""
    found, (line,) = read({"name": "a", "startTimeUnixNano": str(start), "endTimeUnixNano": end})
    assert found.columns.ts.tolist() == [ts]
    assert (line["duration_ns"], line.get("attributes", {})) == (duration, attributes)
    assert (found.timed, found.unreadable) == (timed, 0)


def test_times_in_the_year_50000_are_kept_as_text() -> None:
    event = {"timeUnixNano": str(YEAR_50000), "name": "late"}
    found, (line,) = read(
        {"name": "a", "startTimeUnixNano": START, "endTimeUnixNano": YEAR_50000, "events": [event]}
    )
    assert line["attributes"] == {
        "end_time_unix_nano": str(YEAR_50000), "sluice.error": "time is outside 1970 to 2262",
    }  # fmt: skip
    assert json.loads(line["events"]) == [{"name": "late", "time_unix_nano": str(YEAR_50000)}]
    assert (line["duration_ns"], found.unreadable, found.timed) == (0, 1, True)


@pytest.mark.parametrize("form", [3, "3", "SPAN_KIND_CLIENT"])
def test_kind_and_status_are_read_in_every_form(form: object) -> None:
    code = {3: 2, "3": "2"}.get(form, "STATUS_CODE_ERROR")
    _, (line,) = read({"name": "a", "kind": form, "status": {"code": code, "message": "late"}})
    assert (line["span_kind"], line["status"], line["status_message"]) == (
        "client",
        "error",
        "late",
    )


def test_an_unknown_kind_or_status_is_an_attribute() -> None:
    _, (line,) = read({"name": "a", "startTimeUnixNano": 5, "endTimeUnixNano": 5, "kind": 6,
                       "status": {"code": "FINE"}})  # fmt: skip
    assert line["attributes"] == {"kind": "6", "status_code": "FINE"}


@pytest.mark.parametrize("bad", [{"attributes": 5}, "text", {"events": [{"name": []}]}, None])
def test_one_bad_span_is_kept_raw_and_the_others_are_read(bad: object) -> None:
    good = {"name": "good", "startTimeUnixNano": "5", "endTimeUnixNano": "6"}
    found, (first, kept, last) = read(good, bad, good)
    assert first == last == {
        "ts": "1970-01-01T00:00:00.000000005Z", "name": "good", "duration_ns": 1,
    }  # fmt: skip
    assert kept["name"] == "sluice.unnamed"
    assert json.loads(kept["attributes"]["sluice.raw"]) == bad
    assert kept["attributes"]["sluice.error"].startswith(("Expected", "Object"))
    assert (found.unreadable, found.timed) == (1, False)


def test_a_span_with_unknown_fields_is_read_and_kept_raw() -> None:
    sent = {"name": "a", "start_time_unix_nano": 5, "endTimeUnixNano": "7", "colour": "red"}
    found, (line,) = read(sent)
    assert (line["name"], line["duration_ns"], found.unreadable) == ("a", 2, 1)
    assert line["attributes"]["sluice.error"] == "field is not known: colour"
    assert json.loads(line["attributes"]["sluice.raw"]) == sent


def test_half_of_a_damaged_body_is_kept() -> None:
    body = spans({"name": "a", "startTimeUnixNano": 5}, {"name": "b"})
    (found,) = decode_otlp_traces(body.replace(b'"b"', b"b"), JSON, received_ns=NOW)
    first, kept = [json.loads(line) for line in ndjson_from_columns(found.columns)]
    assert (first["name"], found.unreadable) == ("a", 1)
    assert kept["attributes"]["sluice.raw"] == '{"name": b}'


def test_text_that_is_not_utf8_is_kept_raw() -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(start_time_unix_nano=1)
    span.name, span.status.message = "name-XX", "why-XX"
    span.events.add(name="event-XX")
    body = request.SerializeToString().replace(b"XX", b"\xff\xfe")
    (found,) = decode_otlp_traces(body, PROTOBUF, received_ns=NOW)
    (line,) = [json.loads(line) for line in ndjson_from_columns(found.columns)]
    assert (line["name"], line["status_message"]) == ("name-\\xff\\xfe", "why-\ufffd\ufffd")
    assert json.loads(line["events"]) == [{"name": "event-\ufffd\ufffd"}]
    attributes = line["attributes"]
    assert base64.b64decode(attributes["sluice.raw"]) == b"name-\xff\xfe"
    assert base64.b64decode(attributes["sluice.raw.status_message"]) == b"why-\xff\xfe"
    assert (attributes["sluice.error"], found.unreadable) == ("text is not UTF-8", 1)


def test_a_message_of_another_signal_is_refused() -> None:
    plain = ExportLogsServiceRequest()
    plain.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=1)
    for request, why in ((plain, "another kind"), (LOG_REQUEST, "cannot read body")):
        with pytest.raises(BodyUnreadable, match=why):
            decode_otlp_traces(request.SerializeToString(), PROTOBUF, received_ns=NOW)


def test_values_of_events_keep_their_types() -> None:
    event = {
        "timeUnixNano": str(START),
        "name": "e",
        "attributes": [
            {"key": "n", "value": {"intValue": str(2**60 + 1)}},
            {"key": "ok", "value": {"boolValue": False}},
        ],
    }
    _, (line,) = read({"name": "a", "events": [event]})
    assert json.loads(line["events"]) == [
        {"attributes": {"n": 2**60 + 1, "ok": False}, "name": "e",
         "ts": "2025-11-22T00:00:00.000000000Z"},
    ]  # fmt: skip


def test_a_trace_of_many_spans_and_events_is_read_whole() -> None:
    request = ExportTraceServiceRequest()
    listed = request.resource_spans.add().scope_spans.add().spans
    for number in range(10_000):
        listed.add(name="s", trace_id=bytes.fromhex(TRACE), start_time_unix_nano=number + 1)
    for number in range(1_000):
        listed[0].events.add(name="e", time_unix_nano=number + 1)
    (found,) = decode_otlp_traces(request.SerializeToString(), PROTOBUF, received_ns=NOW)
    columns = found.columns
    assert isinstance(columns, SpanColumns)
    assert columns.events is not None
    assert len(columns) == 10_000
    assert len(json.loads(columns.events.slices()[0])) == 1_000


def test_a_span_with_too_many_events_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event may be as short as two bytes, and its object takes a hundred."""
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    for _ in range(11):
        span.events.add()
    monkeypatch.setattr(decoded, "RECORDS_MAX", 10)
    with pytest.raises(BodyTooLarge):
        decode_otlp_traces(request.SerializeToString(), PROTOBUF, received_ns=NOW)
    monkeypatch.setattr(decoded, "PAIRS_MAX", 10)
    with pytest.raises(BodyTooLarge, match="expand"):
        read({"name": "a", "events": [{}] * 11})
