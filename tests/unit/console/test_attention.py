"""What needs attention, from facts."""

from dataclasses import replace as changed_lane

import pytest
from msgspec.structs import replace

from sluice_console.attention import (
    SILENT_S_MAX,
    WITHOUT_OWNER_S_MAX,
    GapTotals,
    OverviewFacts,
    SourceProblem,
    lanes_without_owner,
    list_attention,
)
from sluice_console.attention_items import AttentionItem, ServiceState
from sluice_console.gateway_health import GatewayHealth
from sluice_console.metrics import ConsoleMetrics
from sluice_protocol.expiry import LegalHold
from sluice_protocol.journals import HEARTBEAT_S, HoldReason
from sluice_queue.inspection import LaneCondition, LaneOwnership, LaneStatus, OwnershipState
from sluice_reconciler.audit_summaries import AuditOverview, PlanOverview, UnreadableRecord
from sluice_reconciler.discovery import DiscoveryStatus, ProcessState, ProcessStatus
from sluice_reconciler.lanes.membership import TAKEOVER_S_MAX, LiveMembers, MemberRecord
from sluice_reconciler.loop_health import NEEDED, Loop, StalledLoop
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.doctor import DoctorFinding, DoctorResult, Need
from sluice_store.stored_expiry import RetentionState


def discovery(**changed: object) -> DiscoveryStatus:
    fields: dict[str, object] = {
        "complete_through_unix_ns": 1,
        "behind_s": 1.0,
        "held_by": None,
        "journaled": True,
        "pass_age_s": 10.0,
        "pass_running": False,
        "pass_listed": 0,
        "missed": 0,
        "processes": (),
    }
    return DiscoveryStatus(**(fields | changed))


def process(state: ProcessState, silent_s: float = HEARTBEAT_S + 1) -> ProcessStatus:
    return ProcessStatus(
        gateway="gw",
        process="p",
        state=state,
        behind_s=1,
        silent_s=silent_s,
        processed=1,
        unprocessed=0,
    )


def reconcilers(silent_s: float = 1.0, *stalled: Loop) -> LiveMembers:
    """Return one live reconciler, with its loops that fail."""
    record = MemberRecord(
        member="m",
        host="h",
        stalled=tuple(StalledLoop(loop=one, reason="403 AccessDenied") for one in stalled),
    )
    return LiveMembers(records=(record,), silent_s={"m": silent_s})


def doctor(*, kept: bool, need: Need = Need.ACCEPTANCE) -> DoctorResult:
    finding = DoctorFinding(
        probe="x",
        promise="creates are atomic",
        need=need,
        kept=kept,
        seen="two winners",
        cost="loss",
    )
    return DoctorResult(
        result_id="r", endpoints=("e",), started_at_unix_ns=1, ended_at_unix_ns=2, racers=1,
        rounds=1, findings=(finding,),
    )  # fmt: skip


def audit(**counts: int) -> AuditOverview:
    return AuditOverview(
        key="k", audit_id="a", chain_index=0, started_at_unix_ns=1, finished_at_unix_ns=2,
        deep=0.0, counts={"accepted": 9, "gaps": 1} | counts, evidence_files=0, key_id="k",
    )  # fmt: skip


def plan(state: str) -> PlanOverview:
    return PlanOverview(
        key="k", plan_id="p", audit_id="a", made_at_unix_ns=1, blobs={}, orphans={}, superseded={},
        kept={}, candidate_files=0, state=state, key_id="k", stopped="otto: wait",
    )  # fmt: skip


CALM = OverviewFacts(
    acceptance="s3_manifest",
    discovery=discovery(processes=(process(ProcessState.OPEN), process(ProcessState.CLOSED))),
    lanes=(LaneStatus(queue="spark", lane=0, oldest_waiting_s=5.0),),
    conflicts_open=0,
    held=0,
    gaps=GapTotals(agents=0, oldest_s=0.0),
    doctor=doctor(kept=True),
    doctor_ran=True,
    audit=audit(missing_blobs=0),
    plan=plan("planned"),
    services=(ServiceState(service="query", url="http://q"),),
    members=reconcilers(),
)


