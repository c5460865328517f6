"""Manifests of a spool expire after the retry horizon; an identity keeps its one owner."""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.gateway import CountingStore, frame_of, identity
from support.gateway_journal import all_named
from support.memory_bucket import Crashed, Fault, MemoryBucket, Scripted, open_memory_store
from support.spool_process import AGREED, SpoolProcess

from sluice_gateway.spool.acceptor import EXPIRED, expired_key
from sluice_gateway.spool.records import untransferred_keys
from sluice_protocol.acceptance import Accepted, Conflict, RetriesExhausted
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import (
    ACCEPTED,
    RAW_BLOBS,
    accepted_key,
    blob_key,
    digest_of,
    quarantine_key,
)
from sluice_protocol.manifests import TRANSFER_MARKERS
from sluice_protocol.outcomes import CreateOutcome, GetOutcome, ObjectInfo
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs
from sluice_store import create_authority
from sluice_store.port import ObjectStore

KEPT_S = AGREED.retry_horizon_s + AGREED.margin_s
COUNT = 3


class LaterClock(SystemClock):
    """The system's clock, ahead by what a test sets."""

    ahead_s = 0.0

    def now_ns(self) -> UnixNs:
        return UnixNs(super().now_ns() + int(self.ahead_s * NS_PER_S))


class Away(CountingStore):
    """An authority that can be unreachable."""

    away = False

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        if self.away:
            raise StoreUnavailable("get", key, "unreachable")
        return await super().get(key, first=first, last=last)

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        if self.away:
            raise StoreUnavailable("create", key, "unreachable")
        return await super().create(key, body, sha256=sha256)


@dataclass
class Site:
    """A spool and its authority."""

    folder: Path
    clock: LaterClock
    local: MemoryBucket
    remote: MemoryBucket

    @classmethod
    async def landed(cls, folder: Path) -> "Site":
        """Return a site whose batches have landed."""
        clock = LaterClock()
        local = MemoryBucket(clock=clock, rng=random.Random(1))
        remote = MemoryBucket(clock=clock, rng=random.Random(2))
        site = cls(folder, clock, local, remote)
        await create_authority(open_memory_store(remote)[0], AGREED)
        process = await site.start()
        for seq in range(COUNT):
            assert isinstance(await process.upload(identity(seq=seq)), Accepted)
        assert await process.transfer.finish()
        return site

    async def start(
        self, plan: Scripted | None = None, remote: ObjectStore | None = None
    ) -> SpoolProcess:
        local, self.calls = open_memory_store(self.local, plan=plan or Scripted({}))
        return await SpoolProcess.start(
            self.folder, local, remote or open_memory_store(self.remote)[0]
        )

    async def keys(self, prefix: str) -> list[ObjectKey]:
        store = open_memory_store(self.local)[0]
        return [item.key async for page in store.list(prefix) for item in page.objects]

    async def check_owners(self) -> None:
        """Check that other bytes never get an identity, and that its owner is a duplicate."""
        process = await self.start()
        for seq in range(COUNT):
            verdict = await process.upload(identity(seq=seq), "other")
            assert isinstance(verdict, Conflict), (seq, verdict)
            verdict = await process.upload(identity(seq=seq))
            assert isinstance(verdict, Accepted)
            assert verdict.duplicate, seq
        assert await process.transfer.finish()
        await process.sweep()
        remote, local = open_memory_store(self.remote)[0], open_memory_store(self.local)[0]
        for seq in range(COUNT):
            other = digest_of(frame_of(identity(seq=seq), "other"))
            key = quarantine_key(identity(seq=seq), other)
            assert isinstance(await remote.head(key), ObjectInfo)
        assert [key async for key in untransferred_keys(local)] == []
        assert await self.keys(RAW_BLOBS) == []
        assert set(range(COUNT)) <= await all_named(remote)


async def test_manifests_expire_after_the_horizon_and_not_before(tmp_path: Path) -> None:
    site = await Site.landed(tmp_path)
    site.clock.ahead_s = KEPT_S - 60
    assert await (await site.start()).acceptor.expiry.expire_page() == 0
    assert len(await site.keys(ACCEPTED)) == COUNT
    site.clock.ahead_s = KEPT_S + 60
    process = await site.start()
    assert await process.acceptor.expiry.expire_page() == COUNT
    assert await site.keys(ACCEPTED) == []
    assert await site.keys(f"{TRANSFER_MARKERS}{ACCEPTED}") == []
    assert len(await site.keys(EXPIRED)) == 1
    assert await process.transfer.finish()
    await site.check_owners()


