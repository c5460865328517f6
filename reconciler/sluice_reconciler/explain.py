"""The path of one batch through the store, and its stored objects; it needs no running service."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sluice_protocol.authority import Authority
from sluice_protocol.batch_in_lake import BatchInLake
from sluice_protocol.batch_seal import SealBounds, seal_bounds
from sluice_protocol.errors import (
    BadUsage,
    InvalidFrame,
    InvalidRecord,
    StoreError,
    UnsupportedVersion,
)
from sluice_protocol.expiry import SignedTombstone
from sluice_protocol.frame import HEAD_BYTES_MAX, decode_head
from sluice_protocol.identity import Identity
from sluice_protocol.journals import HoldRecord, hold_record_key
from sluice_protocol.keys import (
    ACCEPTED,
    accepted_by_blob_prefix,
    accepted_key,
    blob_key,
    digest_of,
    lane_of,
    parse_accepted_key,
    parse_by_blob_key,
    parse_digest,
    quarantine_by_blob_prefix,
    quarantine_prefix,
)
from sluice_protocol.manifests import AcceptedManifest, decode_accepted, encode_reference
from sluice_protocol.outcomes import Found, NotFound, ObjectInfo
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane, list_lanes
from sluice_queue.worklists import read_work_list
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.indexes import (
    FoundEntry,
    TimeEntry,
    by_blob_of,
    by_time_of,
    find_entry,
    find_packed,
)
from sluice_reconciler.lanes.new_batches import new_batches
from sluice_reconciler.lanes.part_log import read_enqueued
from sluice_reconciler.lanes.sequence_ranges import BootRanges, EnqueueStatus
from sluice_reconciler.verify import VerifiedBatch, verify_batches
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore
from sluice_store.stored_expiry import TombstoneReader


class ObjectRole(StrEnum):
    """What an object of a batch is."""

    MANIFEST = "manifest"
    BLOB = "blob"
    BY_TIME = "by_time"
    BY_BLOB = "by_blob"
    RAW_BY_TIME = "raw_by_time"
    WORK_LIST = "work_list"
    HOLD_RECORD = "hold_record"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object of a batch, as it is stored now.

    Attributes:
        key: Its key; for an index entry the key that it has alone.
        proof: What it proves, or what is wrong with it.
        right: Whether its bytes are those that it should have; None if that was not compared.
        packed_in: The key of the packed object that contains the entry; None if it is alone.
        size_bytes: The size of the object, or of the packed object; None if it is missing.
        sha256: Of these bytes; None if they were not read and the store has none.
        last_modified_unix_ns: When it was written, by the store's clock; None if it is missing.
    """

    role: ObjectRole
    key: str
    present: bool
    proof: str
    right: bool | None = None
    packed_in: str | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    last_modified_unix_ns: int | None = None


def manifest_object(read: Found) -> StoredObject:
    """Return the manifest of a batch, which was read."""
    return _stored(
        ObjectRole.MANIFEST,
        read.info.key,
        read.info,
        sha256=digest_of(read.body),
        right=True,
    )


async def blob_object(store: ObjectStore, manifest: AcceptedManifest, problem: str) -> StoredObject:
    """Return the blob of a batch.

    `problem` is what a verification found; empty if the blob is right.
    """
    info = await store.head(ObjectKey(manifest.raw_blob_key))
    if not isinstance(info, ObjectInfo):
        missing = _missing(ObjectRole.BLOB, manifest.raw_blob_key)
        signed = await TombstoneReader(store).find(manifest) if problem == EXPIRED_BLOB else None
        return missing if signed is None else replace(missing, proof=_tombstone_text(signed))
    # A verification compares the bytes, or the checksum that the store verified at the upload.
    sha256 = info.sha256 or (None if problem else manifest.frame_sha256)
    return _stored(ObjectRole.BLOB, info.key, info, sha256=sha256, right=not problem)


def _tombstone_text(signed: SignedTombstone) -> str:
    one = signed.tombstone
    tables = ", ".join(f"{name} {state.version}" for name, state in sorted(one.tables.items()))
    cause = f"after {one.keep_s / 86_400:g} days by rule {one.rule}"
    if one.erasure:
        cause = f"because it contained records of erasure {one.erasure}"
    return (
        f"It expired {cause}: run {one.run_id}"
        f" compared it with the tables ({tables}) and recorded that in {one.key}."
    )


