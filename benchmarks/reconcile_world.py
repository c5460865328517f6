"""Stores, batches and bare loops of the benchmark `reconcile`."""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.manifests import log_manifest
from sluice_protocol.authority import Authority
from sluice_protocol.identity import Identity
from sluice_protocol.keys import ACCEPTED, accepted_key, blob_key, lane_of
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.outcomes import Applied
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.enqueued import IntendedBatch
from sluice_reconciler.lanes.owner import LaneOwner
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.local import LocalStore, open_local_store
from sluice_store.port import NewObject, ObjectStore

AGENTS: Final = 50
LANES: Final = 4
BOOT: Final = "0b0f1c52-7a4e-4a51-9d36-3f0f5d1f2a11"
ON_A_DIRECTORY: Final = ReconcilerSettings().on("file:")
CONCURRENCY: Final = ON_A_DIRECTORY.concurrency or 1
SHM: Final = Path("/dev/shm")  # noqa: S108 - memory on purpose; a private folder is created in it


BULK: Final = {"create_many": "create", "get_many": "get", "head_many": "head"}
"""The verb that each call for many objects counts as, once for each object."""


class Counting:
    """A store that counts its requests."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any verb
        verb = getattr(self._store, name)
        if name not in BULK:
            self.counts[name] += 1
            return verb

        async def counted(objects: Sequence[Any]) -> Any:  # noqa: ANN401 - as the verb
            self.counts[BULK[name]] += len(objects)
            return await verb(objects)

        return counted


def who_is(number: int) -> Identity:
    """Return the identity of a batch."""
    seq = number // AGENTS * 100
    agent = f"host-{number % AGENTS}"
    return Identity(agent_id=agent, boot_id=BOOT, seq_start=seq, seq_end=seq + 99)


def manifest(number: int, at_ns: int) -> tuple[AcceptedManifest, bytes]:
    """Return the manifest of one batch of an agent, and its frame."""
    frame = b"frame %d" % number
    who = who_is(number)
    return log_manifest(who, frame, at_ns), frame


async def accept(store: ObjectStore, number: int) -> None:
    """Write a batch as a gateway does, accepted at the store's time of its blob."""
    one, frame = manifest(number, 0)
    match await store.create(blob_key(one.digest), frame):
        case Applied(date_ns=date_ns):
            one, _ = manifest(number, date_ns)
        case other:
            raise RuntimeError(other)
    await store.create(accepted_key(one.identity), encode_record(one))


async def accept_many(store: ObjectStore, numbers: range) -> None:
    """Write many batches concurrently."""
    gate = asyncio.Semaphore(64)

    async def gated(number: int) -> None:
        async with gate:
            await accept(store, number)

    for at in range(numbers.start, numbers.stop, 5000):
        chunk = range(at, min(at + 5000, numbers.stop))
        await asyncio.gather(*(gated(number) for number in chunk))


async def accept_together(store: LocalStore, numbers: range) -> None:
    """Write many batches by calls for many objects."""
    for at in range(numbers.start, numbers.stop, 1000):
        chunk = range(at, min(at + 1000, numbers.stop))
        frames = [manifest(number, 0) for number in chunk]
        blobs = [NewObject(key=blob_key(one.digest), body=frame) for one, frame in frames]
        written = await store.create_many(blobs)
        accepted = [
            manifest(number, done.date_ns)[0]
            for number, done in zip(chunk, written, strict=True)
            if isinstance(done, Applied)
        ]
        await store.create_many(
            [NewObject(key=accepted_key(one.identity), body=encode_record(one)) for one in accepted]
        )


async def bare_loop(store: ObjectStore) -> int:
    """Run the control: list everything accepted and GET each, with the concurrency of a pass."""
    gate, count = asyncio.Semaphore(CONCURRENCY), 0

    async def gated(key: ObjectKey) -> None:
        async with gate:
            await store.get(key)

    async for page in store.list(ACCEPTED):
        count += len(page.objects)
        async with asyncio.TaskGroup() as tasks:
            for one in page.objects:
                tasks.create_task(gated(one.key))
    return count


async def same_requests(store: ObjectStore) -> int:
    """Run the second control: the requests of a first pass, with no work between them."""
    gate, count = asyncio.Semaphore(CONCURRENCY), 0

    async def gated(number: int, key: ObjectKey) -> None:
        async with gate:
            await requests_of(store, number, key)

    async for page in store.list(ACCEPTED):
        async with asyncio.TaskGroup() as tasks:
            for one in page.objects:
                tasks.create_task(gated(count, one.key))
                count += 1
    return count


async def requests_of(store: ObjectStore, number: int, key: ObjectKey) -> None:
    """Make the requests of a new batch whose entries by time are packed (ADR 27)."""
    await store.get(key)
    await store.head(key)
    place = f"doctor/v1/{number % 256:02x}/{number % 251:02x}/{number}"
    await store.create(ObjectKey(place), b"x" * 200)


def reconciler(store: ObjectStore, **settings: Any) -> Reconciler:  # noqa: ANN401 - its fields
    """Return a new reconciler, as after a restart."""
    authority = Authority(authority_id="bench", lanes=LANES)
    return Reconciler(store, authority, settings=replace(ON_A_DIRECTORY, **settings))


async def full_pass(store: ObjectStore, **settings: Any) -> int:  # noqa: ANN401 - its fields
    """Run the subject: one pass of a new process."""
    return (await reconciler(store, **settings).once()).listed


async def leave_manifests(store: ObjectStore, count: int) -> None:
    """Write accepted manifests without blobs."""
    gate = asyncio.Semaphore(64)

    async def gated(number: int) -> None:
        async with gate:
            one, _ = manifest(number, 1)
            await store.create(accepted_key(one.identity), encode_record(one))

    for at in range(0, count, 5000):
        numbers = range(at, min(at + 5000, count))
        await asyncio.gather(*(gated(number) for number in numbers))


async def leave_ledger(store: ObjectStore, count: int) -> None:
    """Write lane states that contain every batch."""
    owners = [
        await LaneOwner.take(store, Lane(queue="spark", lane=lane), Runtime())
        for lane in range(LANES)
    ]
    for agent in range(AGENTS):
        ledger = owners[lane_of(f"host-{agent}", LANES)].enqueued
        for number in range(agent, count, AGENTS):
            ledger.add(pending(who_is(number)))
    for owner in owners:
        await owner.close()


def pending(who: Identity) -> IntendedBatch:
    """Return a batch in the form of the ledger."""
    return IntendedBatch(
        agent_id=who.agent_id, boot_id=who.boot_id, seq_start=who.seq_start, seq_end=who.seq_end
    )


@asynccontextmanager
async def scratch() -> AsyncIterator[ObjectStore]:
    """Return an empty store in memory."""
    async with scratch_folder() as (_, store):
        yield store


@asynccontextmanager
async def scratch_folder() -> AsyncIterator[tuple[Path, LocalStore]]:
    """Return an empty store in memory, and its folder."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-", dir=SHM if SHM.is_dir() else None))
    try:
        async with open_local_store(folder) as store:
            yield folder, store
    finally:
        shutil.rmtree(folder)
