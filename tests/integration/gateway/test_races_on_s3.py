"""Two real gateways race on one identity over S3: a simulated server with faults, and a real one.

Every response is added to a history, which is checked as a write-once register per identity.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from support.gateway import Client, TestKey, frame_of, identity, start_gateway, write_principals
from support.history import UploadResult, broken_guarantees
from support.memory_bucket.faults import Call, Fault
from support.memory_bucket.server import serve_memory
from support.store_versitygw import CREDENTIALS, make_bucket, versitygw

from sluice_protocol.keys import accepted_key, blob_key, digest_of, quarantine_key
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Found
from sluice_store import StoreMode, create_authority, open_store

HOST = TestKey("host-1", ("host-1",))
RIVALS = 4
FAULTS = (
    Fault.CONFLICT,
    Fault.SLOW_DOWN,
    Fault.RESET_BEFORE,
    Fault.RESET_AFTER,
    Fault.ERROR_AFTER,
)


@dataclass
class SomeFaults:
    """One call in six fails on the connection, after the gateways have started."""

    rng: random.Random
    on: bool = False

    def fault_of(self, call: Call) -> Fault | None:
        if not self.on or self.rng.random() > 1 / 6:
            return None
        fault = self.rng.choice(FAULTS)
        return Fault.SLOW_DOWN if call.method != "PUT" else fault


async def send_until_told(client: Client, seq: int, frame: bytes) -> list[UploadResult]:
    """Send the same bytes until a 200 or a 409."""
    history: list[UploadResult] = []
    while not history or history[-1].status not in {200, 409}:
        asked = time.monotonic()
        again = {"Sluice_Retry": "1"} if len(history) % 2 else {}
        try:
            answer = await client.upload(frame, **again)
            status, duplicate = answer.status, answer.body.get("duplicate")
        except aiohttp.ClientError:
            status, duplicate = 0, None
        history.append(
            UploadResult(
                identity=str(seq),
                digest=digest_of(frame),
                asked=asked,
                told=time.monotonic(),
                status=0 if status == 503 else status,
                duplicate=duplicate,
            )
        )
        await asyncio.sleep(0.02)
    return history


@asynccontextmanager
async def two_gateways(tmp_path: Path, url: str) -> AsyncIterator[list[int]]:
    async with open_store(url, StoreMode.CREATE) as store:
        await create_authority(store)
    principals = write_principals(tmp_path / "principals.toml", HOST)
    servers = []
    try:
        for _ in range(2):
            server = await asyncio.to_thread(
                start_gateway, tmp_path, url, principals, "--skip-probe"
            )
            servers.append(server)
        yield [server.port for server in servers]
    finally:
        for server in servers:
            await asyncio.to_thread(server.kill)


async def race(ports: list[int], rounds: int) -> list[UploadResult]:
    """Even rounds: the same bytes from all agents; odd rounds: two sides."""
    history: list[UploadResult] = []
    async with aiohttp.ClientSession() as session:
        clients = [Client(session, ports[n % 2], HOST) for n in range(RIVALS)]
        for seq in range(rounds):
            frames = [
                frame_of(identity(seq=seq), f"side {n % 2 if seq % 2 else 0}")
                for n in range(RIVALS)
            ]
            told = await asyncio.gather(
                *(send_until_told(c, seq, f) for c, f in zip(clients, frames, strict=True))
            )
            history += [entry for one in told for entry in one]
    return history


async def check(url: str, history: list[UploadResult]) -> None:
    """The history is valid, and the store contains what every response promises."""
    assert broken_guarantees(history) == []
    assert {entry.status for entry in history} <= {0, 200, 409}
    async with open_store(url) as store:
        for entry in history:
            who = identity(seq=int(entry.identity))
            manifest = await store.get(accepted_key(who))
            assert isinstance(manifest, Found)
            owner = decode_accepted(accepted_key(who), manifest.body).digest
            if entry.status == 200:
                assert owner == entry.digest
                assert isinstance(await store.get(blob_key(owner)), Found)
            if entry.status == 409:
                assert owner != entry.digest
                record = quarantine_key(who, digest_of(frame_of(who, "side 0")))
                other = quarantine_key(who, digest_of(frame_of(who, "side 1")))
                found = [await store.get(key) for key in (record, other)]
                assert any(isinstance(one, Found) for one in found)


async def test_race_over_a_simulated_server_with_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """409, 503, resets before and after, 500 after: no promise breaks, and every agent gets a
    verdict.
    """
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    access, secret = CREDENTIALS.values()
    faults = SomeFaults(random.Random(11))

    async with serve_memory({access: secret}, plan=faults) as server:
        url = f"s3://race/run?endpoint={server.endpoint}&region=us-east-1"
        await make_bucket(url)
        async with two_gateways(tmp_path, url) as ports:
            faults.on = True
            history = await race(ports, 10)
            faults.on = False
        await check(url, history)


@pytest.mark.s3
def test_race_over_versitygw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same race on a real S3 server with versioning."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)

    async def main(url: str) -> None:
        await make_bucket(url)
        async with two_gateways(tmp_path, url) as ports:
            history = await race(ports, 30)
        await check(url, history)

    with versitygw(tmp_path / "server") as server:
        asyncio.run(main(server.url("race", "run")))
