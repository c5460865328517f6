"""All roads of OTLP lead to the same columns; damage raises only the two named errors."""

import random

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from support.otlp_bodies import LOG_REQUEST, METRIC_REQUEST
from support.otlp_requests import LOG_REQUESTS, METRIC_REQUESTS, damaged, otlp_json

from sluice_doors import otlp, otlp_arrow, otlp_protobuf
from sluice_doors.arrow_texts import NotPlain
from sluice_doors.canonical import canonical, content_digest
from sluice_doors.decoded import BodyTooLarge, BodyUnreadable, DecodedRecords
from sluice_doors.otlp import JSON, PROTOBUF, decode_otlp_logs, decode_otlp_metrics
from sluice_doors.otlp_logs import logs_from_groups
from sluice_protocol.columns import check_columns
from sluice_protocol.ndjson import ndjson_from_columns

RECEIVED_NS = 1_763_000_000_000_000_000


def shown(found: tuple[DecodedRecords, ...]) -> list[object]:
    """Return all that a result contains, after the checks of the protocol."""
    for one in found:
        check_columns(one.columns, len(one.columns))
    return [
        (one.resource, one.timed, one.unreadable, *ndjson_from_columns(one.columns))
        for one in found
    ]


@given(LOG_REQUESTS)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_arrow_and_protobuf_lead_to_the_same_logs(request: Message) -> None:
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


@given(LOG_REQUESTS)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_json_and_protobuf_lead_to_the_same_logs(request: Message) -> None:
    binary = decode_otlp_logs(request.SerializeToString(), PROTOBUF, received_ns=RECEIVED_NS)
    text = decode_otlp_logs(otlp_json(request), JSON, received_ns=RECEIVED_NS)
    assert shown(tuple(map(canonical, binary))) == shown(tuple(map(canonical, text)))


@given(METRIC_REQUESTS)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_json_and_protobuf_lead_to_the_same_metrics(request: Message) -> None:
    binary = decode_otlp_metrics(request.SerializeToString(), PROTOBUF, received_ns=RECEIVED_NS)
    text = decode_otlp_metrics(otlp_json(request), JSON, received_ns=RECEIVED_NS)
    assert shown(tuple(map(canonical, binary))) == shown(tuple(map(canonical, text)))
    assert [content_digest(one) for one in binary] == [content_digest(one) for one in text]


@pytest.mark.parametrize("count", [1_250, pytest.param(12_500, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["logs", "metrics"])
@pytest.mark.parametrize(
    ("form", "arrow_bytes_min"), [(PROTOBUF, 0), (PROTOBUF, otlp.ARROW_BYTES_MIN), (JSON, 0)]
)
def test_damaged_bodies_are_decoded_or_refused(
    kind: str, form: str, arrow_bytes_min: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "ARROW_BYTES_MIN", arrow_bytes_min)
    request = LOG_REQUEST if kind == "logs" else METRIC_REQUEST
    decode = decode_otlp_logs if kind == "logs" else decode_otlp_metrics
    good = request.SerializeToString() if form == PROTOBUF else otlp_json(request)
    decoded = 0
    for body in damaged(random.Random(16), [good], count):
        try:
            shown(decode(body, form, received_ns=RECEIVED_NS))
        except (BodyUnreadable, BodyTooLarge):
            continue
        decoded += 1
    assert decoded > count // 20
