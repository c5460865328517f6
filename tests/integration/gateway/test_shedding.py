"""Above the high mark a share of connections is closed, and the agents on them move.

The gateways are real and so are the agents: spool, uploader and HTTP.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support.gateway import Running, TestKey, frame_of, running

from sluice_agent.inputs.columns import logs_from_block
from sluice_agent.metrics import AgentMetrics
from sluice_agent.sending.gateway_addresses import Gateways
from sluice_agent.sending.gateway_choice import GatewayTarget
from sluice_agent.sending.transport import (
    HttpTransport,
    UploadRequest,
    UploadResult,
    open_upload_session,
)
from sluice_agent.sending.upload_decisions import GatewayResponse
from sluice_agent.sending.uploader import Uploader
from sluice_agent.settings import BatchLimits, SpoolSettings, UploaderSettings, WhenFull
from sluice_agent.spool.batching import Batcher, RecordBlock
from sluice_agent.spool.disk import RealDisk
from sluice_agent.spool.spool import Spool
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import UnixNs

HOST = TestKey("host-1", ("host-1",))
UPLOADS = 90
AGENTS = tuple(TestKey(f"agent-{n}", (f"agent-{n}",)) for n in range(6))
BATCHES = 30
ABOVE_MARK = 0.64
"""Share of the budget that a test occupies; each byte counts 1.25 times."""


async def test_a_share_of_connections_is_shed_above_the_high_mark(tmp_path: Path) -> None:
    """None is closed below the mark; above it some are, and every upload is still accepted."""
    async with running(tmp_path, HOST) as served:
        budget = served.gateway.uploads.budget
        budget._rng = random.Random(7)
        frame = frame_of()

        async def closed() -> int:
            answers = [await served.client.upload(frame) for _ in range(UPLOADS)]
            assert {answer.status for answer in answers} == {200}
            shed = [answer for answer in answers if answer.headers.get("Sluice-Shed") == "1"]
            assert all(answer.headers.get("Connection") == "close" for answer in shed)
            return len(shed)

        assert await closed() == 0
        with budget.take(int(served.gateway.settings.inflight_bytes_max * ABOVE_MARK)):
            assert UPLOADS // 30 <= await closed() <= UPLOADS // 4
        assert await closed() == 0


class RecordingTransport(HttpTransport):
    """Sends over HTTP and records to which gateway."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.urls: list[str] = []
        self.shed: list[bool] = []

    async def send(self, target: GatewayTarget, upload: UploadRequest) -> UploadResult:
        received = await super().send(target, upload)
        assert isinstance(received.response, GatewayResponse)
        self.urls.append(target.url)
        self.shed.append(received.response.sheds)
        return received


async def send_all(
    folder: Path, key: TestKey, urls: tuple[str, ...], seed: int
) -> RecordingTransport:
    """Run an agent that sends its batches one by one; return what it sent."""
    clock, metrics = SystemClock(), AgentMetrics()
    settings = SpoolSettings(directory=folder / key.name, agent_id=key.name)
    spool = Spool(settings, RealDisk(), boot_id="boot")
    session = open_upload_session(tls=None, connections_max=1, total_s=30, connect_s=5)
    async with session:
        transport = RecordingTransport(session, key=key.signing, clock=clock)
        uploader = Uploader(
            UploaderSettings(uploads_max=1),
            spool,
            transport,
            Gateways(urls, None, clock=clock, rng=random.Random(seed)),
            clock=clock,
            metrics=metrics,
        )
        limits = BatchLimits(records_max=1)
        batcher = Batcher(spool, limits, clock=clock, metrics=metrics, when_full=WhenFull.BLOCK)
        batcher.on_sealed = uploader.add
        tasks = [asyncio.create_task(uploader.run()), asyncio.create_task(batcher.run())]
        for number in range(BATCHES):
            await batcher.put(record(b"line %d" % number))
        await batcher.flush()
        await uploader.drained()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(spool.close)
    return transport


def record(line: bytes) -> RecordBlock:
    columns = logs_from_block(line + b"\n", arrived_ns=UnixNs(1), zone=None)
    return RecordBlock(columns=columns, cost_bytes=len(line) + 28)


@asynccontextmanager
async def two_gateways(folder: Path) -> AsyncIterator[tuple[Running, Running]]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running(folder, *AGENTS))
        second = await stack.enter_async_context(running(folder, *AGENTS))
        yield first, second


@pytest.mark.daily(1)
@pytest.mark.parametrize("pressed", [True, False])
async def test_agents_leave_a_gateway_under_pressure(tmp_path: Path, *, pressed: bool) -> None:
    """After a gateway shed, an agent sends nothing to it; without pressure both are in use."""
    async with two_gateways(tmp_path) as (first, second):
        urls = (f"http://127.0.0.1:{first.port}", f"http://127.0.0.1:{second.port}")
        budget = first.gateway.uploads.budget
        budget._rng = random.Random(7)
        share = ABOVE_MARK if pressed else 0.0
        with budget.take(int(first.gateway.settings.inflight_bytes_max * share)):
            sent = [await send_all(tmp_path, key, urls, seed) for seed, key in enumerate(AGENTS)]
    assert {len(agent.urls) for agent in sent} == {BATCHES}
    assert {agent.urls[0] for agent in sent} == set(urls)
    assert any(True in agent.shed for agent in sent) == pressed
    for agent in sent:
        if True in agent.shed:
            after = agent.urls[agent.shed.index(True) + 1 :]
            assert set(after) == {urls[1]}
        elif not pressed:
            assert set(agent.urls) == set(urls)
