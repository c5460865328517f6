"""Requests of Fluent Bit, Vector and Alloy: their success, and one record for each of theirs.

Requests of clients that have no package for tests, in the form that their source writes.

Fluent Bit 5.1 (plugins/out_http, out_es, out_loki, out_opentelemetry), Vector 0.5x (src/sinks/http,
loki, elasticsearch), Alloy 1.x (loki.write, prometheus.remote_write).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import cramjam
import pytest
from support.door_bodies import REMOTE_WRITE, label, loki_entry, part
from support.door_client import TestSender, accepted_frames, otlp_logs, post
from support.gateway import Running, TestKey, running

from sluice_doors.table import DoorName
from sluice_protocol.columns import LogColumns

S = 1_763_769_600
PROTOBUF, JSON, NDJSON = "application/x-protobuf", "application/json", "application/x-ndjson"
FLUENT_BIT, VECTOR, ALLOY = (
    "Fluent-Bit",
    "Vector/0.50.0 (x86_64-unknown-linux-gnu)",
    "Alloy/v1.11.0",
)


@dataclass(frozen=True, kw_only=True)
class RecordedRequest:
    """A request, and what its client regards as a success.

    Attributes:
        door: The protocol.
        path: The path, with the parameters that the page of the client configures.
        headers: The header fields.
        body: The body after the content coding.
        status: The status of the response.
        bodies: The bodies of the records.
        probes: Paths that the client requests first; each must be 200.
    """

    door: DoorName
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int
    bodies: tuple[str, ...]
    probes: tuple[str, ...] = field(default=())


def gzipped(body: bytes) -> bytes:
    return bytes(cramjam.gzip.compress(body))


def lines(*objects: object) -> bytes:
    return b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in objects)


def _headers(agent: str, media_type: str, coding: str = "", **more: str) -> dict[str, str]:
    fields = {"User-Agent": agent, "Content-Type": media_type}
    return fields | ({"Content-Encoding": coding} if coding else {}) | more


_FLUENT = [
    {"date": S + 0.123456, "log": "first", "stream": "stdout"},
    {"date": S + 1.0, "log": "b"},
]
_FLUENT_LOKI = {
    "streams": [
        {
            "stream": {"job": "fluent-bit"},
            "values": [[f"{S}000000005", '{"log":"first"}'], [f"{S}000000006", '{"log":"b"}']],
        }
    ]
}
_VECTOR = [
    {"host": "a", "message": "first", "source_type": "file", "timestamp": "2025-11-22T00:00:00.1Z"},
    {"host": "a", "message": "b", "source_type": "file", "timestamp": "2025-11-22T00:00:01Z"},
]
_VECTOR_BULK = [
    part
    for one in _VECTOR
    for part in (
        {"create": {"_index": "vector-2025.11.22"}},
        {**{k: v for k, v in one.items() if k != "timestamp"}, "@timestamp": one["timestamp"]},
    )
]
_LOKI_STREAM = part(
    1,
    part(1, '{job="shop"}')
    + part(2, loki_entry(S, 5, "first"))
    + part(2, loki_entry(S, 6, "b", part(3, label("trace", "t1")))),
)
_SNAPPY = bytes(cramjam.snappy.compress_raw(_LOKI_STREAM))

RECORDED: dict[str, RecordedRequest] = {
    "fluent-bit-http-json": RecordedRequest(
        door="json",
        path="/v1/ingest?time=date&message=log",
        headers=_headers(FLUENT_BIT, JSON),
        body=json.dumps(_FLUENT).encode(),
        status=200,
        bodies=("first", "b"),
    ),
    "fluent-bit-http-json-lines-gzip": RecordedRequest(
        door="json",
        path="/v1/ingest?time=date&message=log",
        headers=_headers(FLUENT_BIT, NDJSON, "gzip"),
        body=gzipped(lines(*_FLUENT)),
        status=200,
        bodies=("first", "b"),
    ),
    "fluent-bit-es": RecordedRequest(
        door="elasticsearch",
        path="/_bulk",
        headers=_headers(FLUENT_BIT, NDJSON),
        body=lines(
            {"create": {"_index": "fluent-bit", "_type": "_doc"}},
            {"@timestamp": "2025-11-22T00:00:00.123Z", "log": "first", "message": "first"},
            {"create": {"_index": "fluent-bit", "_type": "_doc"}},
            {"@timestamp": "2025-11-22T00:00:01.000Z", "message": "b"},
        ),
        status=200,
        bodies=("first", "b"),
    ),
    "fluent-bit-loki": RecordedRequest(
        door="loki",
        path="/loki/api/v1/push",
        headers=_headers(FLUENT_BIT, JSON),
        body=json.dumps(_FLUENT_LOKI).encode(),
        status=204,
        bodies=('{"log":"first"}', '{"log":"b"}'),
    ),
    "fluent-bit-opentelemetry": RecordedRequest(
        door="otlp",
        path="/v1/logs",
        headers=_headers(FLUENT_BIT, PROTOBUF, "gzip"),
        body=gzipped(otlp_logs("first", "b")),
        status=200,
        bodies=("first", "b"),
    ),
    "vector-http": RecordedRequest(
        door="json",
        path="/v1/ingest?time=timestamp",
        headers=_headers(VECTOR, NDJSON, "gzip"),
        body=gzipped(lines(*_VECTOR)),
        status=200,
        bodies=("first", "b"),
    ),
    "vector-loki": RecordedRequest(
        door="loki",
        path="/loki/api/v1/push",
        headers=_headers(VECTOR, PROTOBUF),
        body=_SNAPPY,
        status=204,
        bodies=("first", "b"),
        probes=("/ready",),
    ),
    "vector-elasticsearch": RecordedRequest(
        door="elasticsearch",
        path="/_bulk",
        headers=_headers(VECTOR, NDJSON, "gzip"),
        body=gzipped(lines(*_VECTOR_BULK)),
        status=200,
        bodies=("first", "b"),
        probes=("/", "/_cluster/health"),
    ),
    "alloy-loki": RecordedRequest(
        door="loki",
        path="/loki/api/v1/push",
        headers=_headers(ALLOY, PROTOBUF, **{"X-Scope-OrgID": "shop"}),
        body=_SNAPPY,
        status=204,
        bodies=("first", "b"),
    ),
    "alloy-prometheus": RecordedRequest(
        door="prometheus",
        path="/api/v1/write",
        headers=_headers(
            ALLOY, PROTOBUF, "snappy", **{"X-Prometheus-Remote-Write-Version": "0.1.0"}
        ),
        body=bytes(cramjam.snappy.compress_raw(REMOTE_WRITE)),
        status=204,
        bodies=(),
    ),
}


HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=get_args(DoorName))


@pytest.mark.parametrize("name", RECORDED)
async def test_a_recorded_request(tmp_path: Path, name: str) -> None:
    """With the door of this client open, and no other."""
    recorded = RECORDED[name]

    async def check(served: Running) -> None:
        for probe in recorded.probes:
            url = f"http://127.0.0.1:{served.port}{probe}"
            async with served.client.session.get(url) as answer:
                assert answer.status == 200, probe
        for _ in range(2):
            answer_ = await post(
                served, recorded.path, recorded.body, SHOP.token.token, recorded.headers
            )
            assert answer_.status == recorded.status, answer_.body
        frames = await accepted_frames(served.store.inner)
        bodies = [
            body.decode()
            for frame in frames
            if isinstance(frame.columns, LogColumns)
            for body in frame.columns.body.slices()
        ]
        assert sorted(bodies) == sorted(recorded.bodies)

    async with running(tmp_path, HOST, SHOP, doors=(recorded.door,)) as served:
        await check(served)
