"""Splunk's collector and Amazon Data Firehose over real sockets: success, retry, later, never."""

import gzip
import io
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from support.door_bodies import ARN, CLOUDWATCH, COMMON, FIREHOSE, HEC, S, firehose, zipped
from support.door_client import DoorAnswer, TestSender, accepted_frames, post
from support.gateway import Running, TestKey, running

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=("hec", "firehose"))
OTHER = TestSender("other", (), doors=("json",))
JSON = {"Content-Type": "application/json"}
EVENTS = f'{{"time":{S},"host":"h","event":"one"}}{{"time":{S}.5,"event":{{"a":1}}}}'.encode()
AMAZON = {
    **JSON,
    "X-Amz-Firehose-Request-Id": "ed4acda5-034f-9f42-bba1-f29aea6d7d8f",
    "X-Amz-Firehose-Common-Attributes": COMMON,
    "X-Amz-Firehose-Source-Arn": ARN,
}


def serve(tmp_path: Path, **settings: Any) -> AbstractAsyncContextManager[Running]:
    return running(tmp_path, HOST, SHOP, OTHER, doors=("hec", "firehose"), **settings)


def credentials(scheme: str) -> dict[str, str]:
    token = SHOP.token.token
    return {"Authorization": f"{scheme} {token}"} if scheme != "firehose" else {
        "X-Amz-Firehose-Access-Key": token
    }  # fmt: skip


async def send(
    served: Running, path: str, body: bytes, headers: Mapping[str, str] = JSON
) -> DoorAnswer:
    stated = {"Authorization": f"Splunk {SHOP.token.token}", **headers}
    return await post(served, path, body, "", stated)


async def send_with(
    served: Running, path: str, body: bytes, headers: Mapping[str, str]
) -> DoorAnswer:
    """Send exactly these header fields."""
    url = f"http://127.0.0.1:{served.port}{path}"
    async with served.client.session.post(url, data=io.BytesIO(body), headers=headers) as answer:
        return DoorAnswer(answer.status, await answer.read(), answer.headers)


@pytest.mark.parametrize("path", ["", "/event", "/event/1.0"])
async def test_events_of_splunk_are_accepted_once(tmp_path: Path, path: str) -> None:
    async with serve(tmp_path) as served:
        bodies = [EVENTS, gzip.compress(EVENTS)]
        for body, coding in zip(bodies, ({}, {"Content-Encoding": "gzip"}), strict=True):
            answer = await send(served, f"/services/collector{path}", body, {**JSON, **coding})
            assert json.loads(answer.body) == {"text": "Success", "code": 0}
            assert (answer.status, answer.headers["Sluice-Identity"]) == (200, "content")
        [frame] = await accepted_frames(served.store.inner)
        assert frame.envelope.count == 2


async def test_a_request_of_splunk_may_have_logs_and_metrics(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        assert (await send(served, "/services/collector", HEC)).status == 200
        frames = await accepted_frames(served.store.inner)
        assert sorted(frame.envelope.count for frame in frames) == [3, 5]


@pytest.mark.parametrize("path", ["/raw", "/raw/1.0"])
async def test_raw_lines_of_splunk_are_new_each_time_unless_they_are_named(
    tmp_path: Path, path: str
) -> None:
    async with serve(tmp_path) as served:
        target = f"/services/collector{path}?host=h&sourcetype=app"
        for headers, source in ((JSON, "none"), ({**JSON, "Idempotency-Key": "k"}, "key")):
            for _ in range(2):
                answer = await send(served, target, b"one\ntwo\n", headers)
                assert (answer.status, answer.headers["Sluice-Identity"]) == (200, source)
        frames = await accepted_frames(served.store.inner)
        assert len(frames) == 3
        assert dict(frames[0].envelope.resource)["host.name"] == "h"


async def test_ack_ids_of_splunk_differ_and_are_accepted(tmp_path: Path) -> None:
    """A success is permanent already, so the state of every id is true."""
    async with serve(tmp_path) as served:
        channel = {**JSON, "X-Splunk-Request-Channel": "7A1F6C3E-0000-0000-0000-000000000000"}
        ids = []
        for _ in range(2):
            answer = await send(served, "/services/collector", EVENTS, channel)
            ids.append(json.loads(answer.body)["ackId"])
        assert ids[0] != ids[1]
        query = json.dumps({"acks": ids}).encode()
        answer = await send(served, "/services/collector/ack", query, channel)
        assert json.loads(answer.body) == {"acks": {str(one): True for one in ids}}
        for body, headers, code in ((query, JSON, 10), (b"[]", channel, 6)):
            answer = await send(served, "/services/collector/ack", body, headers)
            assert (answer.status, json.loads(answer.body)["code"]) == (400, code)


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (EVENTS, {}, 401, 2),
        (EVENTS, {"Authorization": "what"}, 401, 3),
        (EVENTS, {"Authorization": "Splunk "}, 401, 3),
        (EVENTS, {"Authorization": "Splunk wrong"}, 403, 4),
        (EVENTS, {"Authorization": f"Splunk {OTHER.token.token}"}, 403, 1),
        (b"", credentials("Splunk"), 400, 5),
        (b" \n", credentials("Splunk"), 400, 5),
        (b"\0", credentials("Splunk"), 400, 6),
        (EVENTS, {**credentials("Splunk"), "Content-Encoding": "br"}, 400, 6),
        (bytes(2_000_000), credentials("Splunk"), 413, 27),
        (EVENTS, credentials("Bearer"), 200, 0),
    ],
)  # fmt: skip
async def test_codes_of_splunk(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int, code: int
) -> None:
    async with serve(tmp_path, door_body_bytes_max=1_000_000) as served:
        answer = await send_with(served, "/services/collector/event", body, headers)
        assert (answer.status, json.loads(answer.body)["code"]) == (status, code)


