"""The verification of a store: every certificate, and the evidence that the newest one keeps."""

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from sluice_gc.certificate import (
    certificate_key,
    merge_ranges,
    read_listed_files,
    shard_files,
    verify_chain,
)
from sluice_gc.eligible_versions import eligible_table, join_names
from sluice_gc.errors import AuditIncomplete, CertificateInvalid
from sluice_gc.evidence_files import (
    BLOBS,
    NAMES,
    RANGES,
    digest_from_bytes,
    read_table,
    read_tables,
)
from sluice_gc.key_ranges import cover_prefix
from sluice_gc.signing_keys import TrustedKeys
from sluice_protocol.collection_records import Certificate, EvidenceFile, KeyRange
from sluice_protocol.keys import AUDIT_CHAIN, chain_key, digest_of
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.plan_folders import chain_position
from sluice_store.port import ObjectStore


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


async def _list_places(store: ObjectStore) -> list[int]:
    pages = store.list(AUDIT_CHAIN)
    return [chain_position(one.key) async for page in pages for one in page.objects]


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
    await verify_listed_ranges(store, certificate)
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


async def verify_listed_ranges(store: ObjectStore, certificate: Certificate) -> None:
    """Verify that the ranges as they were listed are those of a certificate."""
    for file in certificate.files("ranges"):
        listed = _ranges_of(await read_table(store, file, RANGES))
        try:
            merged = tuple(
                merge_ranges(cover_prefix(one.prefix, listed.get(one.prefix, ())))
                for one in certificate.coverage
            )
        except AuditIncomplete as error:
            raise CertificateInvalid(certificate.audit_id, str(error)) from error
        if merged != certificate.coverage:
            raise CertificateInvalid(
                certificate.audit_id, f"its ranges are not those that were listed, key={file.key}"
            )


def _ranges_of(table: pa.Table) -> dict[str, list[KeyRange]]:
    found: dict[str, list[KeyRange]] = {}
    for row in table.to_pylist():
        prefix, root = row.pop("prefix"), digest_from_bytes(row.pop("root"))
        found.setdefault(prefix, []).append(KeyRange(root=root, **row))
    return found


async def check_eligible(store: ObjectStore, certificate: Certificate) -> None:
    """Verify that the eligible versions are those of the blobs and names of a certificate."""
    if not certificate.files("blobs"):
        return
    eligible = {one.place: one for one in certificate.files("eligible")}
    for place, names, blobs in shard_files(certificate, certificate.files("blobs")):
        known = (await read_tables(store, names, NAMES))["sha256"]
        expected = eligible_table(join_names(await read_tables(store, blobs, BLOBS), known))
        file = eligible.get(place)
        found = None if file is None else await read_table(store, file, BLOBS)
        if found is None or not found.equals(expected, check_metadata=True):
            raise CertificateInvalid(
                certificate.audit_id,
                f"the eligible versions are not those of its blobs and names, shard={place}",
            )
