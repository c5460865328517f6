"""The safety rules that prevent a plan or a run; each refuses with its name."""

import msgspec
import pytest
from support.gc_world import KEY, KEYS, certificate

from sluice_gc.audit.certificate import AuditCounts
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan.plan import (
    ClockReadings,
    Plan,
    PlanSummary,
    VersionTally,
    check_amount,
    check_certificate_for,
    check_clock_fall,
    check_clocks,
    check_grace,
    check_horizon_covered,
    check_plan_for,
    sign_plan,
    verify_plan,
)
from sluice_protocol.authority import Authority
from sluice_protocol.keys import digest_of
from sluice_protocol.units import NS_PER_S, UnixNs

AUTHORITY = Authority(authority_id="authority", retry_horizon_s=300, margin_s=80)


def tally(count: int, size: int = 10) -> VersionTally:
    return VersionTally(incarnations=count, bytes=count * size)


def summary(orphans: VersionTally, blobs: VersionTally, **kept: int) -> PlanSummary:
    return PlanSummary(
        blobs=blobs,
        orphans=orphans,
        superseded=VersionTally(),
        kept={name: tally(count) for name, count in kept.items()},
        by_size=(),
        by_age=(),
    )


def plan(**changed: object) -> Plan:
    made = Plan(
        plan_id="P",
        authority_id="authority",
        retry_horizon_s=300,
        audit_id="A0",
        certificate_sha256=digest_of(b"certificate"),
        made_at_unix_ns=10,
        summary=summary(tally(1), tally(2)),
        candidates=(),
    )
    return msgspec.structs.replace(made, **changed)


def refusal(check: object, *arguments: object) -> RefusalRule:
    with pytest.raises(GcRefused) as refused:
        check(*arguments)
    assert f"rule=`{refused.value.rule.value}`" in str(refused.value)
    return refused.value.rule


def test_plan_for_too_much_is_refused() -> None:
    """A plan for all blobs, or above the limit by count or by bytes, is refused."""
    assert refusal(check_amount, summary(tally(5), tally(5)), 1.0) is RefusalRule.EVERY_BLOB
    assert refusal(check_amount, summary(tally(3), tally(5)), 0.5) is RefusalRule.DELETE_RATIO
    heavy = summary(tally(1, size=90), VersionTally(incarnations=5, bytes=100))
    assert refusal(check_amount, heavy, 0.5) is RefusalRule.DELETE_RATIO
    check_amount(summary(tally(2), tally(5)), 0.5)
    check_amount(summary(tally(0), tally(0)), 0.5)


def test_horizon_must_be_covered_for_some_orphan() -> None:
    """Old orphans without a certificate that covers any of them are a refusal."""
    uncovered = summary(tally(0), tally(5), certificate=2)
    assert refusal(check_horizon_covered, uncovered) is RefusalRule.HORIZON_NOT_COVERED
    check_horizon_covered(summary(tally(1), tally(5), certificate=2))
    check_horizon_covered(summary(tally(0), tally(5), age=2))


def test_clocks_must_agree_and_not_go_back() -> None:
    """A difference of five minutes, or a store's clock that went back, is refused."""
    at = 10_000 * NS_PER_S
    off = ClockReadings(local_ns=UnixNs(at), store_ns=UnixNs(at - 301 * NS_PER_S))
    assert refusal(check_clocks, off, 300.0) is RefusalRule.CLOCKS_DIFFER
    fast = ClockReadings(local_ns=UnixNs(at), store_ns=UnixNs(at + 301 * NS_PER_S))
    assert refusal(check_clocks, fast, 300.0) is RefusalRule.CLOCKS_DIFFER
    check_clocks(ClockReadings(local_ns=UnixNs(at), store_ns=UnixNs(at - 300 * NS_PER_S)), 300.0)
    fell = at - 41 * NS_PER_S
    assert refusal(check_clock_fall, at, fell, AUTHORITY) is RefusalRule.CLOCK_FELL
    check_clock_fall(at, at - 40 * NS_PER_S, AUTHORITY)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"authority_id": "other"}, RefusalRule.OTHER_AUTHORITY),
        ({"retry_horizon_s": 200}, RefusalRule.HORIZON_NOT_COVERED),
        ({"counts": AuditCounts(foreign=1)}, RefusalRule.FOREIGN_KEYS),
        ({"counts": AuditCounts(unreadable_manifests=1)}, RefusalRule.UNREADABLE_MANIFESTS),
    ],
)
def test_unsuitable_certificate_is_refused(changed: dict[str, object], rule: RefusalRule) -> None:
    """Another authority or retry horizon, foreign keys or unreadable manifests are refused."""
    one = msgspec.structs.replace(certificate(), **changed)
    assert refusal(check_certificate_for, AUTHORITY, one) is rule
    check_certificate_for(AUTHORITY, certificate())


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"audit_id": "A9"}, RefusalRule.PLAN_INVALID),
        ({"certificate_sha256": digest_of(b"other")}, RefusalRule.PLAN_INVALID),
        ({"authority_id": "other"}, RefusalRule.OTHER_AUTHORITY),
        ({"retry_horizon_s": 200}, RefusalRule.PLAN_INVALID),
        ({"made_at_unix_ns": 1}, RefusalRule.PLAN_BEFORE_CERTIFICATE),
    ],
)
def test_plan_of_another_certificate_is_refused(
    changed: dict[str, object], rule: RefusalRule
) -> None:
    """A plan of another certificate, or older than its certificate, is refused."""
    sha256 = digest_of(b"certificate")
    assert refusal(check_plan_for, plan(**changed), certificate(), sha256) is rule
    check_plan_for(plan(), certificate(), sha256)


def test_edited_plan_is_refused() -> None:
    """A plan with one changed digit or under another id is refused."""
    body = sign_plan(plan(), KEY)
    assert verify_plan("P", body, KEYS.trusted) == plan()
    edited = body.replace(b'"made_at_unix_ns":10', b'"made_at_unix_ns":99')
    assert refusal(verify_plan, "P", edited, KEYS.trusted) is RefusalRule.PLAN_INVALID
    assert refusal(verify_plan, "Q", body, KEYS.trusted) is RefusalRule.PLAN_INVALID
    assert refusal(verify_plan, "P", body, {}) is RefusalRule.PLAN_INVALID
    assert refusal(verify_plan, "P", b"{", KEYS.trusted) is RefusalRule.PLAN_INVALID


def test_plan_in_its_grace_period_is_refused() -> None:
    """A plan younger than the grace period is refused."""
    hour = UnixNs(10 + 3600 * NS_PER_S)
    assert refusal(check_grace, plan(), hour, 86_400.0) is RefusalRule.GRACE
    check_grace(plan(), hour, 3600.0)
