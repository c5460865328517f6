"""What is missing: per (agent, boot) the gaps between what was accepted.

Read from `accepted/` itself, so it is right whatever a reconciler did or did not do yet.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.identity import Identity
from sluice_protocol.keys import ACCEPTED, agent_prefix, parse_accepted_key
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.runs import merged
from sluice_store.port import ListedObject, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Sequence numbers that never arrived although later ones did.

    Attributes:
        seq_start: First missing number.
        seq_end: Last missing number.
        age_s: Time since the store took the first batch behind the gap, seconds.
    """

    seq_start: int
    seq_end: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BootReport:
    """One life of one agent.

    Attributes:
        agent_id: The agent.
        boot_id: Which life.
        batches: Accepted batches.
        ranges: The union of their ranges, disjoint, in order.
        overlaps: Batches that share a number with an earlier one.
        gaps: What is missing before the highest accepted number; a boot starts at 0.
        last_accepted_s: Time since the store took the latest batch, seconds.
    """

    agent_id: str
    boot_id: str
    batches: int
    ranges: tuple[tuple[int, int], ...]
    overlaps: int
    gaps: tuple[Gap, ...]
    last_accepted_s: float


async def read_completeness(
    store: ObjectStore, agent_id: str | None = None
) -> AsyncIterator[BootReport]:
    """Gives a report of every boot, agent by agent, from a listing alone.

    Raises:
        StoreError: The store did not answer.
    """
    prefix = ACCEPTED if agent_id is None else agent_prefix(agent_id)
    held: list[tuple[Identity, int]] = []
    date_ns = 0
    async for page in store.list(prefix):
        date_ns = page.date_ns
        for listed in page.objects:
            one = _dated(listed)
            if one is None:
                continue
            if held and _boot(held[0][0]) != _boot(one[0]):
                yield report_of(held, date_ns)
                held = []
            held.append(one)
    if held:
        yield report_of(held, date_ns)


def _boot(who: Identity) -> tuple[str, str]:
    return who.agent_id, who.boot_id


def _dated(listed: ListedObject) -> tuple[Identity, int] | None:
    try:
        return parse_accepted_key(listed.key), listed.last_modified_ns
    except InvalidRecord:
        return None


def report_of(batches: list[tuple[Identity, int]], now_ns: int) -> BootReport:
    """Gives the report of one boot from its batches and when each appeared, in key order."""
    gaps: list[Gap] = []
    overlaps, expected = 0, 0
    for who, appeared_ns in batches:
        if who.seq_start > expected:
            age_s = max(0, now_ns - appeared_ns) / NS_PER_S
            gaps.append(Gap(seq_start=expected, seq_end=who.seq_start - 1, age_s=age_s))
        overlaps += who.seq_start < expected
        expected = max(expected, who.seq_end + 1)
    latest_ns = max(appeared_ns for _, appeared_ns in batches)
    first = batches[0][0]
    return BootReport(
        agent_id=first.agent_id,
        boot_id=first.boot_id,
        batches=len(batches),
        ranges=tuple(merged((who.seq_start, who.seq_end) for who, _ in batches)),
        overlaps=overlaps,
        gaps=tuple(gaps),
        last_accepted_s=max(0, now_ns - latest_ns) / NS_PER_S,
    )
