"""A process that writes to a local store until it is killed: `python -m support.store_writer ROOT
RUN`.

It prints each key before the write (`?`) and after the outcome (`!`).
"""

import asyncio
import hashlib
import os
import sys
from pathlib import Path

from support.store_groups import CountedSync

from sluice_protocol.outcomes import Applied, Found
from sluice_protocol.units import ETag, ObjectKey
from sluice_store.local import open_local_store
from sluice_store.local.store import LocalStore

REGISTER = ObjectKey("register/manifest")


def body_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest() * 2048


def _say(mark: str, key: str) -> None:
    os.write(1, f"{mark}{key}\n".encode())


async def _create(store: LocalStore, worker: int, run: str) -> None:
    for number in range(1_000_000):
        name = f"{run}.{worker}.{number}"
        key = f"blobs/{hashlib.sha256(name.encode()).hexdigest()[:2]}/{name}"
        _say("?", key)
        if isinstance(await store.create(ObjectKey(key), body_of(key)), Applied):
            _say("!", key)


async def _swap(store: LocalStore) -> None:
    while True:
        read = await store.get(REGISTER)
        if not isinstance(read, Found):
            await store.create(REGISTER, b"0".ljust(4096))
            continue
        count = int(read.body) + 1
        body = str(count).encode().ljust(4096)
        _say("?", f"count {count}")
        swapped = await store.replace(REGISTER, body, if_match=ETag(read.info.etag))
        if isinstance(swapped, Applied):
            _say("!", f"count {count}")


async def _overwrite(store: LocalStore, run: str) -> None:
    for number in range(1_000_000):
        key = ObjectKey(f"over/{number % 5}")
        outcome = await store.overwrite(key, f"{run}.{number}".encode().ljust(4096))
        if isinstance(outcome, Applied) and number % 3 == 0 and outcome.incarnation:
            await store.delete(key, outcome.incarnation)


async def _run(root: Path, run: str) -> None:
    # Groups are written also on a busy disk; no power is lost here, so their syncs do not matter.
    whole = CountedSync(root)
    async with (
        open_local_store(root, filesystem=whole) as store,
        asyncio.TaskGroup() as group,
    ):
        for worker in range(6):
            group.create_task(_create(store, worker, run))
        group.create_task(_swap(store))
        group.create_task(_overwrite(store, run))


if __name__ == "__main__":
    asyncio.run(_run(Path(sys.argv[1]), sys.argv[2]))