@pytest.mark.parametrize("reason", HoldReason)
def test_each_reason_of_a_hold_is_an_error_with_a_remedy(reason: HoldReason) -> None:
    """A journal entry without a manifest is one of them: an acknowledged batch is lost."""
    (item,) = list_attention(replace(CALM, held=1, held_reasons=(reason.value,)))
    assert (item.severity, item.title) == ("error", "1 batch held back")
    assert reason.value in item.detail
    assert "send the batches again" in item.detail


LOST_LANE = LaneStatus(
    queue="q", lane=3, condition=LaneCondition.LOST, problem="run sluice rebuild"
)


def test_a_healthy_deployment_needs_nothing() -> None:
    assert list_attention(CALM) == ()


@pytest.mark.parametrize(
    ("changed", "severity", "page", "word"),
    [
        ({"held": 2, "held_reasons": ("blob_missing",)}, "error", "queue", "2 batches held back"),
        ({"held": 1_000, "held_more": True}, "error", "queue", "More than 1000 batches"),
        ({"conflicts_open": 1}, "warning", "conflicts", "1 conflict without"),
        ({"gaps": GapTotals(agents=2, oldest_s=7200)}, "warning", "agents", "2 agents have gaps"),
        ({"doctor_ran": False, "doctor": None}, "error", "store", "never tested"),
        ({"doctor": doctor(kept=False)}, "error", "store", "creates are atomic"),
        ({"disk_problem": "the disk is full: free space"}, "error", "store", "cannot be written"),
        ({"discovery": discovery(behind_s=61.0)}, "warning", "queue", "enqueued 61 s late"),
        (
            {"discovery": discovery(processes=(process(ProcessState.LAPSED),))},
            "error",
            "queue",
            "Gateway gw stopped",
        ),
        (
            {"discovery": discovery(complete_through_unix_ns=None)},
            "warning",
            "queue",
            "No reconciler",
        ),
        (
            {"discovery": discovery(processes=(process(ProcessState.CLOSED),))},
            "warning",
            "queue",
            "No gateway is running",
        ),
        (
            {"discovery": discovery(processes=(process(ProcessState.OPEN, SILENT_S_MAX + 1),))},
            "warning",
            "queue",
            "Gateway gw does not report",
        ),
        ({"members": LiveMembers(changed_s=12.0)}, "error", "queue", "No reconciler is running"),
        ({"members": reconcilers(9.5)}, "error", "queue", "reconciler on h stopped reporting"),
        *(
            (
                {"members": reconcilers(1.0, loop)},
                "error" if loop in NEEDED else "warning",
                "queue",
                f"cannot do its work: {loop.value}",
            )
            for loop in Loop
        ),
        (
            {"gateways": (GatewayHealth(url="g", not_ready="the last read failed"),)},
            "error",
            "queue",
            "No gateway is ready",
        ),
        (
            {
                "gateways": (
                    GatewayHealth(url="g", not_ready="the last read failed"),
                    GatewayHealth(url="h"),
                )
            },
            "warning",
            "queue",
            "A gateway is not ready",
        ),
        (
            {"discovery": discovery(batches=1, processes=())},
            "warning",
            "queue",
            "No gateway is running",
        ),
        ({"audit": audit(missing_blobs=2)}, "error", "audit", "2 missing blobs"),
        (
            {"audit": UnreadableRecord(key="k", unreadable="cut")},
            "error",
            "audit",
            "certificate cannot be read",
        ),
        ({"plan": plan("stopped")}, "warning", "audit", "deletion plan is stopped"),
        ({"lanes": (LOST_LANE,)}, "error", "queue", "Lane 3 of q is lost"),
        (
            {"lanes": (LaneStatus(queue="q", lane=3, oldest_waiting_s=601.0),)},
            "warning",
            "queue",
            "10 min behind",
        ),
        (
            {
                "lanes": (
                    LaneStatus(queue="q", lane=3, oldest_waiting_s=86_405.0, clock_ahead_s=86_400),
                )
            },
            "warning",
            "queue",
            "clock of the store is 24 h ahead",
        ),
        (
            {
                "lanes": (
                    LaneStatus(queue="q", lane=3, oldest_waiting_s=90_000.0, clock_ahead_s=86_400),
                )
            },
            "warning",
            "queue",
            "behind",
        ),
        (
            {"services": (ServiceState(service="reconciler", url="u", problem="gone"),)},
            "error",
            "agents",
            "reconciler service",
        ),
        (
            {"services": (ServiceState(service="query", url="u", problem="gone"),)},
            "warning",
            "explore",
            "query service",
        ),
    ],
)
def test_each_trouble_is_one_item_that_names_its_page(
    changed: dict[str, object], severity: str, page: str, word: str
) -> None:
    (item,) = list_attention(_with(changed))
    assert (item.severity, item.page) == (severity, page)
    assert word in item.title
    assert item.detail


