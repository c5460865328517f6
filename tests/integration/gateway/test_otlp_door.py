"""OTLP requests over real sockets: exactly once for a client that knows no sequence numbers."""

import asyncio
import gzip
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.door_client import (
    PROTOBUF,
    DoorAnswer,
    TestSender,
    accepted_frames,
    otlp_logs,
    post,
)
from support.gateway import Running, TestKey, run, running
from support.gateway_journal import journals

from sluice_gateway.doors import service as door_service
from sluice_protocol.errors import StoreDenied
from sluice_protocol.keys import ACCEPTED, QUARANTINE_CONFLICTS, RAW_BLOBS
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore
from sluice_store.url import StoreMode, open_store

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", ())
OTHER = TestSender("other", (), doors=("json",))
BODY = otlp_logs("one", "two")


def serve(tmp_path: Path, check: Callable[[Running], Any], **settings: Any) -> None:
    async def main() -> None:
        async with running(tmp_path, HOST, SHOP, OTHER, doors=("otlp",), **settings) as served:
            await check(served)

    run(main())


async def send(
    served: Running, body: bytes = BODY, headers: Mapping[str, str] = PROTOBUF
) -> DoorAnswer:
    return await post(served, "/v1/logs", body, SHOP.token.token, headers)


def test_records_are_accepted_once(tmp_path: Path) -> None:
    """A retry is a success and adds nothing; the sender's name comes from its token."""

    async def check(served: Running) -> None:
        first, again = await send(served), await send(served)
        assert (first.status, first.body) == (200, b"")
        assert (again.status, again.body) == (200, b"")
        assert first.headers["Sluice-Identity"] == "content"
        assert first.headers["Content-Type"] == "application/x-protobuf"
        [frame] = await accepted_frames(served.store.inner)
        assert frame.identity.agent_id.startswith("door:shop:")
        assert (frame.identity.seq_start, frame.identity.seq_end) == (0, 1)
        assert ("service.name", "shop") in frame.envelope.resource
        assert ("sluice.encoder", door_service.ENCODER) in frame.envelope.resource
        assert served.count("sluice_door_records_total", door="otlp") == 4
        assert served.count("sluice_door_requests_total", door="otlp", outcome="duplicate") == 1

    serve(tmp_path, check)


async def test_a_retry_through_another_gateway_with_another_compression(tmp_path: Path) -> None:
    """Two gateways derive one identity; the store contains one manifest."""

    async with (
        running(tmp_path, HOST, SHOP, doors=("otlp",)) as one,
        running(tmp_path / "b", HOST, SHOP, doors=("otlp",), store=one.store.inner) as two,
    ):
        packed = gzip.compress(BODY)
        gzipped = {**PROTOBUF, "Content-Encoding": "gzip"}
        answers = await asyncio.gather(
            *[send(one) for _ in range(5)], *[send(two, packed, gzipped) for _ in range(5)]
        )
        assert [answer.status for answer in answers] == [200] * 10
        assert len(await accepted_frames(one.store.inner)) == 1
        async for page in one.store.inner.list(QUARANTINE_CONFLICTS):
            assert page.objects == ()


