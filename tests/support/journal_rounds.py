"""A reconciler that reads journals, without a process: its rounds and passes are called."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from support.journal_writer import JournalWriter
from support.queue_store import SimClock, SimIds, SimStore

from sluice_protocol.authority import Authority
from sluice_protocol.journals import DISCOVERY, DiscoveryRecord
from sluice_protocol.manifests import decode_record
from sluice_protocol.units import NS_PER_S
from sluice_queue.lane import Runtime
from sluice_reconciler.passes.progress import NextPass
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings

Scene = Callable[[SimStore], Coroutine[None, None, None]]


def make(store: SimStore, seed: int = 1, **settings: Any) -> Reconciler:
    runtime = Runtime(clock=store.clock, ids=SimIds(seed), rng=random.Random(seed))
    return Reconciler(
        store,
        Authority(authority_id="A", lanes=2, retry_horizon_s=600, margin_s=120),
        settings=ReconcilerSettings(**settings),
        runtime=runtime,
    )


def play(scene: Scene) -> None:
    asyncio.run(scene(SimStore(clock=SimClock())))


def pass_time(store: SimStore, seconds: float) -> None:
    store.clock.at_ns += int(seconds * NS_PER_S)


def now(store: SimStore) -> int:
    return store.clock.at_ns


def record(store: SimStore) -> DiscoveryRecord:
    return decode_record(DISCOVERY, store.held[DISCOVERY].body, DiscoveryRecord)


async def make_pass(subject: Reconciler, *, resume: bool = False) -> None:
    """Make a pass as the service does."""
    await subject.progress.read()
    await subject._pass_loop.run_once(None, NextPass(start=True, resume=resume, urgent=True))


async def journaled(store: SimStore, **settings: Any) -> tuple[Reconciler, JournalWriter]:
    """Return a reconciler for which journals decide, and one registered gateway."""
    writer = JournalWriter(store, now(store))
    await writer.register()
    subject = make(store, **settings)
    await subject.journals.round()
    await make_pass(subject)
    await writer.append([], through_ns=now(store))
    await rounds(store, subject)
    assert record(store).journaled_since_unix_ns is not None
    return subject, writer


async def rounds(store: SimStore, subject: Reconciler, count: int = 2) -> None:
    """Make rounds, each after the interval of listings."""
    for _ in range(count):
        pass_time(store, 1.1)
        await subject.journals.round()
