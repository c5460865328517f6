"""The candidates of one plan, a page at a time, and everything about one blob.

A plan with 10^6 candidates has files of many row groups. A page reads the record of the plan, and
the last bytes and one or two row groups of one file, each as one range of bytes. A search reads
the row groups whose first and last digest enclose what is searched. A part of a file has no
sha256. Instead, the number of rows is compared with the record of the file, and pages that have a
checksum are verified. `read_table` verifies a whole file.

For a blob that the plan does not name, the audit's rows of it are decided as the planner did.
"""

import asyncio
import io
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice_gc.candidate_views import (
    CandidateDetail,
    CandidatePage,
    CandidateProof,
    CandidateRow,
    KeptVersion,
    PlanCandidate,
    ProofRow,
    kept_finding,
    plan_candidate,
    proved_clauses,
    run_clauses,
)
from sluice_gc.certificate import certificate_key, names_by_shard
from sluice_gc.deletion_proof import may_prove, proofs_prefix
from sluice_gc.eligible_versions import LeftOut
from sluice_gc.evidence_files import (
    BLOBS,
    CANDIDATES,
    DIGEST,
    NAMES,
    decode_proofs,
    digest_bytes,
    digest_from_bytes,
)
from sluice_gc.key_ranges import parse_shard
from sluice_gc.plan import check_plan_id, plan_key, verify_plan
from sluice_gc.planner import PlanRule, select_candidates
from sluice_gc.signing_keys import TrustedKeys
from sluice_protocol.blob_deletion import Clause
from sluice_protocol.collection_records import (
    Certificate,
    EvidenceFile,
    Plan,
    SignedCertificate,
    SignedPlan,
)
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import GC_PLANS, blob_key, digest_of
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs
from sluice_store.port import ObjectStore

_TAIL_BYTES: Final = 64 << 10
_END: Final = 8
"""Bytes of the length of the footer and of the magic, at the end of a file."""
_DAMAGED: Final = "the file is damaged or of another version: make a new plan"


class RowGroups:
    """An opened evidence file."""

    def __init__(self, store: ObjectStore, key: ObjectKey, size_bytes: int, tail: bytes) -> None:
        """Decode the footer from the last bytes of the file."""
        self._store = store
        self._key = key
        self._size_bytes = size_bytes
        self._tail = {size_bytes - len(tail): tail}
        try:
            self._metadata = self._open({}).metadata
            self.schema = self._metadata.schema.to_arrow_schema()
        except (ValueError, OSError, pa.ArrowException) as error:
            raise InvalidRecord(key, f"{_DAMAGED}: {error}") from error

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return int(self._metadata.num_rows)

    async def rows(self, first: int) -> AsyncIterator[tuple[int, pa.Table]]:
        """Yield the row groups that contain row `first` or a later one, each with its first row."""
        at = 0
        for group in range(self._metadata.num_row_groups):
            count = self._metadata.row_group(group).num_rows
            if at + count > first:
                yield at, await self._read(group)
            at += count

    async def rows_between(self, low: bytes, high: bytes) -> AsyncIterator[pa.Table]:
        """Yield the row groups that may contain a digest from `low` to `high`, both inclusive."""
        for group in range(self._metadata.num_row_groups):
            found = self._metadata.row_group(group).column(0).statistics
            if found is None or not found.has_min_max or (found.min <= high and found.max >= low):
                yield await self._read(group)

    async def _read(self, group: int) -> pa.Table:
        columns = self._metadata.row_group(group)
        starts, ends = [], []
        for at in range(columns.num_columns):
            column = columns.column(at)
            start = column.dictionary_page_offset or column.data_page_offset
            starts.append(start)
            ends.append(start + column.total_compressed_size)
        read = await self._store.get(self._key, first=min(starts), last=max(ends) - 1)
        if not isinstance(read, Found):
            raise InvalidRecord(self._key, "the file was removed meanwhile: reload the list")
        try:
            return await asyncio.to_thread(self._decode, {min(starts): read.body}, group)
        except (ValueError, OSError, pa.ArrowException) as error:
            raise InvalidRecord(self._key, f"{_DAMAGED}: {error}") from error

    def _decode(self, part: dict[int, bytes], group: int) -> pa.Table:
        return self._open(part).read_row_group(group, use_threads=False)

    def _open(self, part: dict[int, bytes]) -> pq.ParquetFile:
        parts = _Parts(self._size_bytes, part | self._tail)
        return pq.ParquetFile(pa.PythonFile(parts, mode="r"), page_checksum_verification=True)


