"""Rows of the ledger that a query needs.

The caller is responsible for the order of reading: see `pending` and `spool`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deltalake import DeltaTable

from sluice_lake.data_files import list_files
from sluice_lake.locations import lake_location
from sluice_lake.tables import BATCHES, accepted_hour
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_query.engine import QueryEngine
from sluice_query.sql import ledger_sql

_LEDGER: Final = "ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One batch that is in the lake, and the queue entry that delivered it."""

    identity: Identity
    lane: int
    sequence: int


def read_ledger(
    engine: QueryEngine,
    store_url: str,
    manifests: Sequence[AcceptedManifest],
    opened: DeltaTable | None,
) -> list[LedgerRow]:
    """Read the part of a state of the ledger that may contain these batches.

    Returns:
        Rows of the batches' agents in the batches' hours. Other batches may be among them.

    Raises:
        TableRefused: The ledger cannot be used safely.
    """
    hours = {accepted_hour(manifest.accepted_at_unix_ns) for manifest in manifests}
    files = list_files(opened, BATCHES, lambda hour: hour in hours) if hours and opened else []
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