async def test_health_of_splunk_and_trouble(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:

        async def health() -> tuple[int, int]:
            url = f"http://127.0.0.1:{served.port}/services/collector/health"
            async with served.client.session.get(url) as answer:
                return answer.status, (await answer.json())["code"]

        assert await health() == (200, 17)
        budget = served.gateway.uploads.budget
        with budget.take(budget.room_bytes(0)):
            assert {await health() for _ in range(5)} == {(503, 18)}
        assert await health() == (200, 17)
        served.gateway.uploads.running.drain()
        assert await health() == (503, 18)
        answer = await send(served, "/services/collector", EVENTS)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        detail = "this gateway is stopping: try another gateway"
        assert json.loads(answer.body) == {"text": "Server is busy", "code": 9, "detail": detail}


async def test_deliveries_of_firehose_are_accepted_once(tmp_path: Path) -> None:
    """The request id is the identity, also where a record has no time."""
    async with serve(tmp_path) as served:
        headers = {**AMAZON, **credentials("firehose")}
        for body, coding in (
            (FIREHOSE, {}),
            (gzip.compress(FIREHOSE), {"Content-Encoding": "gzip"}),
        ):
            answer = await send_with(served, "/v1/firehose", body, {**headers, **coding})
            found = json.loads(answer.body)
            assert (answer.status, answer.headers["Sluice-Identity"]) == (200, "key")
            assert found["requestId"] == AMAZON["X-Amz-Firehose-Request-Id"]
            assert abs(found["timestamp"] - served.gateway.clock.now_ns() // 10**6) < 60_000
            assert answer.headers["Content-Type"] == "application/json"
        [frame] = await accepted_frames(served.store.inner)
        assert dict(frame.envelope.resource)["deployment"] == "prod"


async def test_another_request_id_is_another_delivery(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        body = firehose(zipped(CLOUDWATCH))
        for name in ("a", "b"):
            headers = {
                **AMAZON, **credentials("firehose"), "X-Amz-Firehose-Request-Id": name,
            }  # fmt: skip
            assert (await send_with(served, "/v1/firehose", body, headers)).status == 200
        assert len(await accepted_frames(served.store.inner)) == 2


@pytest.mark.parametrize(
    ("body", "key", "status"),
    [
        (FIREHOSE, "", 401),
        (FIREHOSE, "wrong", 401),
        (FIREHOSE, OTHER.token.token, 403),
        (b"{}", SHOP.token.token, 400),
        (bytes(2_000_000), SHOP.token.token, 413),
    ],
    ids=["no-key", "wrong-key", "other-door", "unreadable", "too-large"],
)
async def test_refused_deliveries_name_the_reason(
    tmp_path: Path, body: bytes, key: str, status: int
) -> None:
    async with serve(tmp_path, door_body_bytes_max=1_000_000) as served:
        headers = {**AMAZON, "X-Amz-Firehose-Access-Key": key}
        answer = await send_with(served, "/v1/firehose", body, headers)
        found = json.loads(answer.body)
        assert (answer.status, found["requestId"]) == (status, AMAZON["X-Amz-Firehose-Request-Id"])
        assert found["errorMessage"]
        assert await accepted_frames(served.store.inner) == []
