"""Requests of the benchmark `doors`: one shape of body for each protocol, each of them unique.

A body is a large constant part and one record with a time that no other body has, because the
gateway recognises equal requests. All these formats may be concatenated before compression.
"""

import base64
import functools
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import cramjam
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from benchmarks.doors_decode import NOW_NS, ndjson
from benchmarks.doors_decode import request as otlp_request
from sluice_doors.prometheus.write import parse_write_request
from sluice_doors.table import DoorName

_MS: Final = 10**6
_METRIC_POINTS: Final = 10
_FIRST_RECORDS: Final = 400
"""The size of a record is estimated from this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorBody:
    """A body to send, compressed where the protocol requires it, with its size before that."""

    sent: bytes
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyShape:
    """How the requests of a protocol are made and sent.

    Attributes:
        many: Returns a body with this number of records.
        one: Returns a body of one record with a time in ns.
    """

    door: DoorName
    path: str
    headers: dict[str, str]
    many: Callable[[int], bytes]
    one: Callable[[int], bytes]
    pack: Callable[[bytes], bytes] = bytes


_TIMES: Final = itertools.count(NOW_NS + 10**15, _MS)
"""Times in steps of a millisecond, which is the resolution of Prometheus."""


def bodies(shape: BodyShape, size_bytes: int) -> Iterator[DoorBody]:
    """Yield unique bodies of about `size_bytes` before compression."""
    records, constant = _constant(shape.many, size_bytes - len(shape.one(NOW_NS)))
    for at_ns in _TIMES:
        body = constant + shape.one(at_ns)
        yield DoorBody(sent=shape.pack(body), size_bytes=len(body), records=records + 1)


@functools.cache
def _constant(many: Callable[[int], bytes], size_bytes: int) -> tuple[int, bytes]:
    """Return a body of about `size_bytes`, and the number of its records."""
    records = max(1, int(size_bytes / len(many(_FIRST_RECORDS)) * _FIRST_RECORDS))
    return records, many(records)


def _otlp_one(at_ns: int) -> bytes:
    """Return a log record in the resource and scope of the constant part."""
    time = b"\x09" + at_ns.to_bytes(8, "little")
    scope = _message(1, _message(1, b"lib"))
    resource = _message(
        1, _message(1, _message(1, b"service.name") + _message(2, _message(1, b"shop")))
    )
    return _message(
        1, resource + _message(2, scope + _message(2, time + _message(5, _message(1, b"x"))))
    )


def otlp_metrics(points: int) -> bytes:
    """Return a request of gauges and counters with ten points each, as a host's metrics are."""
    rng = random.Random(5)
    made = ExportMetricsServiceRequest()
    group = made.resource_metrics.add()
    group.resource.attributes.add(key="service.name").value.string_value = "shop"
    scoped = group.scope_metrics.add()
    scoped.scope.name = "lib"
    for number in range(0, points, _METRIC_POINTS):
        metric = scoped.metrics.add(name=f"host.metric.{number % 100}", unit="By")
        data = metric.gauge if number % 4 else metric.sum
        for place in range(_METRIC_POINTS):
            point = data.data_points.add(
                start_time_unix_nano=NOW_NS,
                time_unix_nano=NOW_NS + number,
                as_double=rng.random(),
            )
            for key in ("device", "direction", "state"):
                point.attributes.add(key=key).value.string_value = f"{place}{rng.randrange(100)}"
        if not number % 4:
            metric.sum.aggregation_temporality, metric.sum.is_monotonic = 2, True
    return bytes(made.SerializeToString())


def _otlp_metrics_one(at_ns: int) -> bytes:
    made = ExportMetricsServiceRequest()
    metric = made.resource_metrics.add().scope_metrics.add().metrics.add(name="one")
    metric.gauge.data_points.add(time_unix_nano=at_ns, as_double=1.0)
    return bytes(made.SerializeToString())


def _json_one(at_ns: int) -> bytes:
    return b'\n{"time": %d, "message": "x"}\n' % at_ns


def _bulk(body: bytes) -> bytes:
    action = b'{"create":{"_index":"logs"}}\n'
    lines = (line.replace(b'"time"', b'"@timestamp"', 1) for line in body.split(b"\n") if line)
    return b"".join(action + line + b"\n" for line in lines)


