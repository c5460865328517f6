"""After an outage of the store, of any kind and length, all work continues within `RECOVERY_S`.

Gateways and reconcilers run with all of their loops in virtual time. During the outage some or all
calls fail, or the store's clock is wrong. Afterwards every gateway is ready, no loop of a
reconciler fails, every lane has an owner, the first batch is enqueued in time, and at the end every
acknowledged batch is in the queue once.

Gateways and reconcilers over one bucket in virtual time, and an outage of that bucket.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import pytest
from support.builders import log_columns, make_identity, salted_frame
from support.cost_world import SimMachine
from support.gateway import TestKey, write_principals
from support.memory_bucket import MemoryBucket, open_memory_store
from support.memory_bucket.faults import Call, Fault
from support.reconciler_seed import accept, enqueued
from support.repetitions import times
from support.simloop import SimIds, SimLoop, simulate

from sluice_gateway.metrics import UploadPhases
from sluice_gateway.process import app as gateway_app
from sluice_gateway.process.app import Gateway, build_gateway
from sluice_gateway.process.worker import start_background_tasks
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.uploads.acceptor import AcceptedResponse, Upload
from sluice_protocol.authority import Authority
from sluice_protocol.clock import machine_now
from sluice_protocol.errors import SluiceError, StoreUnavailable
from sluice_protocol.frame import decode_head
from sluice_protocol.identity import Identity
from sluice_protocol.keys import GATEWAY_PROCESSES, accepted_key, blob_key, digest_of
from sluice_protocol.outcomes import NotFound
from sluice_protocol.units import NS_PER_S
from sluice_queue.register_client import Runtime
from sluice_reconciler.loop_health import RECOVERY_S
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import create_authority
from sluice_store.doctor import examine, seal_result, write_result
from sluice_store.port import ObjectStore

READS = frozenset({"GET", "HEAD", "LIST"})
WRITES = frozenset({"PUT", "DELETE"})
CLOCK_AHEAD_NS = 20 * 60 * NS_PER_S
WARM_UP_S = 40.0
SEND_S = 0.5

FaultOf = Callable[[str], Fault | None]
"""Returns the fault of a call with this method during an outage."""

KINDS: dict[str, FaultOf] = {
    "reads_fail": lambda method: Fault.SLOW_DOWN if method in READS else None,
    "writes_fail": lambda method: Fault.SLOW_DOWN if method in WRITES else None,
    "all_fail": lambda _: Fault.SLOW_DOWN,
    "nothing_is_sent": lambda _: Fault.NOT_SENT,
    "all_denied": lambda _: Fault.DENIED,
    "writes_are_applied_and_fail": lambda method: Fault.ERROR_AFTER if method in WRITES else None,
    "listings_fail": lambda method: Fault.SLOW_DOWN if method == "LIST" else None,
    "clock_ahead": lambda _: None,
}


@dataclass
class Outage:
    """One outage; every component sees it at the same time.

    Attributes:
        kind: A name in `KINDS`.
        running: Whether it lasts at present.
    """

    kind: str
    running: bool = False

    def fault_of(self, call: Call) -> Fault | None:
        return KINDS[self.kind](call.method) if self.running else None


@dataclass
class OutageWorld:
    """One deployment.

    Attributes:
        members: Number of reconcilers.
        journaled: Whether gateways accept, and write journals. Otherwise batches are written as an
            earlier release did, and full passes find them.
    """

    bucket: MemoryBucket
    clock: SimMachine
    rng: Random
    folder: Path
    outage: Outage
    members: int
    journaled: bool
    loop: SimLoop
    reconcilers: list[Reconciler] = field(default_factory=list)
    gateways: list[Gateway] = field(default_factory=list)
    acknowledged: list[tuple[float, Identity]] = field(default_factory=list)
    """When each batch was acknowledged, in seconds, and its identity."""

    def store(self, *, faulty: bool = True) -> ObjectStore:
        plan = self.outage if faulty else None
        return open_memory_store(self.bucket, plan=plan, clock=self.clock)[0]

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_ns() / NS_PER_S

    async def run(self, outage_s: float) -> None:
        """Run through one outage and check that all work continues after it."""
        quiet = self.store(faulty=False)
        authority = await create_authority(
            quiet, Authority(authority_id="A", lanes=2), clock=self.clock
        )
        ids = SimIds(self.rng)
        result = await examine([quiet], ["memory"], ids)
        await write_result(quiet, result, seal_result(result), self.clock)
        async with asyncio.TaskGroup() as group:
            await self._start(group, authority)
            await self._pass_time(WARM_UP_S)
            self._check_all_work("before the outage")
            await self._break(outage_s)
            ended_s = self.now_s
            await self._pass_time(RECOVERY_S)
            self._check_all_work(f"{RECOVERY_S:g} s after it")
            first = next(who for at_s, who in self.acknowledged if at_s >= ended_s)
            assert first in await self._enqueued(), "the first batch after it is not enqueued"
            await self._pass_time(2 * RECOVERY_S)
            await self._check_exactly_once()
            self._check_registrations()
            raise Done

    async def _start(self, group: asyncio.TaskGroup, authority: Authority) -> None:
        if self.journaled:
            for number in range(2):
                gateway = self._gateway(authority, number)
                await gateway.readiness.check_doctor()
                await gateway.readiness.check_store()
                await gateway.uploads.journal.open()
                start_background_tasks(group, gateway, 1, asyncio.Event())
                self.gateways.append(gateway)
        for _ in range(self.members):
            reconciler = self._reconciler(authority)
            self.reconcilers.append(reconciler)
            group.create_task(reconciler.run())
        for number in range(3):
            group.create_task(self._send(number))

    async def _break(self, outage_s: float) -> None:
        self.outage.running = True
        if self.outage.kind == "clock_ahead":
            self.bucket.clock_offset_ns += CLOCK_AHEAD_NS
        await self._pass_time(outage_s)
        if self.outage.kind == "clock_ahead":
            self.bucket.clock_offset_ns -= CLOCK_AHEAD_NS
        self.outage.running = False

    async def _pass_time(self, seconds: float) -> None:
        """Let time pass; the loop's bound on callbacks is one of each five seconds."""
        left_s = seconds
        while left_s > 0:
            self.loop._ran = 0
            await self.clock.sleep(min(left_s, 5.0))
            left_s -= 5.0

    def _check_all_work(self, when: str) -> None:
        for gateway in self.gateways:
            problem = gateway.readiness.problem()
            assert problem is None, f"{when}: {problem.detail}"
        for reconciler in self.reconcilers:
            assert reconciler.health.why_not_ready() == "", when
            assert not reconciler.health._failing, when
        lanes = [lane for one in self.reconcilers for lane in one._workers.shared or ()]
        assert sorted(lanes) == [0, 1], when

    async def _enqueued(self) -> list[Identity]:
        return [one.identity for one in await enqueued(self.store(faulty=False))]

    async def _check_exactly_once(self) -> None:
        """Check every batch that was acknowledged until some seconds ago."""
        found = await self._enqueued()
        assert len(found) == len(set(found)), "a batch was enqueued twice"
        old = {who for at_s, who in self.acknowledged if at_s < self.now_s - RECOVERY_S}
        assert old <= set(found), "a batch was not enqueued"

    def _check_registrations(self) -> None:
        """Check that an outage leaves no registration for each attempt: readers follow them all."""
        found = list(self.bucket.objects(GATEWAY_PROCESSES, ""))
        per_gateway_max = 3  # before the outage, the unsettled one, after it
        assert len(found) <= per_gateway_max * len(self.gateways), found

    def _gateway(self, authority: Authority, number: int) -> Gateway:
        principals = write_principals(self.folder / "p.toml", TestKey("p", ("host-1",)))
        return build_gateway(
            self.store(),
            authority,
            GatewaySettings(principals=principals),
            f"gw-{number}",
            mode_checked_at=machine_now(self.clock),
        )

    def _reconciler(self, authority: Authority) -> Reconciler:
        settings = ReconcilerSettings(pass_pages_per_s=0.0, live_bytes_max=1 << 20).on("s3:")
        runtime = Runtime(clock=self.clock, ids=SimIds(self.rng), rng=self.rng)
        return Reconciler(self.store(), authority, settings=settings, runtime=runtime)

    async def _send(self, number: int) -> None:
        """Send one batch after the other; one that gets no success is sent again, as agents do."""
        sent = 0
        while True:
            await self.clock.sleep(SEND_S)
            try:
                who = await self._accept(f"host-{number}", sent)
            except SluiceError:
                continue
            self.acknowledged.append((self.now_s, who))
            sent += 1

    async def _accept(self, agent: str, number: int) -> Identity:
        who = make_identity(10 * number, agent=agent)
        if not self.journaled:
            one = await accept(self.store(), 10 * number, agent=agent)
            for key in (blob_key(one.digest), accepted_key(who)):
                if isinstance(await self.store(faulty=False).head(key), NotFound):
                    raise StoreUnavailable("create", key, "not stored: send it again")
            return who
        gateway = self.rng.choice(self.gateways)
        frame = salted_frame(who, log_columns([f"{agent} {number} {n}" for n in range(10)]))
        upload = Upload(
            frame=frame,
            digest=digest_of(frame),
            identity=who,
            envelope=decode_head(frame).envelope,
            principal="p",
            attempt_id=gateway.uploads.ids.ulid(),
        )
        answer = await gateway.uploads.accept_made(upload, UploadPhases(self.clock))
        assert isinstance(answer, AcceptedResponse)
        return who