async def open_row_groups(
    store: ObjectStore, file: EvidenceFile, schema: pa.Schema
) -> RowGroups | None:
    """Open an evidence file by its last bytes; None if it does not exist."""
    opened = await open_listed(store, file.key, schema)
    if opened is not None and opened.row_count != file.rows:
        reason = f"{_DAMAGED}: rows={opened.row_count} expected={file.rows}"
        raise InvalidRecord(file.key, reason)
    return opened


async def open_listed(store: ObjectStore, key: ObjectKey, schema: pa.Schema) -> RowGroups | None:
    """Open a file that no record describes, as `open_row_groups`."""
    info = await store.head(key)
    if not isinstance(info, ObjectInfo):
        return None
    size_bytes = info.size_bytes
    tail = await _read_tail(store, key, size_bytes, _TAIL_BYTES)
    footer = int.from_bytes(tail[-_END:-4], "little") + _END
    if len(tail) < footer <= size_bytes:
        tail = await _read_tail(store, key, size_bytes, footer)
    opened = RowGroups(store, key, size_bytes, tail)
    if not opened.schema.equals(schema):
        raise InvalidRecord(key, f"{_DAMAGED}: wrong columns, columns={opened.schema.names}")
    return opened


async def _read_tail(store: ObjectStore, key: ObjectKey, size_bytes: int, length: int) -> bytes:
    if not size_bytes:
        raise InvalidRecord(key, f"{_DAMAGED}: it is empty")
    read = await store.get(key, first=max(0, size_bytes - length), last=size_bytes - 1)
    return read.body if isinstance(read, Found) else b""


class _Parts(io.RawIOBase):
    """A file with only some parts present; a read of any other byte fails."""

    def __init__(self, size: int, parts: dict[int, bytes]) -> None:
        super().__init__()
        self._size = size
        self._parts = parts
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> Any:  # noqa: ANN401 - the type of the base class
        end = self._size if size < 0 else min(self._at + size, self._size)
        for start, part in self._parts.items():
            if start <= self._at and end <= start + len(part):
                found = part[self._at - start : end - start]
                self._at = end
                return found
        raise OSError(f"bytes {self._at} to {end} are outside of what the footer describes")


_SHARD_CHARS: Final = len("00-0f")
_REMOVED: Final = (
    "the plan does not name it, and the evidence of its audit was removed by rule: `sluice gc show`"
    " decides by the newest audit"
)
_UNLISTED: Final = (
    "the plan does not name it: the audit did not list this blob, so it was written later, was"
    " already deleted, or never existed"
)
_KEPT: Final = "the plan does not name it: each version in the audit is kept"


async def read_kept(
    store: ObjectStore, plan: Plan, digest: Digest
) -> tuple[tuple[KeptVersion, ...], str]:
    """Return the versions of a blob that the plan keeps, each with why, and a sentence.

    The certificate is that of the plan by its sha256, so its signature need not be verified.
    """
    certificate = await _read_certificate(store, plan)
    if certificate is None:
        return (), _REMOVED
    listed = await _read_listed(store, plan, certificate, digest)
    if listed is None:
        return (), _REMOVED
    if not len(listed):
        return (), _UNLISTED
    names = await _read_names(store, certificate, digest)
    if names is None:
        return (), _REMOVED
    rule = PlanRule(
        now_ns=UnixNs(plan.made_at_unix_ns),
        retry_horizon_ns=plan.retry_horizon_s * NS_PER_S,
        versioning_enabled=True,
        audit_id=certificate.audit_id,
        audit_started_at_ns=UnixNs(certificate.started_at_unix_ns),
    )
    rows = (listed.slice(at, 1) for at in range(len(listed)))
    return tuple(_kept(row, names, rule, digest) for row in rows), _KEPT


