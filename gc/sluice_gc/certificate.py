"""The record of a complete audit: what was listed, when, what was found, and its predecessor.

A certificate is canonical JSON with an Ed25519 signature over its inner record. It contains the
sha256 of the previous certificate. A check of the chain therefore finds each certificate that was
altered, removed or moved. The check needs no store and does not trust the keeper of the copies.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sluice_gc.errors import AuditIncomplete, CertificateInvalid, GcRefused, RefusalRule
from sluice_gc.evidence_files import EvidenceFile
from sluice_gc.key_ranges import PrefixCoverage, check_coverage, root_of_roots, split_shards
from sluice_gc.signing_keys import key_id_of, sign_bytes, verify_signature
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED,
    ACCEPTED_BY_BLOB,
    AUDIT,
    QUARANTINE,
    QUARANTINE_BY_BLOB,
    RAW_BLOBS,
    digest_of,
)
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.units import Digest, ObjectKey

PROVING_PREFIXES: Final = (ACCEPTED, QUARANTINE, ACCEPTED_BY_BLOB, QUARANTINE_BY_BLOB)
"""The prefixes that every certificate covers: they prove that nothing names a blob."""


AUDITED_PREFIXES: Final = (*PROVING_PREFIXES, RAW_BLOBS)
"""The prefixes of an audit that also listed the blobs, in the order of the Merkle root."""


_DOMAIN: Final = b"sluice.audit_certificate.v2\n"


class AuditCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of an audit, in objects unless the name has another unit."""

    accepted: int = 0
    quarantined: int = 0
    bodies_read: int = 0
    references: int = 0
    incarnations: int = 0
    incarnations_bytes: int = 0
    names: int = 0
    orphans: int = 0
    superseded: int = 0
    missing_blobs: int = 0
    unreadable_manifests: int = 0
    corrupt_blobs: int = 0
    deep_read: int = 0
    misnamed: int = 0
    foreign: int = 0
    dangling_references: int = 0
    references_repaired: int = 0
    gaps: int = 0
    overlaps: int = 0

    @property
    def found_wrong(self) -> bool:
        """Return True if an operator must act on a finding."""
        return bool(
            self.missing_blobs
            + self.unreadable_manifests
            + self.corrupt_blobs
            + self.misnamed
            + self.foreign
        )

    def plus(self, other: "AuditCounts") -> "AuditCounts":
        """Return the sum of each field."""
        mine, more = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return AuditCounts(**{name: mine[name] + more[name] for name in mine})


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one complete audit.

    Attributes:
        authority_id: The authority that was audited.
        retry_horizon_s: The authority's retry horizon at that time, in seconds.
        audit_id: ULID of the audit.
        chain_index: Chain position: 0 for the first certificate of the authority.
        previous_audit_id: The previous certificate; empty for the first one.
        previous_sha256: The sha256 of its stored bytes; empty for the first one.
        started_at_unix_ns: The store's Date before the first evidence request.
        finished_at_unix_ns: The store's Date in the last response with evidence.
        clock_skew_ns: The auditor's clock minus the store's, at the start.
        deep: The share of blobs that were read and hashed, 0.0 to 1.0.
        shards: Number of shards of the sha256 space.
        coverage: One entry per audited prefix, in the order of `AUDITED_PREFIXES`; without an entry
            for blobs if they were not listed.
        merkle_root: Over the roots of the prefixes, in that order.
        counts: What the audit counted.
        evidence: The Parquet files with the listed rows.
        evidence_kept_from: The lowest chain position whose evidence is kept since this certificate
            exists.
    """

    schema: Literal["sluice.audit_certificate.v2"] = "sluice.audit_certificate.v2"
    authority_id: str
    retry_horizon_s: int
    audit_id: str
    chain_index: int
    previous_audit_id: str
    previous_sha256: str
    started_at_unix_ns: int
    finished_at_unix_ns: int
    clock_skew_ns: int
    deep: float
    shards: int
    coverage: tuple[PrefixCoverage, ...]
    merkle_root: Digest
    counts: AuditCounts
    evidence: tuple[EvidenceFile, ...]
    evidence_kept_from: int = 0

    def files(self, kind: str) -> tuple[EvidenceFile, ...]:
        """Return the evidence files of one kind, in the order of `place`."""
        return tuple(one for one in self.evidence if one.kind == kind)


class SignedCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate with the signature of the auditor.

    Attributes:
        certificate: The record.
        key_id: `key_id_of` the public key.
        signature: Ed25519, base64, over a domain line and the record's canonical bytes.
    """

    certificate: Certificate
    key_id: str
    signature: str


def certificate_key(audit_id: str) -> ObjectKey:
    """Return the key of the certificate of an audit."""
    return ObjectKey(f"{AUDIT}{audit_id}/certificate.json")


def merkle_root_of(coverage: Iterable[PrefixCoverage]) -> Digest:
    """Return the Merkle root over the roots of the prefixes."""
    return root_of_roots(one.root for one in coverage)


def sign_certificate(certificate: Certificate, key: Ed25519PrivateKey) -> bytes:
    """Return the canonical bytes of the signed certificate, as they are stored."""
    signed = SignedCertificate(
        certificate=certificate,
        key_id=key_id_of(key.public_key()),
        signature=sign_bytes(key, _DOMAIN, encode_record(certificate)),
    )
    return encode_record(signed)


