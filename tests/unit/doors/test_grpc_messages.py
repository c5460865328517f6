"""Messages of gRPC calls: a deadline, and few that arrive slowly."""

import asyncio
import random

import pytest

from sluice_doors.decoded import BodyUnreadable
from sluice_doors.otlp.grpc import PACED_BYTES, MessageReader, slow_max, time_max_s
from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.uploads.admission import BodyBudget, memory_cost
from sluice_protocol.errors import ErrorCode
from sluice_web.connection_guard import BodyPace
from sluice_web.problems import HttpRefusal

LARGEST = 1000
INFLIGHT = 4 * memory_cost(LARGEST)
PACE = BodyPace(grace_s=0.05, rate_min=10_000)
LIMIT_S = 0.05 + LARGEST / 10_000


class SentCall:
    """A call whose message arrives when it is set."""

    def __init__(self) -> None:
        self.message: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def read(self) -> object:
        return await self.message


def new_reader() -> tuple[MessageReader, BodyBudget]:
    budget = BodyBudget(INFLIGHT, GatewayMetrics(), random.Random(1))
    slow = slow_max(memory_cost(LARGEST), INFLIGHT)
    return MessageReader(budget, PACE, message_bytes_max=LARGEST, slow_max=slow), budget


async def test_a_message_that_arrives_with_its_call_is_not_counted() -> None:
    reader, budget = new_reader()
    budget.reserve(INFLIGHT)
    call = SentCall()
    call.message.set_result(b"whole")
    assert await reader.read(call) == b"whole"


async def test_a_message_that_stalls_is_refused_and_its_memory_is_released() -> None:
    reader, budget = new_reader()
    loop, call = asyncio.get_running_loop(), SentCall()
    started_s = loop.time()
    with pytest.raises(HttpRefusal, match="too slowly: send it again") as found:
        await reader.read(call)
    assert found.value.code is ErrorCode.OVERLOADED
    assert LIMIT_S <= loop.time() - started_s < LIMIT_S + 1
    assert call.message.cancelled()
    assert (budget.held_bytes, reader.slow) == (0, 0)


async def test_a_slow_message_is_counted_until_it_is_complete() -> None:
    reader, budget = new_reader()
    call = SentCall()
    reading = asyncio.create_task(reader.read(call))
    await asyncio.sleep(PACE.grace_s + 0.02)
    assert budget.held_bytes == memory_cost(LARGEST)
    call.message.set_result(b"late")
    assert await reading == b"late"
    assert budget.held_bytes == 0


async def test_slow_messages_leave_half_of_the_budget_to_others() -> None:
    reader, budget = new_reader()
    slow = [asyncio.create_task(reader.read(SentCall())) for _ in range(3)]
    await asyncio.sleep(PACE.grace_s + 0.02)
    refused = [task for task in slow if task.done()]
    assert [str(task.exception()) for task in refused] == [
        "too many messages arrive slowly: send it again later"
    ]
    assert budget.held_bytes == INFLIGHT // 2
    quick = SentCall()
    quick.message.set_result(b"quick")
    assert await reader.read(quick) == b"quick"
    await asyncio.gather(*slow, return_exceptions=True)


async def test_a_slow_message_needs_room_in_the_budget() -> None:
    reader, budget = new_reader()
    budget.reserve(INFLIGHT)
    with pytest.raises(HttpRefusal, match="this gateway is full"):
        await reader.read(SentCall())
    assert reader.slow == 0


async def test_a_cancelled_call_releases_what_it_holds() -> None:
    reader, budget = new_reader()
    call = SentCall()
    reading = asyncio.create_task(reader.read(call))
    await asyncio.sleep(PACE.grace_s + 0.02)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert (budget.held_bytes, reader.slow, call.message.cancelled()) == (0, 0, True)


async def test_a_call_without_a_message_is_unreadable() -> None:
    reader, _ = new_reader()
    call = SentCall()
    call.message.set_result(None)
    with pytest.raises(BodyUnreadable):
        await reader.read(call)


def test_limits_follow_from_the_settings() -> None:
    """With the defaults: 74 s, and five messages of 20 MiB."""
    pace = BodyPace(grace_s=10.0, rate_min=16 * 1024)
    assert time_max_s(pace, 20 * PACED_BYTES) == 74.0
    assert time_max_s(pace, 16 * 1024) == 11.0
    assert slow_max(memory_cost(20 * PACED_BYTES), 256 * PACED_BYTES) == 5
    assert slow_max(memory_cost(20 * PACED_BYTES), 50 * PACED_BYTES) == 1
