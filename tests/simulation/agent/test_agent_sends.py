"""Batcher, spool and uploader together, in seeded interleavings, with every kind of response."""

import asyncio
import errno
from collections import Counter
from random import Random

import pytest
from support.agent_disk import SimDisk
from support.agent_sim import DIRECTORY, SimAgent, SimClock, SimNetwork, block, simulate_agent
from support.simloop import seeds, until

from sluice_agent.errors import SendingRefused
from sluice_agent.sending.transport import UploadRequest
from sluice_agent.sending.upload_decisions import (
    ConnectionFailure,
    GatewayResponse,
    NoGatewayResponse,
)
from sluice_agent.sending.uploader import REFUSED_RETRY_S_MAX
from sluice_agent.settings import WhenFull
from sluice_agent.spool.spool import SealedBatch, SpooledBatch
from sluice_protocol.units import NS_PER_S

LINES = [b"line %d" % n for n in range(60)]
TROUBLE = (
    GatewayResponse(status=503, code="overloaded", retry_after_s=2.0),
    GatewayResponse(status=500, code="internal"),
    GatewayResponse(status=400, code="digest_mismatch"),
    GatewayResponse(status=200),
    NoGatewayResponse(failure=ConnectionFailure.RESET),
    NoGatewayResponse(failure=ConnectionFailure.TIMEOUT),
)


def network() -> SimNetwork:
    return SimNetwork(SimClock(asyncio.get_running_loop()))


def refusing_network() -> tuple[SimNetwork, list[bool]]:
    """Return a network that refuses every upload, and whether it does, which a test may change."""
    net, refusing = network(), [True]
    net.reply = lambda _, __: (
        GatewayResponse(status=401, code="unauthenticated") if refusing[0] else None
    )
    return net, refusing


async def feed(agent: SimAgent, rng: Random) -> None:
    rest = list(LINES)
    while rest:
        count = rng.randrange(1, 5)
        await agent.batcher.put(block(*rest[:count]))
        del rest[:count]
        await asyncio.sleep(rng.random() * 0.1)
    await agent.batcher.flush()


@pytest.mark.daily(14)
@pytest.mark.parametrize("seed", seeds(40))
def test_every_line_is_accepted_once_with_any_responses(seed: int) -> None:
    """With lost, late, foreign and refusing responses each line is accepted exactly once."""

    async def main(rng: Random) -> None:
        net = network()
        net.reply = lambda _, __: rng.choice(TROUBLE) if rng.random() < 0.6 else None
        agent = SimAgent(rng, net)

        def is_durable(upload: UploadRequest) -> None:
            held = [f for p, f in agent.disk._durable.items() if p.parent == DIRECTORY / "ready"]
            assert any(f.durable is not None and f.durable.endswith(upload.frame) for f in held)

        net.before_send = is_durable
        running = asyncio.create_task(agent.run())
        await feed(agent, rng)
        await agent.uploader.drained()
        assert Counter(net.lines()) == Counter(LINES)
        assert agent.uploader.parked == 0
        for _, _, identity, retry in net.sent:
            before = [r for _, _, i, r in net.sent if i == identity].index(retry)
            assert before == int(retry)
        running.cancel()

    simulate_agent(seed, main)


def test_one_upload_at_a_time_keeps_the_order() -> None:
    """With uploads=1 a batch is sent only after the previous one is done."""

    async def main(rng: Random) -> None:
        net = network()
        net.reply = lambda _, __: rng.choice(TROUBLE) if rng.random() < 0.5 else None
        agent = SimAgent(rng, net, uploads=1)
        running = asyncio.create_task(agent.run())
        await feed(agent, rng)
        await agent.uploader.drained()
        starts = [identity.seq_start for _, _, identity, _ in net.sent]
        assert starts == sorted(starts)
        assert net.lines() == LINES
        running.cancel()

    for seed in seeds(10):
        simulate_agent(seed, main)


def test_a_refusal_stops_all_uploads_until_it_is_resolved() -> None:
    """After a 401 one batch is sent, after some time once a minute; a success resumes all."""

    async def main(rng: Random) -> None:
        net, refusing = refusing_network()
        agent = SimAgent(rng, net)
        running = asyncio.create_task(agent.run())
        await feed(agent, rng)
        await until(lambda: agent.uploader.is_refused, net.clock)
        await net.clock.sleep(2 * REFUSED_RETRY_S_MAX)
        before = len(net.sent)
        await net.clock.sleep(10 * REFUSED_RETRY_S_MAX)
        assert len(net.sent) - before <= 11
        refusing[0] = False
        resolved_s = net.clock.monotonic_ns() / NS_PER_S
        await agent.uploader.drained()
        assert net.clock.monotonic_ns() / NS_PER_S - resolved_s < 2 * REFUSED_RETRY_S_MAX
        assert Counter(net.lines()) == Counter(LINES)
        running.cancel()

    for seed in seeds(20):
        simulate_agent(seed, main)


