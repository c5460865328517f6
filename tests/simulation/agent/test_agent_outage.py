"""What is logged while no gateway responds, and when an uploader gives up."""

import asyncio
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.agent_sim import SimAgent, SimClock, SimNetwork, block, simulate_agent
from support.simloop import seeds

from sluice_agent.errors import GatewaysUnreachable
from sluice_agent.sending.upload_decisions import ConnectionFailure, NoGatewayResponse
from sluice_agent.sending.uploader import FAILURES_LOGGED, SUMMARY_S
from sluice_protocol.units import NS_PER_S

REFUSED = NoGatewayResponse(failure=ConnectionFailure.REFUSED)
OUTAGE_S = 600.0


async def _send_some(agent: SimAgent) -> None:
    for number in range(8):
        await agent.batcher.put(block(b"line %d" % number * 20))
    await agent.batcher.flush()


@pytest.mark.parametrize("seed", seeds(5))
def test_an_outage_is_logged_by_a_summary_and_not_attempt_by_attempt(seed: int) -> None:
    """After it, a second outage is logged again from its start."""

    async def main(rng: Random) -> list[dict[str, Any]]:
        net = SimNetwork(SimClock(asyncio.get_running_loop()))
        net.reply = lambda _, __: REFUSED
        agent = SimAgent(rng, net)
        running = asyncio.create_task(agent.run())
        await _send_some(agent)
        await net.clock.sleep(OUTAGE_S)
        net.reply = None
        await agent.uploader.drained()
        running.cancel()
        return list(map(dict, logs))

    with capture_logs() as logs:
        lines = simulate_agent(seed, main)
    single = [one for one in lines if one["event"] == "upload_failed"]
    summaries = [one for one in lines if one["event"] == "uploads_failing"]
    assert len(single) == FAILURES_LOGGED
    assert OUTAGE_S / SUMMARY_S / 3 <= len(summaries) <= OUTAGE_S / SUMMARY_S + 1
    last = summaries[-1]
    assert last["reason"] == "connection_refused"
    assert last["failures"] > len(summaries)
    assert last["failing_s"] > OUTAGE_S / 2


@pytest.mark.parametrize("seed", seeds(5))
def test_an_uploader_gives_up_after_its_limit_and_keeps_its_batches(seed: int) -> None:
    async def main(rng: Random) -> float:
        net = SimNetwork(SimClock(asyncio.get_running_loop()))
        net.reply = lambda _, __: REFUSED
        agent = SimAgent(rng, net, give_up_s=90)
        await_end = asyncio.create_task(agent.uploader.run())
        asyncio.create_task(agent.batcher.run())  # noqa: RUF006 - ends with the loop
        await _send_some(agent)
        with pytest.raises(ExceptionGroup) as error:
            await await_end
        assert error.group_contains(GatewaysUnreachable, match="gave up sending")
        assert agent.spool.ready()
        return net.clock.monotonic_ns() / NS_PER_S

    assert 90 <= simulate_agent(seed, main) < 200
