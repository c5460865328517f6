"""Why a plan does not name a blob: the audit's rows of the blob, decided as the planner did."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sluice_gc.candidate_views import CandidateRow, KeptVersion, kept_finding
from sluice_gc.candidates import PlanRule, select_candidates
from sluice_gc.certificate import Certificate, SignedCertificate, certificate_key, names_by_shard
from sluice_gc.eligible_versions import LeftOut
from sluice_gc.evidence_files import BLOBS, DIGEST, NAMES, digest_bytes
from sluice_gc.key_ranges import parse_shard
from sluice_gc.plan import Plan
from sluice_gc.row_groups import RowGroups, open_listed, open_row_groups
from sluice_protocol.blob_deletion import Clause
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import GC_PLANS, digest_of
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs
from sluice_store.port import ObjectStore

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

    Raises:
        InvalidRecord: The certificate or its evidence is damaged.
        GcRefused: The evidence of a shard is missing in the certificate.
        StoreError: The store is unreachable or refused a request.
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