class Done(Exception):
    """The end of a run."""


def run_through_outage(
    kind: str,
    outage_s: float,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    members: int = 1,
    journaled: bool = True,
    seed: int = 1,
) -> None:
    """Run a deployment through one outage; raise AssertionError unless all work continues."""

    async def main(loop: SimLoop, rng: Random) -> None:
        clock = SimMachine(loop)
        worker = partial(gateway_app._Worker, clock=clock, ids=SimIds(rng), rng=rng)
        monkeypatch.setattr(gateway_app, "_Worker", worker)
        world = OutageWorld(
            bucket=MemoryBucket(clock=clock, rng=rng),
            clock=clock,
            rng=rng,
            folder=folder,
            outage=Outage(kind),
            members=members,
            journaled=journaled,
            loop=loop,
        )
        try:
            await world.run(outage_s)
        except* Done:
            pass

    simulate(seed, main)


DURATIONS_S = (1, 3, 10, 60, 300)
DEPLOYMENTS = ((1, True), (2, True), (1, False))
"""Number of reconcilers, and whether gateways write journals."""


def is_daily(kind: str, seconds: int, members: int, journaled: bool) -> bool:
    """Return True if `make test` runs a case: every kind once, and each deployment with one."""
    if kind == "all_fail":
        return seconds == 3
    return (seconds, members, journaled) == (3, 1, True)


def cases() -> list[object]:
    """Return the daily cases and every seventh; `SLUICE_LONG_TIMES=7` has all of them.

    Seven has no factor in common with the numbers of kinds, durations and deployments, so each of
    these is in some of the cases.
    """
    found, step = [], max(1, 7 // times(1))
    number = 0
    for kind in KINDS:
        for seconds in DURATIONS_S:
            for members, journaled in DEPLOYMENTS:
                daily = is_daily(kind, seconds, members, journaled)
                number += 1
                if not daily and number % step:
                    continue
                marks = () if daily else (pytest.mark.long,)
                name = f"{kind}-{seconds}s-{members}-{'journals' if journaled else 'passes'}"
                found.append(pytest.param(kind, seconds, members, journaled, id=name, marks=marks))
    return found


@pytest.mark.daily(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "seconds", "members", "journaled"), cases())
def test_all_work_continues(
    kind: str,
    seconds: int,
    members: int,
    journaled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_through_outage(kind, seconds, tmp_path, monkeypatch, members=members, journaled=journaled)
