"""The health endpoints and metrics of a running agent."""

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from support.agent_gateway import GatewayDouble, Scripted
from support.constants import settings_with
from support.store_versitygw import free_port

from sluice_agent import app as app_module
from sluice_agent import settings as settings_module
from sluice_agent.app import run_agent
from sluice_agent.errors import GatewaysUnreachable, SpoolUnwritable
from sluice_agent.inputs.file_report import read_report
from sluice_agent.settings import SPOOL_BYTES_LEAST, AgentSettings, WhenFull
from sluice_agent.spool import retries
from sluice_agent.spool.directory import SpoolDirectory
from sluice_agent.spool.format import FileCheckpoint
from sluice_agent.spool.spool import SealedBatch, Spool, SpooledBatch
from sluice_protocol.errors import BadUsage


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session:
        for _ in range(200):
            try:
                async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                    return answer.status, await answer.text()
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.02)
    raise AssertionError("no server listens")


def settings(folder: Path, gateway: str, health: str) -> AgentSettings:
    return settings_with(
        AgentSettings,
        gateway=gateway, spool=folder / "s", agent_id="host-1", paths=(str(folder / "app.log"),),
        host_metrics_s=0, batch_age_s=0.05, drain_s=0.2, health=health,
    )  # fmt: skip


def test_health_and_metrics(tmp_path: Path) -> None:
    """/readyz is 200, or 503 with the reason while gateways refuse this agent."""
    refusing = [False]
    (tmp_path / "app.log").write_bytes(b"one\n")

    async def until(port: int, sample: str) -> None:
        for _ in range(300):
            if sample in (await get(port, "/metrics"))[1]:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(sample)

    async def main(gateway: GatewayDouble) -> None:
        port, stop = free_port(), asyncio.Event()
        given = settings(tmp_path, gateway.url, f"127.0.0.1:{port}")
        agent = asyncio.create_task(run_agent(given, stop=stop))
        await until(port, 'sluice_agent_answers_total{reaction="forget",reason=""} 1.0')
        assert await get(port, "/livez") == (200, "ok\n")
        assert await get(port, "/readyz") == (200, "ready\n")
        assert (
            'sluice_agent_sealed_records_total{kind="logs"} 1.0' in (await get(port, "/metrics"))[1]
        )
        refusing[0] = True
        with (tmp_path / "app.log").open("ab") as file:
            file.write(b"two\n")
        await until(port, "sluice_agent_refused 1.0")
        status, reason = await get(port, "/readyz")
        assert (status, "principals" in reason) == (503, True)
        stop.set()
        assert (await agent).waiting == 1

    def script(_: int, __: object) -> Scripted | None:
        return Scripted(401, "unauthenticated") if refusing[0] else None

    with GatewayDouble(script=script) as gateway:
        asyncio.run(main(gateway))


def test_a_full_disk_at_the_first_checkpoint_only_delays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.log").write_bytes(b"one\n")
    save, failures = Spool.save_checkpoints, iter([True])

    def full(spool: Spool, checkpoints: Iterable[FileCheckpoint]) -> None:
        if next(failures, False):
            raise SpoolUnwritable(str(tmp_path), "No space left on device")
        save(spool, checkpoints)

    monkeypatch.setattr(Spool, "save_checkpoints", full)
    monkeypatch.setattr(retries, "SPOOL_RETRY_S", 0.01)

    async def main(gateway: GatewayDouble) -> None:
        given = replace(settings(tmp_path, gateway.url, ""), once=True)
        found = await run_agent(given, stop=asyncio.Event())
        assert (found.sealed_records, found.waiting) == (1, 0)

    with GatewayDouble() as gateway:
        asyncio.run(main(gateway))
    assert next(failures, None) is None


def test_a_batch_that_is_committed_during_the_stop_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is in the spool, so a result without it would report that nothing waits."""
    (tmp_path / "app.log").write_bytes(b"one\n")
    publish, stop = SpoolDirectory.publish, asyncio.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def slow(directory: SpoolDirectory, name: str, parts: Sequence[bytes]) -> None:
            publish(directory, name, parts)
            loop.call_soon_threadsafe(stop.set)
            time.sleep(0.5)  # more than the agent has to drain

        monkeypatch.setattr(SpoolDirectory, "publish", slow)
        found = await run_agent(settings(tmp_path, "http://127.0.0.1:9", ""), stop=stop)
        assert found.waiting == 1

    asyncio.run(main())


def test_an_unusable_address_is_sample(tmp_path: Path) -> None:
    """The command fails at start, and the spool can be opened again afterwards."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        used = f"127.0.0.1:{taken.getsockname()[1]}"
        for address in (used, "nonsense"):
            given = settings(tmp_path, "http://127.0.0.1:9", address)
            with pytest.raises(BadUsage, match="listen="):
                asyncio.run(run_agent(given, stop=asyncio.Event()))


