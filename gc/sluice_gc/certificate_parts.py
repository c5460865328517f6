"""The parts of a certificate that grow with the store, in evidence files that it names by sha256.

A certificate contains at most `RANGES_MAX` ranges of a prefix: adjacent ranges become one, whose
root is the Merkle root over theirs. The ranges as they were listed are in a file of the kind
`ranges`. Of the files of manifests and findings, whose number grows with the ranges, more than
`FILES_MAX` are listed in a file of the kind `files`. So the size of a certificate is bounded, and a
check without a store still proves that every prefix was listed from the first key to the last.

Both files are evidence: they are removed with the other files of their audit (ADR 0066). Source:
ADR 0068.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from sluice_gc.certificate import Certificate, merkle_root_of
from sluice_gc.errors import AuditIncomplete, CertificateInvalid
from sluice_gc.evidence_files import (
    FILES,
    RANGES,
    EvidenceFile,
    digest_bytes,
    digest_from_bytes,
    put_table,
    read_table,
    read_table_if_kept,
)
from sluice_gc.key_ranges import KeyRange, PrefixCoverage, cover_prefix, root_of_roots
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff

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
    """Write what a certificate would list without a bound; return the bounded certificate.

    Args:
        store: The store.
        folder: The folder of the audit's evidence.
        certificate: The certificate with every range and file.
        backoff: How a write of unknown outcome is retried.

    Raises:
        OutcomeUnknown: It is unknown whether a write took effect.
        StoreError: The store refused a request.
    """
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


async def read_files(
    store: ObjectStore, certificate: Certificate, kind: str
) -> tuple[EvidenceFile, ...] | None:
    """Return the evidence files of one kind; None if their list was removed by rule, or is lost.

    Raises:
        GcRefused: The list was altered.
        StoreError: The store is unreachable or refused a request.
    """
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
    """Return the evidence files that a certificate names through its list of files.

    Raises:
        GcRefused: The list is missing or was altered.
        StoreError: The store is unreachable or refused a request.
    """
    tables = [await read_table(store, one, FILES) for one in certificate.files("files")]
    return tuple(file for table in tables for file in _files_of(table))


async def check_ranges(store: ObjectStore, certificate: Certificate) -> None:
    """Verify that the ranges as they were listed are those of a certificate.

    Raises:
        CertificateInvalid: They are not contiguous, or their sums and roots are others.
        GcRefused: They are missing or were altered.
        StoreError: The store is unreachable or refused a request.
    """
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


def _ranges_of(table: pa.Table) -> dict[str, list[KeyRange]]:
    found: dict[str, list[KeyRange]] = {}
    for row in table.to_pylist():
        prefix, root = row.pop("prefix"), digest_from_bytes(row.pop("root"))
        found.setdefault(prefix, []).append(KeyRange(root=root, **row))
    return found


def _files_table(files: Iterable[EvidenceFile]) -> pa.Table:
    rows = [{**msgspec.structs.asdict(one), "sha256": digest_bytes(one.sha256)} for one in files]
    return pa.Table.from_pylist(rows, schema=FILES)


def _files_of(table: pa.Table) -> list[EvidenceFile]:
    rows = table.to_pylist()
    return [EvidenceFile(sha256=digest_from_bytes(row.pop("sha256")), **row) for row in rows]