async def index_objects(store: ObjectStore, sound: VerifiedBatch) -> list[StoredObject]:
    """Return the three index entries of a batch, alone or packed."""
    by_time, raw = by_time_of(sound)
    key, body = by_blob_of(sound)
    by_blob = TimeEntry(at_ns=by_time.at_ns, key=key, body=body)
    read = await store.get(key)
    alone = None
    if isinstance(read, Found):
        alone = FoundEntry(
            info=read.info,
            sha256=digest_of(read.body),
            right=read.body == encode_reference(sound.key),
        )
    found = [
        _entry(ObjectRole.BY_TIME, by_time, await find_entry(store, by_time)),
        _entry(ObjectRole.BY_BLOB, by_blob, alone or await find_packed(store, raw)),
        _entry(ObjectRole.RAW_BY_TIME, raw, await find_entry(store, raw)),
    ]
    ended = "It ended with the batch, which has expired."
    return [
        replace(one, proof=ended) if sound.expired and not one.present else one for one in found
    ]


async def other_object(store: ObjectStore, role: ObjectRole, key: str) -> StoredObject:
    """Return a work list, a hold record or a quarantine manifest; its bytes are not compared."""
    read = await store.get(ObjectKey(key))
    if not isinstance(read, Found):
        return _missing(role, key)
    return _stored(role, key, read.info, sha256=digest_of(read.body), right=None)


def _entry(role: ObjectRole, entry: TimeEntry, found: FoundEntry | None) -> StoredObject:
    if found is None:
        return _missing(role, entry.key)
    packed = found.info.key if found.info.key != entry.key else None
    return _stored(
        role,
        entry.key,
        found.info,
        sha256=found.sha256,
        right=found.right,
        packed_in=packed,
    )


def _stored(
    role: ObjectRole,
    key: str,
    info: ObjectInfo,
    *,
    sha256: str | None,
    right: bool | None,
    packed_in: str | None = None,
) -> StoredObject:
    return StoredObject(
        role=role,
        key=key,
        present=True,
        proof=_WRONG if right is False else _PROOFS[role],
        right=right,
        packed_in=packed_in,
        size_bytes=info.size_bytes,
        sha256=sha256,
        last_modified_unix_ns=info.last_modified_ns,
    )


def _missing(role: ObjectRole, key: str) -> StoredObject:
    return StoredObject(role=role, key=key, present=False, proof="It does not exist.")


_WRONG: Final = "Its bytes are not those that it should have."
_PROOFS: Final = {
    ObjectRole.MANIFEST: (
        "The store allows one create of this key, so these bytes decide the identity permanently."
    ),
    ObjectRole.BLOB: "Its sha256 is the one that the manifest names.",
    ObjectRole.BY_TIME: "The entry has exactly the bytes of the manifest.",
    ObjectRole.BY_BLOB: "It names the manifest, so garbage collection keeps the blob.",
    ObjectRole.RAW_BY_TIME: "It names the manifest for the blob of this hour.",
    ObjectRole.WORK_LIST: "It contains the manifest for the consumer of the queue.",
    ObjectRole.HOLD_RECORD: "It states why the batch is not enqueued.",
    ObjectRole.QUARANTINE: "It names the bytes that were refused; the accepted ones are unchanged.",
}


_REACHES: Final = (1_000, 30_000, 1_000_000, 30_000_000)
"""How far before a record the keys of batches are listed that may contain it, one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """The state of a batch in one queue.

    Attributes:
        enqueued: Whether the batch was enqueued.
        sequence: The pending entry that contains it; None if it was acknowledged or not enqueued.
        acked_through: The acknowledged sequence of the lane.
        work_list: The key of the work list that contains it, while the entry is pending.
    """

    queue: str
    lane: int
    enqueued: bool
    sequence: int | None
    acked_through: int
    work_list: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPath:
    """Everything that the store contains about one identity.

    Attributes:
        manifest: The manifest, or None if the identity was not accepted.
        accepted_for_s: Age of the manifest, seconds.
        blob: `ok`, `expired`, or what is wrong with the blob.
        sealed: What is known of the time of its seal; None if the identity was not accepted.
        objects: Every object of the batch, with key, size, hash, time, and what it proves.
        mark: Key of its hold record, or None if it is not held.
        quarantined: Keys of quarantine manifests of other bytes under this identity.
        lake: Where it is in the lake, and which rollups contain it; None if that was not read.
    """

    identity: Identity
    manifest_key: str
    manifest: AcceptedManifest | None = None
    accepted_for_s: float | None = None
    blob: str = "not accepted"
    sealed: SealBounds | None = None
    objects: tuple[StoredObject, ...] = ()
    queues: tuple[QueuePosition, ...] = ()
    mark: str | None = None
    quarantined: tuple[str, ...] = ()
    lake: BatchInLake | None = None


EXPIRED_BLOB: Final = "expired"
"""The state of a blob that does not exist because its batch expired."""

ReadLake = Callable[[AcceptedManifest], Awaitable[BatchInLake]]
"""Reads where a batch is in the lake, which this component does not open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlace:
    """One record, whose batch is wanted, by its sequence number."""

    agent_id: str
    boot_id: str
    seq: int


