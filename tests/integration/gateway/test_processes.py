"""Real gateway processes on one directory: races on one identity, workers, signals."""

import asyncio
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import msgspec
from support.commands import sluice
from support.gateway import (
    Client,
    GatewayProcess,
    HttpResult,
    TestKey,
    bodies_under,
    frame_of,
    gateways,
    identity,
    start_gateway,
    write_principals,
)

from sluice_protocol.identity import format_identity
from sluice_protocol.keys import ACCEPTED, QUARANTINE, RAW_BLOBS, digest_of
from sluice_protocol.system_clock import SystemClock
from sluice_store import open_store
from sluice_store.doctor import read_doctor, seal_result, write_result
from sluice_web.process_limits import OPEN_FILES_WANTED

HOST = TestKey("host-1", ("host-1",))
ROUNDS = 5


async def upload_all(servers: list[GatewayProcess], frames: list[bytes]) -> list[HttpResult]:
    """Send frame i to server i mod n, all concurrently."""
    async with aiohttp.ClientSession() as session:
        clients = [Client(session, server.port, HOST) for server in servers]
        return await asyncio.gather(
            *(clients[i % len(clients)].upload(frame) for i, frame in enumerate(frames))
        )


def test_two_gateways_race(tmp_path: Path) -> None:
    """With the same bytes, and with different bytes for one identity."""
    url = f"file://{tmp_path}/store"
    with gateways(tmp_path, HOST, count=2) as servers:
        for seq in range(ROUNDS):
            race_with_the_same_bytes(servers, seq)
        assert len(asyncio.run(bodies_under(url, ACCEPTED))) == ROUNDS
        for seq in range(ROUNDS, 2 * ROUNDS):
            race_with_different_bytes(servers, seq)
    assert len(asyncio.run(bodies_under(url, ACCEPTED))) == 2 * ROUNDS
    assert len(asyncio.run(bodies_under(url, QUARANTINE))) == 5 * ROUNDS
    blobs = asyncio.run(bodies_under(url, RAW_BLOBS))
    assert len(blobs) == 7 * ROUNDS
    assert all(digest_of(body) in key for key, body in blobs.items())


def race_with_the_same_bytes(servers: list[GatewayProcess], seq: int) -> None:
    """All clients send the same bytes through both: each gets 200, and exactly one batch is new."""
    frame = frame_of(identity(seq=seq))
    answers = asyncio.run(upload_all(servers, [frame] * 6))
    assert {answer.status for answer in answers} == {200}
    assert [a.body["duplicate"] for a in answers].count(False) == 1


def race_with_different_bytes(servers: list[GatewayProcess], seq: int) -> None:
    """Six frames claim one identity: one owns it, five get a 409 that names the same owner."""
    frames = [frame_of(identity(seq=seq), text=f"claim {n}") for n in range(6)]
    answers = asyncio.run(upload_all(servers, frames))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409, 409, 409]
    owner = next(a.body["frame_sha256"] for a in answers if a.status == 200)
    losers = [answer.body for answer in answers if answer.status == 409]
    assert {body["accepted_frame_sha256"] for body in losers} == {owner}


def test_workers_share_one_port_and_stop_together(tmp_path: Path) -> None:
    """Two workers serve one port, which a second gateway does not get: it would get a share of the
    connections, also for another store. SIGTERM stops the whole gateway with 0.
    """
    with gateways(tmp_path, HOST, flags=("--workers", "2")) as (server,):
        frames = [frame_of(identity(seq=seq)) for seq in range(20)]
        answers = asyncio.run(upload_all([server], frames))
        assert {answer.status for answer in answers} == {200}
        until = time.monotonic() + 60
        while listening_workers(server) != {0, 1} and time.monotonic() < until:
            time.sleep(0.05)
        assert listening_workers(server) == {0, 1}
        listen = f"127.0.0.1:{server.port}"
        store = f"file://{tmp_path}/store"
        second = sluice("gateway", "--store", store, "--listen", listen, folder=tmp_path)
        assert second.returncode == 2
        assert "Address already in use" in second.stderr
        assert f"listen=`{listen}`" in second.stderr
        assert server.stop() == 0


def listening_workers(server: GatewayProcess) -> set[int]:
    """Return the workers that have reported that they listen."""
    return {event["worker"] for event in server.events("gateway_listening")}


