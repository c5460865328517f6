"""Decides what in the state of a deployment needs attention, and what to do about it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sluice_cli.deployment.facts import DeploymentFacts
from sluice_queue.inspection import LaneCondition
from sluice_reconciler.discovery_status import ProcessState
from sluice_store.doctor_result import Need

DISCOVERY_BEHIND_S_MAX: Final = 120.0
"""Age of the time through which batches are enqueued; a running reconciler keeps it below 10 s."""
WAITING_S_MAX: Final = 900.0
"""Age of the oldest pending batch; an ingest job that runs keeps it below its trigger interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionItem:
    """One thing that an operator should look into.

    Attributes:
        part: The part of the deployment.
        problem: What is wrong.
        action: What to do.
    """

    part: str
    problem: str
    action: str


def list_attention(facts: DeploymentFacts) -> tuple[AttentionItem, ...]:
    """Return everything that needs attention, the most urgent part first."""
    return (
        *_of_store(facts),
        *_of_gateways(facts),
        *_of_discovery(facts),
        *_of_queue(facts),
        *_of_maintenance(facts),
        *_of_conflicts(facts),
    )


def _of_store(facts: DeploymentFacts) -> Iterator[AttentionItem]:
    if facts.doctor is None:
        yield AttentionItem(
            part="store", problem="it was never examined", action="run `sluice doctor`"
        )
        return
    for need in (Need.ACCEPTANCE, Need.DELETION):
        for one in facts.doctor.broken(need):
            yield AttentionItem(
                part="store",
                problem=f"it breaks a promise that {need.value} needs: {one.promise}",
                action="use another store, or read docs/store.md",
            )


def _of_gateways(facts: DeploymentFacts) -> Iterator[AttentionItem]:
    for one in facts.discovery.processes:
        if one.state is ProcessState.LAPSED:
            yield AttentionItem(
                part="gateway",
                problem=f"{one.gateway} stopped without closing its journal,"
                f" {one.silent_s:.0f} s ago",
                action="start it again, or wait for the full pass that replaces its journal",
            )
        elif one.state is ProcessState.UNREADABLE:
            yield AttentionItem(
                part="gateway",
                problem=f"the journal of {one.gateway} is unreadable, process={one.process}",
                action="upgrade the reconciler if the gateway is newer; a full pass replaces the"
                " journal",
            )


def _of_discovery(facts: DeploymentFacts) -> Iterator[AttentionItem]:
    behind_s = facts.discovery.behind_s
    if behind_s is None:
        yield AttentionItem(
            part="discovery", problem="no full pass has ended", action="start `sluice reconciler`"
        )
    elif behind_s > DISCOVERY_BEHIND_S_MAX:
        held = f", held by {facts.discovery.held_by}" if facts.discovery.held_by else ""
        yield AttentionItem(
            part="discovery",
            problem=f"accepted batches are not enqueued for {behind_s:.0f} s{held}",
            action="check that `sluice reconciler` runs, and its log",
        )


def _of_queue(facts: DeploymentFacts) -> Iterator[AttentionItem]:
    for one in facts.lanes:
        if one.condition is not LaneCondition.SOUND:
            yield AttentionItem(
                part="queue",
                problem=f"{one.queue}.{one.lane:03d} is {one.condition.value}: {one.problem}",
                action="run `sluice rebuild`",
            )
    ages = [one.oldest_waiting_s for one in facts.lanes if one.oldest_waiting_s is not None]
    if ages and max(ages) > WAITING_S_MAX:
        yield AttentionItem(
            part="queue",
            problem=f"the oldest batch is pending for {max(ages):.0f} s",
            action="check that `sluice maintain` runs the task ingest; queries still find the"
            " newest pending batches",
        )


def _of_maintenance(facts: DeploymentFacts) -> Iterator[AttentionItem]:
    for one in facts.maintenance.tasks:
        if one.trouble:
            yield AttentionItem(
                part="maintenance",
                problem=f"{one.task}: {one.trouble}",
                action="see `sluice maintain status` and docs/maintain.md",
            )


def _of_conflicts(facts: DeploymentFacts) -> Iterator[AttentionItem]:
    if facts.conflicts_open:
        more = " or more" if facts.conflicts_more else ""
        yield AttentionItem(
            part="conflicts",
            problem=f"{facts.conflicts_open}{more} uploads were refused and have no decision",
            action="see `sluice conflicts list`",
        )
