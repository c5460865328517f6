"""The doors of a running agent: success means durable, and a retry adds nothing."""

import asyncio
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cramjam
import pytest
from support.agent_doors import JSON, Client, served, spooled
from support.agent_gateway import GatewayDouble
from support.door_bodies import BULK, FIREHOSE, LOKI, LOKI_JSON, REMOTE_WRITE_2
from support.door_client import otlp_logs

from sluice_agent.doors.service import AgentDoors, TokenSenders
from sluice_agent.metrics import AgentMetrics
from sluice_agent.settings import AgentSettings, WhenFull
from sluice_agent.spool.spool import Spool
from sluice_doors.api import DoorsApi
from sluice_doors.table import HTTP_DOORS, DoorName
from sluice_protocol.errors import BadUsage
from sluice_protocol.system_clock import SystemClock

PROTOBUF = {"Content-Type": "application/x-protobuf"}
WRITE_2 = {
    "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "Content-Encoding": "snappy",
}
BOUNDED = "content; combined"
"""A repetition is found within the window of the spool."""
AMAZON = {**JSON, "X-Amz-Firehose-Request-Id": "ed4acda5-034f-9f42-bba1-f29aea6d7d8f"}
EVENTS = b'{"time":1763769600.5,"event":"one","host":"h"}{"time":1763769601,"event":"two"}'
TIMED = b'{"time":"2026-11-22T00:00:00Z","message":"one"}\n{"time":1763769600123,"message":"two"}\n'