@contextmanager
def few_open_files() -> Iterator[None]:
    """Set a shell's soft limit of 1,024, which is below the default number of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_log_names_what_an_operator_asks_for_next(tmp_path: Path) -> None:
    """A conflict by the ids that `sluice explain` and `sluice conflicts show` read; a refused agent
    with its principal. The response contains no reason. The gateway has raised its limit of files.
    """
    with few_open_files(), gateways(tmp_path, HOST) as (server,):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        raised = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        assert raised == (min(OPEN_FILES_WANTED, hard), hard)
        frames = [frame_of(identity(seq=3)), frame_of(identity(seq=3), text="other")]
        frames.append(frame_of(identity(agent="host-2")))
        answers = [asyncio.run(upload_all([server], [frame]))[0] for frame in frames]
        assert [answer.status for answer in answers] == [200, 409, 403]
        assert answers[2].body["detail"] == "the sender may not send for this agent"
        assert server.stop() == 0
        lines = map(json.loads, server.log.read_text(encoding="utf-8").splitlines())
        found = {one["event"]: one for one in lines}
    key = answers[1].body["quarantine_key"].removesuffix(".json")
    span, submitted = key.split("/")[-2:]
    ids = [identity().agent_id.encode().hex(), identity().boot_id.encode().hex(), span, submitted]
    assert found["identity_conflict"]["conflict"] == ".".join(ids)
    assert found["identity_conflict"]["identity"] == format_identity(identity(seq=3))
    assert found["request_refused"]["reason"].endswith("principal=`host-1`, agent_id=`host-2`")


def test_gateway_needs_an_authority(tmp_path: Path) -> None:
    """On a store without authority settings a gateway does not start, and reports what to run."""
    write_principals(tmp_path / "principals.toml", HOST)
    flags = ("--store", f"file://{tmp_path}/none", "--listen", "127.0.0.1:0")
    done = sluice("gateway", *flags, folder=tmp_path)
    assert done.returncode in {2, 3}
    assert "sluice init" in done.stderr + done.stdout


def test_gateway_needs_a_proved_store(tmp_path: Path) -> None:
    """A directory is examined at start; a store that breaks a condition is refused."""

    async def break_it() -> None:
        async with open_store(url) as store:
            result = await read_doctor(store)
            assert result is not None
            assert result.good
            first, *others = result.findings
            broken = msgspec.structs.replace(first, kept=False, seen="planted", cost="planted")
            later = msgspec.structs.replace(
                result,
                findings=(broken, *others),
                ended_at_unix_ns=result.ended_at_unix_ns + 1,
            )
            await write_result(store, later, seal_result(later), SystemClock())

    url = f"file://{tmp_path}/store"
    with gateways(tmp_path, HOST) as (server,):
        assert server.stop() == 0
        asyncio.run(break_it())
        flags = ("--store", url, "--principals", str(tmp_path / "principals.toml"))
        done = sluice("gateway", *flags, "--listen", "127.0.0.1:0", folder=tmp_path)
        assert done.returncode == 3
        assert "breaks promises that acceptance needs" in done.stderr
        skipping = start_gateway(tmp_path, url, tmp_path / "principals.toml", "--skip-probe")
        assert skipping.stop() == 0
        lines = skipping.log.read_text(encoding="utf-8").splitlines()
        assert all(json.loads(line)["store_probe"] == "skipped" for line in lines)


def test_keys_are_replaced_without_a_gap(tmp_path: Path) -> None:
    """An added key is valid within two seconds, and a removed one is invalid as fast."""
    new = TestKey("host-1-new", ("host-1",))

    async def until(status: int, key: TestKey, seq: int) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(15):
            client = Client(session, port, key)
            frame = frame_of(identity(seq=seq))
            while (await client.upload(frame)).status != status:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    with gateways(tmp_path, HOST) as (server,):
        port, path = server.port, tmp_path / "principals.toml"
        asyncio.run(until(200, HOST, 0))
        asyncio.run(until(401, new, 1))
        write_principals(path, HOST, new)
        asyncio.run(until(200, new, 1))
        asyncio.run(until(200, HOST, 2))
        path.write_text("broken", encoding="utf-8")
        asyncio.run(until(200, new, 3))
        write_principals(path, new)
        asyncio.run(until(401, HOST, 4))
        asyncio.run(until(200, new, 5))
