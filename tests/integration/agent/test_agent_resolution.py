"""A conflict from the upload to the decision that removes the agent's copy, on a real gateway."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.gateway import Client, TestKey, frame_of, identity, run, running
from support.simloop import until

import sluice_agent.sending.parked_inquiry as inquiry
from sluice_agent.inputs.columns import logs_from_block
from sluice_agent.metrics import AgentMetrics
from sluice_agent.sending.gateway_addresses import Gateways
from sluice_agent.sending.transport import HttpTransport, open_upload_session
from sluice_agent.sending.uploader import Uploader
from sluice_agent.settings import BatchLimits, SpoolSettings, UploaderSettings, WhenFull
from sluice_agent.spool.batching import Batcher, RecordBlock
from sluice_agent.spool.disk import RealDisk
from sluice_agent.spool.format import decode_spool_entry
from sluice_agent.spool.parked import list_parked
from sluice_agent.spool.spool import Spool
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import UnixNs

HOST = TestKey("host-1", ("host-1",))
OPS = TestKey("ops", (), roles=("operator",))


async def wait_for(folder: Path, count: int) -> None:
    async with asyncio.timeout(20):
        await until(lambda: len(list_parked(folder)) == count, SystemClock())


def read_parked(folder: Path) -> bytes:
    entry = next((folder / "parked").glob("*.batch")).read_bytes()
    return decode_spool_entry(entry)[1]


@dataclass
class AgentParts:
    """The running parts of an agent that send, park and ask."""

    folder: Path
    spool: Spool
    metrics: AgentMetrics
    batcher: Batcher
    uploader: Uploader

    async def send(self, block: bytes) -> None:
        columns = logs_from_block(block, arrived_ns=UnixNs(1), zone=None)
        await self.batcher.put(RecordBlock(columns=columns, cost_bytes=40))
        await self.batcher.flush()
        await self.uploader.drained()


@asynccontextmanager
async def sending(folder: Path, port: int) -> AsyncIterator[AgentParts]:
    """Run the parts until the end of the block."""
    clock, metrics, rng = SystemClock(), AgentMetrics(), random.Random(1)
    settings = SpoolSettings(directory=folder, agent_id="host-1")
    spool = Spool(settings, RealDisk(), boot_id="boot")
    async with open_upload_session(tls=None, connections_max=2, total_s=30, connect_s=5) as session:
        transport = HttpTransport(session, key=HOST.signing, clock=clock)
        gateways = Gateways((f"http://127.0.0.1:{port}",), None, clock=clock, rng=rng)
        uploader = Uploader(
            UploaderSettings(), spool, transport, gateways, clock=clock, metrics=metrics
        )
        questions = inquiry.ParkedInquiry(
            directory=folder, disk=RealDisk(), transport=transport, gateways=gateways,
            clock=clock, rng=rng, metrics=metrics,
        )  # fmt: skip
        limits = BatchLimits(records_max=1)
        batcher = Batcher(spool, limits, clock=clock, metrics=metrics, when_full=WhenFull.BLOCK)
        batcher.on_sealed = uploader.add
        tasks = [asyncio.create_task(each.run()) for each in (uploader, batcher, questions)]
        yield AgentParts(folder, spool, metrics, batcher, uploader)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    spool.close()


def test_a_decision_reaches_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is parked, stays parked while the conflict is open, and is removed afterwards.

    An upload of the same bytes that were not parked ends in the same way.
    """
    monkeypatch.setattr(inquiry, "FIRST_S", 0.05)
    monkeypatch.setattr(inquiry, "INTERVAL_S_MIN", 0.05)
    monkeypatch.setattr(inquiry, "POLL_S", 0.05)
    folder = tmp_path / "spool"

    async def main() -> None:
        async with running(tmp_path, HOST, OPS) as served, sending(folder, served.port) as agent:
            assert (await served.client.upload(frame_of(identity(boot="boot")))).status == 200
            await agent.send(b"other\n")
            await wait_for(folder, 1)
            frame = read_parked(folder)
            counted = agent.metrics.parked_questions.labels("park")
            async with asyncio.timeout(20):
                await until(lambda: counted.value >= 2, SystemClock())
            assert len(list_parked(folder)) == 1
            ops = Client(served.client.session, served.port, OPS)
            conflict = (await ops.get_signed("/v1/conflicts")).body["conflicts"][0]
            path = f"/v1/conflicts/{conflict['id']}/resolve"
            assert (await ops.post_signed(path, {"action": "accept_existing"})).status == 200
            await wait_for(folder, 0)
            assert RealDisk().list(folder / "parked") == []
            agent.spool.sweep()
            assert agent.spool.size_bytes() == 0
            again = await served.client.upload(frame)
            assert again.status == 409
            assert again.body["resolution"] == "accept_existing"

    run(main())
