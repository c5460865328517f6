"""An answered blob is never deleted, whichever system call of the directory store is held.

Gateway A is held in one system call for longer than the retry horizon. Garbage collection audits,
plans and runs meanwhile. The call is released at one of several moments, and the same bytes are
sent to gateway B.

Hold one system call of the directory store in the middle of an upload.
"""

import asyncio
import fcntl
import os
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest
from support.gc_world import HORIZON_S, MARGIN_S, GcWorld, open_world
from support.repetitions import times
from support.store_groups import ALWAYS_GROUPS, CountedSync

from sluice_gateway.uploads.acceptor import AcceptanceRun, Acceptor, Upload
from sluice_gc.errors import GcRefused
from sluice_protocol.acceptance import Accepted
from sluice_protocol.frame import decode_head
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import DeleteOutcome
from sluice_protocol.units import ObjectKey, ObjectVersion
from sluice_store.local import open_local_store
from sluice_store.local.store import GroupLimits
from sluice_store.port import ObjectStore

HELD = (
    (os, "open"),
    (os, "write"),
    (os, "setxattr"),
    (os, "utime"),
    (os, "fsync"),
    (os, "mkdir"),
    (os, "link"),
    (os, "replace"),
    (os, "rename"),
    (os, "chmod"),
    (os, "fchmod"),
    (os, "fstat"),
    (os, "unlink"),
    (fcntl, "flock"),
)
"""Every call that the store makes to write, name, date or sync an object."""

FOREIGN = ("/proc/", "/dev/", "/usr/")


@dataclass
class Stall:
    """Hold one call: the one with this number, before or after it takes effect.

    Attributes:
        number: Which call, from 0; None only counts.
        after: Whether the call takes effect before it is held.
        names: The calls that were made, in order.
        reached: Set when the call is held.
        released: Set when the call may continue.
    """

    number: int | None = None
    after: bool = False
    names: list[str] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    counting: bool = True

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def held(*args: Any, **kwargs: Any) -> Any:
            in_store = threading.current_thread().name.startswith("sluice-store")
            if not in_store or not self.counting or str(args[0]).startswith(FOREIGN):
                return call(*args, **kwargs)
            mine = len(self.names) == self.number
            self.names.append(name)
            if mine and not self.after:
                self._hold()
            try:
                return call(*args, **kwargs)
            finally:
                if mine and self.after:
                    self._hold()

        return held

    def _hold(self) -> None:
        self.counting = False  # the calls of everyone else continue
        self.reached.set()
        assert self.released.wait(60), "a held call was never released"


@contextmanager
def stalled(stall: Stall) -> Iterator[None]:
    """Route the calls of the store's threads through `stall`."""
    kept: list[tuple[ModuleType, str, Any]] = []
    try:
        for module, name in HELD:
            with suppress(AttributeError):
                kept.append((module, name, getattr(module, name)))
                setattr(module, name, stall.around(name, kept[-1][2]))
        yield
    finally:
        stall.released.set()
        for module, name, call in kept:
            setattr(module, name, call)


T = TypeVar("T")

WAIT_S = 0.5
"""How long a step may wait for a held lock before the call is released."""
FILLERS = 3
"""Other old orphans, so that a plan never lists every blob."""
STARTS = {"no blob": None, "a young orphan": HORIZON_S - MARGIN_S - 20, "an old orphan": HORIZON_S}
"""The age of the blob when gateway A begins."""
MOMENTS = ("before the audit", "before the run", "before the deletion", "after the run")


def upload_of(world: GcWorld, attempt: str) -> Upload:
    frame = world.frame(100)
    envelope = decode_head(frame).envelope
    return Upload(
        frame=frame,
        digest=digest_of(frame),
        identity=envelope.identity,
        envelope=envelope,
        principal="host-1",
        attempt_id=attempt,
        sent_before=False,
    )


def acceptor_of(world: GcWorld, store: ObjectStore) -> Acceptor:
    return Acceptor(
        store=store,
        authority=world.authority,
        collector_id="gw",
        clock=world.clock,
        rng=random.Random(1),
        time_s_max=60,
    )