def _with(changed: dict[str, object]) -> OverviewFacts:
    fields = {name: getattr(CALM, name) for name in OverviewFacts.__struct_fields__}
    return OverviewFacts(**(fields | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"discovery": discovery(processes=())},
        {"discovery": discovery(batches=1), "acceptance": "local_spool"},
        {"discovery": discovery(batches=1), "gateways": (GatewayHealth(url="http://a"),)},
    ],
    ids=["unused store", "spool", "a gateway responds"],
)
def test_no_gateway_is_missed_where_none_can_be_seen(changed: dict[str, object]) -> None:
    assert list_attention(_with(changed)) == ()


def test_errors_come_first() -> None:
    found = list_attention(_with({"conflicts_open": 1, "held": 1}))
    assert [one.severity for one in found] == ["error", "warning"]


def test_a_broken_promise_that_acceptance_does_not_need_is_no_alarm() -> None:
    assert list_attention(_with({"doctor": doctor(kept=False, need=Need.COMFORT)})) == ()


def test_one_cause_of_several_unreadable_parts_is_one_item() -> None:
    problems = tuple(SourceProblem(source=name, reason="no route") for name in ("a", "b"))
    (item,) = list_attention(_with({"problems": problems}))
    assert item == AttentionItem(
        severity="error",
        title="Cannot read a, b",
        detail="no route",
        page="store",
        command="sluice doctor --dry-run",
    )


# -- lanes without an owner ----------------------------------------------------------------


def lane(state: str, number: int = 0, unchanged_s: float | None = 61.0) -> LaneStatus:
    owner = LaneOwnership(
        state=OwnershipState(state), detail="why and what to do", unchanged_s=unchanged_s
    )
    return LaneStatus(queue="spark", lane=number, ownership=owner)


LATE = discovery(behind_s=61.0)


@pytest.mark.parametrize(("silent_s", "is_holder"), [(HEARTBEAT_S + 1, False), (3600.0, True)])
def test_a_gateway_that_reports_holds_nothing_back(silent_s: float, is_holder: bool) -> None:
    """Its last report bounds the time, but the reconciler is what does not process it."""
    one = process(ProcessState.OPEN, silent_s)
    late = discovery(behind_s=360.0, held_by="gw (process p)", processes=(one,))
    found = [item for item in list_attention(replace(CALM, discovery=late)) if "late" in item.title]
    assert [", held by gw (process p)" in item.detail for item in found] == [is_holder]


def named(lanes: tuple[LaneStatus, ...], late: DiscoveryStatus | None = LATE) -> list[str]:
    found = list_attention(replace(CALM, lanes=lanes, discovery=late))
    return [item.title for item in found if "owner" in item.title]