def _splunk(body: bytes) -> bytes:
    lines = (line for line in body.split(b"\n") if line)
    return b"".join(b'{"time": 1763769600.5, "event": ' + line + b"}\n" for line in lines)


def _firehose(body: bytes) -> bytes:
    lines = (line for line in body.split(b"\n") if line)
    data = b",".join(b'{"data":"' + base64.b64encode(line) + b'"}' for line in lines)
    return b'{"requestId":"r","timestamp":1763769600000,"records":[' + data + b"]}"


def _loki(records: int) -> bytes:
    rng = random.Random(3)
    entries = (
        _entry(
            NOW_NS + place, f"GET /api/v1/items/{rng.randrange(10**6)} took {rng.random():.4f} ms"
        )
        for place in range(records)
    )
    return _message(1, _message(1, _LABELS) + b"".join(entries))


def _loki_one(at_ns: int) -> bytes:
    return _message(1, _message(1, _LABELS) + _entry(at_ns, "x"))


_LABELS: Final = b'{job="shop", level="info"}'


def _entry(at_ns: int, line: str) -> bytes:
    seconds, nanos = divmod(at_ns, 10**9)
    time = b"\x08" + _varint(seconds) + b"\x10" + _varint(nanos)
    return _message(2, _message(1, time) + _message(2, line.encode()))


def _prometheus(records: int) -> bytes:
    rng = random.Random(4)
    return b"".join(
        _series(NOW_NS, str(rng.randrange(10**6)), rng.random()) for _ in range(records)
    )


def _prometheus_one(at_ns: int) -> bytes:
    return _series(at_ns, "one", 1.0)


def _series(at_ns: int, instance: str, value: float) -> bytes:
    """Return a request of one series with one sample; requests may be concatenated."""
    made = parse_write_request(b"")
    series = made.timeseries.add()
    for name, text in (
        ("__name__", "http_requests_total"),
        ("instance", instance),
        ("job", "shop"),
    ):
        series.labels.add(name=name.encode(), value=text.encode())
    series.samples.add(value=value, timestamp=at_ns // _MS)
    return bytes(made.SerializeToString())


def _message(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _snappy(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


_PROTOBUF: Final = {"Content-Type": "application/x-protobuf"}
_NDJSON: Final = {"Content-Type": "application/x-ndjson"}
OTLP: Final = BodyShape(
    door="otlp", path="/v1/logs", headers=_PROTOBUF, many=otlp_request, one=_otlp_one
)
OTLP_METRICS: Final = BodyShape(
    door="otlp",
    path="/v1/metrics",
    headers=_PROTOBUF,
    many=otlp_metrics,
    one=_otlp_metrics_one,
)
"""Not among `SHAPES`: it shares its door with the logs."""
SHAPES: Final = (
    OTLP,
    BodyShape(door="json", path="/v1/ingest", headers=_NDJSON, many=ndjson, one=_json_one),
    BodyShape(
        door="elasticsearch",
        path="/_bulk",
        headers=_NDJSON,
        many=lambda records: _bulk(ndjson(records)),
        one=lambda at_ns: _bulk(_json_one(at_ns)),
    ),
    BodyShape(
        door="hec",
        path="/services/collector/event",
        headers={"Content-Type": "application/json"},
        many=lambda records: _splunk(ndjson(records)),
        one=lambda at_ns: _splunk(_json_one(at_ns)),
    ),
    BodyShape(
        door="firehose",
        path="/v1/firehose",
        headers={"Content-Type": "application/json", "X-Amz-Firehose-Request-Id": "r"},
        many=ndjson,
        one=_json_one,
        pack=_firehose,
    ),
    BodyShape(
        door="loki",
        path="/loki/api/v1/push",
        headers=_PROTOBUF,
        many=_loki,
        one=_loki_one,
        pack=_snappy,
    ),
    BodyShape(
        door="prometheus",
        path="/api/v1/write",
        headers=_PROTOBUF
        | {"Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"},
        many=_prometheus,
        one=_prometheus_one,
        pack=_snappy,
    ),
)
"""The doors that speak HTTP."""
