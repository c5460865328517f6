"""Large bodies are decoded one at a time, and smaller ones do not wait for them."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.door_client import TestSender, post
from support.gateway import Running, TestKey, run, running

from sluice_door_http import json_lines
from sluice_doors.decoded import DecodedRecords
from sluice_doors.json_lines import decode_json
from sluice_gateway.doors.service import INLINE_BYTES_MAX, LARGE_BYTES

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=("json",))
JSON = {"Content-Type": "application/json"}


def body_of(size_bytes: int, number: int) -> bytes:
    record = {"time": "2026-11-22T00:00:00Z", "message": "x" * size_bytes, "number": number}
    return json.dumps(record).encode()


def test_large_bodies_are_decoded_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, small_decoded = threading.Semaphore(0), threading.Event()
    now, most = 0, 0

    def decode(
        body: bytes, *, time_field: str, message_field: str, received_ns: int
    ) -> Sequence[DecodedRecords]:
        nonlocal now, most
        if len(body) > LARGE_BYTES:
            now += 1
            most = max(most, now)
            waiting.release()
            assert small_decoded.wait(30)  # the smaller body does not need this thread
            now -= 1
        else:
            small_decoded.set()
        return decode_json(
            body, time_field=time_field, message_field=message_field, received_ns=received_ns
        )

    monkeypatch.setattr(json_lines, "decode_json", decode)

    async def check(served: Running) -> None:
        async def send(body: bytes) -> int:
            token = SHOP.token.token
            return (await post(served, json_lines.INGEST_PATH, body, token, JSON)).status

        large = [asyncio.create_task(send(body_of(LARGE_BYTES, one))) for one in range(4)]
        await asyncio.to_thread(waiting.acquire)
        assert await send(body_of(INLINE_BYTES_MAX, 9)) == 200
        assert await asyncio.gather(*large) == [200] * 4

    async def main() -> None:
        async with running(tmp_path, HOST, SHOP, doors=("json",)) as served:
            await check(served)

    run(main())
    assert most == 1
