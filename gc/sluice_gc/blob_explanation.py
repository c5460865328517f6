"""The reasons why a blob was deleted or is kept: stored proofs, and each clause checked now."""

import msgspec
import pyarrow as pa

from sluice_gc.certificate import names_by_shard, read_newest
from sluice_gc.deletion_proof import (
    CandidateCase,
    audit_result,
    listed_candidate,
    may_prove,
    proofs_prefix,
    prove_deletion,
)
from sluice_gc.errors import CertificateInvalid, GcRefused, RefusalRule
from sluice_gc.evidence_files import (
    decode_proofs,
    digest_bytes,
    digest_from_bytes,
    read_names,
)
from sluice_gc.key_ranges import parse_shard
from sluice_gc.signing_keys import TrustedKeys
from sluice_gc.tombstones import TrustedTombstones, read_expired_now
from sluice_protocol.blob_deletion import AuditResult, MustKeep
from sluice_protocol.keys import blob_key
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest, UnixNs
from sluice_store.authority import read_authority
from sluice_store.port import ListedIncarnation, ObjectStore, Versioning


class StoredProof(msgspec.Struct, frozen=True, kw_only=True):
    """One proof in `gc/v1/proofs/`.

    Without a clause, the version may be deleted; `proved_at_unix_ns` is the store's clock when the
    evidence was read.
    """

    proof_key: str
    plan_id: str
    audit_id: str
    incarnation: str
    last_modified_unix_ns: int
    proved_at_unix_ns: int
    verdict: str
    clause: str | None
    reason: str | None


class VersionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """An existing object version, and the verdict of a run on it now."""

    incarnation: str
    last_modified_unix_ns: int
    size_bytes: int
    current: bool
    verdict: str
    clause: str | None
    reason: str | None


class BlobExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that garbage collection has recorded or can check about one blob."""

    sha256: str
    audit_id: str | None
    named_in_audit: bool | None
    incarnations: tuple[VersionVerdict, ...]
    proofs: tuple[StoredProof, ...]


async def explain_blob(store: ObjectStore, trusted: TrustedKeys, digest: Digest) -> BlobExplanation:
    """Return the stored proofs of a blob, and the clause that keeps each existing version."""
    audit = await _read_audit_result(store, trusted, digest)
    named = audit.names_blob if audit else None
    return BlobExplanation(
        sha256=digest,
        audit_id=audit.audit_id if audit else None,
        named_in_audit=named,
        incarnations=tuple(
            [
                await _decide_now(store, trusted, digest, one, audit)
                for one in await _list(store, digest)
            ]
        ),
        proofs=tuple(await _read_proofs(store, digest)),
    )


async def _read_audit_result(
    store: ObjectStore, trusted: TrustedKeys, digest: Digest
) -> AuditResult | None:
    try:
        link = await read_newest(store, trusted)
    except CertificateInvalid:
        return None
    if link is None:
        return None
    certificate = link.certificate
    files = names_by_shard(certificate)
    place = next(one for one in files if digest in parse_shard(one))
    named = await read_names(store, files[place])
    return audit_result(certificate, names_blob=digest_bytes(digest) in named)


async def _list(store: ObjectStore, digest: Digest) -> list[ListedIncarnation]:
    key = blob_key(digest)
    return [
        one
        async for page in store.list_incarnations(key)
        for one in page.incarnations
        if one.key == key and not one.marker
    ]


async def _decide_now(
    store: ObjectStore,
    trusted: TrustedKeys,
    digest: Digest,
    listed: ListedIncarnation,
    audit: AuditResult | None,
) -> VersionVerdict:
    authority = await read_authority(store)
    nothing = AuditResult(audit_id="", started_at_ns=UnixNs(0), complete=False, names_blob=None)
    noncurrent = bool(audit and audit.names_blob) and not listed.current
    case = CandidateCase(
        candidate=listed_candidate(listed, digest),
        noncurrent=noncurrent,
        audit=audit or nothing,
        retry_horizon_ns=authority.retry_horizon_ns,
        versioning_enabled=await store.read_versioning() is Versioning.ENABLED,
    )
    tombstones = TrustedTombstones(store, trusted, authority.authority_id)
    expired = await read_expired_now(store, tombstones)
    verdict = (await prove_deletion(store, case, expired=expired)).verdict
    kept = verdict if isinstance(verdict, MustKeep) else None
    return VersionVerdict(
        incarnation=listed.incarnation,
        last_modified_unix_ns=listed.last_modified_ns,
        size_bytes=listed.size_bytes,
        current=listed.current,
        verdict="keep" if kept else "may_go",
        clause=kept.clause.value if kept else None,
        reason=kept.reason if kept else None,
    )


async def _read_proofs(store: ObjectStore, digest: Digest) -> list[StoredProof]:
    found: list[StoredProof] = []
    async for page in store.list(proofs_prefix(digest)):
        for listed in page.objects:
            if not may_prove(listed.key, digest):
                continue
            read = await store.get(listed.key)
            if isinstance(read, Found):
                found += _rows(listed.key, read.body, digest)
    return sorted(found, key=lambda one: one.proved_at_unix_ns)


def _rows(key: str, body: bytes, digest: Digest) -> list[StoredProof]:
    try:
        table = decode_proofs(body)
    except (ValueError, pa.ArrowException) as error:
        raise GcRefused(
            RefusalRule.EVIDENCE_CHANGED, f"cannot read proof: the file is damaged, key={key}"
        ) from error
    return [
        StoredProof(
            proof_key=key,
            plan_id=row["plan_id"],
            audit_id=row["audit_id"],
            incarnation=row["incarnation"],
            last_modified_unix_ns=row["last_modified_ns"],
            proved_at_unix_ns=row["now_ns"],
            verdict=row["verdict"],
            clause=row["clause"],
            reason=row["reason"],
        )
        for row in table.to_pylist()
        if digest_from_bytes(row["sha256"]) == digest
    ]
