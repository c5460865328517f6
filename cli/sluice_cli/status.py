"""`sluice status`: the state of a whole deployment on one screen."""

import asyncio
from typing import TYPE_CHECKING

from sluice_cli.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit
from sluice_protocol.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_cli.deployment.attention import AttentionItem
    from sluice_cli.deployment.facts import DeploymentFacts


def status(*, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Show the store, gateways, discovery, queue, maintenance and conflicts on one screen.

    It reads the store only, so it works while services are stopped.

    Returns:
        0, or 1 if something needs attention.
    """
    from sluice_cli.deployment.attention import list_attention  # noqa: PLC0415 - quick help
    from sluice_cli.deployment.facts import read_facts  # noqa: PLC0415 - quick help

    facts = asyncio.run(read_facts(store))
    attention = list_attention(facts)
    emit(
        {"attention": attention, "facts": facts},
        as_json=json,
        human=lambda console: _draw(console, store, facts, attention),
    )
    return ExitCode.FOUND_WRONG.value if attention else ExitCode.DONE.value


def _draw(
    console: "Console",
    url: str,
    facts: "DeploymentFacts",
    attention: tuple["AttentionItem", ...],
) -> None:
    console.print(f"sluice {facts.version}  {url}", markup=False)
    for name, text in _lines(facts):
        console.print(f"  {name:<12} {text}", markup=False)
    if not attention:
        console.print("nothing needs attention")
        return
    console.print("needs attention:")
    for one in attention:
        console.print(f"  {one.part}: {one.problem}; {one.action}", markup=False)


def _lines(facts: "DeploymentFacts") -> tuple[tuple[str, str], ...]:
    authority, discovery = facts.authority, facts.discovery
    waiting = sum(one.waiting_batches for one in facts.lanes)
    troubled = sum(bool(one.trouble) for one in facts.maintenance.tasks)
    running = [one.task for one in facts.maintenance.tasks if one.state == "running"]
    more = " or more" if facts.conflicts_more else ""
    return (
        (
            "authority",
            (
                f"{authority.authority_id}, {authority.acceptance}, {authority.lanes} lanes,"
                f" retry horizon {authority.retry_horizon_s / 86_400:g} days"
            ),
        ),
        ("store", _store_text(facts)),
        ("gateways", _gateways_text(facts)),
        (
            "discovery",
            "no full pass has ended"
            if discovery.behind_s is None
            else f"complete through {discovery.behind_s:.0f} s ago, by"
            f" {'journals' if discovery.journaled else 'full passes'}",
        ),
        ("queue", f"{len(facts.lanes)} lanes in use, {waiting} pending batches"),
        (
            "maintenance",
            f"{', '.join(running) or 'nothing'} running, {troubled} tasks with a problem",
        ),
        ("conflicts", f"{facts.conflicts_open}{more} without a decision"),
    )


def _store_text(facts: "DeploymentFacts") -> str:
    if facts.doctor is None:
        return "never examined"
    age_s = (facts.now_ns - facts.doctor.ended_at_unix_ns) / 1e9
    quality = "good for acceptance" if facts.doctor.good else "not good for acceptance"
    return f"{quality}, examined {age_s / 86_400:.1f} days ago"


def _gateways_text(facts: "DeploymentFacts") -> str:
    counts: dict[str, int] = {}
    for one in facts.discovery.processes:
        counts[one.state.value] = counts.get(one.state.value, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "none registered"
