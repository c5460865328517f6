"""The certificate of an audit, its verification, and the chain of certificates in the store.

A certificate states what was listed, when, what was found, and which certificate precedes it.

A certificate is canonical JSON with an Ed25519 signature over its inner record. It contains the
sha256 of the previous certificate. A check of the chain therefore finds each certificate that was
altered, removed or moved. The check needs no store and does not trust the keeper of the copies.

Its size is bounded. It contains at most `RANGES_MAX` ranges of a prefix: adjacent ranges become
one, whose root is the Merkle root over theirs. The ranges as they were listed are in a file of the
kind `ranges`. Of the files of manifests and findings, more than `FILES_MAX` are listed in a file of
the kind `files`. So a check without a store still proves that every prefix was listed from the
first key to the last. Both files are evidence, and are removed with the other files of their audit
(ADR 38).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sluice_gc.errors import AuditIncomplete, CertificateInvalid, GcRefused, RefusalRule
from sluice_gc.evidence_files import (
    FILES,
    RANGES,
    digest_bytes,
    digest_from_bytes,
    put_table,
    read_table,
    read_table_if_kept,
)
from sluice_gc.key_ranges import check_coverage, cover_prefix, root_of_roots, split_shards
from sluice_gc.signing_keys import (
    TrustedKeys,
    is_signed,
    make_key_file,
    sign_record,
)
from sluice_protocol.collection_records import (
    Certificate,
    EvidenceFile,
    KeyRange,
    PrefixCoverage,
    SignedCertificate,
)
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED,
    ACCEPTED_BY_BLOB,
    AUDIT,
    AUDIT_CHAIN,
    QUARANTINE,
    QUARANTINE_BY_BLOB,
    RAW_BLOBS,
    chain_key,
    digest_of,
)
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.plan_folders import chain_position, list_newest_certificate_keys, read_first_key
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, OtherBytes, create_known, create_once

PROVING_PREFIXES: Final = (ACCEPTED, QUARANTINE, ACCEPTED_BY_BLOB, QUARANTINE_BY_BLOB)
"""The prefixes that every certificate covers, to prove that nothing names a blob."""


AUDITED_PREFIXES: Final = (*PROVING_PREFIXES, RAW_BLOBS)
"""The prefixes of an audit that also listed the blobs, in the order of the Merkle root."""


_DOMAIN: Final = b"sluice.audit_certificate.v2\n"


def certificate_key(audit_id: str) -> ObjectKey:
    """Return the key of the certificate of an audit."""
    return ObjectKey(f"{AUDIT}{audit_id}/certificate.json")


def merkle_root_of(coverage: Iterable[PrefixCoverage]) -> Digest:
    """Return the Merkle root over the roots of the prefixes."""
    return root_of_roots(one.root for one in coverage)


def sign_certificate(certificate: Certificate, key: Ed25519PrivateKey) -> bytes:
    """Return the canonical bytes of the signed certificate, as they are stored."""
    key_id, signature = sign_record(key, _DOMAIN, certificate)
    return encode_record(
        SignedCertificate(certificate=certificate, key_id=key_id, signature=signature)
    )


def verify_certificate(
    place: str, body: bytes, trusted: Mapping[str, Ed25519PublicKey]
) -> Certificate:
    """Decode a certificate and verify its form, signature and coverage, without a store.

    `place` is the audit id or chain position for error messages; `trusted` has public keys by
    `key_id_of`.
    """
    try:
        signed = decode_record(place, body, SignedCertificate)
    except InvalidRecord as error:
        raise CertificateInvalid(place, error.reason) from error
    if encode_record(signed) != body:
        raise CertificateInvalid(
            place, "the stored bytes are not canonical, so that it was altered"
        )
    if signed.key_id not in trusted:
        raise CertificateInvalid(
            place,
            "it is signed by a key that is not trusted; use the key file of the earlier audits, or"
            " add its public key to trusted_keys, or to the list that the key file of a command"
            f" that only verifies may be, key_id={signed.key_id}",
        )
    if not is_signed(signed, trusted, _DOMAIN, signed.certificate):
        raise CertificateInvalid(place, "the signature does not match, so that it was altered")
    check_complete(signed.certificate)
    return signed.certificate


def check_complete(certificate: Certificate) -> None:
    """Raise `CertificateInvalid` unless every prefix is covered from the first key to the last."""
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

    `bodies` has the stored bytes by chain position, None where none exist. `CertificateInvalid`
    names the first certificate that is missing, altered or moved.
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
    """Return the files of names of each shard, or raise `GcRefused` if one is missing.

    Without it every blob would be an orphan.
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

    Raise `GcRefused` if a shard does not have exactly one file of each kind.
    """
    names = names_by_shard(certificate)
    listed = _by_shard(certificate.shards, blobs)
    return [(place, names[place], listed[place]) for place in names]


RANGES_MAX: Final = 64
"""Ranges of one prefix in a certificate, at most."""
FILES_MAX: Final = 64
"""Files of manifests and findings in a certificate, at most."""
_INDEXED: Final = frozenset({"manifests", "findings"})


def merge_ranges(covered: PrefixCoverage) -> PrefixCoverage:
    """Return the coverage of a prefix with at most `RANGES_MAX` ranges."""
    ranges = covered.ranges
    step = -(-len(ranges) // RANGES_MAX)
    groups = (ranges[at : at + step] for at in range(0, len(ranges), step))
    return cover_prefix(covered.prefix, map(_merge, groups))


def _merge(ranges: Sequence[KeyRange]) -> KeyRange:
    if len(ranges) == 1:
        return ranges[0]
    return KeyRange(
        start_after=ranges[0].start_after,
        end_at=ranges[-1].end_at,
        pages=sum(one.pages for one in ranges),
        objects=sum(one.objects for one in ranges),
        root=root_of_roots(one.root for one in ranges),
        first_date_unix_ns=min(one.first_date_unix_ns for one in ranges),
        last_date_unix_ns=max(one.last_date_unix_ns for one in ranges),
        parts=len(ranges),
    )


async def put_parts(
    store: ObjectStore, folder: str, certificate: Certificate, backoff: Backoff
) -> Certificate:
    """Write what a certificate would list without a bound; return the bounded certificate."""
    evidence = certificate.evidence
    coverage = tuple(map(merge_ranges, certificate.coverage))
    if coverage != certificate.coverage:
        table = _ranges_table(certificate.coverage)
        written = await put_table(store, folder, "ranges", "all", table, backoff=backoff)
        evidence = (*evidence, written)
    many = [one for one in evidence if one.kind in _INDEXED]
    if len(many) > FILES_MAX:
        written = await put_table(
            store, folder, "files", "all", _files_table(many), backoff=backoff
        )
        evidence = (*(one for one in evidence if one.kind not in _INDEXED), written)
    return msgspec.structs.replace(
        certificate, coverage=coverage, merkle_root=merkle_root_of(coverage), evidence=evidence
    )


async def read_evidence_files(
    store: ObjectStore, certificate: Certificate, kind: str
) -> tuple[EvidenceFile, ...] | None:
    """Return the evidence files of one kind; None if their list was removed by rule or is lost."""
    found = list(certificate.files(kind))
    for file in certificate.files("files"):
        table = await read_table_if_kept(store, file, FILES)
        if table is None:
            return None
        found += [one for one in _files_of(table) if one.kind == kind]
    return tuple(found)


async def read_listed_files(
    store: ObjectStore, certificate: Certificate
) -> tuple[EvidenceFile, ...]:
    """Return the evidence files that a certificate names through its list of files."""
    tables = [await read_table(store, one, FILES) for one in certificate.files("files")]
    return tuple(file for table in tables for file in _files_of(table))


def _ranges_table(coverage: Iterable[PrefixCoverage]) -> pa.Table:
    rows = [
        {
            **msgspec.structs.asdict(one),
            "prefix": covered.prefix,
            "root": digest_bytes(one.root),
        }
        for covered in coverage
        for one in covered.ranges
    ]
    return pa.Table.from_pylist(rows, schema=RANGES)


def _files_table(files: Iterable[EvidenceFile]) -> pa.Table:
    rows = [{**msgspec.structs.asdict(one), "sha256": digest_bytes(one.sha256)} for one in files]
    return pa.Table.from_pylist(rows, schema=FILES)


def _files_of(table: pa.Table) -> list[EvidenceFile]:
    rows = table.to_pylist()
    return [EvidenceFile(sha256=digest_from_bytes(row.pop("sha256")), **row) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """A verified certificate with its stored bytes and their sha256."""

    certificate: Certificate
    body: bytes
    sha256: Digest


async def read_newest(store: ObjectStore, trusted: TrustedKeys) -> ChainLink | None:
    """Return the newest certificate, verified without the others; None if there is none.

    A missing position before it is not noticed here: `verify_store_chain` names it. Such a gap
    cannot make an earlier certificate the newest, and no new certificate can fill it, because a
    listing to the end finds the last key.
    """
    newest = await list_newest_certificate_keys(store, 1)
    return await read_place(store, chain_position(newest[0]), trusted) if newest else None


async def read_place(store: ObjectStore, place: int, trusted: TrustedKeys) -> ChainLink:
    """Return the certificate at a chain position, verified without the others."""
    link = await _read_link(store, chain_key(place), f"#{place}", trusted)
    if link.certificate.chain_index != place:
        raise CertificateInvalid(
            link.certificate.audit_id, f"reordered: it is stored at chain position {place}"
        )
    return link


async def read_certificate(store: ObjectStore, audit_id: str, trusted: TrustedKeys) -> ChainLink:
    """Return the certificate of an audit, verified without the others."""
    link = await _read_link(store, certificate_key(audit_id), audit_id, trusted)
    if link.certificate.audit_id != audit_id:
        raise CertificateInvalid(
            audit_id, f"its key contains another certificate, found={link.certificate.audit_id}"
        )
    return link


async def _read_link(
    store: ObjectStore, key: ObjectKey, place: str, trusted: TrustedKeys
) -> ChainLink:
    read = await store.get(key)
    if not isinstance(read, Found):
        raise CertificateInvalid(place, f"missing: {key}")
    certificate = verify_certificate(place, read.body, trusted)
    return ChainLink(certificate=certificate, body=read.body, sha256=digest_of(read.body))


async def append_certificate(
    store: ObjectStore, certificate: Certificate, body: bytes, backoff: Backoff
) -> bool:
    """Write a certificate at its chain position, then under the prefix of its audit.

    The chain position decides. It is created once, so that two audits that finish concurrently do
    not fork the chain. Return True if this certificate has the position, False if another one has
    it.
    """
    place = chain_key(certificate.chain_index)
    if isinstance(await create_once(store, place, body, backoff), OtherBytes):
        return False
    await create_known(store, certificate_key(certificate.audit_id), body, backoff)
    return True


async def restore_copy(store: ObjectStore, link: ChainLink, backoff: Backoff) -> None:
    """Write the second copy of the newest certificate if a killed audit did not."""
    await create_known(store, certificate_key(link.certificate.audit_id), link.body, backoff)


async def prepare_key_file(store: ObjectStore, key_file: Path) -> None:
    """Create the auditor's key before the first audit of a store; refuse if it has certificates."""
    if key_file.exists():  # noqa: ASYNC240 - a local file, once before the audit
        return
    if await read_first_key(store, AUDIT_CHAIN, "") is not None:
        raise BadUsage(
            "cannot read the auditor's key: the certificates of this store were signed with it;"
            f" copy it from the machine that audited before, key_file=`{key_file}`"
        )
    make_key_file(key_file)


async def read_certificate_or_newest(
    store: ObjectStore, trusted: TrustedKeys, audit_id: str | None
) -> ChainLink:
    """Return the certificate of an audit, or the newest one if `audit_id` is None.

    Raise `GcRefused` if the store has no certificate.
    """
    if audit_id is not None:
        return await read_certificate(store, audit_id, trusted)
    link = await read_newest(store, trusted)
    if link is None:
        raise GcRefused(
            RefusalRule.NO_CERTIFICATE, 'the store has no certificate; run "sluice audit run" first'
        )
    return link
