"""Responses that are not those of a gateway lose, park and delay nothing that they should not."""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from structlog.testing import capture_logs
from support.agent_disk import SimDisk
from support.agent_sim import DIRECTORY, SimAgent, SimClock, SimNetwork, block, simulate_agent
from support.simloop import seeds

from sluice_agent.errors import NotAGateway
from sluice_agent.sending.foreign_responses import REFUSALS_MIN, REFUSED_S_MIN, STOP_S
from sluice_agent.sending.gateway_choice import BACKOFF_S_MAX
from sluice_agent.sending.transport import UploadRequest
from sluice_agent.sending.upload_decisions import (
    ConnectionFailure,
    GatewayResponse,
    NoGatewayResponse,
)
from sluice_agent.sending.uploader import RETRY_S
from sluice_protocol.units import NS_PER_S

PAGES = [GatewayResponse(status=status, media_type="text/html") for status in (200, 401, 404, 413)]
GONE = GatewayResponse(status=404, media_type="text/html")
TOO_LARGE = GatewayResponse(status=413, media_type="text/html")
DAMAGED = GatewayResponse(status=500, code="corrupt_object", retryable=True)
LINES = [b"line %d" % n for n in range(20)]
LONG_S = 1.2 * REFUSED_S_MIN


def network(reply: Callable[[str, UploadRequest], GatewayResponse | None]) -> SimNetwork:
    return SimNetwork(SimClock(asyncio.get_running_loop()), reply)


def parked(disk: SimDisk) -> list[str]:
    return [name for name, _ in disk.list(DIRECTORY / "parked") if name.endswith(".batch")]


async def feed(agent: SimAgent, lines: list[bytes]) -> None:
    for line in lines:
        await agent.batcher.put(block(line))
        await agent.batcher.flush()


@pytest.mark.daily(3)
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("uploads", [1, 4])
def test_a_wrong_address_parks_nothing_for_hours(page: GatewayResponse, uploads: int) -> None:
    """Every batch is accepted within a minute after it is corrected, and few were sent before."""

    async def main(rng: Random) -> None:
        wrong = [True]
        net = network(lambda _, __: page if wrong[0] else None)
        agent = SimAgent(rng, net, uploads=uploads, batch_bytes=1)
        await agent.seal(*map(block, LINES))
        running = asyncio.create_task(agent.run())
        await net.clock.sleep(LONG_S)
        assert (agent.uploader.parked, parked(agent.disk), net.lines()) == (0, [], [])
        assert "is not the response of a sluice gateway" in agent.uploader.foreign.problem
        assert agent.metrics.misdirected.labels().value == 1
        assert len(net.sent) < 2 * len(LINES) + 2 * 3 * LONG_S / RETRY_S
        wrong[0] = False
        async with asyncio.timeout(2 * RETRY_S + BACKOFF_S_MAX):
            await agent.uploader.drained()
        assert Counter(net.lines()) == Counter(LINES)
        assert agent.uploader.foreign.problem == ""
        assert agent.metrics.misdirected.labels().value == 0
        running.cancel()

    simulate_agent(1, main)


@pytest.mark.parametrize("seed", seeds(5))
def test_a_wrong_address_next_to_a_right_one_delays_nothing(seed: int) -> None:
    async def main(rng: Random) -> None:
        net = network(lambda url, _: GONE if url == "http://a" else None)
        agent = SimAgent(rng, net)
        running = asyncio.create_task(agent.run())
        await feed(agent, LINES)
        await agent.uploader.drained()
        assert net.clock.monotonic_ns() / NS_PER_S < 5
        assert Counter(net.lines()) == Counter(LINES)
        running.cancel()

    simulate_agent(seed, main)


@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", seeds(2))
def test_batches_that_a_proxy_refuses_do_not_delay_the_others(seed: int) -> None:
    """More of them than workers, before all others; they are parked after an hour of refusals."""

    async def main(rng: Random) -> None:
        net = network(lambda _, upload: TOO_LARGE if b"large" in upload.frame else None)
        agent = SimAgent(rng, net, batch_bytes=1)
        large = [b"large %d" % n for n in range(6)]
        await agent.seal(*map(block, [*large, *LINES]))
        running = asyncio.create_task(agent.run())
        await net.clock.sleep(4 * BACKOFF_S_MAX)
        assert Counter(net.lines()) == Counter(LINES)
        for number in range(int(REFUSED_S_MIN / RETRY_S)):
            assert agent.uploader.parked == 0
            await feed(agent, [b"more %d" % number])
            await net.clock.sleep(RETRY_S * 0.9)
        for number in range(6 * REFUSALS_MIN * 2):
            await feed(agent, [b"later %d" % number])
            await net.clock.sleep(RETRY_S)
        assert agent.uploader.parked == len(parked(agent.disk)) == len(large)
        assert agent.spool.ready() == []
        running.cancel()

    simulate_agent(seed, main)


