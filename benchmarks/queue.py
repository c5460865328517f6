"""Benchmark `queue`: CPU per append compared with hashing and sending the bytes, and group commit.

1. CPU of one append of one entry with 10, 1 000 and 100 000 entries in the queue. The control
   hashes the register's bytes and swaps them unchanged, on the same store.
2. Entries and batches per swap, and conflicts, with four producers on one lane.
3. Entries per second of one producer with many callers, compared with 1 / round trip: one caller
   that waits for each append before the next.

The store is a directory in memory (`/dev/shm` if it exists), so that disks have no influence.
"""

import asyncio
import hashlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from benchmarks.measure import Sample, ratio, report
from sluice_protocol.frame import FRAME_VERSION
from sluice_protocol.identity import Identity
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.outcomes import Applied
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_queue.appender import GROUP_MAX, Appender, ProducerSettings
from sluice_queue.consumer import Consumer
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_queue.producer import Producer
from sluice_queue.register import Draft, encode_register
from sluice_queue.register_client import QueueMetrics, RegisterClient, Runtime
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore
from sluice_store.retry import RetrySettings

WAITING: Final = (10, 1_000, 100_000)
APPENDS: Final = 100
PACING_S: Final = 15
SHM: Final = Path("/dev/shm")  # noqa: S108 - in memory on purpose; a private directory inside it


def draft(number: int) -> Draft:
    """Return an entry of typical size."""
    place = (
        f"manifests/v1/date=2026-11-21/hour=02/{number:020d}-spark.000-01M7Y05M6XJ11BR5GNJGCQQRNJ"
    )
    return Draft(
        location=ObjectKey(f"{place}.json"),
        size_bytes=100_000,
        batches=200,
        frame_bytes=10_000_000,
        first_accepted_at_ns=UnixNs(number),
        last_accepted_at_ns=UnixNs(number + 1),
        ingested_at_ns=UnixNs(number + 2),
    )


def batch(seq: int) -> AcceptedManifest:
    """Return an accepted manifest."""
    digest = digest_of(seq.to_bytes(8, "big"))
    who = Identity(agent_id="bench", boot_id="b", seq_start=seq, seq_end=seq)
    return AcceptedManifest(
        agent_id=who.agent_id,
        boot_id=who.boot_id,
        seq_start=seq,
        seq_end=seq,
        frame_sha256=digest,
        frame_bytes=1000,
        raw_blob_key=blob_key(digest),
        accepted_at_unix_ns=1,
        collector_id="gw",
        wire_version=1,
        frame_version=FRAME_VERSION,
        attempt_id="01M7Y05M6XJ11BR5GNJGCQQRNJ",
        kind="logs",
        record_count=1,
        min_ts_unix_ns=1,
        max_ts_unix_ns=1,
        principal="bench",
    )


async def fill(store: ObjectStore, lane: Lane, waiting: int) -> Appender:
    """Return an appender for a lane with `waiting` entries."""
    appender = Appender(store, lane)
    for at in range(0, waiting, GROUP_MAX):
        await appender.append([draft(one) for one in range(at, min(at + GROUP_MAX, waiting))])
    return appender


async def append_some(appender: Appender) -> int:
    """Append one entry per swap."""
    for number in range(APPENDS):
        await appender.append([draft(number)])
    return APPENDS


async def send_some(client: RegisterClient) -> int:
    """Hash the register's bytes and swap them without decoding, as the control.

    The nonce is changed in place, because the store must receive a different body each time.
    """
    seen = await client.read()
    if seen is None:
        raise RuntimeError(client.lane.key)
    body, etag = bytearray(encode_register(seen.state)), seen.etag
    for number in range(APPENDS):
        body[16:24] = number.to_bytes(8, "big")
        hashlib.sha256(body).digest()
        match await client.store.replace(client.lane.key, bytes(body), if_match=etag):
            case Applied(etag=etag):
                pass
            case other:
                raise RuntimeError(other)
    return APPENDS


async def copy_register(store: ObjectStore, lane: Lane, control: Lane) -> None:
    """Copy the subject's initial register to the control."""
    seen = await RegisterClient(store, lane, Runtime()).read()
    if seen is None:
        raise RuntimeError(lane.key)
    await store.overwrite(control.key, encode_register(seen.state))


async def keep_waiting(store: ObjectStore, lane: Lane, waiting: int) -> None:
    """Acknowledge all but the last `waiting` entries, so that all rounds start equally."""
    view = await read_lane(store, lane.queue, lane.lane, entries_max=0)
    if view.state.waiting > waiting:
        consumer = await Consumer.open(store, queue=lane.queue, lane=lane.lane)
        await consumer.ack_through(view.latest - waiting)


