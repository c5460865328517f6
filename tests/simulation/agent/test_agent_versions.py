"""Batches in a frame version that not every gateway reads: none is lost, parked, or in the way."""

import asyncio
from random import Random

import pytest
from support.agent_disk import SimDisk
from support.agent_sim import DIRECTORY, SimAgent, SimClock, SimNetwork, block, simulate_agent
from support.simloop import seeds

from sluice_agent.delayed_batches import RETRY_S
from sluice_agent.errors import GatewaysUnreachable
from sluice_agent.transport import UploadRequest
from sluice_agent.upload_decisions import GatewayResponse
from sluice_protocol.frame import frame_version
from sluice_protocol.units import NS_PER_S

NEWER = [b"newer %d " % n + Random(n).randbytes(70_000).hex().encode() for n in range(6)]
"""Batches that are too large for a list, so that each of them occupies a worker."""
OLDER = [b"older %d" % n for n in range(12)]
UNKNOWN = GatewayResponse(status=400, code="unsupported_version")
BOTH = ("http://a", "http://b")


class Fleet(SimNetwork):
    """Gateways of which some, named by `earlier`, do not read version 2."""

    def __init__(self, *earlier: str) -> None:
        super().__init__(SimClock(asyncio.get_running_loop()), self._answer)
        self.earlier = set(earlier)

    def _answer(self, url: str, upload: UploadRequest) -> GatewayResponse | None:
        is_unknown = url in self.earlier and frame_version(upload.frame) == 2
        return UNKNOWN if is_unknown else None


async def _spooled(rng: Random, net: Fleet, disk: SimDisk) -> None:
    """Leave batches of version 2 in the spool, as an agent does that is stopped."""
    agent = SimAgent(rng, net, disk=disk, boot_id="first", frame_version=2, batch_bytes=1)
    await agent.seal(*map(block, NEWER))
    agent.spool.close()


def _parked(disk: SimDisk) -> list[str]:
    return disk.list(DIRECTORY / "parked")


@pytest.mark.parametrize("seed", seeds(10))
def test_batches_that_no_gateway_reads_do_not_delay_the_others(seed: int) -> None:
    """They stay in the spool without many repetitions, and are accepted after the upgrade."""

    async def main(rng: Random) -> None:
        net, disk = Fleet(*BOTH), SimDisk()
        await _spooled(rng, net, disk)
        agent = SimAgent(rng, net, disk=disk, boot_id="second", batch_bytes=1)
        running = asyncio.create_task(agent.run())
        for line in OLDER:
            await agent.batcher.put(block(line))
        await agent.batcher.flush()
        await net.clock.sleep(10 * RETRY_S)
        assert sorted(net.lines()) == sorted(OLDER)
        assert len(agent.spool.ready()) == len(NEWER)
        assert len(net.sent) < len(OLDER) + 6 * len(NEWER) + 2 * 10
        net.earlier.clear()
        async with asyncio.timeout(4 * RETRY_S):
            await agent.uploader.drained()
        assert sorted(net.lines()) == sorted(OLDER + NEWER)
        assert (agent.uploader.parked, _parked(disk)) == (0, [])
        running.cancel()

    simulate_agent(seed, main)


@pytest.mark.parametrize("seed", seeds(10))
def test_one_gateway_that_reads_them_is_enough(seed: int) -> None:
    """During a rolling upgrade a batch is sent to the other gateway immediately."""

    async def main(rng: Random) -> None:
        net, disk = Fleet("http://a"), SimDisk()
        await _spooled(rng, net, disk)
        agent = SimAgent(rng, net, disk=disk, boot_id="second", frame_version=2)
        running = asyncio.create_task(agent.run())
        await agent.uploader.drained()
        assert net.clock.monotonic_ns() < RETRY_S * NS_PER_S
        assert sorted(net.lines()) == sorted(NEWER)
        assert _parked(disk) == []
        running.cancel()

    simulate_agent(seed, main)


def test_one_upload_at_a_time_keeps_the_order() -> None:
    """Later batches are sent after those that no gateway reads."""

    async def main(rng: Random) -> None:
        net, disk = Fleet(*BOTH), SimDisk()
        await _spooled(rng, net, disk)
        agent = SimAgent(rng, net, disk=disk, boot_id="second", uploads=1, batch_bytes=1)
        running = asyncio.create_task(agent.run())
        for line in OLDER:
            await agent.batcher.put(block(line))
        await agent.batcher.flush()
        await net.clock.sleep(10 * RETRY_S)
        assert net.lines() == []
        net.earlier.clear()
        await agent.uploader.drained()
        assert net.lines() == NEWER + OLDER
        running.cancel()

    simulate_agent(0, main)


def test_an_uploader_with_a_limit_gives_up() -> None:
    """A command that waits for acceptance ends with the reason, and its batches stay."""

    async def main(rng: Random) -> None:
        net, disk = Fleet(*BOTH), SimDisk()
        await _spooled(rng, net, disk)
        agent = SimAgent(rng, net, disk=disk, boot_id="second", give_up_s=5)
        with pytest.raises(ExceptionGroup) as error:
            await agent.uploader.run()
        assert error.group_contains(GatewaysUnreachable, match="unsupported_version")
        assert net.clock.monotonic_ns() < 3 * RETRY_S * NS_PER_S
        assert len(agent.spool.ready()) == len(NEWER)

    simulate_agent(0, main)
