"""Combining requests: who is answered what, which numbers frames have, and how often they begin."""

import asyncio
import random
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from support.queue_store import SimIds

from sluice_doors.decoded import DecodedRecords, canonical, form_digest
from sluice_doors.json.timed_lines import timed_lines
from sluice_gateway.doors import combiner as combining
from sluice_gateway.doors.combined_frames import SmallRequest, combined_bytes
from sluice_gateway.doors.combiner import Combiner, FlushLimits
from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.uploads.acceptor import Upload
from sluice_gateway.uploads.admission import BodyBudget
from sluice_protocol.columns import LogColumns, TextColumn
from sluice_protocol.errors import ErrorCode, InvalidFrame, StoreUnavailable
from sluice_protocol.identity import RequestIdentity
from sluice_protocol.manifests import decode_parts
from sluice_protocol.meaning import BODY_KEYS, TIME_KEYS
from sluice_protocol.records import LogRecord, logs_from_records
from sluice_protocol.system_clock import SystemClock
from sluice_web.problems import HttpRefusal


class CountingThreads(ThreadPoolExecutor):
    """Counts the frames that were begun."""

    def __init__(self) -> None:
        super().__init__(1)
        self.begun = 0

    def submit(self, *args: Any, **named: Any) -> Future[Any]:
        self.begun += 1
        return super().submit(*args, **named)


@dataclass
class World:
    """A combiner whose frames are recorded; `failures` are raised in turn instead."""

    budget: BodyBudget = field(
        default_factory=lambda: BodyBudget(1 << 24, GatewayMetrics(), random.Random(1))
    )
    frames: list[Upload] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    pause_s: float = 0.0
    flush_s: float = 0.01
    flush_bytes: int = 1 << 20
    threads: CountingThreads = field(default_factory=CountingThreads)

    async def accept(self, upload: Upload) -> None:
        await asyncio.sleep(self.pause_s)
        if self.failures:
            raise self.failures.pop(0)
        self.frames.append(upload)

    @asynccontextmanager
    async def combiner(self) -> AsyncIterator[Combiner]:
        with self.threads:
            one = Combiner(
                self.accept,
                self.budget,
                self.threads,
                SystemClock(),
                SimIds(1),
                flush=FlushLimits(age_s=self.flush_s, bytes_least=self.flush_bytes),
            )
            yield one
            assert self.budget.held_bytes == 0
            await one.close()


def request(body: str, *, lane: int = 0) -> SmallRequest:
    """Return a request of one record in a given lane."""
    columns = logs_from_records([LogRecord(ts_ns=1, body=body)])
    records = canonical(DecodedRecords(columns=columns, resource=(), timed=True, unreadable=0))
    digest = form_digest(records)[:16] + bytes([lane]) + bytes(15)
    identity = RequestIdentity(principal="shop", digest=digest, source="content")
    return SmallRequest(records=records, identity=identity, size_bytes=combined_bytes(records))


async def outcomes(one: Combiner, *requests: SmallRequest) -> list[bool | BaseException]:
    return await asyncio.gather(*map(one.accept, requests), return_exceptions=True)


async def test_requests_that_wait_share_a_frame_and_the_next_continues_its_numbers() -> None:
    world = World()
    async with world.combiner() as one:
        assert await outcomes(one, request("a"), request("b")) == [False, False]
        assert await outcomes(one, request("c")) == [False]
    first, second = (upload.identity for upload in world.frames)
    assert (first.seq_start, first.seq_end, second.seq_start) == (0, 1, 2)
    assert first.boot_id == second.boot_id
    assert first.agent_id == "door:shop:c0"
    assert len(decode_parts("k", world.frames[0].parts, 2)) == 2


async def test_a_request_that_waits_already_is_stored_once() -> None:
    world = World(pause_s=0.05)
    async with world.combiner() as one:
        first = asyncio.create_task(one.accept(request("a")))
        await asyncio.sleep(0.03)  # its frame is being accepted
        assert await outcomes(one, request("a"), request("b")) == [True, False]
        assert await first is False
    assert sum(upload.identity.count for upload in world.frames) == 2


async def test_a_sender_that_goes_away_has_its_request_stored_and_delays_no_other() -> None:
    world = World()
    async with world.combiner() as one:
        gone = asyncio.create_task(one.accept(request("a")))
        await asyncio.sleep(0)
        gone.cancel()
        async with asyncio.timeout(10):
            assert await outcomes(one, request("b")) == [False]
            assert await outcomes(one, request("c")) == [False]  # the lane works on
    assert [upload.identity.count for upload in world.frames] == [2, 1]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StoreUnavailable("create", "k", "away"), ErrorCode.STORE_UNAVAILABLE),
        (HttpRefusal(ErrorCode.OUTCOME_UNKNOWN, ""), ErrorCode.OUTCOME_UNKNOWN),
        (HttpRefusal(ErrorCode.IDENTITY_QUARANTINED, ""), ErrorCode.OUTCOME_UNKNOWN),
        (RuntimeError("defect"), ErrorCode.OUTCOME_UNKNOWN),
    ],
    ids=["store", "unknown", "never", "defect"],
)
async def test_after_a_failure_every_client_is_answered_later_and_a_new_boot_begins(
    failure: Exception, code: ErrorCode
) -> None:
    world = World(failures=[])
    async with world.combiner() as one:
        await one.accept(request("before"))
        world.failures.append(failure)
        found = await outcomes(one, request("a"), request("b"))
        assert [isinstance(each, HttpRefusal) and each.code for each in found] == [code, code]
        assert await outcomes(one, request("a"), request("b")) == [False, False]
    before, after = (upload.identity for upload in world.frames)
    assert before.boot_id != after.boot_id
    assert (after.seq_start, after.seq_end) == (0, 1)


