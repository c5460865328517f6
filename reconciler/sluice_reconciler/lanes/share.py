"""The membership of one reconciler: it writes heartbeats, reads those of others, and shares lanes.

The steps of one beat, and what happens if the process dies after it:

    1 list the member records, read changed ones    another member takes its lanes when it is dead
    2 decide, and stop work on released lanes       as above
    3 store the states of the released lanes        as above; nothing is left to resolve
    4 write the record with the new lanes           the released lanes are taken immediately
    5 start work on the new lanes                   another member takes them when it is dead
"""

import asyncio

import structlog
from msgspec.structs import replace

from sluice_protocol.errors import InvalidRecord, OutcomeUnknown, SluiceError, StoreError
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.membership import (
    HANDOVER_MAX_S,
    HEARTBEAT_S,
    MEMBERS,
    MEMBERS_MAX,
    WORK_S,
    HostProcesses,
    MemberRecord,
    SeenRecord,
    decide_shares,
    is_forgotten,
    is_live,
    member_key,
    read_member_record,
)
from sluice_reconciler.lanes.state import OwnerClaim
from sluice_reconciler.lanes.worker import LaneWorkers
from sluice_reconciler.loop_health import RETRY_S, Loop, ReconcilerHealth
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_store.port import ListedObject, ObjectStore
from sluice_store.retry import WRITE_RETRY, delete_current_version, overwrite_known

log = structlog.get_logger()


