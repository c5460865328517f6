"""A spooling gateway is killed at every store call; no acknowledged record and no space is lost."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.gateway import CountingStore, frame_of, identity
from support.gateway_journal import all_named, frontier
from support.memory_bucket import Crashed, Fault, MemoryBucket, Scripted, open_memory_store
from support.spool_process import AGREED, SpoolProcess

from sluice_gateway.spool.records import untransferred_keys
from sluice_protocol.acceptance import Accepted, Conflict
from sluice_protocol.errors import StoreMisconfigured
from sluice_protocol.keys import (
    ACCEPTED,
    QUARANTINE_CONFLICTS,
    RAW_BLOBS,
    accepted_key,
    blob_key,
    digest_of,
    quarantine_key,
)
from sluice_protocol.outcomes import (
    CreateOutcome,
    DeleteOutcome,
    ObjectInfo,
    OverwriteOutcome,
    Unknown,
    UnknownReason,
)
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, ObjectVersion, UnixNs
from sluice_store import create_authority
from sluice_store.port import ObjectStore


class LaterClock(SystemClock):
    """A clock that a restart advances, as the start of a process takes time."""

    ahead_ns = 0

    def now_ns(self) -> UnixNs:
        return UnixNs(super().now_ns() + self.ahead_ns)


@dataclass
class Machine:
    """A spool and its authority, which outlive the process; and what was acknowledged."""

    folder: Path
    clock: LaterClock
    local: MemoryBucket
    remote: MemoryBucket
    accepted: set[int] = field(default_factory=set)
    conflicts: set[int] = field(default_factory=set)
    acknowledged_ns: dict[int, int] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: Path) -> "Machine":
        clock = LaterClock()
        local = MemoryBucket(clock=clock, rng=random.Random(1))
        remote = MemoryBucket(clock=clock, rng=random.Random(2))
        made = cls(folder, clock, local, remote)
        asyncio.run(made.init())
        return made

    async def init(self) -> None:
        await create_authority(open_memory_store(self.remote)[0], AGREED)

    def live(self, kill_local: int = -1, kill_remote: int = -1, fault: Fault | None = None) -> None:
        """Run one process until it is done or killed."""
        self.clock.ahead_ns += 2 * NS_PER_S
        with suppress(Crashed):
            asyncio.run(self._live(_plan(kill_local, fault), _plan(kill_remote, fault)))
        asyncio.run(self.check_journals())

    async def _live(self, local_plan: Scripted, remote_plan: Scripted) -> None:
        local, self.local_calls = open_memory_store(self.local, plan=local_plan)
        remote, self.remote_calls = open_memory_store(self.remote, plan=remote_plan)
        process = await SpoolProcess.start(self.folder, local, remote)
        for seq in range(3):
            await self._upload(process, seq)
        await self._upload_other(process, 1)
        await process.transfer.transfer_once()
        self.clock.ahead_ns += 2 * NS_PER_S
        await process.journal.write_due()
        await self._upload(process, 0)  # a duplicate stores its bytes again
        await process.transfer.transfer_once()
        await process.sweep()
        await process.journal.close(transferred=await process.transfer.finish())

    async def _upload(self, process: SpoolProcess, seq: int) -> None:
        if isinstance(await process.upload(identity(seq=seq)), Accepted):
            self.accepted.add(seq)
            self.acknowledged_ns.setdefault(seq, self.clock.now_ns())
            self.clock.ahead_ns += 2 * NS_PER_S

    async def _upload_other(self, process: SpoolProcess, seq: int) -> None:
        if isinstance(await process.upload(identity(seq=seq), "other"), Conflict):
            self.conflicts.add(seq)

    async def recover(self) -> None:
        """Start again, without uploads."""
        self.clock.ahead_ns += 2 * NS_PER_S
        local, remote = open_memory_store(self.local)[0], open_memory_store(self.remote)[0]
        process = await SpoolProcess.start(self.folder, local, remote)
        assert await process.transfer.finish()
        await process.sweep()

    async def check_journals(self) -> None:
        """Check that journals name every batch that was acknowledged before their time."""
        remote = open_memory_store(self.remote)[0]
        known, later_ns = await all_named(remote), UnixNs(self.clock.now_ns() + 3600 * NS_PER_S)
        through_ns = (await frontier(remote, later_ns)).complete_through_ns
        if through_ns == later_ns:  # no open registration: nothing may be missing
            assert set(self.acknowledged_ns) <= known
        for seq, at_ns in self.acknowledged_ns.items():
            assert seq in known or at_ns >= through_ns, (seq, at_ns, through_ns)

    async def check(self) -> None:
        assert self.accepted <= await all_named(open_memory_store(self.remote)[0])
        local, remote = open_memory_store(self.local)[0], open_memory_store(self.remote)[0]
        assert [key async for key in untransferred_keys(local)] == []
        assert await _keys(local, RAW_BLOBS) == [], "blobs that no record needs"
        for seq in self.accepted:
            await self._is_there(
                remote, accepted_key(identity(seq=seq)), frame_of(identity(seq=seq))
            )
        for seq in self.conflicts:
            other = frame_of(identity(seq=seq), "other")
            await self._is_there(remote, quarantine_key(identity(seq=seq), digest_of(other)), other)
        here = await _keys(local, ACCEPTED) + await _keys(local, QUARANTINE_CONFLICTS)
        there = await _keys(remote, ACCEPTED) + await _keys(remote, QUARANTINE_CONFLICTS)
        assert here == there

    async def _is_there(self, remote: ObjectStore, key: ObjectKey, frame: bytes) -> None:
        assert isinstance(await remote.head(key), ObjectInfo)
        assert isinstance(await remote.head(blob_key(digest_of(frame))), ObjectInfo)


def _plan(number: int, fault: Fault | None) -> Scripted:
    faults: Mapping[int, Fault] = {} if fault is None or number < 0 else {number: fault}
    return Scripted(faults)


async def _keys(store: ObjectStore, prefix: str) -> list[ObjectKey]:
    return [item.key async for page in store.list(prefix) for item in page.objects]


@pytest.mark.parametrize(
    ("fault", "every"),
    [
        (Fault.CRASH_BEFORE, 3),
        pytest.param(Fault.CRASH_BEFORE, 1, marks=pytest.mark.long),
        pytest.param(Fault.CRASH_AFTER, 1, marks=pytest.mark.long),
    ],
)
def test_a_kill_at_every_call_leaves_no_blob_and_loses_no_record(
    tmp_path: Path, fault: Fault, every: int
) -> None:
    """A kill after a call leaves both stores as one before the next call of either."""
    whole = Machine.create(tmp_path)
    whole.live()
    assert (whole.accepted, whole.conflicts) == ({0, 1, 2}, {1})
    asyncio.run(whole.check())
    local, remote = whole.local_calls.calls, whole.remote_calls.calls
    assert min(local, remote) > 15
    kills = [(number, -1) for number in range(local)] + [(-1, number) for number in range(remote)]
    for kill_local, kill_remote in kills[::every]:
        machine = Machine.create(tmp_path)
        machine.live(kill_local, kill_remote, fault)
        asyncio.run(machine.recover())
        asyncio.run(machine.check())


@pytest.mark.long
@pytest.mark.parametrize("steps", [(14, 9), pytest.param((7, 4), marks=pytest.mark.long)])
def test_two_kills_in_a_row_leave_no_blob(tmp_path: Path, steps: tuple[int, int]) -> None:
    """The second process is killed too, at every few calls of the spool."""
    for first in range(0, 60, steps[0]):
        for second in range(0, 60, steps[1]):
            machine = Machine.create(tmp_path)
            machine.live(kill_local=first, fault=Fault.CRASH_AFTER)
            machine.live(kill_local=second, fault=Fault.CRASH_BEFORE)
            asyncio.run(machine.recover())
            asyncio.run(machine.check())


class FullDisk(CountingStore):
    """A store that refuses every write while it is full; deletes free space."""

    full = False
    frees_after = 10**6
    """Number of deletes after which there is space again."""
    deletes = 0

    def _check(self, key: ObjectKey) -> None:
        if self.full and self.deletes < self.frees_after:
            raise StoreMisconfigured("create", key, "the disk is full: free space")

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        self._check(key)
        return await super().create(key, body, sha256=sha256)

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        self._check(key)
        return await super().overwrite(key, body, sha256=sha256)

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        self.deletes += 1
        return await super().delete(key, incarnation)


@pytest.mark.parametrize("frees_after", [1, 3, 10**6])
def test_a_full_spool_starts_transfers_and_frees_its_space(
    tmp_path: Path, frees_after: int
) -> None:
    """With no space at all every blob is transferred and deleted; the markers follow later."""
    machine = Machine.create(tmp_path)

    async def main() -> None:
        remote = open_memory_store(machine.remote)[0]
        local = FullDisk(open_memory_store(machine.local)[0])
        before = await SpoolProcess.start(tmp_path, local, remote)
        for seq in range(5):
            await machine._upload(before, seq)
        await machine._upload_other(before, 1)
        local.full, local.frees_after, local.deletes = True, frees_after, 0
        started = await SpoolProcess.start(tmp_path, local, remote)
        await started.transfer.transfer_once()
        await started.transfer.transfer_once()
        if frees_after > 5:
            assert len(await _keys(local, RAW_BLOBS)) == 1, "the conflict needs its owner's marker"
            local.full = False
        assert await started.transfer.finish()

    asyncio.run(main())
    assert (len(machine.accepted), machine.conflicts) == (5, {1})
    asyncio.run(machine.check())


class LosingQuarantine(CountingStore):
    """An authority that refuses the first quarantine records, or a spool that loses responses."""

    refusals = 0

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        outcome = await super().create(key, body, sha256=sha256)
        if key.startswith(QUARANTINE_CONFLICTS) and self.refusals:
            self.refusals -= 1
            return Unknown(reason=UnknownReason.TIMEOUT)
        return outcome


def test_the_end_of_a_process_includes_conflicts_that_failed_at_first(tmp_path: Path) -> None:
    """`finish` repeats the pass until the authority has the record, or reports that it has not."""
    machine = Machine.create(tmp_path)

    async def main() -> None:
        remote = FullDisk(open_memory_store(machine.remote)[0])
        local = open_memory_store(machine.local)[0]
        process = await SpoolProcess.start(tmp_path, local, remote)
        await machine._upload(process, 1)
        await process.transfer.transfer_once()
        await machine._upload_other(process, 1)
        remote.full = True
        assert not await process.transfer.finish()
        remote.full = False
        assert await process.transfer.finish()

    asyncio.run(main())
    assert machine.conflicts == {1}
    asyncio.run(machine.check())


def test_a_record_whose_response_was_lost_is_transferred_before_the_end(tmp_path: Path) -> None:
    """The upload got a 503, but its quarantine record exists in the spool."""
    machine = Machine.create(tmp_path)

    async def main() -> None:
        remote = open_memory_store(machine.remote)[0]
        local = LosingQuarantine(open_memory_store(machine.local)[0])
        process = await SpoolProcess.start(tmp_path, local, remote)
        await machine._upload(process, 1)
        await process.transfer.transfer_once()
        local.refusals = 10**6
        await machine._upload_other(process, 1)
        await process.transfer.transfer_once()
        assert process.transfer.pending == 0
        assert len(await _keys(remote, QUARANTINE_CONFLICTS)) == 1

    asyncio.run(main())
    assert machine.conflicts == set()
    asyncio.run(machine.check())
