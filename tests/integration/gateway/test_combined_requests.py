"""Small requests of doors in common batches: answers, limits, failures, and exactly once."""

import asyncio
import contextlib
import gzip
import json
from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.door_client import DoorAnswer, TestSender, accepted_frames, otlp_logs, post
from support.dying_store import RefusingStore
from support.gateway import GatewayProcess, Running, TestKey, gateways, running
from support.reconciler_seed import enqueued, queued_bodies

from sluice_gateway.doors import combiner
from sluice_protocol.authority import Authority
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import ACCEPTED, RAW_BLOBS
from sluice_reconciler.service import Reconciler
from sluice_store import StoreMode, open_store, read_authority

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=("otlp", "json"))
BANK = TestSender("bank", ())
SETTINGS = {"doors": ("otlp", "json"), "door_own_frame_bytes": 4096, "door_flush_ms": 50}


def serve(tmp_path: Path, **settings: Any) -> AbstractAsyncContextManager[Running]:
    return running(tmp_path, HOST, SHOP, BANK, **{**SETTINGS, **settings})


async def send(served: Running, *lines: str, sender: TestSender = SHOP, **more: Any) -> DoorAnswer:
    return await post(served, "/v1/logs", otlp_logs(*lines, **more), sender.token.token)


async def send_until_accepted(served: Running, line: str) -> None:
    """Send a line again on each 503: a slow disk may need more than the time of an upload."""
    while (status := (await send(served, line)).status) == 503:
        pass
    assert status == 200


async def test_requests_of_one_principal_share_batches(tmp_path: Path) -> None:
    async with serve(tmp_path, door_flush_ms=2000) as served:
        assert (await send(served, "first")).status == 200  # imports the decoders
        sent = [send(served, f"line {n}") for n in range(40)]
        answers = await asyncio.gather(*sent, send(served, "other", sender=BANK))
        assert {answer.status for answer in answers} == {200}
        assert {answer.headers["Sluice-Identity"] for answer in answers} == {"content; combined"}
        frames = await accepted_frames(served.store.inner)
        assert len(frames) < 12
        assert sum(frame.envelope.count for frame in frames) == 42
        assert {frame.identity.agent_id[:10] for frame in frames} == {"door:shop:", "door:bank:"}
        assert all(("service.name", "shop") in frame.envelope.resource for frame in frames)
        lives = Counter((frame.identity.agent_id, frame.identity.boot_id) for frame in frames)
        for frame in frames:  # numbers continue without a gap
            if frame.identity.seq_start:
                assert lives[frame.identity.agent_id, frame.identity.boot_id] > 1