def _kept(row: pa.Table, names: pa.ChunkedArray, rule: PlanRule, digest: Digest) -> KeptVersion:
    selection = select_candidates(row, names, rule, LeftOut())
    (values,) = row.to_pylist()
    clause = next((one for one, tally in selection.kept.items() if tally.incarnations), None)
    if clause is None:
        reason = "its audit allows the deletion, but the files of the plan do not contain it"
        raise InvalidRecord(digest, f"{reason}: the plan is damaged, make a new one")
    facts = CandidateRow(
        digest=digest,
        incarnation=values["incarnation"],
        last_modified_ns=values["last_modified_ns"],
        size_bytes=values["size_bytes"],
        superseded=False,
        versioning_enabled=rule.versioning_enabled,
        now_ns=rule.now_ns,
        retry_horizon_ns=rule.retry_horizon_ns,
        audit_id=rule.audit_id,
        audit_started_at_ns=rule.audit_started_at_ns,
        named_in_audit=clause is Clause.AUDIT,
    )
    return KeptVersion(
        incarnation=values["incarnation"],
        size_bytes=values["size_bytes"],
        last_modified_unix_ns=values["last_modified_ns"],
        current=values["current"],
        finding=kept_finding(clause, facts),
    )


async def _read_certificate(store: ObjectStore, plan: Plan) -> Certificate | None:
    key = certificate_key(plan.audit_id)
    read = await store.get(key)
    if not isinstance(read, Found):
        return None
    if digest_of(read.body) != plan.certificate_sha256:
        raise InvalidRecord(key, "the certificate is not the one that the plan is based on")
    return decode_record(key, read.body, SignedCertificate).certificate


async def _read_names(
    store: ObjectStore, certificate: Certificate, digest: Digest
) -> pa.ChunkedArray | None:
    """Return the digest if the audit found a name of it, else an empty column; None if unknown."""
    files = names_by_shard(certificate)
    place = next(one for one in files if digest in parse_shard(one))
    opened = [await open_row_groups(store, one, NAMES) for one in files[place]]
    found = await _rows_of(opened, digest, NAMES)
    return found["sha256"] if found is not None else None


async def _read_listed(
    store: ObjectStore, plan: Plan, certificate: Certificate, digest: Digest
) -> pa.Table | None:
    """Return the rows of a blob in the inventory of the plan, or in its audit; None if unknown."""
    folder = f"{GC_PLANS}{plan.plan_id}/blobs/"
    keys = [one.key async for page in store.list(folder) for one in page.objects]
    if keys:
        opened = [await open_listed(store, key, BLOBS) for key in keys if _has(folder, key, digest)]
        return await _rows_of(opened, digest, BLOBS)
    files = [one for one in certificate.files("blobs") if digest in parse_shard(one.place)]
    opened = [await open_row_groups(store, one, BLOBS) for one in files]
    return await _rows_of(opened, digest, BLOBS)


def _has(folder: str, key: ObjectKey, digest: Digest) -> bool:
    """Return True if the file of a plan's inventory is of the shard of a digest."""
    return digest in parse_shard(key.removeprefix(folder)[:_SHARD_CHARS])


async def _rows_of(
    files: Sequence[RowGroups | None], digest: Digest, schema: pa.Schema
) -> pa.Table | None:
    """Return the rows of one digest; None if a file was removed, or if there is none."""
    wanted, tables = digest_bytes(digest), [schema.empty_table()]
    if not files:
        return None
    for file in files:
        if file is None:
            return None
        async for table in file.rows_between(wanted, wanted):
            is_it = pc.equal(table["sha256"], pa.scalar(wanted, DIGEST))
            tables.append(table.filter(is_it))
    return pa.concat_tables(tables)