Subject = Identity | Digest | RecordPlace


def parse_subject(text: str) -> Subject:
    """Parse what names a batch.

    This is the identity for `agent/boot/start-end` or the key of a manifest, the record for
    `agent/boot/seq`, or the blob for its SHA-256 in 64 hex digits.
    """
    if text.startswith(ACCEPTED):
        try:
            return parse_accepted_key(text)
        except InvalidRecord as error:
            raise BadUsage(f"not the key of a manifest, key=`{text[:200]}`") from error
    if len(text) == 64 and "/" not in text:  # noqa: PLR2004 - a sha256 in hex
        try:
            return parse_digest(text)
        except ValueError as error:
            raise BadUsage(f"a SHA-256 has 64 lower-case hex digits, found=`{text}`") from error
    try:
        agent, boot, numbers = text.rsplit("/", 2)
        bounds = [int(one) for one in numbers.split("-", 1)]
        who = Identity(agent_id=agent, boot_id=boot, seq_start=bounds[0], seq_end=bounds[-1])
    except (ValueError, InvalidFrame) as error:
        raise BadUsage(
            "name a batch as agent/boot/start-end, by a record as agent/boot/seq, by the key of its"
            f" manifest, or by its SHA-256, found=`{text}`"
        ) from error
    if len(bounds) == 1:
        return RecordPlace(agent_id=who.agent_id, boot_id=who.boot_id, seq=who.seq_start)
    return who


async def read_batch_paths(
    store: ObjectStore, subject: Subject, read_lake: ReadLake | None = None
) -> list[BatchPath]:
    """Return the path of an identity, or of every identity that contains a record or names a blob.

    Without `read_lake`, the lake is left out.
    """
    authority = await read_authority(store)
    paths = [await _path(store, who, authority) for who in await _identities(store, subject)]
    if read_lake is None:
        return paths
    return [
        replace(path, lake=await read_lake(path.manifest)) if path.manifest else path
        for path in paths
    ]


async def _identities(store: ObjectStore, subject: Subject) -> list[Identity]:
    if isinstance(subject, Identity):
        return [subject]
    if isinstance(subject, RecordPlace):
        return await find_batches(store, subject)
    accepted = await _references(store, accepted_by_blob_prefix(subject))
    quarantined = await _references(store, quarantine_by_blob_prefix(subject))
    known = {*accepted, *quarantined}
    try:
        known.update(await _named_by_envelope(store, subject))
    except UnsupportedVersion:  # of another version: the references lead to its batch
        if not known:
            raise
    return sorted(known)


async def find_batches(store: ObjectStore, place: RecordPlace) -> list[Identity]:
    """Return the accepted batches that contain a record; several if batches overlap.

    Keys are sorted by the first sequence number, and the number of records of a batch is unknown.
    So keys that start shortly before the record are listed first, then more of them.
    """
    for reach in _REACHES:
        first = max(0, place.seq - reach)
        found: list[Identity] = []
        async for who in _batches_from(store, place, first):
            if who.seq_start > place.seq:
                break
            if place.seq <= who.seq_end:
                found.append(who)
        if found or first == 0:
            return found
    return []


async def _batches_from(
    store: ObjectStore, place: RecordPlace, first: int
) -> AsyncIterator[Identity]:
    at = Identity(agent_id=place.agent_id, boot_id=place.boot_id, seq_start=first, seq_end=first)
    prefix = accepted_key(at).rpartition("/")[0] + "/"
    async for page in store.list(prefix, start_after=f"{prefix}{first:020d}"):
        for one in page.objects:
            with suppress(InvalidRecord):  # a foreign key, which the audit reports
                yield parse_accepted_key(one.key)


async def _named_by_envelope(store: ObjectStore, sha256: Digest) -> list[Identity]:
    """Return the identity in a blob's envelope, if its manifest names the blob.

    No other manifest can name it, so this needs no reverse reference.
    """
    read = await store.get(blob_key(sha256), first=0, last=HEAD_BYTES_MAX - 1)
    if not isinstance(read, Found):
        return []
    try:
        who = decode_head(read.body).envelope.identity
        manifest = await store.get(accepted_key(who))
        if not isinstance(manifest, Found):
            return []
        named = decode_accepted(accepted_key(who), manifest.body).digest == sha256
    except (InvalidFrame, InvalidRecord):
        return []
    return [who] if named else []


