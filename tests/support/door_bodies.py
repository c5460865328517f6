"""Requests of the doors other than OTLP, each with every field of its protocol.

Also here: a request to each door, with two records that contain their times.

Protobuf is encoded by hand, so that the field numbers of a decoder are checked.
"""

import base64
import gzip
import json
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import cramjam
import msgpack
from fluent.sender import EventTime
from support.door_client import PROTOBUF, otlp_logs


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def signed(number: int, value: int) -> bytes:
    return integer(number, value << 1 ^ value >> 63)


def double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def part(number: int, data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def packed(number: int, values: list[int]) -> bytes:
    return part(number, b"".join(map(varint, values)))


def packed_signed(number: int, values: list[int]) -> bytes:
    return packed(number, [value << 1 ^ value >> 63 for value in values])


def has_group(body: bytes) -> bool:
    """Return whether a message, or a message that may be inside, has the start of a group."""
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        match tag & 7:
            case 0:
                _, at = _varint(body, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(body, at)
                if has_group(body[at : at + size]):
                    return True
                at += size
            case 3:
                return True
            case 5:
                at += 4
            case _:
                return False
    return False


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(body):
        value |= (body[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if body[at - 1] < 128:
            break
    return value, at


S = 1_763_769_600

HEC = (
    b'{"time":"1763769600.123456789","host":"web-1","source":"/var/log/a","sourcetype":"app",'
    b'"index":"main","event":"first line","fields":{"region":"eu","list":[1,2],"o":{"k":1.50}}}'
    b'{"time":1763769600.25,"host":"web-1","index":"main","extra":true,'
    b'"event":{"message":"second","level":"info","region":1e400},"fields":{"region":"us"}}\n'
    b'[{"time":1763769600123,"host":"web-1","index":"main","event":{"line":"third"}}]'
    b'{"time":1763769601,"host":"web-1","index":"main","event":"metric",'
    b'"fields":{"metric_name:cpu.idle":99.5,"metric_name:cpu.user":"0.5","cpu":0}}'
    b'{"time":1763769601,"host":"web-1","index":"main","event":"metric",'
    b'"fields":{"metric_name":"mem.free","_value":12,"region":"eu"}}'
    b'{"time":"soon","host":"web-1","index":"main","event":"late"}{"host":"web-1"}'
)
COMMON = '{"commonAttributes":{"deployment":"prod","n":"1"}}'
ARN = "arn:aws:firehose:eu-west-1:123456789012:deliverystream/logs"
CLOUDWATCH = {
    "messageType": "DATA_MESSAGE",
    "owner": "123456789012",
    "logGroup": "/aws/lambda/shop",
    "logStream": "2025/11/22/[$LATEST]1",
    "subscriptionFilters": ["all"],
    "policyLevel": "ACCOUNT_LEVEL_POLICY",
    "logEvents": [
        {"id": "37", "timestamp": S * 1000 + 5, "message": "START"},
        {"id": "38", "timestamp": S * 1000 + 6, "message": "{}", "extractedFields": {"a": "1"}},
        7,
    ],
}
CONTROL = {**CLOUDWATCH, "messageType": "CONTROL_MESSAGE", "logEvents": []}


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def zipped(value: object) -> bytes:
    return gzip.compress(json.dumps(value).encode(), mtime=0)


def firehose(*records: bytes) -> bytes:
    """Return the body of a request with these records."""
    entries = [{"data": in_base64(record)} for record in records]
    return json.dumps({"requestId": "r-1", "timestamp": S * 1000, "records": entries}).encode()


FIREHOSE = firehose(
    zipped(CLOUDWATCH),
    zipped(CONTROL),
    b"plain text\n",
    b'{"timestamp":"2025-11-22T00:00:00Z","message":"object","n":{"a":1}}\n{"other":1}\n',
    b"bytes \xff",
    b"\x1f\x8b damaged",
)


def pack(value: object) -> bytes:
    return bytes(msgpack.packb(value))


TIME = EventTime.from_unix_nano(S * 10**9 + 5)
ENTRIES = [
    [TIME, {"log": "one", "kubernetes": {"pod": "p"}, "n": 1, "f": 1.5, "b": b"\x00\xff"}],
    [S, {"message": "two", "log": "raw", 5: "five", "none": None, "list": [1, {"a": TIME}]}],
    [[TIME, {"severity": "info"}], {"MESSAGE": "three"}],
    [S + 0.25, {"nan": float("nan"), "ext": msgpack.ExtType(9, b"x")}],
    [2**40, {"m": "time out of range"}],
    [TIME, "no map"],
]
STREAM = b"".join(map(pack, ENTRIES))
FORWARD: dict[str, bytes] = {
    "message": pack(["app.access", TIME, {"log": "line"}, {"chunk": "c1", "other": 1}]),
    "forward": pack(["app.access", ENTRIES, {"chunk": "c1", "size": 6}]),
    "packed": pack(["app.access", STREAM, {"chunk": b"c1", "size": 6}]),
    "compressed": pack(
        ["app.access", gzip.compress(STREAM, mtime=0), {"chunk": "c1", "compressed": "gzip"}]
    ),
}


MS = 1_763_769_600_123


def label(name: str, value: str) -> bytes:
    return part(1, name) + part(2, value)


def native_histogram() -> bytes:
    """Return schema 0, three positive buckets in two spans, one negative, and a zero bucket."""
    return b"".join(
        (
            integer(1, 12), double(3, 20.5), signed(4, 0), double(5, 0.25), integer(6, 2),
            part(8, signed(1, 1) + integer(2, 1)), packed_signed(9, [3]),
            part(11, signed(1, 0) + integer(2, 2)), part(11, signed(1, 1) + integer(2, 1)),
            packed_signed(12, [1, 1, 2]), integer(14, 0), integer(15, MS),
        )
    )  # fmt: skip


def custom_histogram() -> bytes:
    """Return stated bounds 1 and 5, with 2 and 3 measurements, and one above."""
    return b"".join(
        (
            double(2, 6.0), double(3, 9.0), signed(4, -53),
            part(11, signed(1, 0) + integer(2, 3)),
            part(13, b"".join(double(0, one)[1:] for one in (2.0, 3.0, 1.0))),
            integer(15, MS), part(16, b"".join(double(0, one)[1:] for one in (1.0, 5.0))),
        )
    )  # fmt: skip


REMOTE_WRITE = b"".join(
    (
        part(
            1,
            part(1, label("__name__", "http_requests_total"))
            + part(1, label("job", "api"))
            + part(2, double(1, 5.0) + integer(2, MS))
            + part(2, double(1, 6.0) + integer(2, MS + 1000))
            + part(3, part(1, label("trace_id", "abc")) + double(2, 0.5) + integer(3, MS + 1)),
        ),
        part(1, part(1, label("__name__", "up")) + part(2, double(1, 1.0) + integer(2, MS))),
        part(1, part(1, label("__name__", "rpc")) + part(4, native_histogram())),
        part(1, part(1, label("__name__", "batch")) + part(4, custom_histogram())),
        part(3, integer(1, 1) + part(2, "http_requests") + part(4, "All requests") + part(5, "1")),
    )
)
_SYMBOLS = ("", "__name__", "rpc_total", "job", "api", "Calls", "calls", "trace_id", "abc", "temp")
REMOTE_WRITE_2 = b"".join(part(4, one) for one in _SYMBOLS) + b"".join(
    (
        part(
            5,
            packed(1, [1, 2, 3, 4])
            + part(2, double(1, 7.0) + integer(2, MS))
            + part(4, packed(1, [7, 8]) + double(2, 0.25))
            + part(5, integer(1, 1) + integer(3, 5) + integer(4, 6))
            + integer(6, MS - 5000),
        ),
        part(
            5,
            packed(1, [1, 9]) + part(3, native_histogram()) + part(5, integer(1, 3)),
        ),
    )
)


def timestamp(seconds: int, nanos: int) -> bytes:
    return integer(1, seconds) + integer(2, nanos)


def loki_entry(seconds: int, nanos: int, line: str, *metadata: bytes) -> bytes:
    return part(1, timestamp(seconds, nanos)) + part(2, line) + b"".join(metadata)


LOKI = b"".join(
    (
        part(
            1,
            part(1, '{job="api", env="a\\"b\\u00fc\\xc3\\xbc"}')
            + part(2, loki_entry(1_763_769_600, 5, "first", part(3, label("trace", "t1"))))
            + part(2, loki_entry(1_763_769_600, 6, "second", part(4, label("level", "warn"))))
            + integer(3, 99),
        ),
        part(1, part(1, '{job="api"}') + part(2, loki_entry(1_763_769_601, 0, "third"))),
        part(2, "loki"),
    )
)
LOKI_JSON = json.dumps(
    {
        "streams": [
            {
                "stream": {"job": "api", "env": 'a"büü'},
                "values": [
                    ["1763769600000000005", "first", {"trace": "t1"}],
                    ["1763769600000000006", "second", {"level": "warn"}],
                ],
            },
            {"stream": {"job": "api"}, "values": [["1763769601000000000", "third"]]},
        ]
    },
    ensure_ascii=False,
).encode()
NDJSON = b"""{"time":"2025-11-22T00:00:00.5Z","message":"first","level":"info","n":5,"none":null}
{"time":1763769600123,"log":{"file":{"path":"/a"},"offset":12},"list":[1,{"b":2,"a":1}]}\r

{"time":"1763769600.25","message":{"b":1,"a":2.50},"":"empty"}
"""
BULK = b"""{"create":{"_index":"logs","_id":"7","routing":"r"}}
{"@timestamp":"2025-11-22T00:00:00.123Z","message":"first","log":{"file":{"path":"/a"},"offset":1}}
{"index":{}}
{"message":"second","@timestamp":"2025-11-22T00:00:01Z"}
{"update":{"_id":"8"}}
{"doc":{"message":"third","@timestamp":"2025-11-22T00:00:02Z"}}
"""


HEC_EVENTS = b"".join(
    json.dumps(one).encode()
    for one in (
        {"time": S, "host": "web-1", "event": "first"},
        {"time": S + 1, "event": "metric", "fields": {"metric_name:load": 0.5}},
        {"time": S + 2, "host": "web-1", "event": "second"},
    )
)
LINES = Counter(["first", "second"])
JSON = {"Content-Type": "application/json"}
NDJSON_TYPE = {"Content-Type": "application/x-ndjson"}
SAMPLES = b"".join(
    part(1, part(1, label("__name__", name)) + part(2, double(1, 1.0) + integer(2, S * 1000)))
    for name in LINES
)
DOCUMENTS = b"".join(
    b'{"create":{"_index":"web"}}\n{"@timestamp":%d,"message":"%s"}\n' % (S, line.encode())
    for line in LINES
)
OBJECTS = [json.dumps({"time": S, "message": line}).encode() for line in LINES]


@dataclass(frozen=True)
class DoorCase:
    """A request to a door.

    Attributes:
        path: Where it is sent.
        body: What is sent.
        headers: The header fields.
        status: That of a success.
        records: What consumers read then.
        writes: The blob and the manifest of each frame; a request with two kinds has two frames.
    """

    path: str = ""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)
    status: int = 200
    records: Counter[str] = field(default_factory=lambda: LINES)
    writes: int = 2


DOOR_CASES: dict[str, DoorCase] = {
    "hec": DoorCase(
        "/services/collector/event",
        HEC_EVENTS,
        records=Counter(["first", "second", "load"]),
        writes=4,
    ),
    "forward": DoorCase(),
    "otlp": DoorCase("/v1/logs", otlp_logs(*LINES), PROTOBUF),
    "prometheus": DoorCase(
        "/api/v1/write",
        bytes(cramjam.snappy.compress_raw(SAMPLES)),
        PROTOBUF | {"Content-Encoding": "snappy"},
        status=204,
    ),
    "loki": DoorCase(
        "/loki/api/v1/push",
        json.dumps(
            {"streams": [{"stream": {"a": "b"}, "values": [[f"{S}000000000", x] for x in LINES]}]}
        ).encode(),
        status=204,
    ),
    "elasticsearch": DoorCase("/_bulk", DOCUMENTS, NDJSON_TYPE),
    "firehose": DoorCase(
        "/v1/firehose", firehose(*OBJECTS), JSON | {"X-Amz-Firehose-Request-Id": "r-1"}
    ),
    "json": DoorCase("/v1/ingest", b"\n".join(OBJECTS), NDJSON_TYPE),
}
