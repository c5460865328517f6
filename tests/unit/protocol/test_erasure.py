"""Decisions of erasures: which kinds a filter selects, and what is refused."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from sluice_protocol.erasure import (
    DUE_AFTER_NS,
    ErasedCopy,
    ErasureDecision,
    ErasureReport,
    SignedErasure,
    decide_erasure,
    decode_erasure,
    erasure_key,
)
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.manifests import encode_record
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import Digest

IDS = SystemIds()
NOW_NS = 1_790_000_000_000_000_000


def decide(
    where: str, kinds: Sequence[Kind] = (), start: str | None = None, reason: str = "request"
) -> ErasureDecision:
    return decide_erasure(
        where,
        kinds,
        (start, None),
        reason,
        erasure_id=IDS.ulid(),
        delete_ids=[IDS.ulid() for _ in KINDS],
        now_ns=NOW_NS,
        decided_by="operator:ann",
    )


@pytest.mark.parametrize(
    ("where", "kinds"),
    [
        ("agent = 'a'", set(KINDS)),
        ("attributes['user'] = 'u'", {"logs", "metrics", "spans"}),
        ("body contains 'x'", {"logs"}),
        ("name = 'm' and agent = 'a'", {"metrics", "spans"}),
    ],
)
def test_a_filter_selects_every_kind_that_has_its_fields(where: str, kinds: set[Kind]) -> None:
    decision = decide(where)
    assert {one.kind for one in decision.deletes} == kinds
    assert set(decision.unsearched) == set(KINDS) - kinds
    assert {one.accepted_until_unix_ns for one in decision.deletes} == {NOW_NS}
    assert len({one.delete_id for one in decision.deletes}) == len(kinds)
    assert decision.due_at_unix_ns == NOW_NS + DUE_AFTER_NS
    only = decide(where, [next(iter(kinds))])
    assert len(only.deletes) == 1


@pytest.mark.parametrize(
    ("where", "start", "reason", "message"),
    [
        ("agent = 'a'", None, " ", "needs a reason"),
        (" ", None, "r", "needs a filter"),
        ("", "2026-01-01T00:00:00Z", "r", "needs a filter"),
        ("agent = ''", None, "r", "at least one condition"),
        ("agent = ''", "2026-01-01T00:00:00Z", "r", "matches every record"),
        ("body contains ''", "2026-01-01T00:00:00Z", "r", "matches every record"),
        ("attributes['k'] = ''", None, "r", "matches every record"),
        ("everything", None, "r", "condition is not valid"),
    ],
)
def test_what_is_no_erasure_is_refused(
    where: str, start: str | None, reason: str, message: str
) -> None:
    with pytest.raises(BadUsage, match=message):
        decide(where, (), start, reason)


def test_a_decision_belongs_under_its_key() -> None:
    decision = decide("agent = 'a'")
    body = encode_record(SignedErasure(decision=decision, key_id="k", signature="s"))
    assert decode_erasure(erasure_key(decision.erasure_id), body).decision == decision
    with pytest.raises(InvalidRecord, match="another key"):
        decode_erasure(erasure_key(IDS.ulid()), body)


def test_an_erasure_has_ended_when_it_is_verified_and_no_copy_waits() -> None:
    report = ErasureReport(
        erasure_id="E",
        number=1,
        authority_id="A",
        decision=decide("agent = 'a'"),
        decision_sha256=Digest(""),
        made_at_unix_ns=1,
        batches=1,
        records=1,
        searched={},
        verified=True,
        copies=(
            ErasedCopy(name="a", state="done", at_unix_ns=1),
            ErasedCopy(name="b", state="not_applicable"),
            ErasedCopy(name="c", state="elsewhere"),
        ),
    )
    assert report.ended
    assert not replace(report, verified=False).ended
    waits = [
        ErasedCopy(name=name, state="by_date", found=1, at_unix_ns=at)
        for name, at in (("d", 9), ("e", 7))
    ]
    later = replace(report, copies=(*report.copies, *waits))
    assert (later.ended, later.next_at_unix_ns) == (False, 7)
    kept = ErasedCopy(name="f", state="open", found=1)
    assert not replace(report, copies=(*report.copies, kept)).ended
