"""One bad record in a request: all of it is accepted, the bad one raw, and the answer is a success.

A partial success makes some clients send other bytes again, and others the whole request.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import grpc
import pytest
from grpc import aio
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from support.door_bodies import S, firehose
from support.door_client import PROTOBUF, TestSender, accepted_frames, otlp_logs, post
from support.gateway import Running, TestKey, running

from sluice_doors.table import DoorName
from sluice_gateway.process.worker import serving_grpc
from sluice_protocol.columns import LogColumns, SpanColumns
from sluice_store.port import ObjectStore

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=get_args(DoorName))
GOOD = json.dumps({"time": S, "message": "good"}).encode()
BAD = b"no object"
JSON = {"Content-Type": "application/json"}
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
WARNING = "1 records were kept raw: see their attribute sluice.error"


def damaged_otlp() -> bytes:
    """Return two log records, of which one has a time that no record can have."""
    request = ExportLogsServiceRequest.FromString(otlp_logs("good", "bad", at_ns=S * 10**9))
    request.resource_logs[0].scope_logs[0].log_records[1].time_unix_nano = 2**63 + 1
    return request.SerializeToString()


@dataclass(frozen=True)
class Damaged:
    """A request with a good and a bad record.

    Attributes:
        door: The door.
        path: Where it is sent.
        body: What is sent.
        answer: The body of the response; None where it differs between requests.
        headers: The header fields.
        status: That of a success.
    """

    door: DoorName
    path: str
    body: bytes
    answer: object = None
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)
    status: int = 200


OTLP_JSON = json.dumps(
    {
        "resourceLogs": [
            {
                "scopeLogs": [
                    {
                        "logRecords": [
                            {"timeUnixNano": str(S * 10**9), "body": {"stringValue": "good"}},
                            {"timeUnixNano": "never", "body": {"stringValue": "bad"}},
                        ]
                    }
                ]
            }
        ]
    }
).encode()
LOKI_BAD = json.dumps(
    {"streams": [{"stream": {"a": "b"}, "values": [[f"{S}000000000", "good"], ["never", "bad"]]}]}
).encode()
TRACES_JSON = json.dumps(
    {"resourceSpans": [{"scopeSpans": [{"spans": [
        {"name": "good", "startTimeUnixNano": str(S * 10**9)}, {"name": 7},
    ]}]}]}
).encode()  # fmt: skip
CASES = (
    Damaged("otlp", "/v1/traces", TRACES_JSON, {"partialSuccess": {"errorMessage": WARNING}}),
    Damaged("otlp", "/v1/logs", OTLP_JSON, {"partialSuccess": {"errorMessage": WARNING}}),
    Damaged("json", "/v1/ingest", GOOD + b"\n" + BAD),
    Damaged("elasticsearch", "/_bulk", b'{"create":{}}\n' + GOOD + b'\n{"create":{}}\n[1]\n'),
    Damaged("loki", "/loki/api/v1/push", LOKI_BAD, status=204),
    Damaged("hec", "/services/collector", b'{"event":"good","time":%d}\n{"time":1}' % S,
            {"text": "Success", "code": 0}),
    Damaged("firehose", "/v1/firehose", firehose(GOOD)[:-2] + b',{"data":"no base64!"}]}',
            headers=JSON | {"X-Amz-Firehose-Request-Id": "r-1"}),
)  # fmt: skip


async def check_kept(served: Running, store: ObjectStore, door: DoorName) -> None:
    """Check that both records are stored, one of them with the reason, and that it is counted."""
    [frame] = await accepted_frames(store)
    assert isinstance(frame.columns, LogColumns | SpanColumns)
    assert frame.envelope.count == 2
    assert frame.columns.attributes is not None
    columns = frame.columns.attributes
    names = [columns.names[key] for key in columns.keys.tolist()]
    assert names.count("sluice.error") == 1
    assert served.count("sluice_door_unreadable_records_total", door=door) == 1
    assert served.count("sluice_door_records_total", door=door) == 2
    assert served.count("sluice_door_requests_total", door=door, outcome="new") == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
async def test_a_bad_record_is_kept_and_the_answer_is_a_success(
    tmp_path: Path, case: Damaged
) -> None:
    async with running(tmp_path, HOST, SHOP, doors=get_args(DoorName)) as served:
        token = SHOP.token.token
        found = await post(served, case.path, case.body, token, case.headers)
        assert found.status == case.status, found.body
        if case.answer is not None:
            assert json.loads(found.body) == case.answer
        if case.door == "elasticsearch":
            answer = json.loads(found.body)
            statuses = [one["create"]["status"] for one in answer["items"]]
            assert (answer["errors"], statuses) == (True, [201, 400])
        await check_kept(served, served.store.inner, case.door)


async def test_otlp_in_protobuf_warns_and_rejects_nothing(tmp_path: Path) -> None:
    """Over HTTP and over gRPC: `rejected_log_records` 0 with a message is a warning."""
    warning = ExportLogsServiceResponse()
    warning.partial_success.error_message = WARNING

    async with running(tmp_path / "http", HOST, SHOP, doors=("otlp",)) as served:
        found = await post(served, "/v1/logs", damaged_otlp(), SHOP.token.token, PROTOBUF)
        assert found.status == 200
        assert ExportLogsServiceResponse.FromString(found.body) == warning
        await check_kept(served, served.store.inner, "otlp")
    async with (
        running(
            tmp_path / "grpc", HOST, SHOP, doors=("otlp",), otlp_grpc_listen="127.0.0.1:0"
        ) as served,
        serving_grpc(served.gateway) as port,
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        call = channel.unary_unary(LOGS)(
            damaged_otlp(), metadata=(("authorization", f"Bearer {SHOP.token.token}"),)
        )
        assert ExportLogsServiceResponse.FromString(await call) == warning
        assert await call.code() is grpc.StatusCode.OK
        await check_kept(served, served.store.inner, "otlp")