def test_another_encoder_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway whose encoder makes other bytes of the same records answers success, and journals
    the batch under the bytes that were accepted.
    """

    async def check(served: Running) -> None:
        assert (await send(served)).status == 200
        monkeypatch.setattr(door_service, "ENCODER", "c1 zstd-0.0.1")
        assert (await send(served)).status == 200
        [frame] = await accepted_frames(served.store.inner)
        assert ("sluice.encoder", "c1 zstd-0.0.1") not in frame.envelope.resource

    serve(tmp_path, check)


def test_records_without_a_time(tmp_path: Path) -> None:
    """Equal records may be meant twice; an idempotency key makes a retry a duplicate."""
    body = otlp_logs("beat", at_ns=0)
    keyed = {**PROTOBUF, "Idempotency-Key": "k1"}

    async def check(served: Running) -> None:
        for expected in (1, 2):
            answer = await send(served, body)
            assert answer.headers["Sluice-Identity"] == "none"
            assert len(await accepted_frames(served.store.inner)) == expected
        for key, expected in (("k1", 3), ("k1", 3), ("k2", 4)):
            answer = await send(served, body, keyed | {"Idempotency-Key": key})
            assert (answer.status, answer.headers["Sluice-Identity"]) == (200, "key")
            assert len(await accepted_frames(served.store.inner)) == expected
        other = await send(served, otlp_logs("other", at_ns=0), keyed)
        assert other.status == 200  # a key that is used twice loses nothing
        assert len(await accepted_frames(served.store.inner)) == 5

    serve(tmp_path, check)


@pytest.mark.parametrize(
    ("token", "status", "code"),
    [("slt_wrong", 401, 16), (OTHER.token.token, 403, 7)],
    ids=["wrong-token", "other-door"],
)
def test_senders_without_the_right_are_refused(
    tmp_path: Path, token: str, status: int, code: int
) -> None:
    async def check(served: Running) -> None:
        answer = await post(served, "/v1/logs", BODY, token)
        assert answer.status == status
        assert answer.body[:2] == bytes([8, code])
        json = {"Content-Type": "application/json"}
        answer = await post(served, "/v1/logs", b"{}", token, json)
        assert msgspec.json.decode(answer.body)["code"] == code
        assert await accepted_frames(served.store.inner) == []

    serve(tmp_path, check)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff\xff", PROTOBUF, 400),
        (b"{", {"Content-Type": "application/json"}, 400),
        (b"x", {"Content-Type": "text/plain"}, 415),
        (b"\x1f\x8b", {**PROTOBUF, "Content-Encoding": "gzip"}, 400),
        (b"x", {**PROTOBUF, "Content-Encoding": "brotli"}, 400),
        (gzip.compress(bytes(3_000_000)), {**PROTOBUF, "Content-Encoding": "gzip"}, 413),
        (bytes(3_000_000), PROTOBUF, 413),
    ],
    ids=["garbage", "cut", "type", "cut-gzip", "coding", "bomb", "large"],
)
def test_bodies_that_can_never_be_accepted(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int
) -> None:
    async def check(served: Running) -> None:
        answer = await send(served, body, headers)
        assert answer.status == status
        assert "Retry-After" not in answer.headers
        assert await accepted_frames(served.store.inner) == []

    serve(tmp_path, check, door_body_bytes_max=1_000_000)


def test_empty_requests_are_a_success(tmp_path: Path) -> None:
    """Only those without a byte: an object without the list of resources may have another one."""

    async def check(served: Running) -> None:
        assert (await send(served, b"")).status == 200
        json_type = {"Content-Type": "application/json"}
        for body in (b"{}", b'{"resourceLogs":[]}', b'{"resourceSpans":[]}'):
            assert (await send(served, body, json_type)).status == 400
        assert await accepted_frames(served.store.inner) == []

    serve(tmp_path, check)


def test_a_chunked_body_of_unknown_length(tmp_path: Path) -> None:
    async def check(served: Running) -> None:
        async def chunks() -> Any:
            yield BODY[:10]
            yield BODY[10:]

        async def endless() -> Any:
            for _ in range(4):
                yield bytes(400_000)

        assert (await send(served, chunks())).status == 200  # type: ignore[arg-type]
        assert (await send(served, endless())).status == 413  # type: ignore[arg-type]
        assert len(await accepted_frames(served.store.inner)) == 1

    serve(tmp_path, check, door_body_bytes_max=1_000_000)


class FailingStore:
    """A store that refuses the n-th write of a batch."""

    def __init__(self, inner: ObjectStore, fails: int) -> None:
        self.inner, self.left = inner, fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def create(self, key: ObjectKey, body: bytes, **named: Any) -> Any:
        if key.startswith((ACCEPTED, RAW_BLOBS)):
            self.left -= 1
            if self.left == -1:
                raise StoreDenied("create", key, "for the test")
        return await self.inner.create(key, body, **named)


@pytest.mark.parametrize("fails", [0, 1])
async def test_trouble_of_the_store_is_later(tmp_path: Path, fails: int) -> None:
    """A client drops a batch on most other errors; the retry is accepted once."""

    async with open_store(f"file://{tmp_path}/shared", StoreMode.CREATE) as shared:
        store = FailingStore(shared, fails)
        async with running(tmp_path, HOST, SHOP, doors=("otlp",), store=store) as served:
            refused = await send(served)
            assert refused.status == 503
            assert refused.headers["Retry-After"] == "1"
            assert refused.body[:2] == bytes([8, 14])
            assert (await send(served)).status == 200
            assert len(await accepted_frames(shared)) == 1


async def test_every_answer_is_in_a_journal(tmp_path: Path) -> None:
    """The gateway that created the manifest may have died before it journaled it, so the gateway
    that responds to a retry names the batch too; also if its encoder makes other bytes.
    """

    for number, encoder in enumerate((door_service.ENCODER, "c1 zstd-0.0.1")):
        folder = tmp_path / str(number)
        async with (
            running(folder, HOST, SHOP, doors=("otlp",)) as one,
            running(folder / "b", HOST, SHOP, doors=("otlp",), store=one.store.inner) as two,
        ):
            assert (await send(one)).status == 200
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(door_service, "ENCODER", encoder)
                assert (await send(two)).status == 200
            [frame] = await accepted_frames(one.store.inner)
            for served in (one, two):
                await served.gateway.uploads.journal.close(transferred=True)
            found = await journals(one.store.inner)
            named = [
                {m.identity for j in objects for m in j.manifests} for objects in found.values()
            ]
            assert named == [{frame.identity}] * 2
