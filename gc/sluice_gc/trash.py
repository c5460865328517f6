"""The undo window: copies of deleted blobs, until they may be deleted too.

A copy is deleted under the same clauses as a blob. It is older than the retry horizon, and a later
audit covers it. No manifest named it in that audit or names it now, and it is still listed. Such an
audit has seen every manifest, so that only an operator can still want the copy back.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from sluice_gc.certificate import names_by_shard
from sluice_gc.certificate_chain import ChainLink, read_certificate_or_newest
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
from sluice_protocol.authority import Authority
from sluice_protocol.blob_deletion import Candidate, MayDelete
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import GC_TRASH, blob_key, digest_of, parse_digest
from sluice_protocol.outcomes import Deleted, Found
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.authority import read_authority
from sluice_store.concurrent_requests import run_concurrently
from sluice_store.port import ListedIncarnation, ObjectStore, Versioning
from sluice_store.retry import Backoff, OtherBytes, create_known, create_once, overwrite_known

_PROOFS_AT_ONCE = 16


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a purge of the trash.

    Attributes:
        purge_id: ULID, in the keys of its proofs.
        purged: Deleted copies.
        kept: Kept copies.
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
        """Return True if other bytes exist under the key of the blob."""
        return not self.restored


def trash_key(digest: Digest) -> ObjectKey:
    """Return the key of the copy of a deleted blob."""
    return ObjectKey(f"{GC_TRASH}sha256/{digest[:2]}/{digest[2:4]}/{digest}.lmbatch")


async def copy_to_trash(store: ObjectStore, candidate: Candidate, backoff: Backoff) -> bool:
    """Copy a blob to the trash before its deletion; an older copy is replaced.

    Returns:
        True if a correct copy exists. A blob whose bytes do not hash to its key is not copied.

    Raises:
        OutcomeUnknown: It is unknown whether the copy was written; nothing was deleted.
        StoreError: The store is unreachable or refused a request.
    """
    read = await store.get(candidate.key)
    if not isinstance(read, Found) or digest_of(read.body) != candidate.digest:
        return False
    await overwrite_known(store, trash_key(candidate.digest), read.body, backoff)
    return True


async def restore_blob(store: ObjectStore, digest: Digest, clock: Clock) -> RestoreReport:
    """Restore a deleted blob from the trash, as a new object version.

    Raises:
        BadUsage: The trash does not contain a copy.
        InvalidRecord: The copy is damaged.
        StoreError: The store is unreachable or refused a request.
    """
    read = await store.get(trash_key(digest))
    if not isinstance(read, Found):
        raise BadUsage(f"cannot restore blob: no copy in the trash, sha256=`{digest}`")
    if digest_of(read.body) != digest:
        raise InvalidRecord(trash_key(digest), "the copy does not hash to its key")
    backoff = Backoff.seeded_by(clock)
    outcome = await create_once(store, blob_key(digest), read.body, backoff)
    return RestoreReport(restored=not isinstance(outcome, OtherBytes))


async def purge_trash(
    store: ObjectStore, trusted: TrustedKeys, purge_id: str, *, clock: Clock
) -> PurgeReport:
    """Delete the copies whose undo window is over, each with a proof.

    Raises:
        GcRefused: Evidence of the audit was altered, or the audit missed a manifest.
        StoreError: The store is unreachable or refused a request.
    """
    link = await read_certificate_or_newest(store, trusted, None)
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
