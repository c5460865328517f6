"""What was sent stays readable: thousands of generated objects and spans are in their records.

The long run generates 10^5.
"""

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.otlp_requests import otlp_json
from support.repetitions import times

from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields
from sluice_doors.otlp.http import JSON, PROTOBUF, decode_otlp_traces
from sluice_protocol.columns import LogColumns, SpanColumns, TextColumn
from sluice_protocol.meaning import BESIDE, BODY_KEYS, TEMPLATE_TIME, TIME_KEYS
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S

RECEIVED = 1_790_000_000_000_000_000
SEED = 41
KEYS = (
    *("level", "severity", "log.level", "service", "host", "trace_id", "path", "latency_ms"),
    *("ok", "user.id", "note", "ä", "request_id"),
)
UNITS = (1, 10**3, 10**6, 10**9)
"""Parts of a second that a number of a time may count."""


def generated(draw: random.Random) -> tuple[dict[str, Any], int, str, str]:
    """Return an object, the Unix ns of its time, and the keys of its time and body."""
    unit = draw.choice(UNITS)
    number = draw.randrange(1_700_000_000, 1_900_000_000) * unit + draw.randrange(unit)
    ns = number * (NS_PER_S // unit)
    time_key, body_key = draw.choice(TIME_KEYS), draw.choice(BODY_KEYS)
    form = draw.randrange(3)
    time: object = number
    if form:
        whole, part = divmod(ns, NS_PER_S)
        at = datetime.fromtimestamp(whole + 3600 * (form - 1), UTC).strftime("%Y-%m-%dT%H:%M:%S")
        time = f"{at}.{part:09d}" + ("Z" if form == 1 else "+01:00")
    found: dict[str, Any] = {
        key: draw.choice(["error", "", "ü ✓", 500, 2**60 + 1, -7, True, False, None, [1, "a"]])
        for key in draw.sample(KEYS, draw.randrange(len(KEYS)))
    }
    found |= dict.fromkeys((*BESIDE.get(time_key, ()), *BESIDE.get(body_key, ())), "-")
    found |= {time_key: time, body_key: f"line {draw.randrange(10**9)} {draw.choice(KEYS)}"}
    return found, ns, time_key, body_key


def text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("count", [2_000, pytest.param(times(100_000), marks=pytest.mark.long)])
def test_every_value_of_generated_objects_is_in_their_records(count: int) -> None:
    draw = random.Random(SEED)
    print(f"seed {SEED}")
    sent = [generated(draw) for _ in range(count)]
    body = "\n".join(json.dumps(found, ensure_ascii=False) for found, _, _, _ in sent).encode()
    [decoded] = decode_json(body, RecordFields(received_ns=RECEIVED))
    columns = decoded.columns
    assert isinstance(columns, LogColumns)
    assert (decoded.timed, decoded.unreadable) == (True, 0)
    assert columns.ts.tolist() == [ns for _, ns, _, _ in sent]
    assert columns.body.slices() == [found[key].encode() for found, _, _, key in sent]
    for (found, _, time_key, body_key), shown in zip(
        sent, attribute_rows(columns.attributes, count), strict=True
    ):
        rest = {key: text_of(value) for key, value in found.items() if key != body_key}
        if not str(rest[time_key]).endswith("+01:00") and time_key != TEMPLATE_TIME:
            del rest[time_key]
        assert shown == rest


SPAN_VALUES: tuple[tuple[dict[str, object], str], ...] = (
    ({"string_value": "ü ✓"}, "ü ✓"),
    ({"string_value": ""}, ""),
    ({"int_value": 2**60 + 1}, str(2**60 + 1)),
    ({"double_value": 0.1}, "0.1"),
    ({"bool_value": True}, "true"),
    ({"bytes_value": b"\xff\0"}, "/wA="),
)
YEAR_2262_NS = 2**63 - 1
"""The last time; one in the year 50,000 is not within 64 bits of nanoseconds."""


def generated_span(draw: random.Random) -> tuple[Span, dict[str, str]]:
    """Return a span, and its attributes as texts.

    Some end before they start, take more than 104 days, or have times at the ends of the range.
    """
    start, end = (
        draw.choice([1, YEAR_2262_NS - 1, draw.randrange(10**18, 2 * 10**18)]) for _ in range(2)
    )
    own = {key: draw.choice(SPAN_VALUES) for key in draw.sample(KEYS, draw.randrange(len(KEYS)))}
    span = Span(
        trace_id=draw.randbytes(16),
        span_id=draw.randbytes(8),
        parent_span_id=draw.choice([b"", draw.randbytes(8)]),
        name=f"op {draw.randrange(10**6)}",
        kind=draw.randrange(6),
        start_time_unix_nano=start,
        end_time_unix_nano=end,
    )
    span.status.code = draw.randrange(3)
    span.status.message = draw.choice(["", f"failed {draw.randrange(10**6)} ü"])
    for key, (value, _) in own.items():
        span.attributes.add(key=key, value=AnyValue(**value))
    if not draw.randrange(8):
        span.events.add(name=f"event {draw.randrange(10**6)}", time_unix_nano=end)
        span.links.add(trace_id=draw.randbytes(16), span_id=draw.randbytes(8))
    return span, {key: text for key, (_, text) in own.items()}


def texts_of(column: TextColumn | None) -> list[str]:
    assert column is not None
    return [one.decode() for one in column.slices()]


@pytest.mark.parametrize(
    ("count", "media_type"),
    [
        (2_000, PROTOBUF),
        (1_000, JSON),
        pytest.param(times(100_000), PROTOBUF, marks=pytest.mark.long),
    ],
)
def test_every_value_of_generated_spans_is_in_their_records(count: int, media_type: str) -> None:
    draw = random.Random(SEED)
    print(f"seed {SEED}")
    sent = [generated_span(draw) for _ in range(count)]
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.extend(span for span, _ in sent)
    body = request.SerializeToString() if media_type == PROTOBUF else otlp_json(request)
    [decoded] = decode_otlp_traces(body, media_type, received_ns=RECEIVED)
    columns = decoded.columns
    assert isinstance(columns, SpanColumns)
    assert (decoded.timed, decoded.unreadable) == (True, 0)
    assert columns.ts.tolist() == [span.start_time_unix_nano for span, _ in sent]
    assert columns.duration_ns.tolist() == [
        span.end_time_unix_nano - span.start_time_unix_nano for span, _ in sent
    ]
    assert columns.span_kind.tolist() == [span.kind for span, _ in sent]
    assert columns.status.tolist() == [span.status.code for span, _ in sent]
    assert [columns.name.names[at] for at in columns.name.indexes] == [one.name for one, _ in sent]
    assert texts_of(columns.status_message) == [span.status.message for span, _ in sent]
    assert texts_of(columns.trace_id) == [span.trace_id.hex() for span, _ in sent]
    assert texts_of(columns.span_id) == [span.span_id.hex() for span, _ in sent]
    assert texts_of(columns.parent_id) == [span.parent_span_id.hex() for span, _ in sent]
    assert list(attribute_rows(columns.attributes, count)) == [own for _, own in sent]
    for (span, _), events, links in zip(
        sent, texts_of(columns.events), texts_of(columns.links), strict=True
    ):
        assert json.loads(events or "[]") == [
            {"ts": format_rfc3339(one.time_unix_nano), "name": one.name} for one in span.events
        ]
        assert json.loads(links or "[]") == [
            {"trace_id": one.trace_id.hex(), "span_id": one.span_id.hex()} for one in span.links
        ]