async def test_a_damaged_manifest_stops_neither_the_sweep_nor_the_expiry(tmp_path: Path) -> None:
    """Its blob is kept, and it stays pending until an operator restores it."""
    site = await Site.landed(tmp_path)
    local = open_memory_store(site.local)[0]
    damaged, unneeded = identity(seq=100), identity(seq=200)
    blobs = {who: blob_key(digest_of(frame_of(who, "hello"))) for who in (damaged, unneeded)}
    for who, key in blobs.items():
        await local.create(key, frame_of(who, "hello"))
    await local.create(accepted_key(damaged), b"damaged")
    site.clock.ahead_s = KEPT_S + 60
    process = await site.start()
    running = asyncio.create_task(process.transfer.run())
    for _ in range(500):
        if await site.keys(ACCEPTED) == [accepted_key(damaged)]:
            break
        await asyncio.sleep(0.01)
    running.cancel()
    assert await site.keys(ACCEPTED) == [accepted_key(damaged)]
    assert await site.keys(RAW_BLOBS) == [blobs[damaged]]
    assert process.transfer.pending == 1


async def test_a_damaged_mark_stops_no_expiry_and_leaves_decisions_to_the_authority(
    tmp_path: Path,
) -> None:
    """Every number of the boot may have expired, so none is decided here."""
    site = await Site.landed(tmp_path)
    who = identity(seq=0)
    mark = expired_key(who.agent_id, who.boot_id)
    await open_memory_store(site.local)[0].create(mark, b"damaged")
    site.clock.ahead_s = KEPT_S + 60
    process = await site.start()
    assert await process.acceptor.expiry.expire_page() == COUNT
    assert await site.keys(ACCEPTED) == []
    assert await process.acceptor.expiry.may_have_expired(identity(seq=100))
    await site.check_owners()
    verdict = await process.upload(identity(seq=100))
    assert isinstance(verdict, Accepted)
    assert not verdict.duplicate


@pytest.mark.daily(1)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
async def test_a_kill_at_every_call_of_the_expiry_changes_no_owner(
    tmp_path: Path, fault: Fault
) -> None:
    async def expire(site: Site, plan: Scripted) -> int:
        process = await site.start(plan)
        started = site.calls.calls
        with suppress(Crashed):
            await process.acceptor.expiry.expire_page()
        return started

    whole = await Site.landed(tmp_path)
    whole.clock.ahead_s = KEPT_S + 60
    first = await expire(whole, Scripted({}))
    last = whole.calls.calls
    assert last - first > 2 * COUNT
    for number in range(first, last):
        site = await Site.landed(tmp_path)
        site.clock.ahead_s = KEPT_S + 60
        await expire(site, Scripted({number: fault}))
        await site.check_owners()
        await expire(site, Scripted({}))
        assert await site.keys(f"{TRANSFER_MARKERS}{ACCEPTED}") == []
        await site.check_owners()


async def test_without_the_authority_only_later_numbers_are_accepted(tmp_path: Path) -> None:
    """An identity that may have expired waits for the authority; a new one does not."""
    site = await Site.landed(tmp_path)
    site.clock.ahead_s = KEPT_S + 60
    await (await site.start()).acceptor.expiry.expire_page()
    remote = Away(open_memory_store(site.remote)[0])
    process = await site.start(remote=remote)
    remote.away = True
    assert isinstance(await process.upload(identity(seq=COUNT)), Accepted)
    assert isinstance(await process.upload(identity(seq=1), "other"), RetriesExhausted)
    assert accepted_key(identity(seq=1)) not in await site.keys(ACCEPTED)
    remote.away = False
    assert isinstance(await process.upload(identity(seq=1), "other"), Conflict)


async def test_a_manifest_in_use_does_not_expire(tmp_path: Path) -> None:
    """A running upload, and a duplicate that the transfer has not finished, keep it."""
    site = await Site.landed(tmp_path)
    site.clock.ahead_s = KEPT_S + 60
    process = await site.start()
    expiry = process.acceptor.expiry
    async with expiry.uploading(identity(seq=0)):
        assert isinstance(await process.upload(identity(seq=1)), Accepted)  # pending again
        assert await expiry.expire_page() == COUNT - 2
    assert len(await site.keys(ACCEPTED)) == 2
    assert await process.transfer.finish()
    later = await site.start()
    assert await later.acceptor.expiry.expire_page() == 2


async def test_a_batch_that_only_the_authority_accepted_is_in_its_journal(tmp_path: Path) -> None:
    """A low number that was never sent before is new; it is journaled before the response."""
    site = await Site.landed(tmp_path)
    process = await site.start()
    assert isinstance(await process.upload(identity(seq=9)), Accepted)
    assert await process.transfer.finish()
    site.clock.ahead_s = KEPT_S + 60
    process = await site.start()
    await process.acceptor.expiry.expire_page()
    verdict = await process.upload(identity(seq=5))
    assert isinstance(verdict, Accepted)
    assert not verdict.duplicate
    assert 5 in await all_named(open_memory_store(site.remote)[0])
