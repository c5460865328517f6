"""An agent sends parked conflicts again until an operator has decided."""

import asyncio
from itertools import pairwise
from random import Random

import pytest
from support.agent_disk import SimDisk
from support.agent_sim import (
    DIRECTORY,
    OTHER,
    SimAgent,
    SimClock,
    SimNetwork,
    block,
    simulate_agent,
)
from support.simloop import seeds

from sluice_agent.sending.parked_inquiry import INTERVAL_S_MAX, POLL_S, question_interval_s
from sluice_agent.sending.transport import UploadRequest
from sluice_agent.sending.upload_decisions import (
    ConnectionFailure,
    GatewayResponse,
    NoGatewayResponse,
)
from sluice_protocol.units import Digest

Response = GatewayResponse | NoGatewayResponse
HOUR_S = 3600.0


def conflict(upload: UploadRequest, resolution: str = "", digest: Digest | None = None) -> Response:
    return GatewayResponse(
        status=409,
        code="identity_conflict",
        resolution=resolution,
        submitted_sha256=digest or upload.digest,
    )


async def parked_agent(
    rng: Random, lines: int = 1
) -> tuple[SimAgent, SimNetwork, "asyncio.Future[list[None]]"]:
    """Return a running agent whose batches are all parked after a conflict."""
    net = SimNetwork(SimClock(asyncio.get_running_loop()))
    net.reply = lambda _, upload: conflict(upload)
    agent = SimAgent(rng, net, batch_bytes=1)
    sealing = asyncio.gather(agent.uploader.run(), agent.batcher.run())
    for number in range(lines):
        await agent.batcher.put(block(b"line %d" % number))
    await agent.batcher.flush()
    await agent.uploader.drained()
    assert len(parked(agent.disk)) == 2 * lines
    sealing.cancel()
    net.sent.clear()
    return agent, net, asyncio.gather(agent.inquiry.run())


def parked(disk: SimDisk) -> list[str]:
    return [name for name, _ in disk.list(DIRECTORY / "parked")]


@pytest.mark.parametrize("seed", seeds(5))
def test_an_accepted_existing_batch_is_dropped_and_leaves_the_spool(seed: int) -> None:
    async def main(rng: Random) -> None:
        agent, net, running = await parked_agent(rng, lines=2)
        await net.clock.sleep(HOUR_S)
        assert len(parked(agent.disk)) == 4
        agent.spool.sweep()
        assert agent.spool.size_bytes() > 0
        net.reply = lambda _, upload: conflict(upload, "accept_existing")
        await net.clock.sleep(HOUR_S)
        assert parked(agent.disk) == []
        agent.spool.sweep()
        assert agent.spool.size_bytes() == 0
        assert agent.metrics.resolved.labels("accept_existing").value == 2
        assert all(retry for *_, retry in net.sent)
        asked = len(net.sent)
        await net.clock.sleep(HOUR_S)
        assert len(net.sent) == asked
        running.cancel()

    simulate_agent(seed, main)


def undecided(upload: UploadRequest) -> dict[str, Response]:
    return {
        "open": conflict(upload),
        "unknown decision": conflict(upload, "merge"),
        "other bytes": conflict(upload, "accept_existing", OTHER),
        "other code": GatewayResponse(status=409, resolution="accept_existing"),
        "quarantine": conflict(upload, "quarantine_identity"),
        "unavailable": GatewayResponse(status=503, code="store_unavailable"),
        "refused": GatewayResponse(status=401, code="unauthenticated"),
        "foreign": GatewayResponse(status=200),
        "reset": NoGatewayResponse(failure=ConnectionFailure.RESET),
    }


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", undecided(UploadRequest(frame=b"", digest=OTHER)).keys())
def test_no_other_response_removes_a_parked_batch(name: str) -> None:
    """The agent repeats its request: more often at first, then about once an hour."""
    hours = 24 if name == "open" else 4

    async def main(rng: Random) -> None:
        agent, net, running = await parked_agent(rng)
        net.reply = lambda _, upload: undecided(upload)[name]
        await net.clock.sleep(hours * HOUR_S)
        assert len(parked(agent.disk)) == 2
        assert hours / 1.5 <= len(net.sent) <= hours * 2 + 30
        running.cancel()

    simulate_agent(1, main)


def test_a_quarantined_batch_stays_and_is_asked_about_once() -> None:
    async def main(rng: Random) -> None:
        agent, net, running = await parked_agent(rng)
        net.reply = lambda _, __: GatewayResponse(status=403, code="identity_quarantined")
        await net.clock.sleep(24 * HOUR_S)
        assert len(parked(agent.disk)) == 2
        assert len(net.sent) == 1
        running.cancel()

    simulate_agent(1, main)


def test_other_parked_batches_are_not_asked_about() -> None:
    """After another refusal the bytes exist only here, and only an operator retries them."""

    async def main(rng: Random) -> None:
        net = SimNetwork(SimClock(asyncio.get_running_loop()))
        net.reply = lambda _, __: GatewayResponse(status=413, code="too_large")
        agent = SimAgent(rng, net)
        sealing = asyncio.gather(agent.uploader.run(), agent.batcher.run())
        await agent.batcher.put(block(b"large"))
        await agent.batcher.flush()
        await agent.uploader.drained()
        sealing.cancel()
        net.sent.clear()
        running = asyncio.gather(agent.inquiry.run())
        await net.clock.sleep(24 * HOUR_S)
        assert net.sent == []
        running.cancel()

    simulate_agent(1, main)


@pytest.mark.parametrize("seed", seeds(3))
def test_a_restarted_agent_asks_about_what_was_parked_before(seed: int) -> None:
    async def main(rng: Random) -> None:
        agent, net, running = await parked_agent(rng)
        running.cancel()
        agent.spool.close()
        net.reply = lambda _, upload: conflict(upload, "accept_existing")
        second = SimAgent(rng, net, disk=agent.disk, boot_id="second")
        again = asyncio.gather(second.inquiry.run())
        await net.clock.sleep(20)
        assert net.sent == []  # agents that restart in turn do not ask all the time
        await net.clock.sleep(100)
        assert parked(second.disk) == []
        again.cancel()

    simulate_agent(seed, main)


@pytest.mark.long
def test_many_parked_batches_are_asked_about_slowly() -> None:
    async def main(rng: Random) -> None:
        _, net, running = await parked_agent(rng, lines=50)
        await net.clock.sleep(HOUR_S)
        times = sorted(when for when, *_ in net.sent)
        assert len({identity for *_, identity, _ in net.sent}) == 50
        assert all(later - sooner >= POLL_S for sooner, later in pairwise(times))
        running.cancel()

    simulate_agent(1, main)


@pytest.mark.parametrize("age_s", [-1e9, 0.0, 600.0, 1e9])
def test_the_interval_is_bounded_for_every_clock(age_s: float) -> None:
    rng = Random(1)
    values = [question_interval_s(age_s, rng) for _ in range(100)]
    assert 30 <= min(values) < max(values) <= 1.5 * INTERVAL_S_MAX
