"""What needs attention, decided from the state of a deployment."""

from dataclasses import replace

import msgspec
import pytest

from sluice_cli.deployment.attention import (
    DISCOVERY_BEHIND_S_MAX,
    WAITING_S_MAX,
    list_attention,
)
from sluice_cli.deployment.facts import DeploymentFacts
from sluice_maintain.status import MaintenanceStatus, TaskStatus
from sluice_protocol.authority import Authority
from sluice_queue.inspection import LaneCondition, LaneStatus
from sluice_reconciler.discovery_status import DiscoveryStatus, ProcessState, ProcessStatus
from sluice_store.doctor_result import DoctorFinding, DoctorResult, Need

PROCESS = ProcessStatus(
    gateway="a",
    process="p",
    state=ProcessState.OPEN,
    behind_s=1,
    silent_s=1,
    processed=1,
    unprocessed=0,
)
TASK = TaskStatus(
    task="ingest",
    state="running",
    runs_here=False,
    lease_owner="",
    lease_expires_unix_ns=None,
    next_run_unix_ns=None,
    overdue_s=0,
    last_success_unix_ns=None,
    last_outcome="",
    last_reason="",
    last_duration_s=None,
    failures=0,
    halted="",
    runs=(),
)
GOOD = DeploymentFacts(
    version="1",
    authority=Authority(authority_id="01K00000000000000000000000"),
    doctor=DoctorResult(
        result_id="r",
        endpoints=(),
        started_at_unix_ns=0,
        ended_at_unix_ns=0,
        racers=1,
        rounds=1,
        findings=(
            DoctorFinding(probe="p", promise="creates once", need=Need.ACCEPTANCE, kept=True),
        ),
    ),
    discovery=DiscoveryStatus(
        complete_through_unix_ns=1,
        behind_s=1,
        held_by=None,
        journaled=True,
        pass_age_s=1,
        pass_running=False,
        pass_listed=0,
        missed=0,
        processes=(PROCESS,),
    ),
    lanes=(LaneStatus(queue="spark", lane=0, oldest_waiting_s=1),),
    maintenance=MaintenanceStatus(checked_at_unix_ns=0, owner="", tasks=(TASK,)),
    conflicts_open=0,
    conflicts_more=False,
    now_ns=0,
)


def test_a_healthy_deployment_needs_nothing() -> None:
    assert list_attention(GOOD) == ()


def with_discovery(**change: object) -> DeploymentFacts:
    return replace(GOOD, discovery=replace(GOOD.discovery, **change))


def with_lane(**change: object) -> DeploymentFacts:
    return replace(GOOD, lanes=(replace(GOOD.lanes[0], **change),))


def with_task(**change: object) -> DeploymentFacts:
    tasks = (msgspec.structs.replace(TASK, **change),)
    return replace(GOOD, maintenance=msgspec.structs.replace(GOOD.maintenance, tasks=tasks))


def with_broken(need: Need) -> DeploymentFacts:
    finding = DoctorFinding(probe="p", promise="creates once", need=need, kept=False)
    assert GOOD.doctor is not None
    return replace(GOOD, doctor=msgspec.structs.replace(GOOD.doctor, findings=(finding,)))


def with_process(state: ProcessState) -> DeploymentFacts:
    return with_discovery(processes=(replace(PROCESS, state=state),))


@pytest.mark.parametrize(
    ("facts", "part", "words"),
    [
        (replace(GOOD, doctor=None), "store", "never examined"),
        (with_broken(Need.ACCEPTANCE), "store", "that acceptance needs: creates once"),
        (with_broken(Need.DELETION), "store", "that deletion needs: creates once"),
        (with_process(ProcessState.LAPSED), "gateway", "stopped without closing"),
        (with_process(ProcessState.UNREADABLE), "gateway", "unreadable"),
        (with_discovery(behind_s=None), "discovery", "no full pass has ended"),
        (
            with_discovery(behind_s=DISCOVERY_BEHIND_S_MAX + 1),
            "discovery",
            "not enqueued for 121 s",
        ),
        (with_lane(condition=LaneCondition.LOST, problem="gone"), "queue", "gone"),
        (with_lane(oldest_waiting_s=WAITING_S_MAX + 1), "queue", "pending for 901 s"),
        (with_task(halted="too many deletions"), "maintenance", "too many deletions"),
        (replace(GOOD, conflicts_open=2), "conflicts", "2 uploads"),
        (replace(GOOD, conflicts_open=2, conflicts_more=True), "conflicts", "2 or more uploads"),
    ],
)
def test_each_fault_is_named_with_an_action(facts: DeploymentFacts, part: str, words: str) -> None:
    (found,) = list_attention(facts)
    assert found.part == part
    assert words in found.problem
    assert found.action


@pytest.mark.parametrize(
    "facts",
    [
        with_process(ProcessState.CLOSED),
        with_process(ProcessState.REPLACED),
        with_broken(Need.COMFORT),
        with_discovery(behind_s=DISCOVERY_BEHIND_S_MAX),
        with_lane(oldest_waiting_s=WAITING_S_MAX),
    ],
)
def test_what_is_normal_needs_nothing(facts: DeploymentFacts) -> None:
    assert list_attention(facts) == ()
