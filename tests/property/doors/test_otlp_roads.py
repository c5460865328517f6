"""All roads of OTLP lead to the same columns; damage raises only the two named errors."""

import random
from collections.abc import Callable
from functools import partial

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.otlp_requests import (
    LOG_REQUEST,
    LOG_REQUESTS,
    METRIC_REQUEST,
    METRIC_REQUESTS,
    MIXED_METRIC_REQUESTS,
    TRACE_REQUEST,
    TRACE_REQUESTS,
    USUAL_METRIC_REQUESTS,
    damaged,
    otlp_json,
)
from support.repetitions import times

from sluice_doors import protobuf
from sluice_doors.arrow.pieces import find_records
from sluice_doors.arrow.texts import NotPlain
from sluice_doors.decoded import (
    BodyTooLarge,
    BodyUnreadable,
    DecodedRecords,
    canonical,
    content_digest,
)
from sluice_doors.otlp import arrow_logs as otlp_arrow
from sluice_doors.otlp import arrow_metrics as otlp_metrics_arrow
from sluice_doors.otlp import arrow_spans as otlp_spans_arrow
from sluice_doors.otlp import protobuf as otlp_protobuf
from sluice_doors.otlp.http import JSON, PROTOBUF, SIGNALS, decode_otlp_logs, decode_otlp_metrics
from sluice_doors.otlp.logs import logs_from_groups
from sluice_doors.otlp.metrics import metrics_from_groups
from sluice_doors.otlp.spans import spans_from_groups
from sluice_protocol.columns import check_columns
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.times import TS_END

RECEIVED_NS = 1_763_000_000_000_000_000
in_pieces = partial(otlp_arrow.decode_logs, cut_bytes=0, piece_bytes=64)
PIECE_BYTES = st.sampled_from([1, 60, 400])
EXAMPLES = pytest.mark.parametrize("examples", [8, pytest.param(times(80), marks=pytest.mark.long)])


def for_all(examples: int, check: Callable[..., None], *drawn: st.SearchStrategy[object]) -> None:
    """Check a number of examples."""
    chosen = settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    chosen(given(*drawn)(check))()


def shown(found: tuple[DecodedRecords, ...]) -> list[object]:
    """Return all that a result contains, after the checks of the protocol."""
    for one in found:
        check_columns(one.columns, len(one.columns))
    return [
        (one.resource, one.timed, one.unreadable, *ndjson_from_columns(one.columns))
        for one in found
    ]


@EXAMPLES
def test_arrow_and_protobuf_lead_to_the_same_logs(examples: int) -> None:
    for_all(examples, check_arrow_and_protobuf_lead_to_the_same_logs, LOG_REQUESTS)


def test_every_severity_is_the_same_on_both_roads() -> None:
    """Numbers outside of the range are attributes."""
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for number in range(-1, 27):
        records.add(time_unix_nano=1, severity_number=number)
    check_arrow_and_protobuf_lead_to_the_same_logs(request)


def check_arrow_and_protobuf_lead_to_the_same_logs(request: Message) -> None:
    body = request.SerializeToString()
    slow = logs_from_groups(otlp_protobuf.log_groups(body), received_ns=RECEIVED_NS)
    try:
        fast = otlp_arrow.decode_logs(body, received_ns=RECEIVED_NS)
    except NotPlain:
        return
    assert (fast is None) == (slow is None)
    if fast is not None and slow is not None:
        assert shown((fast,)) == shown((canonical(slow),))
        assert content_digest(fast) == content_digest(slow)


@EXAMPLES
def test_a_request_in_pieces_leads_to_the_same_logs(examples: int) -> None:
    for_all(
        examples,
        check_a_request_in_pieces_leads_to_the_same_logs,
        st.lists(LOG_REQUESTS, min_size=1, max_size=3),
        PIECE_BYTES,
    )


def check_a_request_in_pieces_leads_to_the_same_logs(
    requests: list[Message], piece_bytes: int
) -> None:
    """Messages of protobuf behind each other are one message with the resources of all."""
    body = b"".join(one.SerializeToString() for one in requests)
    find_records(body)  # these requests can be cut
    try:
        whole = otlp_arrow.decode_logs(body, received_ns=RECEIVED_NS)
        pieces = in_pieces(body, received_ns=RECEIVED_NS, piece_bytes=piece_bytes)
    except NotPlain:
        return
    assert (whole is None) == (pieces is None)
    if whole is not None and pieces is not None:
        assert shown((canonical(pieces),)) == shown((canonical(whole),))
        assert content_digest(pieces) == content_digest(whole)


def outcome(body: bytes) -> object:
    """Return the records of a body, or what it is refused with."""
    try:
        found = decode_otlp_logs(body, PROTOBUF, received_ns=RECEIVED_NS)
    except (BodyUnreadable, BodyTooLarge) as error:
        return type(error)
    return shown(tuple(map(canonical, found)))


