"""Requests that repeat many attributes for many records are refused before a record is made."""

import base64
import json
from collections.abc import Callable, Mapping

import pytest

from sluice_doors import decoded
from sluice_doors.decoded import BodyTooLarge
from sluice_doors.json.firehose import decode_firehose
from sluice_doors.loki.push import decode_loki
from sluice_doors.otlp.http import JSON, decode_otlp_logs, decode_otlp_metrics

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


def metrics(records: int) -> object:
    points = [{"asInt": 1, "timeUnixNano": 1}] * records
    body = otlp("metrics", "scopeMetrics", [{"name": "m", "gauge": {"dataPoints": points}}])
    return decode_otlp_metrics(body, JSON, received_ns=1)


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


@pytest.mark.parametrize("decode", [logs, metrics, streams, cloudwatch])
def test_repeated_attributes_are_counted_before_records_are_made(
    decode: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoded, "PAIRS_MAX", PAIRS * RECORDS)
    made = 0

    def add(self: decoded.Tally, *_: object, **__: object) -> None:
        nonlocal made
        made += 1

    monkeypatch.setattr(decoded.Tally, "add", add)
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
