"""How many combined batches a worker makes: the cost model compared with the combiner."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from random import Random
from typing import Any

import pytest
from support.simloop import SimClock, SimIds, SimLoop, simulate

from sluice_cli.cost import CostPlan, Load
from sluice_doors.decoded import DecodedRecords, canonical, form_digest
from sluice_gateway.doors.combined_frames import SmallRequest, combined_bytes
from sluice_gateway.doors.combiner import Combiner, FlushLimits
from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.uploads.acceptor import Upload
from sluice_gateway.uploads.admission import BodyBudget
from sluice_protocol.identity import RequestIdentity
from sluice_protocol.records import LogRecord, logs_from_records

SECONDS = 120.0
CLIENTS = 40
PAUSE_S = 0.5


class InlineExecutor(Executor):
    """Runs work in the caller: the simulated loop has no other threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def request(rng: Random) -> SmallRequest:
    columns = logs_from_records([LogRecord(ts_ns=1, body=str(rng.random()))])
    records = canonical(DecodedRecords(columns=columns, resource=(), timed=True, unreadable=0))
    identity = RequestIdentity(principal="shop", digest=form_digest(records), source="content")
    return SmallRequest(records=records, identity=identity, size_bytes=combined_bytes(records))


def frames_made(flush: FlushLimits) -> int:
    """Return how many frames one worker makes of the requests of steady clients."""
    frames: list[Upload] = []

    async def main(loop: SimLoop, rng: Random) -> None:
        async def accept(upload: Upload) -> None:
            await asyncio.sleep(0.05)
            frames.append(upload)

        budget = BodyBudget(1 << 24, GatewayMetrics(), rng)
        clock, ids = SimClock(loop), SimIds(rng)
        one = Combiner(accept, budget, InlineExecutor(), clock, ids, flush=flush)

        async def send() -> None:
            await clock.sleep(rng.random())
            while True:
                began_s = loop.time()
                await one.accept(request(rng))
                # Its frame begins within the time of a flush, and may follow another one.
                assert loop.time() - began_s <= max(flush.age_s, 0.25) + 0.15
                await clock.sleep(PAUSE_S * (0.5 + rng.random()))  # equal ones fall into step

        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(send()) for _ in range(CLIENTS)]
            await clock.sleep(SECONDS)
            for client in clients:
                client.cancel()
        await one.close()

    simulate(1, main)
    return len(frames)


@pytest.mark.long
@pytest.mark.parametrize("flush_s", [0.25, 1.0, 2.0, 5.0])
def test_the_model_predicts_the_frames_of_combined_requests(flush_s: float) -> None:
    plan = CostPlan(rate="1KB/s", agents=1, doors=True, freshness_s=flush_s, gateway_workers=1)
    predicted = Load(plan).batches * SECONDS
    made = frames_made(FlushLimits(age_s=flush_s, bytes_least=8 << 20))
    assert made == pytest.approx(predicted, rel=0.1)


@pytest.mark.long
def test_bytes_bound_the_frames_of_a_busy_lane() -> None:
    """Small limits of bytes make as many frames as the least time between two frames allows."""
    made = frames_made(FlushLimits(age_s=5.0, bytes_least=1))
    assert made > 4 * SECONDS / 5.0 * 2