@pytest.mark.parametrize("count", [200, pytest.param(times(1_000), marks=pytest.mark.long)])
def test_damage_has_the_same_outcome_in_pieces(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage of lengths and tags is found before or while the pieces are decoded."""
    monkeypatch.setattr(protobuf, "ARROW_BYTES_MIN", 0)
    bodies = list(damaged(random.Random(24), [LOG_REQUEST.SerializeToString()], count))
    whole = list(map(outcome, bodies))
    monkeypatch.setattr(otlp_arrow, "decode_logs", in_pieces)
    assert list(map(outcome, bodies)) == whole


@EXAMPLES
def test_json_and_protobuf_lead_to_the_same_logs(examples: int) -> None:
    for_all(examples, check_json_and_protobuf_lead_to_the_same_logs, LOG_REQUESTS)


def check_json_and_protobuf_lead_to_the_same_logs(request: Message) -> None:
    binary = decode_otlp_logs(request.SerializeToString(), PROTOBUF, received_ns=RECEIVED_NS)
    text = decode_otlp_logs(otlp_json(request), JSON, received_ns=RECEIVED_NS)
    assert shown(tuple(map(canonical, binary))) == shown(tuple(map(canonical, text)))


@EXAMPLES
def test_json_and_protobuf_lead_to_the_same_spans(examples: int) -> None:
    for_all(examples, check_json_and_protobuf_lead_to_the_same_spans, TRACE_REQUESTS)


def check_json_and_protobuf_lead_to_the_same_spans(request: Message) -> None:
    binary = SIGNALS["traces"](request.SerializeToString(), PROTOBUF, received_ns=RECEIVED_NS)
    text = SIGNALS["traces"](otlp_json(request), JSON, received_ns=RECEIVED_NS)
    assert shown(tuple(map(canonical, binary))) == shown(tuple(map(canonical, text)))
    assert [content_digest(one) for one in binary] == [content_digest(one) for one in text]


@EXAMPLES
def test_arrow_and_protobuf_lead_to_the_same_spans(examples: int) -> None:
    for_all(examples, check_arrow_and_protobuf_lead_to_the_same_spans, TRACE_REQUESTS)


def check_arrow_and_protobuf_lead_to_the_same_spans(request: Message) -> None:
    body = request.SerializeToString()
    slow = spans_from_groups(otlp_protobuf.span_groups(body), received_ns=RECEIVED_NS)
    try:
        fast = otlp_spans_arrow.decode_spans(body, received_ns=RECEIVED_NS)
    except NotPlain:
        return
    assert (fast is None) == (slow is None)
    if fast is not None and slow is not None:
        assert shown((canonical(fast),)) == shown((canonical(slow),))
        assert content_digest(fast) == content_digest(slow)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("kind", range(-1, 8)),
        ("start_time_unix_nano", [0, 1, 9, TS_END - 1]),
        ("end_time_unix_nano", [0, 1, 9, TS_END - 1]),
        ("trace_id", [b"", b"\1" * 16, b"\2" * 15]),
        ("flags", [0, 1, 257]),
        ("name", ["", "GET /", "sluice.unnamed"]),
    ],
)
def test_spans_of_every_form_are_the_same_on_both_roads(field: str, values: list[object]) -> None:
    """Also a status that is not set, an end before the start, and an undefined kind."""
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for value in values:
        usual = {"start_time_unix_nano": 7, "end_time_unix_nano": 8, "trace_id": b"\5" * 16}
        spans.add(**{**usual, field: value}).status.code = len(spans) - 2
        spans.add(**{**usual, field: value})
    body = request.SerializeToString()
    assert otlp_spans_arrow.decode_spans(body, received_ns=RECEIVED_NS) is not None
    check_arrow_and_protobuf_lead_to_the_same_spans(request)


def test_events_and_links_are_the_same_on_both_roads() -> None:
    assert TRACE_REQUEST.resource_spans[0].scope_spans[0].spans[0].events
    assert otlp_spans_arrow.decode_spans(TRACE_REQUEST.SerializeToString(), received_ns=RECEIVED_NS)
    check_arrow_and_protobuf_lead_to_the_same_spans(TRACE_REQUEST)


@pytest.mark.parametrize("signal", ["logs", "metrics"])
def test_another_kind_is_no_request_of_spans(signal: str) -> None:
    body = {"logs": LOG_REQUEST, "metrics": METRIC_REQUEST}[signal].SerializeToString()
    with pytest.raises(NotPlain):
        otlp_spans_arrow.decode_spans(body, received_ns=RECEIVED_NS)


@EXAMPLES
def test_a_request_in_pieces_leads_to_the_same_spans(examples: int) -> None:
    for_all(
        examples,
        check_a_request_in_pieces_leads_to_the_same_spans,
        st.lists(TRACE_REQUESTS, min_size=1, max_size=3),
        PIECE_BYTES,
    )


def check_a_request_in_pieces_leads_to_the_same_spans(
    requests: list[Message], piece_bytes: int
) -> None:
    body = b"".join(one.SerializeToString() for one in requests)
    try:
        whole = otlp_spans_arrow.decode_spans(body, received_ns=RECEIVED_NS)
        pieces = otlp_spans_arrow.decode_spans(
            body, received_ns=RECEIVED_NS, cut_bytes=0, piece_bytes=piece_bytes
        )
    except NotPlain:
        return
    assert (whole is None) == (pieces is None)
    if whole is not None and pieces is not None:
        assert shown((canonical(pieces),)) == shown((canonical(whole),))
        assert content_digest(pieces) == content_digest(whole)


@EXAMPLES
def test_json_and_protobuf_lead_to_the_same_metrics(examples: int) -> None:
    for_all(examples, check_json_and_protobuf_lead_to_the_same_metrics, METRIC_REQUESTS)


def check_json_and_protobuf_lead_to_the_same_metrics(request: Message) -> None:
    """A metric without data is kept as it came, which differs."""
    for each in request.resource_metrics:
        for scope in each.scope_metrics:
            for metric in scope.metrics:
                if metric.WhichOneof("data") is None:
                    metric.gauge.SetInParent()
    binary = decode_otlp_metrics(request.SerializeToString(), PROTOBUF, received_ns=RECEIVED_NS)
    text = decode_otlp_metrics(otlp_json(request), JSON, received_ns=RECEIVED_NS)
    assert shown(tuple(map(canonical, binary))) == shown(tuple(map(canonical, text)))
    assert [content_digest(one) for one in binary] == [content_digest(one) for one in text]


@EXAMPLES
def test_arrow_and_protobuf_lead_to_the_same_metrics(examples: int) -> None:
    for_all(
        examples,
        check_arrow_and_protobuf_lead_to_the_same_metrics,
        st.one_of(USUAL_METRIC_REQUESTS, MIXED_METRIC_REQUESTS),
    )


def check_arrow_and_protobuf_lead_to_the_same_metrics(request: Message) -> None:
    body = request.SerializeToString()
    slow = metrics_from_groups(otlp_protobuf.metric_groups(body), received_ns=RECEIVED_NS)
    try:
        fast = otlp_metrics_arrow.decode_metrics(body, received_ns=RECEIVED_NS)
    except NotPlain:
        return
    assert (fast is None) == (slow is None)
    if fast is not None and slow is not None:
        assert shown((canonical(fast),)) == shown((canonical(slow),))
        assert content_digest(fast) == content_digest(slow)


@given(USUAL_METRIC_REQUESTS)
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
def test_usual_metrics_are_not_mapped_point_by_point(request: Message) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(otlp_metrics_arrow, "metric_points")
        otlp_metrics_arrow.decode_metrics(request.SerializeToString(), received_ns=RECEIVED_NS)


@EXAMPLES
def test_a_request_in_pieces_leads_to_the_same_metrics(examples: int) -> None:
    for_all(
        examples,
        check_a_request_in_pieces_leads_to_the_same_metrics,
        st.lists(MIXED_METRIC_REQUESTS, min_size=1, max_size=3),
        PIECE_BYTES,
    )


def check_a_request_in_pieces_leads_to_the_same_metrics(
    requests: list[Message], piece_bytes: int
) -> None:
    body = b"".join(one.SerializeToString() for one in requests)
    try:
        whole = otlp_metrics_arrow.decode_metrics(body, received_ns=RECEIVED_NS)
        pieces = otlp_metrics_arrow.decode_metrics(
            body, received_ns=RECEIVED_NS, cut_bytes=0, piece_bytes=piece_bytes
        )
    except NotPlain:
        return
    assert (whole is None) == (pieces is None)
    if whole is not None and pieces is not None:
        assert shown((canonical(pieces),)) == shown((canonical(whole),))
        assert content_digest(pieces) == content_digest(whole)


@pytest.mark.daily(4)
@pytest.mark.parametrize("count", [300, pytest.param(times(1_000), marks=pytest.mark.long)])
@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize(
    ("form", "arrow_bytes_min"), [(PROTOBUF, 0), (PROTOBUF, protobuf.ARROW_BYTES_MIN), (JSON, 0)]
)
def test_damaged_bodies_are_decoded_or_refused(
    signal: str, form: str, arrow_bytes_min: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protobuf, "ARROW_BYTES_MIN", arrow_bytes_min)
    request = {"logs": LOG_REQUEST, "metrics": METRIC_REQUEST, "traces": TRACE_REQUEST}[signal]
    decode = SIGNALS[signal]
    good = request.SerializeToString() if form == PROTOBUF else otlp_json(request)
    decoded = 0
    for body in damaged(random.Random(16), [good], count):
        try:
            shown(decode(body, form, received_ns=RECEIVED_NS))
        except (BodyUnreadable, BodyTooLarge):
            continue
        decoded += 1
    assert decoded > count // 20
