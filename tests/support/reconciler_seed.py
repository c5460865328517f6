"""Accepted batches in a store, written as gateways write them.

Also here: what a consumer of the work lists reads: the records that are no repetitions.
"""

import json
from collections import Counter

from support.builders import (
    ACCEPTED_AT_NS,
    conflict_manifest,
    log_columns,
    make_identity,
    manifest,
    manifest_of,
)

from sluice_protocol.columns import slice_columns
from sluice_protocol.frame import decode_frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED_BY_BLOB,
    ACCEPTED_BY_TIME,
    RAW_BLOBS_BY_TIME,
    accepted_by_blob_key,
    accepted_by_time_key,
    accepted_key,
    blob_key,
    quarantine_key,
    raw_blob_by_time_key,
)
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_queue.consumer import Consumer
from sluice_queue.inspection import read_lane
from sluice_queue.lane import list_lanes
from sluice_queue.worklists import read_work_list
from sluice_reconciler.indexes import unpack
from sluice_store.port import ObjectStore


async def accept(
    store: ObjectStore,
    seq: int = 0,
    *,
    count: int = 10,
    agent: str = "host-1",
    boot: str = "b1",
    at_ns: int = ACCEPTED_AT_NS,
) -> AcceptedManifest:
    """Write the blob and the manifest of one batch."""
    frame = f"{agent}/{boot}/{seq}/{count}".encode()
    one = manifest(seq, count=count, agent=agent, boot=boot, at_ns=at_ns, frame=frame)
    await store.create(blob_key(one.digest), frame)
    await store.create(accepted_key(one.identity), encode_record(one))
    return one


async def accept_logs(
    store: ObjectStore,
    bodies: list[str],
    *,
    seq: int,
    at_ns: int,
    agent: str = "host-1",
) -> AcceptedManifest:
    """Write a batch whose frame can be decoded: one log record for each body."""
    who = make_identity(seq, count=len(bodies), agent=agent)
    columns = log_columns(bodies, from_ns=at_ns)
    frame = encode_frame(identity=who, columns=columns)
    one = manifest_of(frame, at_ns=at_ns)
    await store.create(blob_key(one.digest), frame)
    await store.create(accepted_key(one.identity), encode_record(one))
    return one


async def refuse(store: ObjectStore, seq: int = 0) -> ObjectKey:
    """Write the quarantine manifest of other bytes under an accepted identity."""
    good, bad = manifest(seq), manifest(seq, frame=b"other bytes")
    record = conflict_manifest(
        good.identity,
        accepted=good.digest,
        submitted=bad.digest,
        at_ns=good.accepted_at_unix_ns,
    )
    key = quarantine_key(good.identity, bad.digest)
    await store.create(key, encode_record(record))
    return key


def index_keys(one: AcceptedManifest) -> tuple[ObjectKey, ...]:
    """Return the keys of a batch's three index entries."""
    key = accepted_key(one.identity)
    return (
        accepted_by_time_key(key, one.accepted_at_ns),
        accepted_by_blob_key(one.digest, one.identity),
        raw_blob_by_time_key(one.digest, one.accepted_at_ns),
    )


async def index_entries(store: ObjectStore) -> dict[ObjectKey, bytes]:
    """Return all index entries, also those in packed objects."""
    found: dict[ObjectKey, bytes] = {}
    for index in (ACCEPTED_BY_TIME, ACCEPTED_BY_BLOB, RAW_BLOBS_BY_TIME):
        async for page in store.list(index):
            for one in page.objects:
                read = await store.get(one.key)
                if isinstance(read, Found):
                    found.update(unpack(one.key, read.body))
    return found


async def enqueued(store: ObjectStore, queue: str = "spark") -> list[AcceptedManifest]:
    """Return every batch in a queue, lane by lane, in order."""
    found: list[AcceptedManifest] = []
    for lane in await list_lanes(store, queue):
        view = await read_lane(store, queue, lane.lane)
        handle = (await Consumer.open(store, queue=queue, lane=lane.lane)).fetch_handle()
        for one in view.descriptors:
            found += (await handle.fetch(one)).batches
    return found


async def queued(store: ObjectStore) -> Counter[Identity]:
    """Return how often each batch is in the queue; no epoch is claimed."""
    found: Counter[Identity] = Counter()
    for lane in await list_lanes(store, "spark"):
        for entry in (await read_lane(store, lane.queue, lane.lane)).descriptors:
            batches = (await read_work_list(store, lane, entry)).batches
            found.update(one.identity for one in batches)
    return found


async def queued_bodies(store: ObjectStore) -> Counter[str]:
    """Return how often a consumer of the work lists reads each body or name of a metric."""
    found: Counter[str] = Counter()
    for batch in await enqueued(store):
        blob = await store.get(ObjectKey(batch.raw_blob_key))
        assert isinstance(blob, Found)
        columns = decode_frame(blob.body).columns
        for start, end in batch.kept:
            for line in ndjson_from_columns(slice_columns(columns, start, end)):
                record = json.loads(line)
                found[record["body"] if "body" in record else record["name"]] += 1
    return found
