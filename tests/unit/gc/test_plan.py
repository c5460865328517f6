"""The safety rules of a plan or a run, the number of its tasks, and the newest plans."""

import asyncio

import msgspec
import pytest
from support.gc_store import VersionedStore
from support.gc_world import KEY, KEYS, MovedClock, certificate
from ulid import ULID

from sluice_gc.certificate import ShardFiles
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan import (
    check_amount,
    check_certificate_for,
    check_clock_fall,
    check_clocks,
    check_grace,
    check_horizon_covered,
    check_plan_for,
    newest_plan_id,
    plan_ids_newest_first,
    plan_key,
    sign_plan,
    verify_plan,
)
from sluice_gc.planner import task_count
from sluice_protocol.authority import Authority
from sluice_protocol.collection_records import (
    AuditCounts,
    EvidenceFile,
    Plan,
    PlanSummary,
    VersionTally,
)
from sluice_protocol.keys import digest_of
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs
from sluice_reconciler.audit_summaries import list_newest_plans
from sluice_store.plan_folders import plan_folders_newest_first

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
    slow, fast = UnixNs(at - 301 * NS_PER_S), UnixNs(at + 301 * NS_PER_S)
    assert refusal(check_clocks, UnixNs(at), slow, 300.0) is RefusalRule.CLOCKS_DIFFER
    assert refusal(check_clocks, UnixNs(at), fast, 300.0) is RefusalRule.CLOCKS_DIFFER
    check_clocks(UnixNs(at), UnixNs(at - 300 * NS_PER_S), 300.0)
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
    hour = UnixNs(10 + 3600 * NS_PER_S)
    assert refusal(check_grace, plan(), hour, 86_400.0) is RefusalRule.GRACE
    check_grace(plan(), hour, 3600.0)


def shards(count: int, rows: int) -> list[ShardFiles]:
    file = EvidenceFile(
        kind="blobs",
        place="00",
        key=ObjectKey("k"),
        sha256=Digest("0" * 64),
        size_bytes=1,
        rows=rows,
    )
    return [(f"{number:02x}", (), (file,)) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "rows", "parallelism", "tasks"),
    [
        pytest.param(16, 62_500, 2, 2, id="few rows: one task per core"),
        pytest.param(16, 625_000, 2, 4, id="many rows: two per core"),
        pytest.param(256, 390_625, 2, 4, id="many shards: two per core"),
        pytest.param(16, 625_000, 50, 16, id="many cores: as many as shards"),
        pytest.param(256, 97_656, 40, 49, id="many cores: half a million rows each"),
        pytest.param(16, 0, 2, 2, id="no rows"),
        pytest.param(1, 0, 8, 1, id="one shard"),
        pytest.param(0, 0, 8, 1, id="no shard"),
    ],
)
def test_the_number_of_tasks(count: int, rows: int, parallelism: int, tasks: int) -> None:
    assert task_count(shards(count, rows), parallelism) == tasks


DAY_S = 86_400


def plans_of_days(*ages_days: float) -> tuple[VersionedStore, list[str]]:
    """Return a store with one plan of each age, and their ids, newest first."""
    clock = MovedClock()
    store = VersionedStore(clock=clock)
    ids = [str(ULID.from_timestamp(clock.at_ns / NS_PER_S - age * DAY_S)) for age in ages_days]

    async def fill() -> None:
        for plan_id in ids:
            await store.create(plan_key(plan_id), b"{}")

    asyncio.run(fill())
    return store, sorted(ids, reverse=True)


async def every(store: VersionedStore) -> list[str]:
    return [plan_id async for plan_id in plan_ids_newest_first(store)]


def test_every_plan_is_yielded_once_newest_first() -> None:
    store, ids = plans_of_days(0.1, 1, 5, 15.9, 16.1, 100, 127, 400, 4000)
    assert asyncio.run(every(store)) == ids


def test_a_plan_from_a_clock_that_is_ahead_is_found() -> None:
    store, ids = plans_of_days(-1, 3)
    assert asyncio.run(every(store)) == ids


def test_the_newest_plan_costs_no_request_for_older_ones() -> None:
    store, ids = plans_of_days(*(0.5 + day for day in range(300)))
    before = sum(store.requests.values())
    assert asyncio.run(newest_plan_id(store)) == ids[0]
    assert sum(store.requests.values()) - before < 10


def test_an_old_plan_is_found_if_there_is_no_other() -> None:
    store, ids = plans_of_days(900)
    assert asyncio.run(newest_plan_id(store)) == ids[0]


def test_after_a_known_plan_only_later_ones_cost_requests() -> None:
    store, ids = plans_of_days(*(0.1 * day for day in range(300)))

    async def since() -> list[str]:
        return [one async for one in plan_folders_newest_first(store, since=ids[1])]

    assert asyncio.run(since()) == ids[:2]
    assert store.requests["list"] == 3


def test_a_list_of_the_newest_plans_costs_no_request_for_older_ones() -> None:
    store, ids = plans_of_days(*(0.5 + day for day in range(300)))
    before = sum(store.requests.values())
    found = asyncio.run(list_newest_plans(store, 2))
    assert [one.key for one in found] == [plan_key(plan_id) for plan_id in ids[:2]]
    assert sum(store.requests.values()) - before < 12