PAGE_MAX: Final = 500
PREFIX_DIGITS_MIN: Final = 2
"""Fewer digits would need the files of several shards."""
PROOF_FILES_MAX: Final = 64
_DIGEST_DIGITS: Final = 64
_PREFIX: Final = re.compile(r"[0-9a-f]{2,64}", re.ASCII)
_GONE: Final = "the candidates were removed by rule or are lost: make a new plan"


async def read_candidates(
    store: ObjectStore,
    plan_id: str,
    *,
    after: int = 0,
    limit: int = PAGE_MAX,
    prefix: str = "",
    trusted: TrustedKeys | None = None,
) -> CandidatePage | None:
    """Return some candidates of a plan; None if there is no such plan.

    `after` passes over candidates; with a `prefix` of the SHA-256, over those that match. Without
    keys (`trusted` is None), the signature is not verified. Raise `InvalidRecord` if the plan or
    its files are damaged, missing, or of another version.
    """
    check_plan_id(plan_id)
    if prefix and _PREFIX.fullmatch(prefix) is None:
        raise BadUsage(
            f"search by {PREFIX_DIGITS_MIN} to {_DIGEST_DIGITS} lower-case hex digits of a SHA-256,"
            f" prefix=`{prefix[:80]}`"
        )
    plan = await _read_plan(store, plan_id, trusted)
    if plan is None:
        return None
    found = (
        await _matching(store, plan, prefix, after + limit + 1)
        if prefix
        else await _from(store, plan, after, limit + 1)
    )
    shown = found[after : after + limit] if prefix else found[:limit]
    return CandidatePage(
        plan_id=plan_id,
        made_at_unix_ns=plan.made_at_unix_ns,
        retry_horizon_s=plan.retry_horizon_s,
        signature_checked=bool(trusted),
        total=sum(one.rows for one in plan.candidates),
        candidates=tuple(plan_candidate(one) for one in shown),
        more=len(found) > (after + limit if prefix else limit),
    )


async def read_candidate(
    store: ObjectStore, plan_id: str, digest: Digest, *, trusted: TrustedKeys | None = None
) -> CandidateDetail | None:
    """Return what a plan and its runs state about one blob; None if there is no such plan."""
    check_plan_id(plan_id)
    plan = await _read_plan(store, plan_id, trusted)
    if plan is None:
        return None
    rows = await _matching(store, plan, digest, PAGE_MAX)
    proofs, more = await _read_proofs(store, plan_id, digest) if rows else ([], False)
    detail = CandidateDetail(
        plan_id=plan_id,
        audit_id=plan.audit_id,
        sha256=digest,
        key=blob_key(digest),
        signature_checked=bool(trusted),
        candidates=tuple(_with_run(one) for one in rows),
        proofs=tuple(proofs),
        proofs_more=more,
    )
    if rows:
        return detail
    kept, reason = await read_kept(store, plan, digest)
    return msgspec.structs.replace(detail, kept=kept, reason=reason)


def _with_run(row: CandidateRow) -> PlanCandidate:
    one = plan_candidate(row)
    return msgspec.structs.replace(one, clauses=(*one.clauses, *run_clauses(row)))


async def _read_plan(store: ObjectStore, plan_id: str, trusted: TrustedKeys | None) -> Plan | None:
    key = plan_key(plan_id)
    read = await store.get(key)
    if not isinstance(read, Found):
        return None
    if trusted:
        return verify_plan(plan_id, read.body, trusted)
    plan = decode_record(key, read.body, SignedPlan).plan
    if plan.plan_id != plan_id:
        raise InvalidRecord(key, f"it contains another plan, found={plan.plan_id}")
    return plan


async def _from(store: ObjectStore, plan: Plan, after: int, wanted: int) -> list[CandidateRow]:
    """Return the rows from a place on; files before it are not opened."""
    found: list[CandidateRow] = []
    first = 0
    for file in plan.candidates:
        if after < first + file.rows and len(found) < wanted:
            start = max(0, after - first)
            async for at, table in (await _open(store, file)).rows(start):
                begin = max(0, start - at)
                found += _rows(table.slice(begin, wanted - len(found)))
                if len(found) >= wanted:
                    break
        first += file.rows
    return found


