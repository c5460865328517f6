"""Large bodies are decoded one at a time, and smaller ones do not wait for them."""

import asyncio
import gzip
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.door_client import TestSender, post
from support.gateway import Running, TestKey, running

from sluice_doors.decoded import DecodedRecords
from sluice_doors.json import ingest
from sluice_doors.json.ingest import decode_json
from sluice_doors.json.records import RecordFields
from sluice_gateway.doors.service import INLINE_BYTES_MAX, LARGE_BYTES

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=("json",))
JSON = {"Content-Type": "application/json"}


def body_of(size_bytes: int, number: int) -> bytes:
    record = {"time": "2026-11-22T00:00:00Z", "message": "x" * size_bytes, "number": number}
    return json.dumps(record).encode()


async def test_large_bodies_are_decoded_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, small_decoded = threading.Semaphore(0), threading.Event()
    now, most = 0, 0

    def decode(body: bytes, fields: RecordFields) -> Sequence[DecodedRecords]:
        nonlocal now, most
        if len(body) > LARGE_BYTES:
            now += 1
            most = max(most, now)
            waiting.release()
            assert small_decoded.wait(30)  # the smaller body does not need this thread
            now -= 1
        else:
            small_decoded.set()
        return decode_json(body, fields)

    monkeypatch.setattr(ingest, "decode_json", decode)

    async def check(served: Running) -> None:
        async def send(body: bytes) -> int:
            token = SHOP.token.token
            return (await post(served, "/v1/ingest", body, token, JSON)).status

        large = [asyncio.create_task(send(body_of(LARGE_BYTES, one))) for one in range(4)]
        await asyncio.to_thread(waiting.acquire)
        assert await send(body_of(INLINE_BYTES_MAX, 9)) == 200
        assert await asyncio.gather(*large) == [200] * 4

    async with running(tmp_path, HOST, SHOP, doors=("json",)) as served:
        await check(served)
    assert most == 1


@pytest.mark.parametrize("inflight_bytes_max", [256 << 20, 50 << 20], ids=["usual", "least"])
async def test_a_body_reserves_the_memory_of_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inflight_bytes_max: int
) -> None:
    """What was sent is small, and what it expands to counts; alone, the largest body fits."""
    held: list[int] = []
    plain = body_of(8 << 20, 1)

    async def check(served: Running) -> None:
        budget = served.gateway.uploads.budget

        def decode(body: bytes, fields: RecordFields) -> Sequence[DecodedRecords]:
            held.append(budget.held_bytes)
            assert threading.current_thread().name.startswith("door-large")
            return decode_json(body, fields)

        monkeypatch.setattr(ingest, "decode_json", decode)
        token, sent = SHOP.token.token, gzip.compress(plain)
        assert len(sent) < INLINE_BYTES_MAX
        path, fields = "/v1/ingest", {**JSON, "Content-Encoding": "gzip"}
        with budget.take(budget.room_bytes(len(plain))):
            answer = await post(served, path, sent, token, fields)
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert held == []
        assert (await post(served, path, sent, token, fields)).status == 200
        assert min(8 * len(plain), 0.9 * inflight_bytes_max) <= held[0] <= inflight_bytes_max
        assert budget.held_bytes == 0

    async with running(
        tmp_path, HOST, SHOP, doors=("json",), inflight_bytes_max=inflight_bytes_max
    ) as served:
        await check(served)
