"""The undo window: copies of deleted blobs, until they may be deleted too.

A copy is deleted under the same clauses as a blob. It is older than the retry horizon, and a later
audit covers it. No manifest named it in that audit or names it now, and it is still listed. Such an
audit has seen every manifest, so that only an operator can still want the copy back.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from sluice_gc.certificate import names_by_shard, read_certificate_or_newest
from sluice_gc.deletion_proof import (
    CandidateCase,
    DeletionProof,
    audit_result,
    listed_candidate,
    proof_key,
    proofs_table,
    prove_deletion,
)
from sluice_gc.evidence_files import digest_bytes, encode_proofs, read_names
from sluice_gc.key_ranges import parse_shard
from sluice_gc.signing_keys import TrustedKeys
from sluice_gc.tombstones import TrustedTombstones, read_expired_now
from sluice_protocol.authority import Authority
from sluice_protocol.blob_deletion import MayDelete
from sluice_protocol.clock import Clock
from sluice_protocol.collection_records import Certificate, EvidenceFile
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import GC_TRASH, blob_key, digest_of, parse_trash_key, trash_key
from sluice_protocol.outcomes import Deleted, Found
from sluice_protocol.units import Digest
from sluice_store.authority import read_authority
from sluice_store.port import ListedIncarnation, ObjectStore, Versioning, run_concurrently
from sluice_store.retry import Backoff, OtherBytes, create_known, create_once

_PROOFS_AT_ONCE: Final = 16


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a purge of the trash; the keys of its proofs contain its ULID."""

    purge_id: str
    purged: int
    kept: int


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `restore_blob`; not `restored` when the key contains other bytes."""

    restored: bool

    @property
    def found_wrong(self) -> bool:
        """Return True if other bytes exist under the key of the blob."""
        return not self.restored


async def restore_blob(store: ObjectStore, digest: Digest, clock: Clock) -> RestoreReport:
    """Restore a deleted blob from the trash, as a new object version."""
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
    """Delete the copies whose undo window is over, each with a proof."""
    link = await read_certificate_or_newest(store, trusted, None)
    purge = _Purge(
        store=store,
        purge_id=purge_id,
        certificate=link.certificate,
        authority=await read_authority(store),
        trusted=trusted,
        backoff=Backoff.seeded_by(clock),
    )
    files = names_by_shard(link.certificate)
    copies = _by_shard(await _list_trash(store), files)
    # One shard after the other: the names of all of them may be more than fits into memory.
    found = [await purge.shard(of_place, files[place]) for place, of_place in copies.items()]
    return PurgeReport(
        purge_id=purge_id,
        purged=sum(purged for purged, _ in found),
        kept=sum(kept for _, kept in found),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Purge:
    """One purge, and what it rests on."""

    store: ObjectStore
    purge_id: str
    certificate: Certificate
    authority: Authority
    trusted: TrustedKeys
    backoff: Backoff

    async def shard(
        self, copies: Sequence[ListedIncarnation], names: Iterable[EvidenceFile]
    ) -> tuple[int, int]:
        """Prove and delete the copies of one shard; return the numbers of purged and kept ones."""
        named = await read_names(self.store, names)
        enabled = await self.store.read_versioning() is Versioning.ENABLED
        proofs: list[DeletionProof] = []
        tombstones = TrustedTombstones(self.store, self.trusted, self.authority.authority_id)
        expired = await read_expired_now(self.store, tombstones)

        async def one(listed: ListedIncarnation) -> None:
            case = self._case(listed, named, enabled=enabled)
            proofs.append(await prove_deletion(self.store, case, expired=expired))

        await run_concurrently(copies, one, concurrency=_PROOFS_AT_ONCE)
        going = [proof.case.candidate for proof in proofs if isinstance(proof.verdict, MayDelete)]
        await self._write_proofs(proofs)
        outcomes = [await self.store.delete(one.key, one.incarnation) for one in going]
        purged = sum(isinstance(one, Deleted) for one in outcomes)
        return purged, len(proofs) - purged

    def _case(
        self, listed: ListedIncarnation, named: frozenset[bytes], *, enabled: bool
    ) -> CandidateCase:
        digest = parse_trash_key(listed.key)
        names_blob = digest_bytes(digest) in named
        return CandidateCase(
            candidate=listed_candidate(listed, digest),
            noncurrent=False,
            audit=audit_result(self.certificate, names_blob=names_blob),
            retry_horizon_ns=self.authority.retry_horizon_ns,
            versioning_enabled=enabled,
        )

    async def _write_proofs(self, proofs: Iterable[DeletionProof]) -> None:
        groups: dict[str, list[DeletionProof]] = defaultdict(list)
        for proof in proofs:
            if isinstance(proof.verdict, MayDelete):
                groups[proof.case.candidate.digest[0]].append(proof)
        for of_digit in groups.values():
            digests = sorted(one.case.candidate.digest for one in of_digit)
            key = proof_key(self.purge_id, digests[0], digests[-1], 0)
            body = encode_proofs(proofs_table(self.purge_id, of_digit))
            await create_known(self.store, key, body, self.backoff)


def _by_shard(
    copies: Iterable[ListedIncarnation], places: Iterable[str]
) -> dict[str, list[ListedIncarnation]]:
    shards = {place: parse_shard(place) for place in places}
    found: dict[str, list[ListedIncarnation]] = defaultdict(list)
    for one in copies:
        digest = parse_trash_key(one.key)
        found[next(place for place, shard in shards.items() if digest in shard)].append(one)
    return found


async def _list_trash(store: ObjectStore) -> list[ListedIncarnation]:
    return [
        one
        async for page in store.list_incarnations(GC_TRASH)
        for one in page.incarnations
        if not one.marker
    ]
