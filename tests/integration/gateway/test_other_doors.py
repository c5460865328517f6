"""JSON, Prometheus, Loki and Elasticsearch over real sockets: success, retry, later, never."""

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import get_args

import aiohttp
import cramjam
import pytest
from support.door_bodies import LOKI, LOKI_JSON, NDJSON, REMOTE_WRITE, REMOTE_WRITE_2
from support.door_client import DoorAnswer, TestSender, accepted_frames, post
from support.gateway import Running, TestKey, running

from sluice_doors.table import DoorName

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=get_args(DoorName))
JSON_ONLY = TestSender("json", (), doors=("json",))
JSON = {"Content-Type": "application/json"}
SNAPPY = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
WRITE_2 = {
    "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "2.0.0",
}
BULK = b"""{"create":{"_index":"web"}}
{"@timestamp":"2026-11-22T00:00:00Z","message":"one"}
{"index":{"_id":"7"}}
{"@timestamp":"2026-11-22T00:00:01Z","message":"two"}
"""
TIMED = b'{"time":"2026-11-22T00:00:00Z","message":"one"}\n{"time":1763769600123,"message":"two"}\n'


def packed(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


REQUESTS: dict[str, tuple[str, bytes, Mapping[str, str], int]] = {
    "json": ("/v1/ingest", TIMED, JSON, 200),
    "prometheus-2": ("/api/v1/write", packed(REMOTE_WRITE_2), WRITE_2, 204),
    "loki": ("/loki/api/v1/push", packed(LOKI), {"Content-Type": "application/x-protobuf"}, 204),
    "loki-json": ("/loki/api/v1/push", LOKI_JSON, JSON, 204),
    "elasticsearch": ("/_bulk", BULK, {"Content-Type": "application/x-ndjson"}, 200),
}


def serve(tmp_path: Path, *doors: DoorName) -> AbstractAsyncContextManager[Running]:
    return running(tmp_path, HOST, SHOP, JSON_ONLY, doors=doors or get_args(DoorName))


async def send(served: Running, path: str, body: bytes, headers: Mapping[str, str]) -> DoorAnswer:
    return await post(served, path, body, SHOP.token.token, headers)


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_retry_adds_nothing(tmp_path: Path, name: str) -> None:
    path, body, headers, status = REQUESTS[name]

    async with serve(tmp_path) as served:
        for _ in range(2):
            answer = await send(served, path, body, headers)
            assert (answer.status, answer.headers["Sluice-Identity"]) == (status, "content")
        [frame] = await accepted_frames(served.store.inner)
        assert frame.identity.agent_id.startswith("door:shop:")


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", REQUESTS)
async def test_trouble_is_later_and_a_closed_door_is_not_there(tmp_path: Path, name: str) -> None:
    path, body, headers, _ = REQUESTS[name]

    async with serve(tmp_path / "a") as served:
        served.gateway.uploads.running.drain()
        answer = await send(served, path, body, headers)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    async with serve(tmp_path / "b", "forward") as served:
        assert (await send(served, path, body, headers)).status == 404


@pytest.mark.parametrize("name", REQUESTS)
async def test_an_unknown_sender_receives_a_basic_challenge(tmp_path: Path, name: str) -> None:
    """curl's `--anyauth`, and so collectd, send a password only after such a response."""
    path, body, headers, _ = REQUESTS[name]

    async with serve(tmp_path) as served:
        answer = await post(served, path, body, "wrong", headers)
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="sluice"')


@pytest.mark.parametrize(
    ("name", "body"),
    [("json", b"\0"), ("prometheus-2", b"\xff"), ("loki", b"\xff"), ("elasticsearch", b"\0")],
)
async def test_a_body_that_nothing_can_be_read_of(tmp_path: Path, name: str, body: bytes) -> None:
    path, _, headers, _ = REQUESTS[name]

    async with serve(tmp_path) as served:
        assert (await send(served, path, body, headers)).status == 400
        assert await accepted_frames(served.store.inner) == []


async def test_json_states_what_it_accepted(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        answer = await send(served, "/v1/ingest?time=time&message=message", NDJSON, JSON)
        found = json.loads(answer.body)
        assert answer.status == 200
        assert found["accepted"] == sum(
            frame.envelope.count for frame in await accepted_frames(served.store.inner)
        )
        assert found["duplicate"] is False


async def test_remote_write_counts_what_it_wrote(tmp_path: Path) -> None:
    """Version 2.0 requires the counts; without them a client falls back to 1.0."""
    async with serve(tmp_path) as served:
        answer = await send(served, "/api/v1/write", packed(REMOTE_WRITE_2), WRITE_2)
        names = ("Samples", "Histograms", "Exemplars")
        counts = [answer.headers[f"X-Prometheus-Remote-Write-{name}-Written"] for name in names]
        assert counts == ["1", "1", "1"]
        first = await send(served, "/api/v1/write", packed(REMOTE_WRITE), SNAPPY)
        assert first.status == 204
        text = await send(served, "/api/v1/write", b"x", {"Content-Type": "text/plain"})
        assert text.status == 415


async def test_bulk_has_an_item_for_each_action(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        answer = await send(served, "/shop/_bulk", BULK, {"Content-Type": "application/json"})
        assert answer.headers["X-Elastic-Product"] == "Elasticsearch"
        found = json.loads(answer.body)
        assert found["errors"] is False
        assert [(next(iter(item)), next(iter(item.values()))) for item in found["items"]] == [
            ("create", {"_index": "web", "_id": "-", "status": 201, "result": "created"}),
            ("index", {"_index": "shop", "_id": "7", "status": 201, "result": "created"}),
        ]


async def test_json_without_a_path(tmp_path: Path) -> None:
    """As clients of Logstash's HTTP input send it, which have no setting for a path."""
    events = [{"@timestamp": "2025-11-28T08:00:00.123Z", "@version": "1", "message": "paid"}] * 2
    async with serve(tmp_path) as served:
        answer = await send(served, "/", json.dumps(events).encode(), JSON)
        assert (answer.status, json.loads(answer.body)["accepted"]) == (200, 2)
    async with serve(tmp_path / "b", "otlp") as served:
        answer = await send(served, "/", b"{}", JSON)
        assert (answer.status, "--doors json" in json.loads(answer.body)["detail"]) == (404, True)


@pytest.mark.parametrize("path", ["/_bulk", "/shop/_bulk"])
async def test_bulk_by_put(tmp_path: Path, path: str) -> None:
    """As the official client of Python sends it."""
    async with serve(tmp_path) as served:
        fields = {"Authorization": f"Bearer {SHOP.token.token}"}
        url = f"http://127.0.0.1:{served.port}{path}"
        async with served.client.session.put(url, data=BULK, headers=fields) as answer:
            assert (answer.status, (await answer.json())["errors"]) == (200, False)


async def test_probes_of_elasticsearch_clients(tmp_path: Path) -> None:
    """The responses are constants, for any `Host`; without the door there are none."""
    async with serve(tmp_path / "a") as served:
        session, url = served.client.session, f"http://127.0.0.1:{served.port}"
        host = {"Host": "logs.example.org"}
        for method, path in (("GET", "/"), ("HEAD", "/"), ("GET", "/_license?human=false"),
                             ("GET", "/_cluster/health"), ("GET", "/_cluster/health/shop"),
                             ("PUT", "/_ilm/policy/x"), ("HEAD", "/_data_stream/logs-x-y"),
                             ("PUT", "/_data_stream/x"), ("HEAD", "/shop")):  # fmt: skip
            async with session.request(method, url + path, headers=host) as answer:
                assert answer.status == 200, (method, path)
                assert answer.headers["X-Elastic-Product"] == "Elasticsearch"
        async with session.get(url, headers=host) as answer:
            assert (await answer.json())["version"]["number"].startswith("8.")
    async with serve(tmp_path / "b", "otlp") as served:
        assert (await served.client.get("/_license"))[0] == 404
        assert (await served.client.get("/"))[0] == 405


async def test_every_index_exists_and_unknown_paths_keep_their_remedy(tmp_path: Path) -> None:
    """A client that would create its index must not stop, and other mistakes must not look so."""
    plain = {"Content-Type": "application/json"}
    accepted = {**plain, "Accept": "application/vnd.elasticsearch+json; compatible-with=9"}
    async with serve(tmp_path / "a") as served:
        session, url = served.client.session, f"http://127.0.0.1:{served.port}"
        async with session.put(f"{url}/shop", headers=accepted) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["type"]) == (400, "resource_already_exists_exception")
            assert error["reason"].endswith("send documents without creating it, index=`shop`")
        for method, path, nearest in (
            ("GET", "/shop", ""), ("POST", "/shop", ""), ("DELETE", "/shop", ""),
            ("GET", "/metricz", "/metrics"), ("POST", "/ingest", "/v1/ingest"),
            ("POST", "/bulk", "/_bulk"), ("PUT", "/_bulkk", ""), ("GET", "/shop/_search", ""),
        ):  # fmt: skip
            async with session.request(method, url + path, headers=accepted) as answer:
                detail = (await answer.json())["detail"]
                assert (answer.status, answer.content_type) == (404, "application/json"), path
                assert detail.startswith("no such path: check the URL")
                assert nearest in detail
        async with session.head(f"{url}/_shop") as answer:
            assert answer.status == 404
        async with session.get(f"{url}/shop") as answer:
            assert answer.content_type == "application/problem+json"


RSYSLOG = {"Accept": "*/*", "Content-Type": "application/json; charset=utf-8"}


async def send_bulk(served: Running, token: str, fields: Mapping[str, str]) -> int:
    """Send a bulk request; return the status, or 0 where the connection is closed instead."""
    given = {"Authorization": f"Bearer {token}", **fields}
    url = f"http://127.0.0.1:{served.port}/_bulk"
    sending = served.client.session.post(
        url, data=BULK, headers=given, skip_auto_headers=["User-Agent", "Accept", "Content-Type"]
    )
    try:
        async with sending as answer:
            return answer.status
    except aiohttp.ServerDisconnectedError:
        return 0


async def bulk_statuses(served: Running, fields: Mapping[str, str]) -> list[int]:
    """Send while no upload is accepted, with two tokens that may not, and as usual."""
    served.gateway.uploads.mode.switched = True
    found = [await send_bulk(served, SHOP.token.token, fields)]
    served.gateway.uploads.mode.switched = False
    for token in ("wrong", JSON_ONLY.token.token, SHOP.token.token):
        found.append(await send_bulk(served, token, fields))  # noqa: PERF401 - in turn
    return found


async def test_trouble_closes_the_connection_of_rsyslog(tmp_path: Path) -> None:
    """rsyslog drops a batch on 503, 401 and 403, and most of it on 429 per item."""
    async with serve(tmp_path / "a") as served:
        assert await bulk_statuses(served, RSYSLOG) == [0, 0, 0, 200]
    async with serve(tmp_path / "b", "otlp") as served:
        assert await send_bulk(served, SHOP.token.token, RSYSLOG) == 0


@pytest.mark.parametrize(
    "fields",
    [
        RSYSLOG | {"User-Agent": "curl/8"},
        RSYSLOG | {"Content-Type": "application/x-ndjson"},
        RSYSLOG | {"Content-Type": "application/json"},
        RSYSLOG | {"Accept": "application/json"},
        {"Content-Type": RSYSLOG["Content-Type"]},
        {},
    ],
    ids=["user-agent", "ndjson", "json", "accept", "no-accept", "no-field"],
)
async def test_other_clients_read_why_they_are_refused(
    tmp_path: Path, fields: Mapping[str, str]
) -> None:
    """Also those without a `User-Agent`."""
    async with serve(tmp_path / "a") as served:
        assert await bulk_statuses(served, fields) == [503, 401, 403, 200]
    async with serve(tmp_path / "b", "otlp") as served:
        assert await send_bulk(served, SHOP.token.token, fields) == 404