@pytest.mark.long
def test_many_batches_that_a_proxy_refuses_do_not_delay_new_ones() -> None:
    """The newest are tried first while a proxy refuses the oldest; all of them are tried."""

    async def main(rng: Random) -> None:
        net = network(lambda _, upload: TOO_LARGE if b"large" in upload.frame else None)
        agent = SimAgent(rng, net, batch_bytes=1)
        large = [b"large %d" % n for n in range(300)]
        await agent.seal(*map(block, [*large, *LINES]))
        running = asyncio.create_task(agent.run())
        await net.clock.sleep(BACKOFF_S_MAX)
        assert Counter(net.lines()) == Counter(LINES)
        for number in range(20):
            await net.clock.sleep(4 * BACKOFF_S_MAX)
            await feed(agent, [b"later %d" % number])
            await net.clock.sleep(BACKOFF_S_MAX)
            assert b"later %d" % number in net.lines()
        assert len({one for _, _, one, _ in net.sent}) == len(large) + len(LINES) + 20
        running.cancel()

    simulate_agent(1, main)


def test_batches_that_only_gateways_with_a_damaged_object_refuse_do_not_delay_the_others() -> None:
    """More of them than workers: they stay in the spool, and are accepted after the repair."""

    async def main(rng: Random) -> None:
        damaged = [True]

        def reply(_: str, upload: UploadRequest) -> GatewayResponse | None:
            return DAMAGED if damaged[0] and b"broken" in upload.frame else None

        net = SimNetwork(SimClock(asyncio.get_running_loop()), reply)
        agent = SimAgent(rng, net, batch_bytes=1)
        broken = [b"broken %d" % n for n in range(6)]
        await agent.seal(*map(block, [*broken, *LINES]))
        running = asyncio.create_task(agent.run())
        await net.clock.sleep(BACKOFF_S_MAX)
        await feed(agent, [b"later"])
        await net.clock.sleep(LONG_S)
        assert Counter(net.lines()) == Counter([*LINES, b"later"])
        assert (agent.uploader.parked, len(agent.spool.ready())) == (0, len(broken))
        assert len(net.sent) < 2 * len(LINES) + 3 * LONG_S / RETRY_S
        damaged[0] = False
        await net.clock.sleep(2 * RETRY_S)
        assert Counter(net.lines()) == Counter([*broken, *LINES, b"later"])
        running.cancel()

    simulate_agent(1, main)


def test_a_refused_batch_alone_is_kept() -> None:
    """Without another upload nothing shows that the route is right."""

    async def main(rng: Random) -> None:
        net = network(lambda _, __: TOO_LARGE)
        agent = SimAgent(rng, net)
        await agent.seal(block(b"large"))
        running = asyncio.create_task(agent.run())
        await net.clock.sleep(LONG_S)
        assert agent.uploader.parked == 0
        assert len(net.sent) < 2 * LONG_S / RETRY_S + 2
        running.cancel()

    simulate_agent(0, main)


def test_a_gateway_that_is_unreachable_is_not_a_wrong_address() -> None:
    """A worker keeps its batch, as in every outage, and sends it as soon as the gateway is back."""

    async def main(rng: Random) -> None:
        down = [True]

        def reply(url: str, _: UploadRequest) -> GatewayResponse | NoGatewayResponse | None:
            if url == "http://a":
                return GONE
            return NoGatewayResponse(failure=ConnectionFailure.REFUSED) if down[0] else None

        net = SimNetwork(SimClock(asyncio.get_running_loop()), reply)
        agent = SimAgent(rng, net, stop_when_refused=True)
        await agent.seal(block(b"one"))
        running = asyncio.create_task(agent.run())
        await net.clock.sleep(600)
        assert agent.uploader.foreign.problem == ""
        down[0] = False
        await net.clock.sleep(BACKOFF_S_MAX + 1)
        assert net.lines() == [b"one"]
        running.cancel()

    simulate_agent(0, main)


@pytest.mark.parametrize("uploads", [1, 4])
def test_a_run_that_waits_for_acceptance_ends(uploads: int) -> None:
    """It names the server, has sent what it could, and keeps the rest."""

    async def main(rng: Random) -> None:
        net = network(lambda _, upload: TOO_LARGE if b"large" in upload.frame else None)
        agent = SimAgent(rng, net, uploads=uploads, batch_bytes=1, stop_when_refused=True)
        await agent.seal(*map(block, [b"one", b"large", b"two"]))
        with pytest.raises(ExceptionGroup) as error:
            await agent.uploader.run()
        assert error.group_contains(
            NotAGateway, match="/v1/batches responded with 413 and text/html, which is not"
        )
        assert STOP_S <= net.clock.monotonic_ns() / NS_PER_S < STOP_S + 2 * RETRY_S
        assert sorted(net.lines()) == ([b"one"] if uploads == 1 else [b"one", b"two"])
        assert (agent.uploader.parked, parked(agent.disk)) == (0, [])

    simulate_agent(0, main)


def test_a_foreign_response_is_logged_with_the_address_and_what_to_do() -> None:
    async def main(rng: Random) -> None:
        net = network(lambda _, __: GONE)
        agent = SimAgent(rng, net, gateways=("http://a/typo",))
        await agent.seal(*map(block, LINES))
        running = asyncio.create_task(agent.run())
        await net.clock.sleep(100)
        running.cancel()

    with capture_logs() as logs:
        simulate_agent(0, main)
    lines = [one for one in logs if one["event"] == "not_a_gateway"]
    assert len(lines) == 2, "one a minute"
    assert lines[0]["log_level"] == "error"
    assert lines[0]["reason"] == (
        "http://a/typo/v1/batches responded with 404 and text/html, which is not the response of a"
        " sluice gateway: check --gateway and the proxies in front of it"
    )
