"""Dead letters: accepted batches that could not be ingested, as a reason of a query and as a list.

The table does not contain the time stamps of a batch, so a query reads its accepted manifest. A
dead letter that was ingested later is not listed. Dead letters are read before the ledger, so a
batch that is ingested in between is recognised.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from deltalake import DeltaTable

from sluice_lake.data_files import list_files
from sluice_lake.locations import lake_location
from sluice_lake.tables import BATCHES, DEAD_LETTERS, accepted_hour
from sluice_protocol.errors import SluiceError
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_query.engine import QueryEngine, open_engine
from sluice_query.pending import find_manifest, may_match
from sluice_query.pruning import select_partitions
from sluice_query.request import Query
from sluice_query.settings import QuerySettings
from sluice_query.statements import (
    dead_letter_hours_sql,
    dead_letter_list_sql,
    dead_letters_condition,
    dead_letters_sql,
    entered_sql,
)
from sluice_store.port import ObjectStore, run_together

if TYPE_CHECKING:
    from sluice_query.search import Searcher

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


def find_dead_letters(
    engine: QueryEngine, store_url: str, query: Query, opened: DeltaTable | None
) -> tuple[DeadLetter, ...]:
    """Return the dead letters of the query's kind and agents, at most `DEAD_MAX + 1` of them.

    A dead letter that was ingested later does not count. `opened` is a state of their table that
    was read before; None without one.
    """
    # A batch is accepted any time after its records were made.
    since_ns = query.from_ns - CLOCK_AHEAD_NS
    first = accepted_hour(since_ns)
    files = () if opened is None else list_files(opened, DEAD_LETTERS, lambda hour: hour >= first)
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
                manifest = await find_manifest(store, accepted_key(one.identity))
            except SluiceError:
                return True
        return manifest is None or may_match(manifest, query)

    kept = found
    if len(found) <= DEAD_MAX:
        wanted = await run_together(*map(matches, found))
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


FILES_MAX: Final = 2_000
"""Files of the table that are read, those of the latest hours; compaction leaves one an hour."""
SCANNED_MAX: Final = 5_000
"""Dead letters that are compared with the ledger, the latest accepted first."""


class ListedDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that could not be ingested.

    Attributes:
        frame_sha256: The hash of its blob, as its manifest names it.
        accepted_at: When it was accepted, RFC 3339.
        reason: `missing`, `corrupt`, `invalid_frame` or `disagrees`.
        detail: What exactly was wrong.
        observed_at: When ingestion last tried, RFC 3339.
    """

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    kind: str
    frame_sha256: str
    record_count: int
    accepted_at: str
    reason: str
    detail: str
    observed_at: str


class DeadLetterList(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters, those accepted last first.

    Attributes:
        more: Whether there may be others, accepted earlier.
    """

    dead_letters: tuple[ListedDeadLetter, ...]
    more: bool


async def list_dead_letters(searcher: "Searcher", agent: str | None, limit: int) -> DeadLetterList:
    """Return the dead letters of one agent, or of all, at most `limit` of them."""
    with open_engine(searcher.settings) as engine:
        return await engine.bounded(
            lambda: _read_list(engine, searcher.store_url, agent, limit),
            searcher.settings.time_s_max,
        )


def _read_list(
    engine: QueryEngine, store_url: str, agent: str | None, limit: int
) -> DeadLetterList:
    every = select_partitions(store_url, DEAD_LETTERS, lambda _: True)
    files = sorted(every, key=lambda file: file.partition, reverse=True)[:FILES_MAX]
    if not files:
        return DeadLetterList(dead_letters=(), more=False)
    engine.register_files(_DEAD, files, lake_location(store_url, DEAD_LETTERS.name))
    found = engine.rows(dead_letter_list_sql(_DEAD, agent, limit=SCANNED_MAX + 1))
    entered = _entered(engine, store_url, found[:SCANNED_MAX])
    left = [row for row in found[:SCANNED_MAX] if row[:4] not in entered]
    more = len(left) > limit or len(found) > SCANNED_MAX or len(every) > FILES_MAX
    return DeadLetterList(dead_letters=tuple(map(_listed, left[:limit])), more=more)


def _entered(
    engine: QueryEngine, store_url: str, found: list[tuple[object, ...]]
) -> frozenset[tuple[object, ...]]:
    """Return the identities that the ledger contains by now."""
    hours = {accepted_hour(int(str(row[7]))) for row in found}
    files = select_partitions(store_url, BATCHES, lambda hour: hour in hours) if hours else ()
    if not files:
        return frozenset()
    engine.register_files(_ENTERED, files, lake_location(store_url, BATCHES.name))
    agents = sorted({str(row[0]) for row in found})
    return frozenset(engine.rows(entered_sql(_ENTERED, agents)))


def _listed(row: tuple[object, ...]) -> ListedDeadLetter:
    numbers = [int(str(row[place])) for place in (2, 3, 6, 7, 10)]
    start, end, records, accepted_ns, observed_ns = numbers
    agent, boot, kind, digest, reason, detail = (str(row[place]) for place in (0, 1, 4, 5, 8, 9))
    return ListedDeadLetter(
        agent_id=agent,
        boot_id=boot,
        seq_start=start,
        seq_end=end,
        kind=kind,
        frame_sha256=digest,
        record_count=records,
        accepted_at=format_rfc3339(accepted_ns),
        reason=reason,
        detail=detail,
        observed_at=format_rfc3339(observed_ns),
    )
