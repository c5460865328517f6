"""A request that was answered is freed by its reference count, with its body.

The garbage collector runs after thousands of allocations, so a cycle through a request would keep
bodies that no budget counts, and each upload would pay for the collection.
"""

import asyncio
import gc
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from support.door_client import TestSender, otlp_logs, post
from support.gateway import Running, TestKey, frame_of, identity, running

HOST = TestKey("host-1", ("host-1",))
SERIAL = itertools.count()
SHOP = TestSender("shop", (), doors=("otlp", "hec"))


async def _uploads(served: Running) -> None:
    for number in itertools.islice(SERIAL, 5):
        frame = frame_of(identity(seq=number))
        assert (await served.client.upload(frame)).status == 200
        assert (await served.client.upload(frame)).body["duplicate"]


async def _refused_uploads(served: Running) -> None:
    for _ in range(5):
        assert (await served.client.upload(b"not a frame")).status == 400


async def _door(served: Running) -> None:
    sent = [post(served, "/v1/logs", otlp_logs(f"line {n}"), SHOP.token.token) for n in range(5)]
    assert {answer.status for answer in await asyncio.gather(*sent)} == {200}


async def _closed_door(served: Running) -> None:
    for _ in range(5):
        answer = await post(served, "/loki/api/v1/push", b"{}", SHOP.token.token)
        assert answer.status == 404


async def _acks(served: Running) -> None:
    for _ in range(5):
        answer = await post(served, "/services/collector/ack", b"{}", SHOP.token.token)
        assert answer.status == 400


@pytest.mark.parametrize("send", [_uploads, _refused_uploads, _door, _closed_door, _acks])
async def test_requests_are_freed_without_the_garbage_collector(
    tmp_path: Path, send: Callable[[Running], Awaitable[None]]
) -> None:
    settings = {"doors": ("otlp", "hec"), "door_own_frame_bytes": 4096, "door_flush_ms": 50}
    async with running(tmp_path, HOST, SHOP, **settings) as served:
        await send(served)  # imports the decoders
        gc.freeze()  # The next collection reads only what is allocated from here on.
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await send(served)
            await asyncio.sleep(0.1)
            gc.collect()
            kept = [one for one in gc.garbage if isinstance(one, web.BaseRequest)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
    assert kept == []