@pytest.mark.parametrize(
    ("state", "severity", "title"),
    [
        ("unowned", "error", "Lane spark.000 has no owner"),
        ("lapsed", "error", "Lane spark.000 lost its owner"),
        ("disputed", "warning", "Lane spark.000 has several owners"),
        ("unknown", "warning", "Lane spark.000 has an unknown owner"),
    ],
)
def test_a_lane_that_stays_without_an_owner_is_named(state: str, severity: str, title: str) -> None:
    found = list_attention(replace(CALM, lanes=(lane(state),), discovery=LATE))
    (item,) = [one for one in found if "owner" in one.title]
    assert (item.title, item.severity) == (title, severity)
    assert "why and what to do" in item.detail
    assert "SluiceLaneWithoutOwner" in item.detail


def test_many_lanes_of_one_state_are_one_item() -> None:
    lanes = (*(lane("lapsed", number) for number in range(256)), lane("unowned", 300))
    assert named(lanes) == [
        "Lane spark.300 has no owner", "Lane spark.000 lost its owner, and 255 more",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "late"),
    [
        (lane("owned"), LATE),
        (LaneStatus(queue="spark", lane=0), LATE),
        (lane("lapsed", unchanged_s=60.0), LATE),
        (lane("unowned"), discovery(behind_s=60.0)),
        (lane("unowned", number=7), discovery(behind_s=999.0, lanes_behind_s={7: 2.0})),
        (lane("unknown"), discovery(behind_s=999.0, held_by="gw (process p)")),
        (lane("disputed"), discovery(behind_s=999.0, held_by="gw (process p)")),
    ],
    ids=["owned", "not read", "changed", "current", "lane is current", "held", "held disputed"],
)
def test_a_lane_that_works_or_is_handed_over_is_not_named(
    one: LaneStatus, late: DiscoveryStatus
) -> None:
    assert named((one,), late) == []


@pytest.mark.parametrize("state", ["unowned", "lapsed"])
def test_a_gateway_that_holds_the_time_back_hides_no_missing_owner(state: str) -> None:
    """The record may be the last one of the reconciler that died."""
    assert len(named((lane(state),), discovery(behind_s=999.0, held_by="gw (process p)"))) == 1


@pytest.mark.parametrize("late", [None, discovery(complete_through_unix_ns=None, behind_s=None)])
def test_an_unknown_time_of_discovery_hides_no_missing_owner(late: DiscoveryStatus | None) -> None:
    assert len(named((lane("unowned", unchanged_s=None),), late)) == 1


def test_a_lost_lane_is_named_once() -> None:
    lost = changed_lane(lane("unowned"), condition=LaneCondition.LOST, problem="run sluice rebuild")
    assert not any(lanes_without_owner((lost,), LATE).values())


def test_the_bound_is_longer_than_a_takeover() -> None:
    """Of members, and of a standby with its default."""
    assert TAKEOVER_S_MAX + ReconcilerSettings().takeover_after_s < WITHOUT_OWNER_S_MAX


def test_a_due_review_and_an_unreadable_hold_are_named() -> None:
    hold = LegalHold(
        hold_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
        case="C-1",
        reason="litigation",
        held_by="ann",
        review_at_unix_ns=2,
        held_at_unix_ns=1,
    )
    later = replace(hold, hold_id="01ARZ3NDEKTSV4RRFFQ69G5FAX", case="C-2")
    state = RetentionState(least_s=0, holds=(hold, later), due=(hold.hold_id,))
    (item,) = list_attention(OverviewFacts(retention=state))
    assert (item.severity, item.title, item.command) == (
        "warning", "1 hold to review", "sluice hold list",
    )  # fmt: skip
    assert "C-1" in item.detail
    assert "C-2" not in item.detail
    broken = replace(state, due=(), unreadable=("retention/v1/holds/x.json: cut off",))
    (item,) = list_attention(OverviewFacts(retention=broken))
    assert item.severity == "error"
    assert "cut off" in item.detail
    metrics = ConsoleMetrics()
    for shown, due in ((state, 1), (broken, 1), (None, 1), (RetentionState(least_s=0), 0)):
        metrics.show_holds(shown)
        assert metrics.registry.get_sample_value("sluice_console_holds_due") == due
