"""Dead letters: accepted batches that could not be ingested and that a query may need.

The table does not contain the time stamps of a batch, so its accepted manifest is read.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Final

from sluice_lake.locations import lake_location
from sluice_lake.tables import BATCHES, DEAD_LETTERS, accepted_hour
from sluice_protocol.errors import SluiceError
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key
from sluice_protocol.units import NS_PER_S
from sluice_query.engine import QueryEngine
from sluice_query.pending import may_match
from sluice_query.pruning import select_partitions
from sluice_query.request import Query
from sluice_query.settings import QuerySettings
from sluice_query.sql import dead_letter_hours_sql, dead_letters_condition, dead_letters_sql
from sluice_query.unqueued import read_manifest
from sluice_store.port import ObjectStore

CLOCK_AHEAD_NS: Final = 86_400 * NS_PER_S
"""How far the time stamps of a batch may be ahead of its acceptance."""
DEAD_MAX: Final = 1_000
"""Dead letters whose manifests a query reads; further ones count without a check."""
_DEAD: Final = "dead_letters"
_ENTERED: Final = "entered"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A batch that could not be ingested, and why."""

    identity: Identity
    reason: str


def find_dead_letters(engine: QueryEngine, store_url: str, query: Query) -> tuple[DeadLetter, ...]:
    """Return the dead letters of the query's kind and agents, at most `DEAD_MAX + 1` of them.

    A dead letter that was ingested later does not count.

    Raises:
        TableRefused: A table cannot be used safely.
    """
    # A batch is accepted any time after its records were made.
    since_ns = query.from_ns - CLOCK_AHEAD_NS
    first = accepted_hour(since_ns)
    files = select_partitions(store_url, DEAD_LETTERS, lambda hour: hour >= first)
    if not files:
        return ()
    engine.register_files(_DEAD, files, lake_location(store_url, DEAD_LETTERS.name))
    condition = dead_letters_condition(query, since_ns)
    hours = {row[0] for row in engine.rows(dead_letter_hours_sql(_DEAD, condition))}
    entered = select_partitions(store_url, BATCHES, lambda hour: hour in hours) if hours else ()
    if entered:
        engine.register_files(_ENTERED, entered, lake_location(store_url, BATCHES.name))
    statement = dead_letters_sql(
        _DEAD, condition, _ENTERED if entered else None, limit=DEAD_MAX + 1
    )
    return tuple(
        DeadLetter(
            identity=Identity(agent_id=agent, boot_id=boot, seq_start=start, seq_end=end),
            reason=reason,
        )
        for agent, boot, start, end, reason in engine.rows(statement)
    )


async def report_dead_letters(
    store: ObjectStore, found: tuple[DeadLetter, ...], query: Query, settings: QuerySettings
) -> tuple[str, ...]:
    """Return one sentence if the time stamps of some dead letter overlap the range, else nothing.

    A batch whose manifest cannot be read counts.
    """
    limit = asyncio.Semaphore(settings.fetches)

    async def matches(one: DeadLetter) -> bool:
        async with limit:
            try:
                manifest = await read_manifest(store, accepted_key(one.identity))
            except SluiceError:
                return True
        return manifest is None or may_match(manifest, query)

    kept = found
    if len(found) <= DEAD_MAX:
        wanted = await asyncio.gather(*map(matches, found))
        kept = tuple(one for one, match in zip(found, wanted, strict=True) if match)
    if not kept:
        return ()
    count = f"more than {DEAD_MAX}" if len(kept) > DEAD_MAX else str(len(kept))
    reasons = ", ".join(sorted(Counter(one.reason for one in kept)))
    batches = "batch" if len(kept) == 1 else "batches"
    problem = (
        f"{count} {batches} could not be ingested ({reasons}): see `sluice query dead-letters`"
    )
    return (f"{problem}, and `sluice explain` for one of them",)
