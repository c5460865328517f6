"""Accepted batches in a store, as gateways leave them."""

import json

from support.queue_batches import manifest

from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    accepted_by_blob_key,
    accepted_by_time_key,
    accepted_key,
    blob_key,
    quarantine_key,
    raw_blob_by_time_key,
)
from sluice_protocol.manifests import AcceptedManifest, ConflictManifest, encode_record
from sluice_protocol.ndjson import columns_from_ndjson
from sluice_protocol.units import ObjectKey
from sluice_queue.consumer import Consumer
from sluice_queue.inspection import list_lanes, read_lane
from sluice_store.port import ObjectStore


async def accept(
    store: ObjectStore, seq: int = 0, *, count: int = 10, agent: str = "host-1", boot: str = "b1"
) -> AcceptedManifest:
    """Leaves the blob and the manifest of one batch."""
    frame = f"{agent}/{boot}/{seq}/{count}".encode()
    one = manifest(seq, count=count, agent=agent, boot=boot, frame=frame)
    await store.create(blob_key(one.digest), frame)
    await store.create(accepted_key(one.identity), encode_record(one))
    return one


async def accept_logs(
    store: ObjectStore, bodies: list[str], *, seq: int, at_ns: int, agent: str = "host-1"
) -> AcceptedManifest:
    """Leaves a batch whose frame can be decoded: one log line for each body."""
    lines = [json.dumps({"ts": at_ns + n, "body": body}) for n, body in enumerate(bodies)]
    who = Identity(agent_id=agent, boot_id="b1", seq_start=seq, seq_end=seq + len(bodies) - 1)
    frame = encode_frame(identity=who, columns=columns_from_ndjson("logs", lines))
    one = manifest(seq, count=len(bodies), agent=agent, at_ns=at_ns, frame=frame)
    await store.create(blob_key(one.digest), frame)
    await store.create(accepted_key(one.identity), encode_record(one))
    return one


async def refuse(store: ObjectStore, seq: int = 0) -> ObjectKey:
    """Leaves the quarantine manifest of other bytes under an accepted identity."""
    good, bad = manifest(seq), manifest(seq, frame=b"other bytes")
    record = ConflictManifest(
        agent_id=good.agent_id,
        boot_id=good.boot_id,
        seq_start=good.seq_start,
        seq_end=good.seq_end,
        accepted_manifest_key=accepted_key(good.identity),
        accepted_raw_blob_key=good.raw_blob_key,
        accepted_frame_sha256=good.frame_sha256,
        submitted_raw_blob_key=bad.raw_blob_key,
        submitted_frame_sha256=bad.frame_sha256,
        observed_at_unix_ns=good.accepted_at_unix_ns,
        collector_id="gw-1",
    )
    key = quarantine_key(good.identity, bad.digest)
    await store.create(key, encode_record(record))
    return key


def index_keys(one: AcceptedManifest) -> tuple[ObjectKey, ...]:
    """Gives the keys of a batch's three index entries."""
    key = accepted_key(one.identity)
    return (
        accepted_by_time_key(key, one.accepted_at_ns),
        accepted_by_blob_key(one.digest, one.identity),
        raw_blob_by_time_key(one.digest, one.accepted_at_ns),
    )


async def enqueued(store: ObjectStore, queue: str = "spark") -> list[AcceptedManifest]:
    """Gives every batch that stands in a queue, lane by lane, in order."""
    found: list[AcceptedManifest] = []
    for lane in await list_lanes(store, queue):
        view = await read_lane(store, queue, lane.lane)
        handle = (await Consumer.open(store, queue=queue, lane=lane.lane)).fetch_handle()
        for one in view.descriptors:
            found += (await handle.fetch(one)).batches
    return found
