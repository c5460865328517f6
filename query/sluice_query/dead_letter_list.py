"""The list of dead letters: accepted batches that could not be ingested, and why.

A dead letter that was ingested later is not listed. The dead letters are read before the ledger, so
a batch that is ingested in between is recognised.
"""

from typing import Final

import msgspec

from sluice_lake.locations import lake_location
from sluice_lake.tables import BATCHES, DEAD_LETTERS, accepted_hour
from sluice_protocol.timestamps import format_rfc3339
from sluice_query.engine import QueryEngine, open_engine
from sluice_query.pruning import select_partitions
from sluice_query.search import Searcher
from sluice_query.sql import dead_letter_list_sql, entered_sql

FILES_MAX: Final = 2_000
"""Files of the table that are read, those of the latest hours; compaction leaves one an hour."""
SCANNED_MAX: Final = 5_000
"""Dead letters that are compared with the ledger, the latest accepted first."""
_DEAD: Final = "dead_letters"
_ENTERED: Final = "entered"


class ListedDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that could not be ingested.

    Attributes:
        agent_id: The agent that sent it.
        boot_id: Its boot.
        seq_start: First sequence number.
        seq_end: Last sequence number.
        kind: Kind of its records.
        frame_sha256: The hash of its blob, as its manifest names it.
        record_count: Number of records.
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
        dead_letters: The dead letters.
        more: Whether there may be others, accepted earlier.
    """

    dead_letters: tuple[ListedDeadLetter, ...]
    more: bool


async def list_dead_letters(searcher: Searcher, agent: str | None, limit: int) -> DeadLetterList:
    """Return the dead letters of one agent, or of all, at most `limit` of them.

    Raises:
        TableRefused: A table cannot be used safely.
        QueryTimedOut: The time limit is exceeded.
        QueryTooLarge: The memory limit is exceeded.
    """
    with open_engine(searcher.settings) as engine:
        return await engine.bounded(
            lambda: _read(engine, searcher.store_url, agent, limit), searcher.settings.time_s_max
        )


def _read(engine: QueryEngine, store_url: str, agent: str | None, limit: int) -> DeadLetterList:
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
    """Return the identities of those that the ledger contains by now."""
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