async def clocked(work: Callable[[], Awaitable[int]]) -> Sample:
    """Measure the elapsed time and the processor time of one coroutine."""
    started, spent = time.perf_counter(), time.process_time()
    units = await work()
    cpu_s = time.process_time() - spent
    return Sample(wall_s=time.perf_counter() - started, cpu_s=cpu_s, units=units)


async def cpu_per_append(store: ObjectStore, lines: list[str]) -> dict[str, list[Sample]]:
    """Run part 1."""
    samples: dict[str, list[Sample]] = {}
    for number, waiting in enumerate(WAITING):
        lane, control = Lane(queue="bench", lane=number), Lane(queue="control", lane=number)
        appender = await fill(store, lane, waiting)
        client = RegisterClient(store, control, Runtime())
        taken: dict[str, list[Sample]] = {"append": [], "send": []}
        for round_number in range(6):
            await copy_register(store, lane, control)
            other = await clocked(partial(send_some, client))
            one = await clocked(partial(append_some, appender))
            await keep_waiting(store, lane, waiting)
            if round_number:
                taken["append"].append(one)
                taken["send"].append(other)
        low, middle, high = ratio(taken["append"], taken["send"], lambda one: one.cpu_per_unit)
        register = await appender.client.read()
        size = len(encode_register(register.state)) if register is not None else 0
        cpu_us = statistics.median(one.cpu_per_unit for one in taken["append"]) * 1e6
        lines.append(
            f"{waiting:>7} waiting: append {cpu_us:.0f} µs CPU, {middle:.2f} times hashing and"
            f" sending ({low:.2f} to {high:.2f}), register {size} B"
        )
        samples |= {f"{name}-{waiting}": found for name, found in taken.items()}
    return samples


async def four_producers(store: ObjectStore, lines: list[str]) -> None:
    """Run part 2."""
    metrics = QueueMetrics(CollectorRegistry())
    settings = ProducerSettings(retry=replace(RetrySettings(), tries_max=100))
    done = asyncio.Event()

    async def one(number: int) -> None:
        runtime = Runtime(metrics=metrics)
        count = number * 10_000_000
        async with Producer.open(
            store, queue="group", lane=0, runtime=runtime, settings=settings
        ) as producer:
            while not done.is_set():
                await producer.produce([batch(count + at) for at in range(10)])
                count += 10
                await asyncio.sleep(0.002)

    def counts() -> tuple[float, float]:
        swaps = metrics.swaps.labels("group", "producer")._value.get()  # noqa: SLF001 - there is no public getter
        lost = metrics.conflicts.labels("group", "producer")._value.get()  # noqa: SLF001
        return swaps, lost

    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(one(number))
        await asyncio.sleep(PACING_S)
        before = [*counts(), await queued(store)]
        await asyncio.sleep(PACING_S)
        after = [*counts(), await queued(store)]
        done.set()
    swaps, conflicts, batches = (b - a for a, b in zip(before, after, strict=True))
    lines.append(
        f"4 producers: {batches / (swaps - conflicts):.0f} batches per swap, "
        f"{swaps - conflicts:.0f} swaps in {PACING_S} s, conflicts {100 * conflicts / swaps:.1f} "
        f"%, {batches / PACING_S:.0f} batches/s"
    )


async def queued(store: ObjectStore) -> int:
    """Return the number of batches in the lane that the producers share."""
    view = await read_lane(store, "group", 0)
    return sum(one.batches for one in view.descriptors)


async def group_commit(store: ObjectStore, lines: list[str]) -> None:
    """Run part 3."""
    appender = await fill(store, Lane(queue="commit", lane=0), 1)
    started = time.perf_counter()
    for number in range(100):
        await appender.append([draft(number)])
    serial = 100 / (time.perf_counter() - started)
    started = time.perf_counter()
    for _ in range(10):
        await asyncio.gather(*(appender.append([draft(number)]) for number in range(500)))
    grouped = 5000 / (time.perf_counter() - started)
    lines.append(
        f"one producer: {grouped:.0f} entries/s with 500 callers,"
        f" {serial:.0f}/s = 1 / round trip with one caller, {grouped / serial:.0f} times"
    )


async def main() -> None:
    """Run all parts."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-", dir=SHM if SHM.is_dir() else None))
    lines: list[str] = []
    try:
        async with open_local_store(folder) as store:
            samples = await cpu_per_append(store, lines)
            await four_producers(store, lines)
            await group_commit(store, lines)
    finally:
        shutil.rmtree(folder)
    report("queue", lines, samples)


if __name__ == "__main__":
    asyncio.run(main())