class Story:
    """One course: A is held, garbage collection works, A is released, B gets the same bytes."""

    def __init__(self, world: GcWorld, stores: list[ObjectStore], stall: Stall) -> None:
        self.world = world
        self.stall = stall
        self.first, self.second = (acceptor_of(world, store) for store in stores)
        self.running: asyncio.Task[AcceptanceRun] | None = None
        self.results: list[AcceptanceRun] = []

    async def play(self, start: str, moment: str) -> None:
        world = self.world
        upload = await self.prepare(start)
        with stalled(self.stall):
            self.running = asyncio.create_task(self.first.accept(upload))
            await asyncio.to_thread(self._reached)
            world.clock.pass_s(HORIZON_S + 10)
            await self._collect(moment)
            await self._release()
            await self.assert_kept(f"{start}, released {moment}")
        await self._retry()
        await self.assert_kept(f"{start}, sent again after {moment}")

    async def assert_kept(self, when: str) -> None:
        """A retry would store a lost blob again, so this is checked before the last one."""
        answered = [run for run in self.results if isinstance(run.verdict, Accepted)]
        kept = await self.world.has(digest_of(self.world.frame(100)))
        assert kept or not answered, (
            f"{len(answered)} responses 200 name a deleted blob: {when}, held at"
            f" {self.stall.names[self.stall.number or 0]}, number={self.stall.number}"
        )

    async def prepare(self, start: str) -> Upload:
        """Store what exists before gateway A begins, and return its upload."""
        world, age_s = self.world, STARTS[start]
        for number in range(FILLERS):
            await world.accept(number * 10, agent="other", salt=f"filler {number}")
        upload = upload_of(world, "01ARZ3NDEKTSV4RRFFQ69G5FAA")
        if age_s is not None:
            await world.put_blob(upload.frame)
            world.clock.pass_s(age_s)
        return upload

    def _reached(self) -> None:
        while not self.stall.reached.wait(0.005):
            if self.running is None or self.running.done():
                return

    async def _collect(self, moment: str) -> None:
        """Audit, plan and run; release gateway A and ask gateway B at the given moment."""
        world = self.world
        if moment == "before the audit":
            await self._release()
        try:
            await self._bounded(world.audit())
            world.clock.pass_s(1)
            plan = await self._bounded(world.plan())
            if moment == "before the run":
                await self._release()
            if moment == "before the deletion":
                inner = world.store
                world.store = ReleasingStore(inner, self)  # type: ignore[assignment]
            await self._bounded(world.run(plan))
        except GcRefused:
            return  # nothing was deleted

    async def _bounded(self, work: Awaitable[T]) -> T:
        """Wait for a step; when it waits for a lock of the held call, release the call."""
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait({task}, timeout=WAIT_S)
        if not done:
            await self._release()
        return await task

    async def _release(self) -> None:
        if self.running is None or self.stall.released.is_set():
            return
        self.stall.released.set()
        self.results.append(await self.running)
        await self._retry()

    async def _retry(self) -> None:
        self.results.append(
            await self.second.accept(upload_of(self.world, "01ARZ3NDEKTSV4RRFFQ69G5FAB"))
        )


class ReleasingStore:
    """A store that releases gateway A just before the first deletion, which was proved before."""

    def __init__(self, inner: ObjectStore, story: Story) -> None:
        self.inner = inner
        self.story = story

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        await self.story._release()
        return await self.inner.delete(key, incarnation)


@asynccontextmanager
async def story_of(root: Path, stall: Stall, limits: GroupLimits | None) -> AsyncIterator[Story]:
    whole = CountedSync(root)
    async with (
        open_world(root) as world,
        open_local_store(root, clock=world.clock, filesystem=whole, limits=limits) as first,
        open_local_store(root, clock=world.clock) as second,
    ):
        yield Story(world, [first, second], stall)


async def calls_of(root: Path, start: str, limits: GroupLimits | None) -> list[str]:
    """Return the calls of an upload that is not held."""
    stall = Stall()
    async with story_of(root, stall, limits) as story:
        upload = await story.prepare(start)
        with stalled(stall):
            await story.first.accept(upload)
    return stall.names


async def play(
    root: Path,
    start: str,
    moment: str,
    number: int,
    *,
    after: bool,
    limits: GroupLimits | None,
) -> None:
    stall = Stall(number=number, after=after)
    async with story_of(root, stall, limits) as story:
        await story.play(start, moment)
        assert stall.reached.is_set()
        assert isinstance(story.results[-1].verdict, Accepted)


NAMING = {"link", "replace", "rename", "chmod", "fchmod"}
"""Calls that are also held after they took effect; after any other, the next call is as good."""


def calls_held(names: list[str], start: str) -> list[int]:
    """Return one call of each kind: of the blob's file when it is new, else of the manifest's."""
    order = range(len(names)) if start == "no blob" else reversed(range(len(names)))
    first: dict[str, int] = {}
    for number in order:
        first.setdefault(names[number], number)
    return sorted(first.values())


async def hold_calls(
    root: Path,
    start: str,
    moment: str,
    chosen: Callable[[list[str]], Iterable[int]],
    *,
    limits: GroupLimits | None = None,
) -> None:
    names = await calls_of(root / "count", start, limits)
    assert {"open", "write", "fsync", "link", "fchmod"} <= set(names)
    numbers = list(chosen(names))
    assert numbers
    for number in numbers:
        for after in (False, True)[: 1 + (names[number] in NAMING)]:
            place = root / f"{number}-{after}"
            await play(place, start, moment, number, after=after, limits=limits)


GROUPED = pytest.mark.parametrize("limits", [None, ALWAYS_GROUPS], ids=["separate", "in groups"])


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("start", "limits"),
    [
        ("no blob", ALWAYS_GROUPS),
        pytest.param("a young orphan", ALWAYS_GROUPS, marks=pytest.mark.long),
        ("an old orphan", ALWAYS_GROUPS),
        ("an old orphan", None),
    ],
)
def test_no_held_call_loses_an_answered_blob(
    start: str, limits: GroupLimits | None, tmp_path: Path
) -> None:
    """Released between the proof and the deletion, which is the worst moment."""
    moment = "before the deletion"
    asyncio.run(
        hold_calls(tmp_path, start, moment, partial(calls_held, start=start), limits=limits)
    )


@pytest.mark.long
@pytest.mark.timeout(900)
@GROUPED
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("start", STARTS)
def test_no_held_call_loses_an_answered_blob_at_any_moment(
    start: str, moment: str, limits: GroupLimits | None, tmp_path: Path
) -> None:
    """Every call of the upload at one of the moments; `SLUICE_LONG_TIMES=4`: at each of them."""
    turns, place = min(times(1), len(MOMENTS)), MOMENTS.index(moment)

    def chosen(names: list[str]) -> Iterable[int]:
        return (n for n in range(len(names)) if (n + place) % len(MOMENTS) < turns)

    asyncio.run(hold_calls(tmp_path, start, moment, chosen, limits=limits))
