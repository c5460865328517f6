"""The fake behind the port: the S3 adapter itself, over a bucket in memory instead of a network."""

import random  # noqa: TID251 - makes the default source of version ids, seeded

from sluice_protocol.clock import Clock
from sluice_protocol.system_clock import SystemClock
from sluice_store.memory.bucket import MemoryBucket
from sluice_store.memory.faults import FaultPlan, NoFaults
from sluice_store.memory.transport import MemoryPages, MemoryTransport
from sluice_store.s3.store import S3Store


def open_memory_store(
    bucket: MemoryBucket | None = None,
    *,
    plan: FaultPlan | None = None,
    clock: Clock | None = None,
    prefix: str = "",
) -> tuple[S3Store, MemoryTransport]:
    """Gives a store over a bucket in memory, and the transport that counts its calls.

    Several stores may share one bucket, each with its own plan: that is how two gateways race.

    Args:
        bucket: The bucket; a fresh one when None.
        plan: What goes wrong; nothing when None.
        clock: Time, and the sleep that lets other tasks run between a call and its answer.
        prefix: The deployment's prefix, empty or ending in a slash.
    """
    clock = clock or SystemClock()
    bucket = bucket or MemoryBucket(clock=clock, rng=random.Random(0))  # noqa: S311
    transport = MemoryTransport(bucket, plan or NoFaults(), clock, prefix)
    return S3Store(transport, MemoryPages(transport, prefix), prefix), transport
