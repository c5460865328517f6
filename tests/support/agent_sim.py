"""The agent on a simulated loop, disk and network; threads become callbacks in seeded order.

Also here: runs of a spool on a simulated disk that end in a kill, a power cut or an error.

Each loop stops one run of a new world at a chosen operation, lets the next run finish, and checks
the world.
"""

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

import pytest
from support.agent_disk import Crash, SimDisk, Tripwire
from support.simloop import SimClock, SimLoop

from sluice_agent.errors import SpoolBroken, SpoolUnwritable
from sluice_agent.inputs.columns import logs_from_block
from sluice_agent.metrics import AgentMetrics
from sluice_agent.sending.gateway_addresses import Gateways
from sluice_agent.sending.gateway_choice import GatewayTarget
from sluice_agent.sending.parked_inquiry import ParkedInquiry
from sluice_agent.sending.transport import UploadRequest, UploadResult
from sluice_agent.sending.upload_decisions import (
    ConnectionFailure,
    GatewayResponse,
    NoGatewayResponse,
)
from sluice_agent.sending.uploader import Uploader
from sluice_agent.settings import BatchLimits, SpoolSettings, UploaderSettings, WhenFull
from sluice_agent.spool.batching import Batcher, RecordBlock
from sluice_agent.spool.spool import Spool
from sluice_protocol.columns import LogColumns
from sluice_protocol.frame import decode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.units import NS_PER_S, Digest, UnixNs

T = TypeVar("T")
DIRECTORY = Path("/spool")
OTHER = Digest("0" * 64)