class LaneShare:
    """One reconciler's share of the lanes."""

    def __init__(
        self,
        store: ObjectStore,
        lanes: int,
        workers: LaneWorkers,
        runtime: Runtime,
        metrics: ReconcilerMetrics,
        processes: HostProcesses | None = None,
    ) -> None:
        self._store = store
        self._processes = processes if processes is not None else HostProcesses()
        self._lanes = lanes
        self._workers = workers
        self._runtime = runtime
        self._metrics = metrics
        self._mine = MemberRecord(
            member=runtime.ids.ulid(),
            process=self._processes.current(),
            host=self._processes.host_name(),
        )
        self._seen: dict[ObjectKey, SeenRecord] = {}
        self._others: tuple[MemberRecord, ...] = ()
        self._awaited_since_ns: dict[int, int] = {}
        self._beat_at_ns: int | None = None
        self.url = ""
        """Where this process is reached, as the record shows it."""
        workers.claim_as(self.claim)

    @property
    def member(self) -> str:
        """The id of this member."""
        return self._mine.member

    @property
    def members(self) -> tuple[MemberRecord, ...]:
        """The live members as last read, this one included, in order."""
        return tuple(sorted((self._mine, *self._others), key=lambda one: one.member))

    def claim(self) -> OwnerClaim:
        """Return this process as the lanes that it takes name it."""
        mine = self._mine
        return OwnerClaim(
            member=mine.member,
            url=self.url,
            host=mine.host,
            pid=mine.process.pid if mine.process is not None else 0,
            sharing=self._beat_at_ns is not None,
        )

    def owner_of(self, lane: int) -> MemberRecord | None:
        """Return the live member that works on a lane; None while it is handed over."""
        return next((one for one in self.members if lane in one.lanes), None)

    def owner_url(self, lane: int) -> str:
        """Return the advertised URL of another owner; empty if there is none."""
        owner = self.owner_of(lane)
        return "" if owner is None or owner.member == self._mine.member else owner.url

    async def run(self, health: ReconcilerHealth) -> None:
        """Beat until cancelled; a store error is logged, and the beat is repeated.

        Failures of other loops do not stop heartbeats: without lanes no other loop could show that
        it works again. The record names them instead. `health` records failures and provides what
        the record names.
        """
        self._workers.share(frozenset())
        while True:
            self._mine = replace(self._mine, stalled=health.stalled)
            try:
                await self.beat()
            except SluiceError as error:
                health.fail(Loop.MEMBERS, error)
                pause_s = RETRY_S
            else:
                health.succeed(Loop.MEMBERS)
                pause_s = HEARTBEAT_S
            if self._is_late():
                self._workers.share(frozenset())
            await self._runtime.clock.sleep(pause_s)

    def _is_late(self) -> bool:
        """Return True if other members may count this one as dead soon."""
        now_ns = self._runtime.clock.monotonic_ns()
        return self._beat_at_ns is None or now_ns - self._beat_at_ns > WORK_S * NS_PER_S

    async def beat(self) -> None:
        """Read the other members, hand over and take lanes, and write the heartbeat."""
        began_ns = self._runtime.clock.monotonic_ns()
        if self._is_late():
            # Others may have taken the lanes: they are awaited again.
            await self._hand_over(frozenset(self._mine.lanes))
            self._mine = replace(self._mine, lanes=())
        if self._beat_at_ns is None:
            await self._write()  # others learn of this member before it reads what they do
        await self._read_others()
        shares = decide_shares(
            self.member,
            {one.member: one.lanes for one in self._others},
            frozenset(self._mine.lanes),
            self._lanes,
            self._overdue(),
        )
        await self._hand_over(shares.released)
        self._observe_awaited(shares.awaited)
        before = self._mine.lanes
        self._mine = replace(self._mine, lanes=tuple(sorted(shares.working)))
        await self._write()
        self._beat_at_ns = began_ns
        await self._workers.share_with_refresh(shares.working)
        self._metrics.lanes_shared.set(len(shares.working))
        if before != self._mine.lanes:
            log.info("lanes_shared", lanes=self._mine.lanes, members=len(self._others) + 1)

    async def _hand_over(self, lanes: frozenset[int]) -> None:
        """Stop work on lanes, and store their states for the next owner."""
        if lanes:
            self._workers.share(frozenset(self._mine.lanes) - lanes)
            await self._workers.release(lanes)

    def _overdue(self) -> frozenset[int]:
        now_ns = self._runtime.clock.monotonic_ns()
        return frozenset(
            lane
            for lane, since_ns in self._awaited_since_ns.items()
            if now_ns - since_ns > HANDOVER_MAX_S * NS_PER_S
        )

    def _observe_awaited(self, awaited: frozenset[int]) -> None:
        now_ns = self._runtime.clock.monotonic_ns()
        since_ns = self._awaited_since_ns
        self._awaited_since_ns = {lane: since_ns.get(lane, now_ns) for lane in awaited}

    async def _write(self) -> None:
        self._mine = replace(self._mine, url=self.url)
        await self._overwrite(self._mine)

    async def _overwrite(self, record: MemberRecord) -> None:
        await overwrite_known(
            self._store,
            member_key(record.member),
            encode_record(record),
            self._runtime.backoff(WRITE_RETRY),
        )

    async def _read_others(self) -> None:
        """Read the records of live members that changed; delete those of dead ones.

        A process of this machine that was killed is recognised before its record is too old, and
        marked as if it had left. Its record is not deleted: a store with versions would restore the
        one before it, which names its lanes.
        """
        seen: dict[ObjectKey, SeenRecord] = {}
        for one in (await self._list_live())[:MEMBERS_MAX]:
            before = self._seen.get(one.key)
            found = before if before and before.etag == one.etag else await self._read(one.key)
            if found is None:
                continue
            seen[one.key] = found
            if not found.record.leaving and self._has_ended(found.record):
                log.info("member_ended", member=found.record.member)
                left = replace(found.record, lanes=(), leaving=True)
                await self._overwrite(left)
                seen[one.key] = SeenRecord(etag=found.etag, record=left)
        self._seen = seen
        self._others = tuple(one.record for one in seen.values() if not one.record.leaving)

    async def _list_live(self) -> list[ListedObject]:
        """List the records of live members; delete those that are long dead."""
        live: list[ListedObject] = []
        async for page in self._store.list(MEMBERS):
            for one in page.objects:
                if one.key == member_key(self.member):
                    continue
                if is_live(one.last_modified_ns, page.date_ns):
                    live.append(one)
                elif is_forgotten(one.last_modified_ns, page.date_ns):
                    await delete_current_version(self._store, one.key)
        return live

    def _has_ended(self, record: MemberRecord) -> bool:
        return record.process is not None and self._processes.has_ended(record.process)

    async def _read(self, key: ObjectKey) -> SeenRecord | None:
        try:
            return await read_member_record(self._store, key)
        except InvalidRecord as error:
            log.warning("member_record_unreadable", key=key, reason=error.reason)
            return None

    async def leave(self) -> None:
        """Let others take the lanes; call it after the lane states were stored.

        An error is ignored: the record gets too old.
        """
        if self._beat_at_ns is None:
            return
        self._mine = replace(self._mine, lanes=(), leaving=True)
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._write()
        except (OutcomeUnknown, StoreError, TimeoutError):
            return
