"""`sluice gaps`: list missing sequence numbers by agent."""

import asyncio
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sluice_cli.shell.options import STORE_DEFAULT, FoundStoreUrl, Json
from sluice_cli.shell.output import emit
from sluice_protocol.identity import is_single_request
from sluice_reconciler.completeness import BootReport, read_completeness
from sluice_store import StoreMode, open_deployment

if TYPE_CHECKING:
    from rich.console import Console


def gaps(
    *,
    agent: Annotated[str | None, Parameter(help="Only this agent.")] = None,
    store: FoundStoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Show the accepted sequence ranges of each agent's boots and the gaps between them.

    Returns:
        0 if nothing is missing, 1 if there is a gap.
    """
    boots = asyncio.run(_read(store, agent))
    emit(boots, as_json=json, human=lambda console: _draw(console, boots, agent))
    return 1 if any(boot.gaps for boot in boots) else 0


async def _read(url: str, agent: str | None) -> list[BootReport]:
    async with open_deployment(url, StoreMode.READ) as store:
        return [boot async for boot in read_completeness(store, agent)]


def _draw(console: "Console", boots: list[BootReport], agent: str | None) -> None:
    if agent is not None and not boots:
        console.print(f"no batch of this agent is accepted; `sluice gaps` lists all, agent={agent}")
        return
    requests = 0
    for boot in boots:
        if agent is None and is_single_request(boot.agent_id, boot.boot_id):
            requests += 1  # it is one batch, so nothing of it can be missing
            continue
        spans = ", ".join(f"{start}-{end}" for start, end in boot.ranges)
        console.print(f"{boot.agent_id} boot {boot.boot_id}: {boot.batches} batches, {spans}")
        if boot.overlaps:
            console.print(
                f"  overlaps: {boot.overlaps} batches repeat sequence numbers of earlier batches"
            )
        for gap in boot.gaps:
            known = ", reported by the agent but not accepted yet" if gap.tail else ""
            span = f"{gap.seq_start}-{gap.seq_end}"
            console.print(f"  missing {span}, for {gap.age_s:.0f} s{known}")
        if boot.gaps_more:
            console.print(
                f"  and {boot.gaps_more} more gaps, the oldest for {boot.oldest_gap_s:.0f} s"
            )
    found = sum(len(boot.gaps) + boot.gaps_more for boot in boots)
    if requests:
        console.print(f"{requests} requests of senders without sequence numbers: each is complete")
    console.print(f"{len(boots) - requests} boots, {found} gaps")