def verify_certificate(
    place: str, body: bytes, trusted: Mapping[str, Ed25519PublicKey]
) -> Certificate:
    """Decode a certificate and verify its form, signature and coverage, without a store.

    Args:
        place: The audit id or chain position for error messages.
        body: The stored bytes.
        trusted: Public keys by `key_id_of`.

    Raises:
        CertificateInvalid: It was altered, is not signed by a trusted key, or is not complete.
    """
    try:
        signed = decode_record(place, body, SignedCertificate)
    except InvalidRecord as error:
        raise CertificateInvalid(place, error.reason) from error
    if encode_record(signed) != body:
        raise CertificateInvalid(
            place, "the stored bytes are not canonical, so that it was altered"
        )
    public = trusted.get(signed.key_id)
    if public is None:
        raise CertificateInvalid(
            place,
            "it is signed by a key that is not trusted; use the key file of the earlier audits, or"
            f" add its public key to trusted_keys, key_id={signed.key_id}",
        )
    inner = encode_record(signed.certificate)
    if not verify_signature(public, signed.signature, _DOMAIN + inner):
        raise CertificateInvalid(place, "the signature does not match, so that it was altered")
    check_complete(signed.certificate)
    return signed.certificate


def check_complete(certificate: Certificate) -> None:
    """Verify that a certificate covers every prefix from the first key to the last.

    Raises:
        CertificateInvalid: A prefix is missing or incomplete, or the Merkle root is wrong.
    """
    prefixes = tuple(one.prefix for one in certificate.coverage)
    if prefixes not in (PROVING_PREFIXES, AUDITED_PREFIXES):
        raise CertificateInvalid(
            certificate.audit_id, f"it does not cover every prefix, prefixes={prefixes}"
        )
    try:
        for one in certificate.coverage:
            check_coverage(one)
    except AuditIncomplete as error:
        raise CertificateInvalid(certificate.audit_id, str(error)) from error
    if merkle_root_of(certificate.coverage) != certificate.merkle_root:
        raise CertificateInvalid(certificate.audit_id, "the Merkle root does not match its ranges")


def verify_chain(
    bodies: Sequence[bytes | None], trusted: Mapping[str, Ed25519PublicKey]
) -> tuple[Certificate, ...]:
    """Verify all certificates in the order of their chain positions, without a store.

    Args:
        bodies: The stored bytes by chain position, None where none exist.
        trusted: Public keys by `key_id_of`.

    Raises:
        CertificateInvalid: Names the first certificate that is missing, altered or moved.
    """
    checked: list[Certificate] = []
    before: bytes | None = None
    for index, body in enumerate(bodies):
        if body is None:
            raise CertificateInvalid(f"#{index}", "missing: no certificate at this chain position")
        one = verify_certificate(f"#{index}", body, trusted)
        _check_link(one, index, checked[-1] if checked else None, before)
        checked.append(one)
        before = body
    return tuple(checked)


def _check_link(
    one: Certificate, index: int, last: Certificate | None, before: bytes | None
) -> None:
    if one.chain_index != index:
        raise CertificateInvalid(one.audit_id, f"reordered: it is stored at chain position {index}")
    if (one.previous_sha256 or None) != (digest_of(before) if before is not None else None):
        raise CertificateInvalid(
            one.audit_id, "it does not contain the sha256 of the previous certificate"
        )
    if one.evidence_kept_from > max(index - 1, 0):
        raise CertificateInvalid(one.audit_id, "it does not keep the evidence of the newest two")
    if last is None:
        return
    if one.previous_audit_id != last.audit_id or one.authority_id != last.authority_id:
        raise CertificateInvalid(one.audit_id, "it names another previous audit or authority")
    if one.evidence_kept_from < last.evidence_kept_from:
        raise CertificateInvalid(one.audit_id, "it keeps evidence that was already removed")


ShardFiles = tuple[str, tuple[EvidenceFile, ...], tuple[EvidenceFile, ...]]
"""Name of a shard, its files of names, its files of blobs."""


def names_by_shard(certificate: Certificate) -> dict[str, tuple[EvidenceFile, ...]]:
    """Return the files of names of each shard.

    Raises:
        GcRefused: A shard does not have exactly one file of names; without it every blob would be
            an orphan.
    """
    return _by_shard(certificate.shards, certificate.files("names"))


def _by_shard(shards: int, files: Iterable[EvidenceFile]) -> dict[str, tuple[EvidenceFile, ...]]:
    found: dict[str, list[EvidenceFile]] = defaultdict(list)
    for file in files:
        found[file.place].append(file)
    places = [shard.name for shard in split_shards(shards)]
    if any(len(found[one]) != 1 for one in places):
        raise GcRefused(RefusalRule.CERTIFICATE_INVALID, "the evidence of a shard is missing")
    return {place: tuple(found[place]) for place in places}


def shard_files(certificate: Certificate, blobs: Iterable[EvidenceFile]) -> list[ShardFiles]:
    """Return name, files of names and files of blobs of each shard.

    Raises:
        GcRefused: A shard does not have exactly one file of each kind.
    """
    names = names_by_shard(certificate)
    listed = _by_shard(certificate.shards, blobs)
    return [(place, names[place], listed[place]) for place in names]
