"""An agent with a backlog sends lists: every batch is settled by its own result."""

import asyncio
from collections import Counter
from random import Random

import pytest
from support.agent_disk import SimDisk
from support.agent_sim import SimAgent, SimClock, SimNetwork, block, simulate_agent
from support.simloop import seeds

from sluice_agent.errors import CorruptEntry
from sluice_agent.sending.upload_decisions import (
    ConnectionFailure,
    GatewayResponse,
    NoGatewayResponse,
)
from sluice_agent.spool.spool import SpooledBatch

LINES = [b"line %d" % n for n in range(80)]
TROUBLE = (
    GatewayResponse(status=503, code="store_unavailable"),
    GatewayResponse(status=200),
    NoGatewayResponse(failure=ConnectionFailure.TIMEOUT),
)


def network() -> SimNetwork:
    return SimNetwork(SimClock(asyncio.get_running_loop()))


async def feed(agent: SimAgent, lines: list[bytes]) -> None:
    """Seal one batch per line before anything is sent."""
    for line in lines:
        await agent.batcher.put(block(line))
        await agent.batcher.flush()


async def send_backlog(agent: SimAgent, lines: list[bytes] = LINES) -> "asyncio.Task[None]":
    batching = asyncio.create_task(agent.batcher.run())
    await feed(agent, lines)
    batching.cancel()
    return asyncio.create_task(agent.run())


def test_a_backlog_is_sent_in_lists() -> None:
    async def main(rng: Random) -> None:
        net = network()
        agent = SimAgent(rng, net)
        running = await send_backlog(agent)
        await agent.uploader.drained()
        assert Counter(net.lines()) == Counter(LINES)
        assert sum(net.lists) >= len(LINES) - 8
        assert not any(retry for _, _, _, retry in net.sent)
        running.cancel()

    simulate_agent(1, main)


def test_one_upload_at_a_time_sends_no_lists() -> None:
    async def main(rng: Random) -> None:
        net = network()
        agent = SimAgent(rng, net, uploads=1)
        running = await send_backlog(agent)
        await agent.uploader.drained()
        assert net.lists == []
        assert net.lines() == LINES
        running.cancel()

    simulate_agent(1, main)


@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", seeds(20))
def test_lost_lists_and_failed_frames_are_sent_again(seed: int) -> None:
    """Each line is accepted once, parked once where refused, and repeats are marked as such."""

    async def main(rng: Random) -> None:
        net = network()
        net.reply = lambda _, __: rng.choice(TROUBLE) if rng.random() < 0.4 else None
        net.lose_list = lambda _: rng.random() < 0.3
        agent = SimAgent(rng, net)
        running = await send_backlog(agent)
        await agent.uploader.drained()
        assert net.lists
        assert Counter(net.lines()) == Counter(LINES)
        assert agent.spool.ready() == []
        seen: set[object] = set()
        for _, _, identity, retry in net.sent:
            assert retry == (identity in seen)
            seen.add(identity)
        running.cancel()

    simulate_agent(seed, main)


def test_a_refused_frame_of_a_list_is_parked_alone() -> None:
    async def main(rng: Random) -> None:
        net = network()
        net.reply = lambda _, upload: (
            GatewayResponse(status=409, code="identity_conflict")
            if upload.frame.find(b"line 7") >= 0
            else None
        )
        agent = SimAgent(rng, net)
        refused = [b"line 7" if n == 3 else b"text %d" % n for n in range(12)]
        running = await send_backlog(agent, refused)
        await agent.uploader.drained()
        assert agent.uploader.parked == 1
        assert Counter(net.lines()) == Counter(refused) - Counter([b"line 7"])
        running.cancel()

    simulate_agent(1, main)


@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", seeds(20))
def test_a_kill_between_results_loses_and_duplicates_nothing(seed: int) -> None:
    """The agent is killed while it settles a list; the next run sends what was not settled."""

    async def main(rng: Random) -> None:
        net, disk = network(), SimDisk()
        agent = SimAgent(rng, net, disk=disk)
        running = await send_backlog(agent)
        settled = rng.randrange(1, len(LINES))
        while len(agent.spool.ready()) > len(LINES) - settled:
            await net.clock.sleep(0.001)
        running.cancel()
        disk.kill()
        left = SimAgent(rng, net, disk=disk, boot_id="boot-2")
        again = asyncio.create_task(left.run())
        await left.uploader.drained()
        assert net.lists
        assert Counter(net.lines()) == Counter(LINES)
        assert left.spool.ready() == []
        again.cancel()

    simulate_agent(seed, main)


def test_a_list_is_read_and_forgotten_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is a thread, which costs more than the work on a small batch."""

    async def main(rng: Random) -> None:
        net = network()
        agent = SimAgent(rng, net)
        calls: dict[str, list[int]] = {"read_all": [], "forget": []}
        read_all, forget = agent.spool.read_all, agent.spool.forget

        def counted_read(batches: tuple[SpooledBatch, ...]) -> list[bytes | CorruptEntry]:
            calls["read_all"].append(len(batches))
            return read_all(batches)

        def counted_forget(*batches: SpooledBatch) -> None:
            calls["forget"].append(len(batches))
            forget(*batches)

        monkeypatch.setattr(agent.spool, "read_all", counted_read)
        monkeypatch.setattr(agent.spool, "forget", counted_forget)
        running = await send_backlog(agent)
        await agent.uploader.drained()
        for sizes in calls.values():
            assert sum(sizes) == len(LINES)
            assert len(sizes) <= len(net.lists) + len(LINES) - sum(net.lists)
        running.cancel()

    simulate_agent(1, main)


def test_a_damaged_batch_of_a_list_is_left_out() -> None:
    async def main(rng: Random) -> None:
        net = network()
        agent = SimAgent(rng, net, batch_bytes=1)
        await agent.seal(*map(block, LINES[:12]))
        damaged = agent.spool.ready()[3].header.name
        path = agent.spool.settings.directory / "ready" / damaged
        whole = agent.disk.read(path)
        agent.disk.write_new(path, [whole[:-1] + b"?"], sync=True)
        running = asyncio.create_task(agent.run())
        await agent.uploader.drained()
        assert Counter(net.lines()) == Counter(LINES[:12]) - Counter([LINES[3]])
        assert agent.metrics.corrupt.labels().value == 1
        running.cancel()

    simulate_agent(1, main)