def test_a_spool_that_cannot_be_written_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/readyz is 503 with the error and what to do, until the next write succeeds."""
    (tmp_path / "app.log").write_bytes(b"one\n")
    commit, broken = Spool.commit, [True]

    def failing(spool: Spool, sealed: SealedBatch) -> SpooledBatch:
        if broken[0]:
            raise SpoolUnwritable(str(tmp_path), "No space left on device")
        return commit(spool, sealed)

    monkeypatch.setattr(Spool, "commit", failing)
    monkeypatch.setattr(retries, "SPOOL_RETRY_S", 0.01)

    async def main(gateway: GatewayDouble) -> None:
        port, stop = free_port(), asyncio.Event()
        given = settings(tmp_path, gateway.url, f"127.0.0.1:{port}")
        agent = asyncio.create_task(run_agent(given, stop=stop))
        for _ in range(300):
            status, reason = await get(port, "/readyz")
            if status == 503:
                break
            await asyncio.sleep(0.02)
        assert (status, "free space" in reason, "No space left" in reason) == (503, True, True)
        broken[0] = False
        for _ in range(300):
            if (await get(port, "/readyz"))[0] == 200:
                break
            await asyncio.sleep(0.02)
        assert await get(port, "/readyz") == (200, "ready\n")
        stop.set()
        assert (await agent).waiting == 0

    with GatewayDouble() as gateway:
        asyncio.run(main(gateway))


@pytest.mark.daily(1)
@pytest.mark.parametrize("when_full", list(WhenFull))
async def test_a_full_spool_is_not_ready(tmp_path: Path, when_full: WhenFull) -> None:
    """Inputs wait, or records are dropped: neither is a healthy agent."""
    lines = b"".join(os.urandom(50_000).hex().encode() + b"\n" for _ in range(600))
    (tmp_path / "app.log").write_bytes(lines)

    port, stop = free_port(), asyncio.Event()
    given = replace(
        settings(tmp_path, "http://127.0.0.1:9", f"127.0.0.1:{port}"),
        spool_bytes=SPOOL_BYTES_LEAST,
        when_full=when_full,
    )
    agent = asyncio.create_task(run_agent(given, stop=stop))
    for _ in range(1500):
        status, reason = await get(port, "/readyz")
        if status == 503:
            break
        await asyncio.sleep(0.02)
    assert (status, "spool is full" in reason) == (503, True)
    stop.set()
    await agent


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("http", "cannot connect"),
        ("https", "cannot connect"),
        ("name", "the name cannot be resolved"),
        ("tls to a plain port", "use http://"),
        ("plain to a silent port", "check the scheme of --gateway"),
    ],
)
async def test_once_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, words: str
) -> None:
    """A run until everything is accepted ends after a bounded time, with what to check."""
    monkeypatch.setattr(settings_module, "ONCE_GIVE_UP_S", 0.3)
    monkeypatch.setattr(app_module, "ONCE_GIVE_UP_S", 0.3)
    (tmp_path / "app.log").write_bytes(b"one\n")

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        if scheme == "tls to a plain port":
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = {
        "http": f"http://127.0.0.1:{free_port()}",
        "https": f"https://127.0.0.1:{free_port()}",
        "name": "http://no-such-host.invalid:1",
        "tls to a plain port": f"https://127.0.0.1:{port}",
        "plain to a silent port": f"http://127.0.0.1:{port}",
    }[scheme]
    given = replace(settings(tmp_path, url, ""), once=True)
    async with server:
        with pytest.raises(GatewaysUnreachable, match="gave up sending") as error:
            await asyncio.wait_for(run_agent(given, stop=asyncio.Event()), 60)
    assert words in str(error.value)
    assert "batches are kept in the spool" in str(error.value)


def test_what_happened_to_files_is_reported(tmp_path: Path) -> None:
    """In the metrics and in the spool, where `sluice status` reads it."""
    log, binary = tmp_path / "app.log", tmp_path / "app.bin"
    log.write_bytes(b"one\n" * 100)
    binary.write_bytes(bytes(range(256)))

    async def main(gateway: GatewayDouble) -> None:
        port, stop = free_port(), asyncio.Event()
        given = replace(
            settings(tmp_path, gateway.url, f"127.0.0.1:{port}"), paths=(str(tmp_path / "app.*"),)
        )
        agent = asyncio.create_task(run_agent(given, stop=stop))

        async def until(sample: str) -> None:
            for _ in range(300):
                if sample in (await get(port, "/metrics"))[1]:
                    return
                await asyncio.sleep(0.02)
            raise AssertionError(sample)

        await until('sluice_agent_sealed_records_total{kind="logs"} 100.0')
        log.write_bytes(bytes(400) + b"two\n")
        await until("sluice_agent_hole_bytes_total 400.0")
        await until("sluice_agent_rewritten_files_total 1.0")
        await until("sluice_agent_binary_files 1.0")
        await until('sluice_agent_sealed_records_total{kind="logs"} 101.0')
        stop.set()
        await agent

    with GatewayDouble() as gateway:
        asyncio.run(main(gateway))
    found = read_report(tmp_path / "s")
    assert found is not None
    assert (found.agent_id, found.rewritten, found.hole_bytes) == ("host-1", 1, 400)
    assert found.binary == (str(binary),)
