"""A request to each door, with two records that contain their times."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import cramjam
from support.door_bodies import S, double, firehose, integer, label, part
from support.door_client import PROTOBUF, otlp_logs

HEC = b"".join(
    json.dumps(one).encode()
    for one in (
        {"time": S, "host": "web-1", "event": "first"},
        {"time": S + 1, "event": "metric", "fields": {"metric_name:load": 0.5}},
        {"time": S + 2, "host": "web-1", "event": "second"},
    )
)
LINES = Counter(["first", "second"])
JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}
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
        HEC,
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
    "elasticsearch": DoorCase("/_bulk", DOCUMENTS, NDJSON),
    "firehose": DoorCase(
        "/v1/firehose", firehose(*OBJECTS), JSON | {"X-Amz-Firehose-Request-Id": "r-1"}
    ),
    "json": DoorCase("/v1/ingest", b"\n".join(OBJECTS), NDJSON),
}
