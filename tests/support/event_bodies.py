"""Requests of Splunk, Firehose and Fluent clients, each with every field of its protocol."""

import base64
import gzip
import json

import msgpack
from fluent.sender import EventTime

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