async def test_a_request_that_breaks_a_rule_is_refused_alone() -> None:
    world = World()
    bad = request("bad")
    columns = bad.records.columns
    assert isinstance(columns, LogColumns)
    broken = TextColumn(offsets=np.array([0, 1], np.int32), data=b"\xff")
    assert isinstance(bad.records, DecodedRecords)
    records = replace(bad.records, columns=replace(columns, body=broken))
    bad = structs.replace(bad, records=records)
    async with world.combiner() as one:
        found = await outcomes(one, request("a"), bad, request("b"))
        assert found[::2] == [False, False]
        assert isinstance(found[1], InvalidFrame)
        assert isinstance((await outcomes(one, bad))[0], InvalidFrame)
        assert await outcomes(one, request("c")) == [False]
    assert [upload.identity.count for upload in world.frames] == [2, 1]
    assert world.frames[0].identity.boot_id == world.frames[1].identity.boot_id


async def test_frames_of_a_lane_are_bounded_in_rate_and_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(combining, "PARTS_MAX", 3)
    world = World()
    async with world.combiner() as one:
        began_s = asyncio.get_running_loop().time()
        await outcomes(one, *(request(str(n)) for n in range(8)))
        assert asyncio.get_running_loop().time() - began_s >= 2 * combining.FRAME_INTERVAL_S
    assert [upload.identity.count for upload in world.frames] == [3, 3, 2]


async def test_bytes_that_do_not_fit_are_in_the_next_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is due: it has waited while the first frame was made."""
    size_bytes = request("0").size_bytes
    monkeypatch.setattr(combining, "TAKEN_BYTES_MAX", 2 * size_bytes)
    world = World(flush_s=60, flush_bytes=3 * size_bytes)
    async with world.combiner() as one:
        async with asyncio.timeout(10):
            await outcomes(one, *(request(str(n)) for n in range(3)))
    assert [upload.identity.count for upload in world.frames] == [2, 1]
    assert combining.count_fitting([3 * size_bytes]) == 1


def lines_request(number: int, text_bytes: int) -> SmallRequest:
    """Return a request of one line of JSON, in lane 0."""
    text = f"{number:04d}" + "x" * (text_bytes - 4)
    found = timed_lines(f'{{"time":1,"message":"{text}"}}'.encode(), TIME_KEYS, BODY_KEYS)
    digest = f"{number:016d}".encode() + bytes(16)
    identity = RequestIdentity(principal="shop", digest=digest, source="content")
    return SmallRequest(records=found, identity=identity, size_bytes=found.size_bytes)


async def count_in_first_frame(flush_bytes: int, text_bytes: int) -> int:
    """Return how many requests of JSON are in a frame that is made because of its size."""
    world = World(flush_s=60, flush_bytes=flush_bytes)
    async with world.combiner() as one:
        waiting: list[asyncio.Task[bool]] = []
        while not world.threads.begun and len(waiting) < 100:
            waiting.append(asyncio.create_task(one.accept(lines_request(len(waiting), text_bytes))))
            for _ in range(10):  # the lane begins its frame before the next request
                await asyncio.sleep(0)
        await asyncio.gather(*waiting)
    return world.frames[0].identity.count


async def test_lines_of_json_count_with_their_text_until_they_take_much_memory() -> None:
    """A frame is made at its size, or when the lane has half of the memory that it may have."""
    assert await count_in_first_frame(1 << 20, 128 * 1024) == 8
    assert await count_in_first_frame(4 << 20, 128 * 1024) == 8
    assert await count_in_first_frame(8 << 20, 256 * 1024) == 8


@pytest.mark.parametrize(
    ("since_s", "flush_s", "least_s", "unless_due_s"),
    [
        (None, 0.25, 0.0, 0.25),
        (0.1, 0.25, 0.15, 0.0),
        (0.3, 0.25, 0.0, 0.25),
        (0.1, 0.01, 0.15, 0.0),
        (0.1, 2.0, 0.15, 1.75),
        (0.5, 2.0, 0.0, 1.5),
        (2.5, 2.0, 0.0, 2.0),
    ],
)
def test_frames_of_a_busy_lane_begin_once_in_the_time_of_a_flush(
    since_s: float | None, flush_s: float, least_s: float, unless_due_s: float
) -> None:
    pause = combining.decide_pause(since_s, flush_s)
    assert (pause.least_s, pause.unless_due_s) == pytest.approx((least_s, unless_due_s))


async def test_enough_bytes_are_not_kept_waiting() -> None:
    world = World(flush_s=60, flush_bytes=1)
    async with world.combiner() as one:
        async with asyncio.timeout(10):
            await one.accept(request("a"))
    assert len(world.frames) == 1