def packed(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


REQUESTS: dict[str, tuple[str, bytes, Mapping[str, str], int]] = {
    "otlp": ("/v1/logs", otlp_logs("one", "two"), PROTOBUF, 200),
    "json": ("/v1/ingest", TIMED, JSON, 200),
    "prometheus": ("/api/v1/write", packed(REMOTE_WRITE_2), WRITE_2, 204),
    "loki": ("/loki/api/v1/push", packed(LOKI), PROTOBUF, 204),
    "loki-json": ("/loki/api/v1/push", LOKI_JSON, JSON, 204),
    "elasticsearch": ("/_bulk", BULK, {"Content-Type": "application/x-ndjson"}, 200),
    "hec": ("/services/collector/event", EVENTS, {**JSON, "Authorization": "Splunk x"}, 200),
    "firehose": ("/v1/firehose", FIREHOSE, AMAZON, 200),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_success_is_durable_and_a_retry_adds_nothing(tmp_path: Path, name: str) -> None:
    """Also when the agent was restarted in between."""
    path, body, headers, status = REQUESTS[name]
    counts = []

    async def check(client: Client) -> None:
        for _ in range(2):
            answer = await client.post(path, body, headers)
            source = "key; combined" if name == "firehose" else BOUNDED
            assert (answer.status, answer.headers["Sluice-Identity"]) == (status, source)

    for _ in range(2):
        served(tmp_path, check)
        counts.append(spooled(tmp_path))
    assert counts[0] > 0
    assert counts[0] == counts[1]


def test_a_retry_after_the_batch_was_removed_adds_nothing(tmp_path: Path) -> None:
    """The window outlives the batch, and the agent that stored it."""

    async def send(client: Client) -> None:
        assert (await client.post("/v1/ingest", TIMED)).status == 200

    with GatewayDouble() as gateway:
        for _ in range(3):
            served(tmp_path, send, gateway=gateway.url)
        assert gateway.bodies() == [b"one", b"two"]


def test_concurrent_equal_requests_are_stored_once(tmp_path: Path) -> None:
    """The second waits for the records of the first; other compression is the same request."""

    async def check(client: Client) -> None:
        packed_twice = [
            (TIMED, JSON), (gzip.compress(TIMED), {**JSON, "Content-Encoding": "gzip"}),
        ]  # fmt: skip
        answers = await asyncio.gather(
            *(client.post("/v1/ingest", *packed_twice[n % 2]) for n in range(8))
        )
        found = Counter(json.loads(answer.body)["duplicate"] for answer in answers)
        assert found == {False: 1, True: 7}

    served(tmp_path, check)
    assert spooled(tmp_path) == 2


def test_requests_without_identity_are_always_new(tmp_path: Path) -> None:
    """Records without a time may be meant twice; a key makes them one request."""

    named = {**JSON, "Idempotency-Key": "k"}

    async def check(client: Client) -> None:
        for headers, source in ((JSON, "none"), (named, "key; combined")):
            for _ in range(2):
                answer = await client.post("/v1/ingest", b'{"message":"x"}', headers)
                assert (answer.status, answer.headers["Sluice-Identity"]) == (200, source)

    served(tmp_path, check)
    assert spooled(tmp_path) == 3


def test_a_large_request_becomes_several_parts(tmp_path: Path) -> None:
    """Each is within the limits of a batch, and a retry adds none of them."""
    lines = b"".join(
        b'{"time":%d,"message":"%s"}\n' % (1_763_769_600_000 + n, b"%d" % n * 50_000)
        for n in range(200)
    )

    async def check(client: Client) -> None:
        for duplicate in (False, True):
            answer = await client.post("/v1/ingest", lines)
            assert json.loads(answer.body) == {
                "accepted": 200, "unreadable": 0, "duplicate": duplicate, "identity": "content",
            }  # fmt: skip
        huge = b'{"message":"%s"}' % (b"x" * (9 << 20))
        assert (await client.post("/v1/ingest", huge)).status == 413

    served(tmp_path, check, door_body_bytes=64 << 20)
    assert spooled(tmp_path) == 200
    assert len(list((tmp_path / "s" / "ready").glob("*.batch"))) > 1


def test_a_full_spool_is_later_and_a_bad_body_is_never(tmp_path: Path) -> None:
    """In the form of each protocol; what was not durable is new in the retry."""
    bad = {
        "otlp": b"\xff", "json": b"\0", "prometheus": packed(b"\xff"), "loki": packed(b"\xff"),
        "elasticsearch": b"\0",
    }  # fmt: skip

    async def full(client: Client) -> None:
        for path, body, headers, _ in REQUESTS.values():
            answer = await client.post(path, body, headers)
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")

    async def never(client: Client) -> None:
        for name, body in bad.items():
            path, _, headers, _ = REQUESTS[name]
            assert (await client.post(path, body, headers)).status == 400
        assert (await client.post("/v1/ingest", bytes(2 << 20))).status == 413
        bomb = gzip.compress(bytes(100 << 20))
        answer = await client.post("/v1/ingest", bomb, {**JSON, "Content-Encoding": "gzip"})
        assert answer.status == 413
        text = await client.post("/v1/logs", b"x", {"Content-Type": "application/x-ndjson"})
        assert text.status == 415

    served(tmp_path / "a", never, door_body_bytes=1 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "fits", lambda *_: False)
        served(tmp_path / "b", full, when_full=WhenFull.DROP_NEWEST)
    assert spooled(tmp_path / "a") == spooled(tmp_path / "b") == 0


def test_a_retry_while_the_spool_is_full_joins_the_first(tmp_path: Path) -> None:
    """A client that gives up while the spool is full sends again, and nothing is doubled."""
    has_room = False

    async def blocked(client: Client) -> bool:
        return (await client.post("/v1/ingest", b"\0")).status == 503

    async def check(client: Client) -> None:
        nonlocal has_room
        first = asyncio.create_task(client.post("/v1/ingest", TIMED))
        for _ in range(500):
            if await blocked(client):
                break
            await asyncio.sleep(0.02)
        assert await blocked(client)
        first.cancel()
        has_room = True
        answer = await client.post("/v1/ingest", TIMED)
        while answer.status == 503:
            await asyncio.sleep(0.05)
            answer = await client.post("/v1/ingest", TIMED)
        assert json.loads(answer.body)["duplicate"] is True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "fits", lambda *_: has_room)
        served(tmp_path, check)
    assert spooled(tmp_path) == 2


def test_the_gate_and_tokens(tmp_path: Path) -> None:
    """Without tokens pages of other origins are refused; with tokens every other client is."""

    async def gate(client: Client) -> None:
        for refused in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert (await client.post("/v1/ingest", TIMED, {**JSON, **refused})).status == 403
        plain = await client.post("/v1/ingest", TIMED, {"Content-Type": "text/plain"})
        assert plain.status == 403

    async def tokens(client: Client) -> None:
        for sent in ("Bearer secret", "Splunk secret", "ApiKey secret"):
            answer = await client.post("/v1/ingest", TIMED, {**JSON, "Authorization": sent})
            assert answer.status == 200
        for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Digest x"}):
            assert (await client.post("/v1/ingest", TIMED, {**JSON, **wrong})).status == 401

    served(tmp_path / "a", gate)
    known = f"shop={hashlib.sha256(b'secret').hexdigest()}"
    served(tmp_path / "b", tokens, door_tokens=known)
    assert (spooled(tmp_path / "a"), spooled(tmp_path / "b")) == (0, 2)


def test_closed_doors_are_not_there(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        assert (await client.post("/v1/ingest", TIMED)).status == 404
        assert (await client.post("/_license", b"", method="GET")).status == 404
        path, body, headers, status = REQUESTS["loki"]
        assert (await client.post(path, body, headers)).status == status

    served(tmp_path, check, doors=("loki",))


def test_elasticsearch_clients_find_what_they_probe(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        answer = await client.post("/", b"", method="GET")
        assert json.loads(answer.body)["version"]["number"] == "8.9.0"
        assert answer.headers["X-Elastic-Product"] == "Elasticsearch"

    served(tmp_path, check)


@pytest.mark.parametrize(("full", "expected"), [(True, (503, 18)), (False, (200, 17))])
def test_the_health_of_splunk_is_that_of_the_spool(
    tmp_path: Path, *, full: bool, expected: tuple[int, int]
) -> None:
    async def check(client: Client) -> None:
        answer = await client.post("/services/collector/health", b"", method="GET")
        assert (answer.status, json.loads(answer.body)["code"]) == expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            AgentMetrics, "is_blocked", property(lambda _: full, lambda *_: None), raising=False
        )
        served(tmp_path, check)


def test_a_page_of_another_name_gets_no_probe_without_tokens(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        for host, status in (("evil.example", 403), (f"127.0.0.1:{client.port}", 200)):
            answer = await client.post("/ready", b"", {"Host": host}, method="GET")
            assert answer.status == status

    served(tmp_path, check)


def test_every_door_of_the_agent_has_an_endpoint() -> None:
    ports: Any = SimpleNamespace(clock=SystemClock())
    for door in HTTP_DOORS:
        acceptance = AgentDoors(ports, TokenSenders(()), body_bytes_max=1)
        assert list(DoorsApi(acceptance, [door], open_host=False).endpoints())
        acceptance.close()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"doors_listen": "0.0.0.0:4318"}, "door_tokens"),
        ({"doors_listen": "nowhere"}, "HOST:PORT"),
    ],
)
def test_wrong_settings_are_reported(how: dict[str, str], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        AgentSettings(gateway="http://a", doors=("json",), **how).for_doors()


@pytest.mark.parametrize("doors", [("otlp",), ("otlp", "json")])
def test_no_door_is_open_to_other_machines_without_tokens(doors: tuple[DoorName, ...]) -> None:
    there = AgentSettings(gateway="http://a", doors=doors, doors_listen="0.0.0.0:1")
    with pytest.raises(BadUsage, match="door_tokens"):
        there.for_doors()


def test_without_doors_nothing_listens() -> None:
    assert AgentSettings(gateway="http://a").for_doors().doors == ()
