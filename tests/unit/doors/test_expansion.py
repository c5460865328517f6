"""Requests that repeat many attributes for many records are refused before a record is made."""

import base64
import json
from collections.abc import Callable, Mapping

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from sluice_doors import decoded, protobuf
from sluice_doors.decoded import BodyTooLarge
from sluice_doors.json.firehose import decode_firehose
from sluice_doors.loki.push import decode_loki
from sluice_doors.otlp.http import (
    JSON,
    PROTOBUF,
    decode_otlp_logs,
    decode_otlp_metrics,
    decode_otlp_traces,
)

PAIRS, RECORDS = 30, 50
PLAIN = {f"k{place}": "x" for place in range(PAIRS)}
ATTRIBUTES = [{"key": key, "value": {"stringValue": value}} for key, value in PLAIN.items()]


def otlp(kind: str, groups: str, records: list[object]) -> bytes:
    """Return a request of two resources, so that no pair is in all of them."""
    named: list[dict[str, object]] = [{"attributes": ATTRIBUTES}, {}]
    parts = [{"resource": one, groups: [{kind: records}]} for one in named]
    return json.dumps({groups.replace("scope", "resource"): parts}).encode()


def logs(records: int) -> object:
    return decode_otlp_logs(otlp("logRecords", "scopeLogs", [{}] * records), JSON, received_ns=1)


def spans(records: int) -> object:
    body = otlp("spans", "scopeSpans", [{}] * records)
    return decode_otlp_traces(body, JSON, received_ns=1)


POINT = {"asInt": 1, "timeUnixNano": 1}


def points(records: int) -> list[object]:
    """Return a metric whose points and metadata are so many records."""
    return [{"name": "m", "gauge": {"dataPoints": [POINT] * (records - 1)}}]


def exemplars(records: int) -> list[object]:
    """Return a metric of one point whose exemplars are nearly all of its records."""
    point = {**POINT, "exemplars": [{"asInt": 1}] * (records - 2)}
    return [{"name": "m", "sum": {"dataPoints": [point]}}]


def small_metrics(records: int) -> list[object]:
    """Return metrics of one point each, which are two records."""
    assert not RECORDS % 2
    return [{"name": "m", "gauge": {"dataPoints": [POINT]}}] * ((records + 1) // 2)


def histograms(records: int) -> list[object]:
    """Return metrics that are mapped point by point."""
    assert not RECORDS % 2
    one = {"name": "m", "histogram": {"dataPoints": [{"count": 1, "timeUnixNano": 1}]}}
    return [one] * ((records + 1) // 2)


def without_data(records: int) -> list[object]:
    """Return metrics that are kept raw."""
    return [{"name": "m"}] * records


def streams(records: int) -> object:
    both: list[Mapping[str, str]] = [PLAIN, {}]
    values = [["1", "line", {"own": "y"}]] * records
    body = {"streams": [{"stream": one, "values": values} for one in both]}
    return decode_loki(json.dumps(body).encode(), JSON, received_ns=1)


def cloudwatch(records: int) -> object:
    events = [{"id": "1", "timestamp": 1, "message": "line"}] * records
    both = [{"messageType": "DATA_MESSAGE", **one, "logEvents": events} for one in (PLAIN, {})]
    data = [{"data": base64.b64encode(json.dumps(one).encode()).decode()} for one in both]
    body = {"requestId": "1", "timestamp": 1, "records": data}
    return decode_firehose(json.dumps(body).encode(), {}, received_ns=1)


@pytest.mark.parametrize("decode", [logs, spans, streams, cloudwatch])
def test_repeated_attributes_are_counted_before_records_are_made(
    decode: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_limit(decode, monkeypatch)


@pytest.mark.parametrize("arrow_bytes_min", [0, 1 << 20])
@pytest.mark.parametrize("media_type", [JSON, PROTOBUF])
@pytest.mark.parametrize("listed", [points, exemplars, small_metrics, histograms, without_data])
def test_every_record_of_metrics_is_counted_before_one_is_made(
    listed: Callable[[int], list[object]],
    media_type: str,
    arrow_bytes_min: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protobuf, "ARROW_BYTES_MIN", arrow_bytes_min)

    def decode(records: int) -> None:
        body = otlp("metrics", "scopeMetrics", listed(records))
        if media_type == PROTOBUF:
            body = Parse(body, ExportMetricsServiceRequest()).SerializeToString()
        decode_otlp_metrics(body, media_type, received_ns=1)

    check_limit(decode, monkeypatch)


def check_limit(decode: Callable[[int], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the limit is exact; a request beyond it is refused before a record is made."""
    monkeypatch.setattr(decoded, "PAIRS_MAX", PAIRS * RECORDS)
    made = 0

    def add_sizes(self: decoded.Tally, *_: object) -> None:
        nonlocal made
        made += 1

    monkeypatch.setattr(decoded.Tally, "add_sizes", add_sizes)
    decode(RECORDS)
    assert made
    made = 0
    with pytest.raises(BodyTooLarge, match="expand"):
        decode(RECORDS + 1)
    assert not made


def test_text_that_many_records_repeat_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded, "EXPANDED_BYTES_MAX", 100)
    counted = decoded.Tally()
    counted.check_repeated([(10, [("key", "x" * 9)]), (1, [("key", "x" * 10)])])
    with pytest.raises(BodyTooLarge):
        counted.check_repeated([(10, [("key", "x" * 9)]), (1, [("key", "x" * 11)])])
    assert counted == decoded.Tally()
