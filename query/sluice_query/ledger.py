"""Rows of the ledger and of the dead letters that a query needs.

The caller is responsible for the order of reading: see `pending` and `spool`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice_lake.locations import lake_location
from sluice_lake.tables import BATCHES, DEAD_LETTERS, accepted_hour
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S
from sluice_query.engine import QueryEngine
from sluice_query.pruning import select_partitions
from sluice_query.request import Query
from sluice_query.sql import (
    dead_letter_hours_sql,
    dead_letters_condition,
    dead_letters_sql,
    ledger_sql,
)

ACCEPTED_LATE_NS: Final = 3600 * NS_PER_S
"""How long after the time range a batch with records of the range may be accepted."""
_LEDGER: Final = "ledger"
_DEAD: Final = "dead_letters"
_ENTERED: Final = "entered"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One batch that is in the lake, and the queue entry that delivered it."""

    identity: Identity
    lane: int
    sequence: int


def read_ledger(
    engine: QueryEngine, store_url: str, manifests: Sequence[AcceptedManifest]
) -> list[LedgerRow]:
    """Read the part of the ledger's newest state that may contain these batches.

    Returns:
        Rows of the batches' agents in the batches' hours. Other batches may be among them.

    Raises:
        TableRefused: The ledger cannot be used safely.
    """
    hours = {accepted_hour(manifest.accepted_at_unix_ns) for manifest in manifests}
    files = select_partitions(store_url, BATCHES, lambda hour: hour in hours) if hours else ()
    if not files:
        return []
    engine.register_files(_LEDGER, files, lake_location(store_url, BATCHES.name))
    agents = sorted({manifest.agent_id for manifest in manifests})
    return [
        LedgerRow(
            identity=Identity(agent_id=agent, boot_id=boot, seq_start=start, seq_end=end),
            lane=lane,
            sequence=sequence,
        )
        for agent, boot, start, end, lane, sequence in engine.rows(ledger_sql(_LEDGER, agents))
    ]


def find_dead_letters(engine: QueryEngine, store_url: str, query: Query) -> tuple[str, ...]:
    """Return one sentence if batches that the query may need could not be ingested, else nothing.

    A dead letter that was ingested later does not count.

    Raises:
        TableRefused: A table cannot be used safely.
    """
    until_ns = query.to_ns + ACCEPTED_LATE_NS
    first, last = accepted_hour(query.from_ns), accepted_hour(until_ns)
    files = select_partitions(store_url, DEAD_LETTERS, lambda hour: first <= hour <= last)
    if not files:
        return ()
    engine.register_files(_DEAD, files, lake_location(store_url, DEAD_LETTERS.name))
    condition = dead_letters_condition(query, until_ns)
    hours = {row[0] for row in engine.rows(dead_letter_hours_sql(_DEAD, condition))}
    entered = select_partitions(store_url, BATCHES, lambda hour: hour in hours) if hours else ()
    if entered:
        engine.register_files(_ENTERED, entered, lake_location(store_url, BATCHES.name))
    statement = dead_letters_sql(_DEAD, condition, _ENTERED if entered else None)
    count, reason = engine.rows(statement)[0]
    if not count:
        return ()
    problem = f"{count} batches could not be ingested ({reason}): see the table dead_letters"
    return (f"{problem}, and `sluice explain` for one of them",)
