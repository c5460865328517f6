"""The undo window: copies of deleted blobs, until they may be deleted too.

A copy is deleted under the same clauses as a blob. It is older than the retry horizon, and a later
audit covers it. No manifest named it in that audit or names it now, and it is still listed. Such an
audit has seen every manifest, so that only an operator can still want the copy back.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from sluice_gc.certificate import names_by_shard
from sluice_gc.certificate_chain import ChainLink, read_newest_or
from sluice_gc.deletion_proof import (
    CandidateCase,
    DeletionProof,
    audit_result,
    listed_candidate,
    proof_key,
    proofs_table,
    prove,
)
from sluice_gc.evidence_files import digest_bytes, encode_table, read_names
from sluice_gc.key_ranges import parse_shard
from sluice_gc.signing_keys import TrustedKeys
from sluice_gc.task_engine import run_concurrently
from sluice_protocol.authority import Authority
from sluice_protocol.blob_deletion import Candidate, MayDelete
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import GC_TRASH, blob_key, digest_of, parse_digest
from sluice_protocol.outcomes import Deleted, Found
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.authority import read_authority
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


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `restore_blob`.

    Attributes:
        restored: Whether the blob exists again; False when its key contains other bytes.
    """

    restored: bool

    @property
    def found_wrong(self) -> bool:
        """Whether other bytes exist under the key of the blob."""
        return not self.restored


def trash_key(digest: Digest) -> ObjectKey:
    """Gives where the copy of a deleted blob stands."""
    return ObjectKey(f"{GC_TRASH}sha256/{digest[:2]}/{digest[2:4]}/{digest}.lmbatch")


async def copy_to_trash(store: ObjectStore, candidate: Candidate, backoff: Backoff) -> bool:
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


async def restore_blob(store: ObjectStore, digest: Digest, clock: Clock) -> RestoreReport:
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
    return RestoreReport(restored=not isinstance(outcome, OtherBytes))


async def purge_trash(
    store: ObjectStore, trusted: TrustedKeys, purge_id: str, *, clock: Clock
) -> PurgeReport:
    """Deletes the copies whose time is over, each with a proof as a blob has one.

    Raises:
        GcRefused: Evidence of the audit was altered, or the audit missed a manifest.
        StoreError: No answer, or a refusal.
    """
    link = await read_newest_or(store, trusted, None)
    authority = await read_authority(store)
    named = {
        place: await read_names(store, names)
        for place, names in names_by_shard(link.certificate).items()
    }
    enabled = await store.read_versioning() is Versioning.ENABLED
    proofs: list[DeletionProof] = []

    async def one(listed: ListedIncarnation) -> None:
        case = _candidate_case(listed, authority, link, named, enabled=enabled)
        proofs.append(await prove(store, case))

    await run_concurrently(await _list_trash(store), one, concurrency=_PROOFS_AT_ONCE)
    going = [proof for proof in proofs if isinstance(proof.verdict, MayDelete)]
    await _write_proofs(store, purge_id, going, Backoff.seeded_by(clock))
    purged = 0
    for proof in going:
        candidate = proof.case.candidate
        purged += isinstance(await store.delete(candidate.key, candidate.incarnation), Deleted)
    return PurgeReport(purge_id=purge_id, purged=purged, kept=len(proofs) - purged)


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


def _candidate_case(
    listed: ListedIncarnation,
    authority: Authority,
    link: ChainLink,
    named: dict[str, frozenset[bytes]],
    *,
    enabled: bool,
) -> CandidateCase:
    digest = _digest_of_key(listed.key)
    place = next(one for one in named if digest in parse_shard(one))
    named_in_audit = digest_bytes(digest) in named[place]
    return CandidateCase(
        candidate=listed_candidate(listed, digest),
        noncurrent=False,
        audit=audit_result(link.certificate, names_blob=named_in_audit),
        retry_horizon_ns=authority.retry_horizon_ns,
        versioning_enabled=enabled,
    )


async def _write_proofs(
    store: ObjectStore, purge_id: str, going: Iterable[DeletionProof], backoff: Backoff
) -> None:
    groups: dict[str, list[DeletionProof]] = defaultdict(list)
    for proof in going:
        groups[proof.case.candidate.digest[:2]].append(proof)
    for hh, proofs in groups.items():
        body = encode_table(proofs_table(purge_id, proofs))
        await create_known(store, proof_key(purge_id, hh, 0, 0), body, backoff)
