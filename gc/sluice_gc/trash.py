"""The undo window: copies of blobs that were deleted, until their own time is over.

A copy goes by the same clauses as a blob: older than the retry horizon, covered by a certificate
that started later than that, named by nothing then and nothing now, still listed. Since an audit
that late has seen every manifest, nobody can want it back except a person, who had that long.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from sluice_gc.chain import Link
from sluice_gc.concurrency import for_each
from sluice_gc.evidence import NAMES, encode_table, raw
from sluice_gc.objects import read_tables
from sluice_gc.planner import names_by_shard
from sluice_gc.proof import Case, Proof, prove
from sluice_gc.proof_records import proof_key, proofs_table
from sluice_gc.shards import parse_shard
from sluice_protocol.authority import Authority
from sluice_protocol.blob_deletion import AuditResult, Candidate, MayDelete
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import GC_TRASH, blob_key, digest_of, parse_digest
from sluice_protocol.outcomes import Deleted, Found
from sluice_protocol.units import Digest, ObjectKey, UnixNs
from sluice_store.port import ListedIncarnation, ObjectStore, Versioning
from sluice_store.retry import Backoff, OtherBytes, create_known, create_once, overwrite_known

_PROOFS_AT_ONCE = 16


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a purge of the trash did.

    Attributes:
        purge_id: ULID, in the keys of its proofs.
        purged: Copies deleted.
        kept: Copies that stay.
    """

    purge_id: str
    purged: int
    kept: int


def trash_key(digest: Digest) -> ObjectKey:
    """Gives where the copy of a deleted blob stands."""
    return ObjectKey(f"{GC_TRASH}sha256/{digest[:2]}/{digest[2:4]}/{digest}.lmbatch")


async def keep_for_undo(store: ObjectStore, candidate: Candidate, backoff: Backoff) -> bool:
    """Copies a blob to the trash before it is deleted; an older copy's time starts again.

    Returns:
        Whether a right copy stands there; a blob whose bytes do not hash to its key stays.

    Raises:
        OutcomeUnknown: Nobody knows whether the copy landed; nothing was deleted.
        StoreError: No answer, or a refusal.
    """
    read = await store.get(candidate.key)
    if not isinstance(read, Found) or digest_of(read.body) != candidate.digest:
        return False
    await overwrite_known(store, trash_key(candidate.digest), read.body, backoff)
    return True


async def restore_blob(store: ObjectStore, digest: Digest, clock: Clock) -> bool:
    """Puts a deleted blob back from the trash, as a new and young incarnation.

    Returns:
        Whether it stands there now by this call; False when the key holds something else.

    Raises:
        BadUsage: The trash has no copy of it.
        InvalidRecord: The copy is damaged.
        StoreError: No answer, or a refusal.
    """
    read = await store.get(trash_key(digest))
    if not isinstance(read, Found):
        raise BadUsage(f"the trash has no copy of it, sha256=`{digest}`")
    if digest_of(read.body) != digest:
        raise InvalidRecord(trash_key(digest), "the copy is damaged")
    backoff = Backoff.seeded_by(clock)
    outcome = await create_once(store, blob_key(digest), read.body, backoff)
    return not isinstance(outcome, OtherBytes)


async def purge_trash(
    store: ObjectStore, authority: Authority, link: Link, purge_id: str, *, clock: Clock
) -> PurgeReport:
    """Deletes the copies whose time is over, each with a proof as a blob has one.

    Raises:
        GcRefused: Evidence of the audit was altered, or the audit missed a manifest.
        StoreError: No answer, or a refusal.
    """
    named = await _read_names(store, link)
    enabled = await store.read_versioning() is Versioning.ENABLED
    proofs: list[Proof] = []

    async def one(listed: ListedIncarnation) -> None:
        case = _case(listed, authority, link, named, enabled=enabled)
        proofs.append(await prove(store, case))

    await for_each(await _list_trash(store), one, at_once=_PROOFS_AT_ONCE)
    going = [proof for proof in proofs if isinstance(proof.verdict, MayDelete)]
    await _write_proofs(store, purge_id, going, Backoff.seeded_by(clock))
    purged = 0
    for proof in going:
        candidate = proof.case.candidate
        purged += isinstance(await store.delete(candidate.key, candidate.incarnation), Deleted)
    return PurgeReport(purge_id=purge_id, purged=purged, kept=len(proofs) - purged)


async def _read_names(store: ObjectStore, link: Link) -> dict[str, frozenset[bytes]]:
    return {
        place: frozenset((await read_tables(store, names, NAMES))["sha256"].to_pylist())
        for place, names in names_by_shard(link.certificate).items()
    }


async def _list_trash(store: ObjectStore) -> list[ListedIncarnation]:
    return [
        one
        async for page in store.list_incarnations(GC_TRASH)
        for one in page.incarnations
        if not one.marker
    ]


def _digest_of_key(key: ObjectKey) -> Digest:
    try:
        digest = parse_digest(key.rpartition("/")[2].removesuffix(".lmbatch"))
    except ValueError as error:
        raise InvalidRecord(key, "key is not a copy in the trash") from error
    if trash_key(digest) != key:
        raise InvalidRecord(key, "key is not a copy in the trash")
    return digest


def _case(
    listed: ListedIncarnation,
    authority: Authority,
    link: Link,
    named: dict[str, frozenset[bytes]],
    *,
    enabled: bool,
) -> Case:
    digest = _digest_of_key(listed.key)
    byte = int(digest[:2], 16)
    places = (parse_shard(place) for place in named)
    mine = next(shard for shard in places if shard.first <= byte < shard.end)
    return Case(
        candidate=Candidate(
            key=listed.key,
            digest=digest,
            incarnation=listed.incarnation,
            last_modified_ns=listed.last_modified_ns,
            size_bytes=listed.size_bytes,
        ),
        superseded=False,
        audit=AuditResult(
            audit_id=link.certificate.audit_id,
            started_at_ns=UnixNs(link.certificate.started_at_unix_ns),
            complete=True,
            names_blob=raw(digest) in named[mine.name],
        ),
        retry_horizon_ns=authority.retry_horizon_ns,
        versioning_enabled=enabled,
    )


async def _write_proofs(
    store: ObjectStore, purge_id: str, going: Iterable[Proof], backoff: Backoff
) -> None:
    groups: dict[str, list[Proof]] = defaultdict(list)
    for proof in going:
        groups[proof.case.candidate.digest[:2]].append(proof)
    for hh, proofs in groups.items():
        body = encode_table(proofs_table(purge_id, proofs))
        await create_known(store, proof_key(purge_id, hh, 0, 0), body, backoff)
