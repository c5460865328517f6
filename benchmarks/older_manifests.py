"""A store with many older batches, written as files: the manifests, the lane states, the records.

A directory and versitygw store an object as a file at the path of its key, so a million manifests
need a minute instead of an hour. The older batches are enqueued, and the last full pass has ended,
as after a day of work: a reconciler reads none of them.
"""

import asyncio
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from benchmarks.reconcile_world import AGENTS, LANES, manifest, pending, who_is
from sluice_protocol.authority import Authority
from sluice_protocol.journals import DISCOVERY, DiscoveryRecord
from sluice_protocol.keys import accepted_key, digest_of, lane_of
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.owner import LaneOwner
from sluice_reconciler.passes.progress import PASS, PassRecord, PassSpan
from sluice_store import StoreMode, create_authority, open_store
from sluice_store.port import ObjectStore

AGE_S: Final = 3600
"""Age of the newest of the older manifests."""
WRITERS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFolder:
    """A folder with an object at the path of each key.

    With `etags`, versitygw reads it, which keeps the ETag of a file in an attribute.
    """

    path: Path
    etags: bool


def write_manifests(place: ObjectFolder, count: int) -> None:
    """Write accepted manifests without blobs, in several processes."""
    newest_ns = time.time_ns() - AGE_S * NS_PER_S
    writers = [partial(_write_some, place, count, newest_ns, one) for one in range(WRITERS)]
    with ProcessPoolExecutor(WRITERS, get_context("spawn")) as pool:
        for one in [pool.submit(writer) for writer in writers]:
            one.result()


def _write_some(place: ObjectFolder, count: int, newest_ns: int, writer: int) -> None:
    folders: set[str] = set()
    for agent in range(writer, AGENTS, WRITERS):
        for number in range(agent, count, AGENTS):
            at_ns = newest_ns - (count - number) * 1000
            one, _ = manifest(number, at_ns)
            path = f"{place.path}/{accepted_key(one.identity)}"
            folder = path.rpartition("/")[0]
            if folder not in folders:
                Path(folder).mkdir(parents=True, exist_ok=True)
                folders.add(folder)
            _write_file(place, path, encode_record(one), at_ns)


def _write_file(place: ObjectFolder, path: str, body: bytes, at_ns: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(fd, body)
        if place.etags:
            os.setxattr(fd, "user.etag", f'"{digest_of(body)[:32]}"'.encode())
        os.utime(fd, ns=(at_ns, at_ns))
    finally:
        os.close(fd)


async def leave_older(url: str, place: ObjectFolder, count: int) -> None:
    """Fill an empty store as if these batches were enqueued and a full pass had listed them."""
    async with open_store(url, StoreMode.CREATE) as store:
        await create_authority(store, Authority(authority_id="B" * 26, lanes=LANES))
        if count:
            await asyncio.to_thread(write_manifests, place, count)
            await _leave_lane_states(store, count)
        await _leave_records(store, count)


async def _leave_lane_states(store: ObjectStore, count: int) -> None:
    for lane in range(LANES):
        owner = await LaneOwner.take(store, Lane(queue="spark", lane=lane), Runtime())
        for agent in range(AGENTS):
            if lane_of(f"host-{agent}", LANES) == lane:
                for number in range(agent, count, AGENTS):
                    owner.enqueued.add(pending(who_is(number)))
        await owner.close()


async def _leave_records(store: ObjectStore, count: int) -> None:
    now_ns = time.time_ns() - 5 * NS_PER_S
    discovery = DiscoveryRecord(
        complete_through_unix_ns=now_ns,
        listed=count,
        pass_began_unix_ns=now_ns,
        journaled_since_unix_ns=now_ns,
        revision=1,
        writer="bench",
    )
    ended = PassRecord(
        began_unix_ns=now_ns,
        spans=(PassSpan(after="", up_to=None, listed=count, done=True),),
        ended=True,
        revision=1,
        writer="bench",
    )
    await store.create(DISCOVERY, encode_record(discovery))
    await store.create(PASS, encode_record(ended))