async def _open(store: ObjectStore, file: EvidenceFile) -> RowGroups:
    opened = await open_row_groups(store, file, CANDIDATES)
    if opened is None:
        raise InvalidRecord(file.key, _GONE)
    return opened


async def _matching(store: ObjectStore, plan: Plan, prefix: str, wanted: int) -> list[CandidateRow]:
    """Return the rows whose digest begins with some digits, at least two."""
    low = bytes.fromhex(prefix.ljust(_DIGEST_DIGITS, "0"))
    high = bytes.fromhex(prefix.ljust(_DIGEST_DIGITS, "f"))
    found: list[CandidateRow] = []
    for file in plan.candidates:
        if Digest(low.hex()) not in parse_shard(file.place):
            continue
        async for table in (await _open(store, file)).rows_between(low, high):
            found += await asyncio.to_thread(_rows_between, table, low, high)
            if len(found) >= wanted:
                break
    return found[:wanted]


def _rows_between(table: pa.Table, low: bytes, high: bytes) -> list[CandidateRow]:
    """Return the rows between two digests; they may be in any order."""
    digests = table["sha256"].to_pylist()
    places = [at for at, one in enumerate(digests) if low <= one <= high]
    return _rows(table.take(pa.array(places, pa.int64())))


def _rows(table: pa.Table) -> list[CandidateRow]:
    return [candidate_row(row) for row in table.to_pylist()]


_ROW_FIELDS: Final = [name for name in CANDIDATES.names if name != "sha256"]


def candidate_row(row: dict[str, Any]) -> CandidateRow:
    """Return the values of a row of `CANDIDATES` or `PROOFS`."""
    fields = {name: row[name] for name in _ROW_FIELDS}
    return CandidateRow(digest=digest_from_bytes(row["sha256"]), **fields)


async def _read_proofs(
    store: ObjectStore, plan_id: str, digest: Digest
) -> tuple[list[CandidateProof], bool]:
    """Return the proofs of a plan about a blob, and whether there are more files than are read."""
    keys: list[ObjectKey] = []
    async for page in store.list(f"{proofs_prefix(digest)}{plan_id}-"):
        keys += [one.key for one in page.objects if may_prove(one.key, digest)]
        if len(keys) > PROOF_FILES_MAX:
            break
    found: list[CandidateProof] = []
    for key in keys[:PROOF_FILES_MAX]:
        read = await store.get(key)
        if isinstance(read, Found):
            found += await asyncio.to_thread(_proofs, key, read.body, digest)
    return sorted(found, key=lambda one: one.proved_at_unix_ns), len(keys) > PROOF_FILES_MAX


def _proofs(key: ObjectKey, body: bytes, digest: Digest) -> list[CandidateProof]:
    try:
        table = decode_proofs(body)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InvalidRecord(key, f"the file of proofs is damaged: {error}") from error
    wanted = bytes.fromhex(digest)
    places = [at for at, one in enumerate(table["sha256"].to_pylist()) if one == wanted]
    return list(_proofs_of(key, table.take(pa.array(places, pa.int64())).to_pylist()))


_PROOF_FIELDS: Final = (
    *("verdict", "clause", "reason", "references_read", "envelope_accepted_key"),
    *("envelope_accepted", "envelope_quarantine_key", "envelope_quarantine", "listed_current"),
    "current_incarnation",
)


def _proofs_of(key: ObjectKey, rows: Iterable[dict[str, Any]]) -> Iterator[CandidateProof]:
    for row in rows:
        fields = {name: row[name] for name in _PROOF_FIELDS}
        yield CandidateProof(
            proof_key=key,
            proved_at_unix_ns=row["now_ns"],
            incarnation=row["incarnation"],
            verdict=row["verdict"],
            clauses=proved_clauses(ProofRow(row=candidate_row(row), **fields)),
        )