def test_a_refusal_that_is_resolved_soon_delays_little() -> None:
    """A gateway reads a new key after some seconds: also after an earlier refusal of hours."""

    async def main(rng: Random) -> None:
        net, refusing = refusing_network()
        agent = SimAgent(rng, net)
        running = asyncio.create_task(agent.run())
        for refused_s in (2.0, 7200.0, 2.0):
            refusing[0] = True
            await feed(agent, rng)
            await until(lambda: agent.uploader.is_refused, net.clock)
            await net.clock.sleep(refused_s)
            refusing[0] = False
            resolved_s = net.clock.monotonic_ns() / NS_PER_S
            await agent.uploader.drained()
            waited_s = net.clock.monotonic_ns() / NS_PER_S - resolved_s
            # The pause at that time is at most as long as all before it; a backoff may follow.
            assert waited_s < min(refused_s + 5, 2 * REFUSED_RETRY_S_MAX)
        running.cancel()

    for seed in seeds(20):
        simulate_agent(seed, main)


def test_a_refusal_ends_a_run_with_stop_when_refused() -> None:
    """`stop_when_refused` raises an error for the operator; the batches remain."""

    async def main(rng: Random) -> None:
        net = network()
        net.reply = lambda _, __: GatewayResponse(status=403, code="forbidden_agent")
        agent = SimAgent(rng, net, stop_when_refused=True)
        await agent.seal(block(b"a"))
        with pytest.raises(ExceptionGroup) as raised:
            await agent.uploader.run()
        assert isinstance(raised.value.exceptions[0], SendingRefused)
        assert len(agent.spool.ready()) == 1

    simulate_agent(0, main)


def test_a_parked_batch_does_not_delay_the_next() -> None:
    """Batches that gateways reject are parked one by one; the others are accepted."""

    async def main(rng: Random) -> None:
        net = network()

        def reply(_: str, upload: UploadRequest) -> GatewayResponse | None:
            return (
                GatewayResponse(status=409, code="identity_conflict")
                if b"bad" in upload.frame
                else None
            )

        net.reply = reply
        agent = SimAgent(rng, net, uploads=1, batch_bytes=1)
        running = asyncio.create_task(agent.run())
        for line in (b"good 1", b"bad", b"good 2"):
            await agent.batcher.put(block(line))
        await agent.batcher.flush()
        await agent.uploader.drained()
        assert net.lines() == [b"good 1", b"good 2"]
        assert agent.uploader.parked == 1
        assert len(agent.disk.list(DIRECTORY / "parked")) == 2
        running.cancel()

    simulate_agent(0, main)


def test_an_unreachable_gateway_costs_no_pause_while_another_is_available() -> None:
    """After the first failure the other gateway is used immediately, also for later batches."""

    async def main(rng: Random) -> None:
        net = network()
        net.reply = lambda url, _: (
            NoGatewayResponse(failure=ConnectionFailure.REFUSED) if url == "http://a" else None
        )
        agent = SimAgent(rng, net, uploads=1)
        running = asyncio.create_task(agent.run())
        await feed(agent, rng)
        await agent.uploader.drained()
        assert [url for _, url, _, _ in net.sent].count("http://a") <= 1
        running.cancel()

    for seed in seeds(5):
        simulate_agent(seed, main)


def test_a_full_disk_blocks_the_inputs_and_loses_nothing() -> None:
    """While the spool cannot be written, `put` blocks; afterwards every line is there once."""

    async def main(rng: Random) -> None:
        net = network()
        disk = SimDisk()
        agent = SimAgent(rng, net, disk=disk)
        full = [True]

        def tripwire(operation: str) -> None:
            if full[0] and operation in {"write", "sync"}:
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.tripwire = tripwire
        running = asyncio.create_task(agent.run())
        feeding = asyncio.create_task(feed(agent, rng))
        await net.clock.sleep(30)
        assert not feeding.done()
        assert net.sent == []
        full[0] = False
        await feeding
        await agent.uploader.drained()
        assert Counter(net.lines()) == Counter(LINES)
        running.cancel()

    simulate_agent(0, main)


def test_one_batch_is_collected_one_sealed_and_one_committed() -> None:
    """While a commit fails, the next batch is sealed; a third is collected, and `put` waits."""

    async def main(rng: Random) -> None:
        net = network()
        disk = SimDisk()
        agent = SimAgent(rng, net, disk=disk, batch_bytes=1)
        full = [True]

        def tripwire(operation: str) -> None:
            if full[0] and operation == "write":
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.tripwire = tripwire
        running = asyncio.create_task(agent.run())
        for line in LINES[:2]:
            await asyncio.wait_for(agent.batcher.put(block(line)), 1)
        third = asyncio.create_task(agent.batcher.put(block(LINES[2])))
        await net.clock.sleep(30)
        assert agent.spool._next_order == 3  # two batches have their identity
        assert not third.done()
        assert agent.spool.ready() == []
        full[0] = False
        await third
        await agent.batcher.flush()
        await agent.uploader.drained()
        assert Counter(net.lines()) == Counter(LINES[:3])
        running.cancel()

    simulate_agent(0, main)


