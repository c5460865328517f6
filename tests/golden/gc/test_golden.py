"""The stored bytes of certificates and plans, and the columns of evidence, do not change."""

import numpy as np
from msgspec.structs import replace
from support.gc_world import AUDITOR_KEY, TRUSTED, certificate, many_ranges
from support.golden import golden

from sluice_gc.certificate import (
    AUDITED_PREFIXES,
    RANGES_MAX,
    merge_ranges,
    merkle_root_of,
    sign_certificate,
    verify_certificate,
)
from sluice_gc.eligible_versions import EligibleVersions, LeftOut, eligible_table, left_out_of
from sluice_gc.evidence_files import (
    BLOBS,
    CANDIDATES,
    EXPIRING,
    FILES,
    FINDINGS,
    MANIFESTS,
    NAMED,
    NAMES,
    PROOFS,
    RANGES,
    decode_table,
    encode_table,
)
from sluice_gc.key_ranges import cover_prefix
from sluice_gc.plan import sign_plan, verify_plan
from sluice_gc.tombstones import TOMBSTONES
from sluice_protocol.blob_deletion import PlanApproval, approval_key
from sluice_protocol.collection_records import (
    EvidenceFile,
    Plan,
    PlanSummary,
    TallyBucket,
    VersionTally,
)
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.units import ObjectKey


def test_certificate_bytes_do_not_change() -> None:
    body = sign_certificate(certificate(), AUDITOR_KEY)
    assert golden("gc/certificate.json", body) == body
    assert verify_certificate("A0", body, TRUSTED) == certificate()


def test_bytes_of_a_certificate_with_merged_ranges_do_not_change() -> None:
    """A range of a bounded certificate states how many listed ranges it consists of."""
    coverage = tuple(
        merge_ranges(cover_prefix(prefix, many_ranges(RANGES_MAX + 1)))
        for prefix in AUDITED_PREFIXES
    )
    wanted = replace(certificate(), coverage=coverage, merkle_root=merkle_root_of(coverage))
    body = sign_certificate(wanted, AUDITOR_KEY)
    assert golden("gc/certificate-merged.json", body) == body
    assert verify_certificate("A0", body, TRUSTED) == wanted


def test_plan_bytes_do_not_change() -> None:
    tally = VersionTally(incarnations=1, bytes=2)
    plan = Plan(
        plan_id="P",
        authority_id="authority",
        retry_horizon_s=300,
        audit_id="A0",
        certificate_sha256=digest_of(b"certificate"),
        made_at_unix_ns=10,
        summary=PlanSummary(
            blobs=tally,
            orphans=tally,
            superseded=VersionTally(),
            kept={"age": tally},
            by_size=(
                TallyBucket(up_to=4096, tally=tally),
                TallyBucket(up_to=None, tally=VersionTally()),
            ),
            by_age=(),
        ),
        candidates=(
            EvidenceFile(
                kind="candidates",
                place="00-ff",
                key=ObjectKey("gc/v1/plans/P/candidates/00-ff-0.parquet"),
                sha256=digest_of(b"file"),
                size_bytes=4,
                rows=1,
            ),
        ),
    )
    body = sign_plan(plan, AUDITOR_KEY)
    assert golden("gc/plan.json", body) == body
    assert verify_plan("P", body, TRUSTED) == plan


def test_approval_bytes_do_not_change() -> None:
    approval = PlanApproval(
        plan_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
        plan_sha256=digest_of(b"plan"),
        by="operator:otto",
        note="größe geprüft",
        approved_at_unix_ns=1_790_000_000_987_654_321,
    )
    body = encode_record(approval)
    key = approval_key(approval.plan_id)
    assert key == "gc/v1/approvals/01ARZ3NDEKTSV4RRFFQ69G5FAV.json"
    assert golden("gc/approval.json", body) == body
    assert decode_record(key, body, PlanApproval) == approval


def test_columns_of_evidence_do_not_change() -> None:
    schemas = {
        "manifests": MANIFESTS,
        "named": NAMED,
        "names": NAMES,
        "blobs": BLOBS,
        "findings": FINDINGS,
        "candidates": CANDIDATES,
        "proofs": PROOFS,
        "ranges": RANGES,
        "files": FILES,
        "expiring": EXPIRING,
        "tombstones": TOMBSTONES,
    }
    text = "\n".join(f"[{name}]\n{schema.to_string()}\n" for name, schema in schemas.items())
    assert golden("gc/evidence-columns.txt", text.encode()) == text.encode()


def test_tallies_of_eligible_versions_do_not_change() -> None:
    left_out = LeftOut(
        audit=VersionTally(incarnations=2, bytes=5), listed=VersionTally(incarnations=1, bytes=3)
    )
    none = np.zeros(0, bool)
    table = eligible_table(
        EligibleVersions(rows=BLOBS.empty_table(), named=none, left_out=left_out)
    )
    assert table.schema.metadata == {
        b"sluice.gc_eligible.v1": b'{"audit":{"incarnations":2,"bytes":5},'
        b'"listed":{"incarnations":1,"bytes":3}}'
    }
    assert left_out_of(decode_table(encode_table(table), BLOBS)) == left_out