async def test_large_requests_are_batches_of_their_own(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        answer = await send(served, "x" * 5000)
        assert answer.headers["Sluice-Identity"] == "content"
        [frame] = await accepted_frames(served.store.inner)
        assert len(frame.identity.boot_id) == 32


async def test_equal_requests_through_two_gateways_are_read_once(tmp_path: Path) -> None:
    async with (
        running(tmp_path, HOST, SHOP, BANK, **SETTINGS) as one,
        running(tmp_path / "b", HOST, SHOP, BANK, store=one.store.inner, **SETTINGS) as two,
    ):
        store = one.store.inner
        for served in (one, two, one):
            lines = [send(served, f"line {n}", f"more {n}") for n in range(20)]
            same = [send(served, "line 0", "more 0") for _ in range(3)]
            answers = await asyncio.gather(*lines, *same)
            assert {answer.status for answer in answers} == {200}
            await Reconciler(store, Authority(authority_id="A", lanes=2)).once()
        found = await queued_bodies(store)
        assert found == Counter({f"{name} {n}": 1 for n in range(20) for name in ("line", "more")})


async def test_lines_in_another_form_are_read_once(tmp_path: Path) -> None:
    """A repetition through another gateway has other keys first, white space and a coding."""
    path, token = "/v1/ingest?time=t&message=m", SHOP.token.token
    objects = [{"t": 1_790_000_000 + n, "m": f"line {n}", "a": n / 2} for n in range(30)]

    async with (
        running(tmp_path, HOST, SHOP, BANK, **SETTINGS) as one,
        running(tmp_path / "b", HOST, SHOP, BANK, store=one.store.inner, **SETTINGS) as two,
    ):
        store = one.store.inner
        first = [post(one, path, json.dumps(found).encode(), token) for found in objects]
        await asyncio.gather(*first)
        again = [
            post(
                two,
                path,
                gzip.compress(json.dumps(dict(reversed(found.items())), indent=2).encode()),
                token,
                {"Content-Encoding": "gzip"},
            )
            for found in objects
        ]
        answers = [*await asyncio.gather(*again), await post(one, path, b'{"m":"x"}', token)]
        assert {answer.status for answer in answers} == {200}
        names = [answer.headers["Sluice-Identity"] for answer in answers]
        assert set(names) == {"content; combined", "none"}
        assert names[-1] == "none"
        await Reconciler(store, Authority(authority_id="A", lanes=2)).once()
        expected = {str(found["m"]): 1 for found in objects} | {"x": 1}
        assert await queued_bodies(store) == Counter(expected)


async def test_requests_without_an_identity_are_always_new(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        for _ in range(2):
            answer = await send(served, "beat", at_ns=0)
            assert answer.headers["Sluice-Identity"] == "none"
        await Reconciler(served.store.inner, Authority(authority_id="A", lanes=2)).once()
        assert await queued_bodies(served.store.inner) == Counter({"beat": 2})


async def test_one_bad_request_does_not_spoil_the_others(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        url, good = "/v1/ingest?time=t&message=m", b'{"t":1790000000,"m":"good"}'
        plain = {"Content-Type": "application/x-ndjson"}
        token = SHOP.token.token
        answers = await asyncio.gather(
            post(served, url, good, token, plain), post(served, url, b"\x1f\x8b", token, plain)
        )
        assert answers[0].status == 200
        assert sum(f.envelope.count for f in await accepted_frames(served.store.inner)) >= 1


@pytest.mark.parametrize("prefix", [RAW_BLOBS, ACCEPTED])
@pytest.mark.parametrize("applies", [False, True])
async def test_a_failed_batch_answers_later_to_every_client(
    tmp_path: Path, prefix: str, applies: bool
) -> None:
    async with running(tmp_path / "plain", HOST, SHOP, BANK, **SETTINGS) as plain:
        store = RefusingStore(plain.store.inner)
        store.refuses, store.error = (), StoreUnavailable
        async with running(
            tmp_path, HOST, SHOP, BANK, store=store, upload_time_s_max=1.0, **SETTINGS
        ) as served:
            assert (await send(served, "before")).status == 200
            store.refuses, store.applies = (prefix,), applies
            answers = await asyncio.gather(*[send(served, f"line {n}") for n in range(8)])
            assert {answer.status for answer in answers} == {503}
            assert all(answer.headers["Retry-After"] for answer in answers)
            store.refuses = ()
            await asyncio.gather(*[send_until_accepted(served, f"line {n}") for n in range(8)])
            await Reconciler(plain.store.inner, Authority(authority_id="A", lanes=2)).once()
            wanted = {"before": 1} | {f"line {n}": 1 for n in range(8)}
            assert await queued_bodies(plain.store.inner) == Counter(wanted)
            budget = served.gateway.uploads.budget
            assert budget.held_bytes == 0


async def test_waiting_requests_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tmp_path, door_flush_bytes=100) as served:
        monkeypatch.setattr(combiner, "WAITING_BYTES_MAX", 200)
        answers = await asyncio.gather(*[send(served, f"line {n}") for n in range(40)])
        assert {answer.status for answer in answers} == {200, 503}
        accepted = sum(answer.status == 200 for answer in answers)
        frames = await accepted_frames(served.store.inner)
        assert sum(frame.envelope.count for frame in frames) == accepted


async def test_a_lane_makes_few_batches_per_second(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        loop = asyncio.get_running_loop()
        began_s, number = loop.time(), 0
        while loop.time() < began_s + 1.5:
            number += 1
            await asyncio.gather(*[send(served, f"{number} {n}") for n in range(8)])
        elapsed_s = loop.time() - began_s
        frames = await accepted_frames(served.store.inner)
        assert len(frames) <= 4 * (4 * elapsed_s + 1)
        boots = {(frame.identity.agent_id, frame.identity.boot_id) for frame in frames}
        assert len(boots) <= 4


async def test_a_gateway_that_stops_answers_the_requests_that_wait(tmp_path: Path) -> None:
    async with serve(tmp_path, door_flush_ms=300) as served:
        sent = asyncio.gather(*[send(served, f"line {n}") for n in range(8)])
        uploads = served.gateway.uploads.running
        async with asyncio.timeout(10):
            while uploads.count < 8:  # noqa: ASYNC110 - nothing announces the last of them
                await asyncio.sleep(0.01)
        uploads.drain()
        assert await uploads.wait_idle(10)
        assert {answer.status for answer in await sent} == {200}


def test_gateways_that_are_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    """Clients repeat each request through the other gateway until it is answered, and sometimes
    although it was.
    """
    count, stop_after = 60, 20
    flags = ("--doors", "json", "--door-own-frame-bytes", "4096", "--door-flush-ms", "40")

    async def post_until_accepted(
        session: aiohttp.ClientSession, servers: list[GatewayProcess], number: int
    ) -> None:
        line = f'{{"t":"2026-01-01T00:00:{number % 60:02d}Z","m":"line {number}"}}'.encode()
        headers = {"Authorization": f"Bearer {SHOP.token.token}"}
        answers, tries = 0, number
        while answers < 1 + number % 2:  # some answers are lost
            port = servers[tries % len(servers)].port
            url = f"http://127.0.0.1:{port}/v1/ingest?time=t&message=m"
            tries += 1
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.post(url, data=line, headers=headers) as answer:
                    answers += answer.status == 200
            await asyncio.sleep(0.05)

    async def main(servers: list[GatewayProcess]) -> None:
        timeout = aiohttp.ClientTimeout(total=20)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for first in range(0, count, stop_after):
                last = min(first + stop_after, count)
                sent = [post_until_accepted(session, servers, n) for n in range(first, last)]
                running = asyncio.gather(*sent)
                if first == stop_after:
                    await asyncio.sleep(0.08)
                    servers[0].process.kill()
                await running
        async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as store:
            authority = await read_authority(store)
            await Reconciler(store, authority).once()
            assert await queued_bodies(store) == Counter({f"line {n}": 1 for n in range(count)})
            repeated = [one.repeated for one in await enqueued(store) if one.repeated]
            assert repeated

    with gateways(tmp_path, HOST, SHOP, count=3, flags=flags) as servers:
        asyncio.run(main(servers))
