"""The chain of certificates in the store: read the newest, append one, verify all."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice_gc.audit.certificate import (
    Certificate,
    certificate_key,
    check_ranges,
    read_listed_files,
    verify_certificate,
    verify_chain,
)
from sluice_gc.audit.eligible_versions import check_eligible
from sluice_gc.errors import CertificateInvalid, GcRefused, RefusalRule
from sluice_gc.evidence_files import EvidenceFile
from sluice_gc.signing_keys import TrustedKeys, make_key_file
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import AUDIT_CHAIN, chain_key, digest_of
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.plan_folders import chain_position, list_newest_certificate_keys, read_first_key
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, OtherBytes, create_known, create_once


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


async def verify_store_chain(store: ObjectStore, trusted: TrustedKeys) -> tuple[Certificate, ...]:
    """Verify every certificate, their order, and that both copies of each are equal.

    `CertificateInvalid` names the first certificate that is missing, altered or moved.
    """
    places = await _list_places(store)
    bodies = [
        await _read_body(store, chain_key(place))
        for place in range(places[-1] + 1 if places else 0)
    ]
    chain = verify_chain(bodies, trusted)
    for certificate, body in zip(chain, bodies, strict=True):
        copy = await _read_body(store, certificate_key(certificate.audit_id))
        if copy is None:
            raise CertificateInvalid(
                certificate.audit_id, "missing: its second copy does not exist"
            )
        if copy != body:
            raise CertificateInvalid(certificate.audit_id, "altered: its two copies differ")
    return chain


class ChainReport(msgspec.Struct, frozen=True, kw_only=True):
    """A verified chain of certificates.

    Attributes:
        head_audit_id: None without a certificate.
        evidence_kept_from: The lowest chain position whose evidence is kept; that of earlier
            certificates was removed by rule.
    """

    certificates: int
    head_audit_id: str | None
    head_started_at_unix_ns: int | None
    evidence_files: int
    evidence_kept_from: int


async def verify_store(store: ObjectStore, trusted: TrustedKeys, *, evidence: bool) -> ChainReport:
    """Verify every certificate and, on request, the evidence files that the newest one keeps."""
    chain = await verify_store_chain(store, trusted)
    kept_from = chain[-1].evidence_kept_from if chain else 0
    return ChainReport(
        certificates=len(chain),
        head_audit_id=chain[-1].audit_id if chain else None,
        head_started_at_unix_ns=chain[-1].started_at_unix_ns if chain else None,
        evidence_files=sum(
            [await verify_evidence(store, one) for one in chain[kept_from:] if evidence]
        ),
        evidence_kept_from=kept_from,
    )


async def verify_evidence(store: ObjectStore, certificate: Certificate) -> int:
    """Verify every evidence file of a certificate; return the number of files."""
    await _verify_files(store, certificate, certificate.evidence)
    await check_ranges(store, certificate)
    await check_eligible(store, certificate)
    listed = await read_listed_files(store, certificate)
    await _verify_files(store, certificate, listed)
    return len(certificate.evidence) + len(listed)


async def _verify_files(
    store: ObjectStore, certificate: Certificate, files: Iterable[EvidenceFile]
) -> None:
    for file in files:
        body = await _read_body(store, file.key)
        if body is None:
            raise CertificateInvalid(certificate.audit_id, f"evidence is missing, key={file.key}")
        if digest_of(body) != file.sha256:
            raise CertificateInvalid(certificate.audit_id, f"evidence was altered, key={file.key}")


async def _read_body(store: ObjectStore, key: ObjectKey) -> bytes | None:
    read = await store.get(key)
    return read.body if isinstance(read, Found) else None


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


async def _list_places(store: ObjectStore) -> list[int]:
    pages = store.list(AUDIT_CHAIN)
    return [chain_position(one.key) async for page in pages for one in page.objects]


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
