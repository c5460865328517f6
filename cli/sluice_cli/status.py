"""`sluice status`: the state of a whole deployment on one screen."""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from sluice_cli.shell.options import STORE_DEFAULT, FoundStoreUrl, Json
from sluice_cli.shell.output import emit, format_size
from sluice_protocol.errors import ExitCode
from sluice_protocol.units import NS_PER_S

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_agent.inputs.file_report import FileReport
    from sluice_cli.deployment.facts import DeploymentFacts

_PATHS_SHOWN: Final = 3


def status(*, store: FoundStoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Show the store, gateways, discovery, queue, maintenance and conflicts on one screen.

    It reads the store, so it works while services are stopped. It also sends a request to
    each service that `sluice up` runs in this folder.

    Returns:
        0, or 1 if something needs attention. A notice alone leaves it at 0, because a stranger who
        reaches a port can cause one.
    """
    from sluice_cli.deployment.facts import read_facts  # noqa: PLC0415 - quick help

    facts = asyncio.run(read_facts(store))
    emit(facts, as_json=json, human=lambda console: _draw(console, store, facts))
    wrong = any(one.severity != "notice" for one in facts.attention)
    return ExitCode.FOUND_WRONG.value if wrong else ExitCode.DONE.value


def _draw(console: "Console", url: str, facts: "DeploymentFacts") -> None:
    console.print(f"sluice {facts.version}  {url}", markup=False)
    for name, text in _lines(facts):
        console.print(f"  {name:<12} {text}", markup=False)
    if not facts.attention:
        console.print("nothing needs attention")
        return
    console.print("needs attention:")
    for one in facts.attention:
        more = f" ({one.command})" if one.command else ""
        console.print(f"  {one.severity}: {one.title}. {one.detail}{more}", markup=False)


def _lines(facts: "DeploymentFacts") -> tuple[tuple[str, str], ...]:
    authority, overview = facts.authority, facts.overview
    lanes = overview.lanes or ()
    tasks = overview.maintenance.tasks if overview.maintenance is not None else ()
    running = [one.task for one in tasks if one.state == "running"]
    waiting = sum(one.waiting_batches for one in lanes)
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
        ("discovery", _discovery_text(facts)),
        ("queue", f"{len(lanes)} lanes in use, {waiting} pending batches, {overview.held} held"),
        (
            "maintenance",
            (
                f"{', '.join(running) or 'nothing'} running,"
                f" {sum(bool(one.trouble) for one in tasks)} tasks with a problem"
            ),
        ),
        (
            "conflicts",
            (
                f"{overview.conflicts_open}{' or more' if overview.conflicts_more else ''}"
                " without a decision"
            ),
        ),
        ("retention", _retention_text(facts)),
        *((("agent", _agent_text(facts.agent)),) if facts.agent is not None else ()),
    )


def _retention_text(facts: "DeploymentFacts") -> str:
    from sluice_cli.retention import describe_expiring, describe_rule  # noqa: PLC0415 - quick help

    state = facts.overview.retention
    rule = None if state is None else state.rule
    parts = [describe_rule(rule), *describe_expiring(rule, facts.overview.audit)]
    cases = ", ".join(dict.fromkeys(one.case for one in state.holds)) if state else ""
    return "; ".join([*parts, f"holds: {cases}"] if cases else parts)


def _agent_text(report: "FileReport") -> str:
    """Return what the agent of this folder did not send, or sent again."""
    binary = len(report.binary) + report.binary_more
    parts = [
        (
            report.rewritten,
            (
                f"{report.rewritten} files read from their start again"
                f" ({format_size(report.resent_bytes)} were read before)"
            ),
        ),
        (report.missing, f"{report.missing} known files not found"),
        (report.hole_bytes, f"{format_size(report.hole_bytes)} of zero bytes skipped"),
        (binary, f"{binary} binary files not sent ({', '.join(report.binary[:_PATHS_SHOWN])})"),
        (
            len(report.unreadable),
            (
                f"{len(report.unreadable)} files that cannot be read"
                f" ({', '.join(report.unreadable[:_PATHS_SHOWN])})"
            ),
        ),
    ]
    shown = [text for count, text in parts if count]
    return f"{report.agent_id}: {'; '.join(shown) or 'every line of its files is sent once'}"


def _store_text(facts: "DeploymentFacts") -> str:
    if facts.overview.disk_problem:
        return facts.overview.disk_problem
    doctor = facts.overview.doctor
    if doctor is None:
        return "never examined"
    age_s = (facts.now_ns - doctor.ended_at_unix_ns) / NS_PER_S
    quality = "good for acceptance" if doctor.good else "not good for acceptance"
    return f"{quality}, examined {age_s / 86_400:.1f} days ago"


def _gateways_text(facts: "DeploymentFacts") -> str:
    discovery = facts.overview.discovery
    counts = Counter(one.state.value for one in discovery.processes) if discovery else Counter()
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "none registered"


def _discovery_text(facts: "DeploymentFacts") -> str:
    from sluice_console.attention import BEHIND_S_MAX  # noqa: PLC0415 - quick help

    discovery = facts.overview.discovery
    if discovery is None or discovery.behind_s is None:
        return "no full pass has ended"
    if discovery.has_ended:
        return "complete: no gateway is open, and everything accepted is enqueued"
    if discovery.is_caught_up and discovery.behind_s <= BEHIND_S_MAX:
        return f"complete: the newest report of a gateway, {discovery.behind_s:.0f} s ago, is done"
    by = "journals" if discovery.journaled else "full passes"
    return f"complete through {discovery.behind_s:.0f} s ago, by {by}"