class ThreadlessLoop(SimLoop):
    """Runs work for threads as separate callbacks."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_soon(work)
        return future


def simulate_agent(seed: int, main: Callable[[Random], Coroutine[Any, Any, T]]) -> T:
    """Run `main` to its end in one seeded interleaving."""
    rng = Random(seed)
    loop = ThreadlessLoop(rng)
    try:
        return loop.run_until_complete(main(rng))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()


Reply = Callable[[str, UploadRequest], GatewayResponse | NoGatewayResponse | None]


class SimNetwork:
    """Gateways that share one store; `reply` may replace the response."""

    def __init__(self, clock: SimClock, reply: Reply | None = None) -> None:
        self.clock = clock
        self.reply = reply
        self.accepted: dict[Identity, bytes] = {}
        self.first: dict[Identity, bytes] = {}
        self.sent: list[tuple[float, str, Identity, bool]] = []
        self.lists: list[int] = []
        self.lose_list: Callable[[int], bool] = lambda _: False
        self.before_send: Callable[[UploadRequest], None] = lambda _: None

    async def send(self, target: GatewayTarget, upload: UploadRequest) -> UploadResult:
        url = target.url
        self.before_send(upload)
        identity = decode_frame(upload.frame).envelope.identity
        self.sent.append((self.clock.monotonic_ns() / NS_PER_S, url, identity, upload.retry))
        assert self.first.setdefault(identity, upload.frame) == upload.frame
        await self.clock.sleep(0.01)
        scripted = self.reply(url, upload) if self.reply else None
        if scripted is not None and scripted != NoGatewayResponse(
            failure=ConnectionFailure.TIMEOUT
        ):
            return UploadResult(response=scripted)
        self.accepted[identity] = upload.frame  # also if the response is lost
        if scripted is not None:
            return UploadResult(response=scripted)
        return UploadResult(response=GatewayResponse(status=200, frame_sha256=upload.digest))

    async def send_list(
        self, target: GatewayTarget, uploads: Sequence[UploadRequest]
    ) -> tuple[UploadResult, ...] | UploadResult:
        """Accept each frame as `send` does; `lose_list` loses the response of the whole list."""
        self.lists.append(len(uploads))
        results = [await self.send(target, upload) for upload in uploads]
        if self.lose_list(len(self.lists)):
            return UploadResult(response=NoGatewayResponse(failure=ConnectionFailure.RESET))
        return tuple(results)

    def lines(self) -> list[bytes]:
        columns = [decode_frame(frame).columns for frame in self.accepted.values()]
        return [
            body for one in columns if isinstance(one, LogColumns) for body in one.body.slices()
        ]


class SimAgent:
    """Spool, batcher and uploader of one run."""

    def __init__(
        self,
        rng: Random,
        network: SimNetwork,
        *,
        disk: SimDisk | None = None,
        boot_id: str = "boot",
        gateways: tuple[str, ...] = ("http://a", "http://b"),
        uploads: int = 4,
        stop_when_refused: bool = False,
        give_up_s: float = 0.0,
        bytes_max: int = 1 << 30,
        when_full: WhenFull = WhenFull.BLOCK,
        batch_bytes: int = 200,
    ) -> None:
        self.disk = disk or SimDisk()
        self.metrics = AgentMetrics()
        clock = network.clock
        spool = SpoolSettings(
            directory=DIRECTORY,
            agent_id="host-1",
            bytes_max=bytes_max,
        )
        self.spool = Spool(spool, self.disk, boot_id=boot_id)
        limits = BatchLimits(bytes_max=batch_bytes, age_s_max=0.2)
        self.batcher = Batcher(
            self.spool, limits, clock=clock, metrics=self.metrics, when_full=when_full
        )
        self.uploader = Uploader(
            UploaderSettings(
                uploads_max=uploads,
                stop_when_refused=stop_when_refused,
                give_up_s=give_up_s,
            ),
            self.spool,
            network,
            Gateways(gateways, None, clock=clock, rng=rng),
            clock=clock,
            metrics=self.metrics,
        )
        self.inquiry = ParkedInquiry(
            directory=DIRECTORY,
            disk=self.disk,
            transport=network,
            gateways=self.uploader._gateways,
            clock=clock,
            rng=rng,
            metrics=self.metrics,
            is_refused=lambda: self.uploader.is_refused,
        )
        self.batcher.on_sealed = self.uploader.add

    async def seal(self, *blocks: RecordBlock) -> None:
        """Seal blocks while nothing is sent."""
        batching = asyncio.create_task(self.batcher.run())
        for each in blocks:
            await self.batcher.put(each)
        await self.batcher.flush()
        batching.cancel()

    async def run(self) -> None:
        await asyncio.gather(self.uploader.run(), self.batcher.run(), self.inquiry.run())


def block(*lines: bytes) -> RecordBlock:
    """Return lines as the pipe input provides them."""
    columns = logs_from_block(b"\n".join(lines) + b"\n", arrived_ns=UnixNs(1), zone=None)
    return RecordBlock(columns=columns, cost_bytes=sum(map(len, lines)) + 28 * len(lines))


Result = TypeVar("Result")

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
"""Seeds of the loops over every operation; `make test-long` runs two more."""
DRAWS = [(0, 2), *(pytest.param(seed, 4, marks=pytest.mark.long) for seed in range(3))]
"""Seeds, each with how many states of the disk are tried after a power cut."""


class SpoolWorld(Protocol):
    """What outlives a run of the agent, with its disk."""

    disk: SimDisk

    def run(self, rng: random.Random) -> None:
        """Run one agent from start to end, unless the disk crashes."""

    def check(self) -> None:
        """Check what was accepted, after a run that ended."""


def retrying(act: Callable[[], Result]) -> Result:
    """Retry as the agent does, as long as the spool allows it."""
    for _ in range(5):
        with contextlib.suppress(SpoolUnwritable):
            return act()
    raise AssertionError("the spool never accepted it")


def crash_at(world: SpoolWorld, at: int | None, seed: int) -> int:
    """Run one agent that crashes at its n-th operation; return the number of operations."""
    wire = world.disk.tripwire = Tripwire(at)
    with contextlib.suppress(Crash):
        world.run(random.Random(seed))
    world.disk.tripwire = lambda _: None
    return wire.count


def finish(world: SpoolWorld, seed: int) -> None:
    """Run one agent to its end and check the world."""
    crash_at(world, None, seed)
    world.check()


def kill_at_every_operation(begin: Callable[[], SpoolWorld], seed: int) -> None:
    for at in range(1, crash_at(begin(), None, seed) + 1):
        world = begin()
        crash_at(world, at, seed)
        world.disk.kill()
        finish(world, seed + 100)


def cut_power_at_every_operation(begin: Callable[[], SpoolWorld], seed: int, draws: int) -> None:
    """Cut the power `draws` times at each operation; each time other unsynced writes remain."""
    for at in range(1, crash_at(begin(), None, seed) + 1):
        for draw in range(draws):
            world = begin()
            crash_at(world, at, seed)
            world.disk.power_cut(random.Random(draw))
            finish(world, seed + 100)


def crash_in_a_row(begin: Callable[[], SpoolWorld], seed: int, crashes_max: int) -> None:
    """Crash some runs, also during recovery, and let the last one finish."""
    rng, world = random.Random(seed), begin()
    for _ in range(rng.randrange(1, crashes_max + 1)):
        crash_at(world, rng.randrange(1, 60), rng.randrange(1000))
        world.disk.power_cut(rng) if rng.random() < 0.5 else world.disk.kill()
    finish(world, seed)


def fail_at_every_operation(begin: Callable[[], SpoolWorld], seed: int) -> None:
    """Return "no space left" at each operation; a run that it ends is followed by a power cut."""
    for at in range(1, crash_at(begin(), None, seed) + 1):
        world = begin()
        world.disk.tripwire = Tripwire(at, lambda: OSError(errno.ENOSPC, "No space left on device"))
        try:
            world.run(random.Random(seed))
        except (SpoolBroken, SpoolUnwritable):
            world.disk.power_cut(random.Random(at))
        world.disk.tripwire = lambda _: None
        if world.disk.locked:
            world.disk.kill()
        finish(world, seed + 100)
