"""Gateways are killed and stopped under 64 clients: no batch with a 200 is ever lost."""

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from support.gateway import (
    Client,
    GatewayProcess,
    TestKey,
    bodies_under,
    frame_of,
    gateways,
    identity,
    start_gateway,
)
from support.repetitions import times

from sluice_protocol.keys import ACCEPTED, RAW_BLOBS, digest_of, parse_accepted_key
from sluice_protocol.manifests import decode_accepted

HOST = TestKey("host-1", ("host-1",))
CLIENTS = 64


@dataclass
class History:
    """The responses that the clients got, of which each sends that many batches."""

    batches: int
    acked: dict[int, str] = field(default_factory=dict)
    news: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    broken: int = 0


async def ship(number: int, ports: list[int], history: History) -> None:
    """Send the batches of one agent in order, each until a 200, over any gateway."""
    rng = random.Random(number)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        for batch in range(history.batches):
            seq = number * history.batches + batch
            frame = frame_of(identity(seq=seq), text=f"batch {seq}")
            while seq not in history.acked:
                client = Client(session, rng.choice(ports), HOST)
                try:
                    answer = await client.upload(frame)
                except (aiohttp.ClientError, TimeoutError):
                    history.broken += 1
                    await asyncio.sleep(0.01)
                    continue
                if answer.status == 200:
                    history.acked[seq] = digest_of(frame)
                    history.news[seq] += not answer.body["duplicate"]
                else:
                    history.refused[answer.status] += 1
                    await asyncio.sleep(0.02)


async def under_load(
    directory: Path, servers: list[GatewayProcess], history: History, *, kill: bool
) -> int | None:
    """Let the clients send while one gateway ends; return its exit code if it is not killed."""
    ports = [server.port for server in servers]
    shipping = asyncio.gather(*(ship(number, ports, history) for number in range(CLIENTS)))
    while len(history.acked) < CLIENTS * history.batches // 4:  # noqa: ASYNC110 - it polls from outside
        await asyncio.sleep(0.01)
    victim = servers[0]
    code: int | None = None
    if kill:
        victim.kill()
    else:
        code = await asyncio.to_thread(victim.stop)
    url, principals = f"file://{directory}/store", directory / "principals.toml"
    servers.append(await asyncio.to_thread(start_gateway, directory, url, principals))
    ports.append(servers[-1].port)
    with contextlib.suppress(ValueError):
        ports.remove(victim.port)
    await shipping
    return code


def check(directory: Path, history: History) -> None:
    """Every 200 has its manifest and its blob; the store contains nothing else."""
    url = f"file://{directory}/store"
    manifests = asyncio.run(bodies_under(url, ACCEPTED))
    blobs = asyncio.run(bodies_under(url, RAW_BLOBS))
    held = {digest_of(body) for body in blobs.values()}
    stands = {
        parse_accepted_key(key).seq_start: decode_accepted(key, body).frame_sha256
        for key, body in manifests.items()
    }
    assert stands == history.acked
    assert set(stands.values()) <= held
    assert max(history.news.values()) <= 1
    assert set(history.refused) <= {503}


def one_round(directory: Path, *, kill: bool, batches: int) -> None:
    history = History(batches)
    with gateways(directory, HOST, count=2) as servers:
        code = asyncio.run(under_load(directory, servers, history, kill=kill))
        assert len(history.acked) == CLIENTS * batches
        check(directory, history)
        if not kill:
            assert code == 0


def test_kill_9_loses_nothing(tmp_path: Path) -> None:
    """One gateway is killed during the uploads; another one is started."""
    one_round(tmp_path, kill=True, batches=2)


@pytest.mark.long
def test_rolling_restart_loses_nothing(tmp_path: Path) -> None:
    """One gateway is stopped during the uploads: it finishes them and exits with 0."""
    one_round(tmp_path, kill=False, batches=2)


@pytest.mark.long
@pytest.mark.parametrize("kill", [True, False])
def test_rounds_lose_nothing(tmp_path: Path, *, kill: bool) -> None:
    for number in range(times(2)):
        one_round(tmp_path / str(number), kill=kill, batches=12)