class CountingClock(SimClock):
    """A clock that counts its pauses."""

    sleeps = 0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        await super().sleep(seconds)


def test_a_batcher_without_records_is_idle_and_then_cuts_a_batch_at_its_age() -> None:
    async def main(rng: Random) -> None:
        clock = CountingClock(asyncio.get_running_loop())
        agent = SimAgent(rng, SimNetwork(clock))
        running = asyncio.create_task(agent.batcher.run())
        for count in (1, 2):
            await asyncio.sleep(3600)
            await agent.batcher.put(block(LINES[count]))
            await asyncio.sleep(1)
            assert len(agent.spool.ready()) == count
        assert clock.sleeps < 20
        running.cancel()

    simulate_agent(0, main)


@pytest.mark.daily(8)
@pytest.mark.parametrize("seed", seeds(20))
def test_batches_are_committed_in_the_order_of_their_lines(seed: int) -> None:
    """A checkpoint covers all lines before it, so a later batch must not become durable first."""

    async def main(rng: Random) -> None:
        net = network()
        disk = SimDisk()
        agent = SimAgent(rng, net, disk=disk, batch_bytes=1)
        orders: list[int] = []
        commit = agent.spool.commit

        def committed(sealed: SealedBatch) -> SpooledBatch:
            batch = commit(sealed)
            orders.append(batch.header.order)
            return batch

        def tripwire(operation: str) -> None:
            if operation in {"write", "sync"} and rng.random() < 0.3:
                raise OSError(errno.EIO, "Input/output error")

        agent.spool.commit = committed  # type: ignore[method-assign]
        disk.tripwire = tripwire
        running = asyncio.create_task(agent.run())
        await feed(agent, rng)
        assert orders == list(range(1, len(orders) + 1))
        disk.tripwire = lambda _: None
        await agent.uploader.drained()
        assert Counter(net.lines()) == Counter(LINES)
        running.cancel()

    simulate_agent(seed, main)


def test_frames_of_a_backlog_are_not_kept_in_memory() -> None:
    """Only batches for which a worker is free are sent from memory."""

    async def main(rng: Random) -> None:
        net = network()
        down = [True]
        net.reply = lambda _, __: (
            NoGatewayResponse(failure=ConnectionFailure.REFUSED) if down[0] else None
        )
        agent = SimAgent(rng, net, uploads=2, batch_bytes=1)
        running = asyncio.create_task(agent.run())
        for line in LINES:
            await agent.batcher.put(block(line))
            assert len(agent.uploader._spooled._frames) <= 2
        await agent.batcher.flush()
        await net.clock.sleep(5)
        assert agent.uploader._spooled._frames == {}
        down[0] = False
        await agent.uploader.drained()
        assert Counter(net.lines()) == Counter(LINES)
        running.cancel()

    simulate_agent(0, main)


def test_a_full_spool_blocks_or_drops_according_to_the_settings() -> None:
    """`block` stays within the limit and loses nothing; `drop_newest` counts what it drops."""

    async def main(rng: Random, when_full: WhenFull) -> None:
        net = network()
        down = [True]
        net.reply = lambda _, __: (
            NoGatewayResponse(failure=ConnectionFailure.REFUSED) if down[0] else None
        )
        agent = SimAgent(rng, net, bytes_max=3000, when_full=when_full)
        running = asyncio.create_task(agent.run())
        feeding = asyncio.create_task(feed(agent, rng))
        await net.clock.sleep(60)
        assert agent.spool.size_bytes() <= 3000
        assert feeding.done() == (when_full is WhenFull.DROP_NEWEST)
        down[0] = False
        while not feeding.done():
            await net.clock.sleep(0.5)
            agent.spool.sweep()
        await agent.uploader.drained()
        arrived = Counter(net.lines())
        assert max(arrived.values()) == 1
        assert len(LINES) - arrived.total() == agent.metrics.dropped_records
        assert (agent.metrics.dropped_records > 0) == (when_full is WhenFull.DROP_NEWEST)
        running.cancel()

    for when_full in WhenFull:
        simulate_agent(0, lambda rng, each=when_full: main(rng, each))


def test_a_corrupt_entry_is_moved_and_logged() -> None:
    """The entry is never sent, its loss is logged, and the next batch is sent."""

    async def main(rng: Random) -> None:
        net = network()
        disk = SimDisk()
        agent = SimAgent(rng, net, disk=disk, uploads=1, batch_bytes=1)
        await agent.seal(block(b"sent from memory"), block(b"one"), block(b"two"))
        (path,) = (p for p in disk._seen if p.name == agent.spool.ready()[1].header.name)
        body = disk._seen[path].seen
        disk._seen[path].seen = body[:-1] + bytes([body[-1] ^ 1])
        running = asyncio.create_task(agent.run())
        await agent.uploader.drained()
        assert net.lines() == [b"sent from memory", b"two"]
        assert [name for name, _ in disk.list(DIRECTORY / "corrupt")] == [path.name]
        assert agent.spool.corrupt_files[0][0] == path.name
        running.cancel()

    simulate_agent(0, main)
