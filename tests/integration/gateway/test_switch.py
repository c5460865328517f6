"""Mode switches between `local_spool` and `s3_manifest` with real gateways."""

import asyncio
import json
from pathlib import Path

import pytest
from support.commands import sluice
from support.gateway import (
    CountingStore,
    GatewayProcess,
    HttpResult,
    TestKey,
    frame_of,
    identity,
    running,
    start_gateway,
    write_principals,
)
from support.local_deployment import run_sluice
from support.store_versitygw import CREDENTIALS, make_bucket, versitygw

from sluice_gateway.spool.claim import mirror_authority
from sluice_gateway.spool.mode_switch import adopt_records, switch_to_manifest, switch_to_spool
from sluice_gateway.uploads.admission import NOTICE_S_MAX, SETTLE_S
from sluice_protocol.authority import Authority
from sluice_protocol.clock import MachineInstant
from sluice_protocol.errors import BadUsage, StoreUnavailable
from sluice_protocol.outcomes import CreateOutcome
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey
from sluice_store import StoreMode, create_authority, open_store, read_authority
from sluice_store.authority import read_history

HOST = TestKey("host-1", ("host-1",))
WRITER = "spool-gw"


def frames(first: int, count: int, text: str = "hello") -> list[bytes]:
    return [frame_of(identity(seq=seq), text=text) for seq in range(first, first + count)]


def verdicts(answers: list[HttpResult]) -> set[tuple[int, bool | None]]:
    return {(answer.status, answer.body.get("duplicate")) for answer in answers}


def test_the_mode_is_switched_there_and_back_with_real_gateways(tmp_path: Path) -> None:
    """Spool, two gateways, spool again: every accepted batch stays a duplicate."""
    there_and_back(tmp_path, f"file://{tmp_path}/store")


@pytest.mark.s3
def test_the_mode_is_switched_there_and_back_over_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with a bucket of a real S3 server as the authority."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with versitygw(tmp_path / "server") as server:
        url = server.url("switch", "run")
        asyncio.run(make_bucket(url))
        there_and_back(tmp_path, url)


def there_and_back(tmp_path: Path, url: str) -> None:
    spool = f"file://{tmp_path}/spool"
    there = ("--store", url)
    spooling = ("--spool", spool, "--collector-id", WRITER)
    slow = (*spooling, "--object-landing-interval-ms", "60000", "--switch-settle-s", "0")
    leave = ("switch", "s3_manifest", *there, "--spool", spool)
    enter = ("switch", "local_spool", *there, "--spool-writer")
    mode = ("--acceptance", "local_spool", "--spool-writer", WRITER)
    assert sluice("init", *there, *mode).returncode == 0
    principals = write_principals(tmp_path / "principals.toml", HOST)
    servers: list[GatewayProcess] = []

    def start(*flags: str) -> GatewayProcess:
        servers.append(start_gateway(tmp_path, url, principals, *flags))
        return servers[-1]

    try:
        first = start(*slow)
        assert verdicts(first.upload(HOST, *frames(0, 5))) == {(200, False)}
        assert "another gateway has locked this spool" in sluice(*leave).stderr
        first.kill()
        refused = sluice(*leave)
        assert refused.returncode == 2
        assert "contains records to transfer" in refused.stderr
        assert start(*slow).stop() == 0  # it transfers the rest before it exits
        left = sluice(*leave, "--json")
        assert json.loads(left.stdout)["acceptance"] == "s3_manifest", left.stderr

        if url.startswith("s3://"):
            assert sluice("doctor", *there).returncode == 0
        both = [start(), start()]
        for server in both:
            assert verdicts(server.upload(HOST, *frames(0, 5))) == {(200, True)}
        assert verdicts(both[0].upload(HOST, *frames(5, 5))) == {(200, False)}
        assert verdicts(both[1].upload(HOST, *frames(5, 5))) == {(200, True)}
        assert "may spool again" in sluice(*enter, "other").stderr
        back = sluice(*enter, WRITER, "--json")
        assert json.loads(back.stdout)["spool_writer"] == WRITER, back.stderr
        for server in both:  # each reads the switch and drains
            assert server.process.wait(30) == 0
        flags = ("--listen", "127.0.0.1:0", "--principals", str(principals))
        assert "acceptance mode differs" in run_sluice(tmp_path, "gateway", *there, *flags).stderr

        again = start(*slow)
        assert verdicts(again.upload(HOST, *frames(0, 10))) == {(200, True)}
        assert verdicts(again.upload(HOST, *frames(3, 4, text="other"))) == {(409, None)}
        assert verdicts(again.upload(HOST, *frames(10, 2))) == {(200, False)}
        assert again.stop() == 0
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.kill()


