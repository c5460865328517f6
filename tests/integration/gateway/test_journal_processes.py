"""Real gateway processes: what their journals contain after a kill, a pause and a clean stop."""

import asyncio
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.gateway import GatewayProcess, TestKey, frame_of, gateways, identity
from support.gateway_journal import journals, named, registrations

from sluice_protocol.journals import GatewayProcess as Registration
from sluice_protocol.journals import Journal
from sluice_store import StoreMode, open_store

HOST = TestKey("host-1", ("host-1",))


def statuses(server: GatewayProcess, seqs: Iterable[int]) -> set[int]:
    """Upload a batch for each number."""
    sent = server.upload(HOST, *(frame_of(identity(seq=seq)) for seq in seqs))
    return {one.status for one in sent}


def stored(folder: Path) -> tuple[dict[str, Registration], dict[str, list[Journal]]]:
    async def read() -> tuple[dict[str, Registration], dict[str, list[Journal]]]:
        async with open_store(f"file://{folder}/store", StoreMode.CREATE) as store:
            return await registrations(store), await journals(store)

    return asyncio.run(read())


def await_named(folder: Path, wanted: set[int]) -> dict[str, list[Journal]]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = stored(folder)[1]
        if wanted <= {seq for objects in found.values() for seq in named(objects)}:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not journaled: {wanted}, {stored(folder)[1]}")


def await_listening(server: GatewayProcess, workers: int) -> None:
    until = time.monotonic() + 90
    while len(server.events("gateway_listening")) < workers:
        assert time.monotonic() < until, server.log.read_text(encoding="utf-8")
        time.sleep(0.05)


@pytest.mark.long
def test_a_clean_stop_closes_the_journal_of_every_worker(tmp_path: Path) -> None:
    with gateways(tmp_path, HOST, flags=("--workers", "2")) as (server,):
        await_listening(server, 2)
        assert statuses(server, range(6)) == {200}
        assert server.stop() == 0
        records, found = stored(tmp_path)
        assert len(records) == 2
        assert set(found) == set(records)
        assert sorted(seq for objects in found.values() for seq in named(objects)) == list(range(6))
        assert all(objects[-1].header.closed for objects in found.values())


def test_a_killed_gateway_leaves_its_journal_open_and_a_retry_is_journaled(tmp_path: Path) -> None:
    """The second gateway journals every duplicate, whatever the first one had written."""
    with gateways(tmp_path, HOST, count=2) as (victim, other):
        assert statuses(victim, range(4)) == {200}
        victim.kill()
        assert statuses(other, range(4)) == {200}
        await_named(tmp_path, set(range(4)))
        assert other.stop() == 0
        found = stored(tmp_path)[1]
        (closed,) = [objects for objects in found.values() if objects[-1].header.closed]
        assert sorted(named(closed)) == list(range(4))


def test_a_gateway_stopped_longer_than_the_fence_registers_before_it_answers(
    tmp_path: Path,
) -> None:
    """The first batch stays in the cache: its duplicate is fenced too."""
    with gateways(tmp_path, HOST, flags=("--journal-fence-s", "2")) as (server,):
        assert statuses(server, [0]) == {200}
        await_named(tmp_path, {0})
        (first,) = stored(tmp_path)[0]
        os.kill(server.process.pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(server.process.pid, signal.SIGCONT)
        assert statuses(server, [0]) == {200}
        records = stored(tmp_path)[0]
        assert len(records) >= 2, "it registered before it answered"
        assert server.events("journal_lapsed")
        assert statuses(server, [1]) == {200}
        found = await_named(tmp_path, {0, 1})
        assert 1 not in named(found[first])
        assert server.stop() == 0
        assert all(objects[-1].header.closed for objects in stored(tmp_path)[1].values())