async def _references(store: ObjectStore, prefix: str) -> list[Identity]:
    return [
        parse_by_blob_key(one.key).identity
        async for page in store.list(prefix)
        for one in page.objects
    ]


async def _path(store: ObjectStore, who: Identity, authority: Authority) -> BatchPath:
    key = accepted_key(who)
    read = await store.get(key)
    if isinstance(read, NotFound):
        return BatchPath(identity=who, manifest_key=key, quarantined=await _quarantined(store, who))
    try:
        manifest = decode_accepted(key, read.body)
    except InvalidRecord as error:
        return BatchPath(
            identity=who, manifest_key=key, blob=f"manifest is not valid: {error.reason}"
        )
    [seen] = await verify_batches(store, [key], RequestLimit(1))
    if isinstance(seen, StoreError):
        raise seen
    defect = f"{seen.reason}: {seen.detail}" if isinstance(seen, HoldRecord) else ""
    if isinstance(seen, VerifiedBatch) and seen.expired:
        defect = EXPIRED_BLOB
    marked = await store.head(hold_record_key(key))
    mark = hold_record_key(key) if isinstance(marked, ObjectInfo) else None
    queues = await _queues(store, manifest, authority)
    quarantined = await _quarantined(store, who)
    sound = VerifiedBatch(
        key=key,
        manifest=manifest,
        body=read.body,
        date_ns=read.info.date_ns,
        expired=defect == EXPIRED_BLOB,
    )
    lists = [one.work_list for one in queues if one.work_list is not None]
    others = (
        *((ObjectRole.WORK_LIST, one) for one in lists),
        *((ObjectRole.HOLD_RECORD, one) for one in (mark,) if one is not None),
        *((ObjectRole.QUARANTINE, one) for one in quarantined),
    )
    return BatchPath(
        identity=who,
        manifest_key=key,
        manifest=manifest,
        accepted_for_s=(read.info.date_ns - manifest.accepted_at_unix_ns) / NS_PER_S,
        blob=defect or "ok",
        sealed=seal_bounds(manifest),
        objects=(
            manifest_object(read),
            await blob_object(store, manifest, defect),
            *await index_objects(store, sound),
            *[await other_object(store, role, one) for role, one in others],
        ),
        queues=queues,
        mark=mark,
        quarantined=quarantined,
    )


async def _quarantined(store: ObjectStore, who: Identity) -> tuple[str, ...]:
    pages = store.list(quarantine_prefix(who))
    return tuple([one.key async for page in pages for one in page.objects])


async def _queues(
    store: ObjectStore, manifest: AcceptedManifest, authority: Authority
) -> tuple[QueuePosition, ...]:
    """Inspect the lane of the batch's agent in every queue."""
    number, layout = lane_of(manifest.agent_id, authority.lanes), authority.layout
    lanes = [
        replace(lane, layout=layout) for lane in await list_lanes(store) if lane.lane == number
    ]
    places = [await _place(store, lane, manifest) for lane in lanes]
    return tuple(place for place in places if place is not None)


async def _place(
    store: ObjectStore, lane: Lane, manifest: AcceptedManifest
) -> QueuePosition | None:
    who = manifest.identity
    enqueued, _ = await read_enqueued(store, lane, of=(who.agent_id, who.boot_id))
    done = enqueued.status(who) is not EnqueueStatus.NEW
    if done:
        done = not (await new_batches(store, enqueued, [who]))[0]
    boot = enqueued.boot(who.agent_id, who.boot_id)
    if boot is None or boot == BootRanges():
        return None
    view = await read_lane(store, lane.queue, lane.lane)
    carrier = None
    for entry in view.descriptors:
        span = range(entry.first_accepted_at_ns, entry.last_accepted_at_ns + 1)
        if manifest.accepted_at_unix_ns not in span:
            continue
        if who in [one.identity for one in (await read_work_list(store, lane, entry)).batches]:
            carrier = entry
            break
    return QueuePosition(
        queue=lane.queue,
        lane=lane.lane,
        enqueued=done or carrier is not None,
        sequence=carrier.sequence if carrier is not None else None,
        acked_through=view.state.acked_through,
        work_list=carrier.location if carrier is not None else None,
    )