class Away(CountingStore):
    """An authority that becomes unreachable at the write."""

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        del body, sha256
        raise StoreUnavailable("create", key, "unreachable")


async def test_an_unfinished_switch_closes_the_spool_until_it_is_repeated(tmp_path: Path) -> None:
    """The spool closes first: after a crash it does not start until the command is repeated."""
    async with (
        open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as remote,
        open_store(f"file://{tmp_path}/spool", StoreMode.CREATE) as local,
    ):
        spooled = Authority(
            authority_id="01J00000000000000000000000",
            retry_horizon_s=900_000,
            acceptance="local_spool",
            spool_writer=WRITER,
        )
        before = await create_authority(remote, spooled)
        await mirror_authority(local, remote, SystemClock())
        with pytest.raises(StoreUnavailable):
            await switch_to_manifest(Away(remote), local, SystemClock())
        assert (await read_authority(local)).acceptance == "s3_manifest"
        with pytest.raises(BadUsage, match="is unfinished"):
            await mirror_authority(local, remote, SystemClock())
        after = await switch_to_manifest(remote, local, SystemClock())
        assert after == await read_authority(remote)
        assert (after.acceptance, after.spool_writer) == ("s3_manifest", None)
        kept = (before.authority_id, before.retry_horizon_s, before.lanes, before.margin_s)
        assert (
            after.authority_id,
            after.retry_horizon_s,
            after.lanes,
            after.margin_s,
        ) == kept
        history = await read_history(remote)
        assert await switch_to_manifest(remote, local, SystemClock()) == after
        assert await read_history(remote) == history


async def test_of_concurrent_switches_one_wins(tmp_path: Path) -> None:
    """Ten concurrent switches to ten writers: one number, one winner, the others fail."""
    async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as remote:
        await create_authority(remote)
        names = [f"gw-{number}" for number in range(10)]
        done = await asyncio.gather(
            *(switch_to_spool(remote, name, SystemClock()) for name in names),
            return_exceptions=True,
        )
        won = [one for one in done if isinstance(one, Authority)]
        assert len(won) == 1
        assert all(isinstance(one, BadUsage) for one in done if one not in won)
        assert await read_authority(remote) == won[0]
        assert len((await read_history(remote)).switches) == 1


def before(now: MachineInstant, seconds: float) -> MachineInstant:
    ago_ns = int(seconds * NS_PER_S)
    return MachineInstant(boottime_ns=now.boottime_ns - ago_ns, wall_ns=now.wall_ns - ago_ns)


async def test_a_repeated_switch_to_a_spool_writes_nothing(tmp_path: Path) -> None:
    async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as remote:
        await create_authority(remote)
        switched = await switch_to_spool(remote, WRITER, SystemClock())
        history = await read_history(remote)
        assert await switch_to_spool(remote, WRITER, SystemClock()) == switched
        with pytest.raises(BadUsage, match="another gateway spools already"):
            await switch_to_spool(remote, "gw-other", SystemClock())
        assert await read_history(remote) == history


async def test_a_gateway_that_cannot_check_for_a_switch_accepts_nothing(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, HOST) as server:
        now = server.gateway.mode.now()
        server.gateway.mode.checked_at = before(now, NOTICE_S_MAX - 5)
        assert (await server.client.upload(frame_of())).status == 200
        server.gateway.mode.checked_at = before(now, NOTICE_S_MAX)
        calls = len(server.store.calls)
        refused = await server.client.upload(frame_of(identity(seq=1)))
        assert (refused.status, refused.body["code"]) == (503, "store_unavailable")
        assert len(server.store.calls) == calls, "no call reached the store"


class Sleepless(SystemClock):
    """A clock that records the time that it should have slept."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)


async def test_spool_serves_only_after_no_gateway_of_the_old_mode_can_accept(
    tmp_path: Path,
) -> None:
    async with (
        open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as remote,
        open_store(f"file://{tmp_path}/spool", StoreMode.CREATE) as local,
    ):
        await create_authority(remote)
        await switch_to_spool(remote, WRITER, SystemClock())
        clock, history = Sleepless(), await read_history(remote)
        await adopt_records(local, remote, history, clock, SETTLE_S)
        assert len(clock.slept_s) == 1
        assert SETTLE_S - 10 < clock.slept_s[0] <= SETTLE_S
        await adopt_records(local, remote, history, clock, SETTLE_S)
        assert len(clock.slept_s) == 1, "once per switch"
