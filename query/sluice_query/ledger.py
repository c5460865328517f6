"""The ledger as queries need it: which batches are in the lake, and which queue entry brought them.

The caller holds the order of reading: see `waiting` and `spooled`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice_protocol.identity import Identity
from sluice_protocol.lake import BATCHES, accepted_hour
from sluice_protocol.manifests import AcceptedManifest
from sluice_query.engine import Engine
from sluice_query.segments import select_hours
from sluice_query.sql import Statement
from sluice_store.lake import lake_location

_LEDGER = "ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One batch that is in the lake, and the queue entry that brought it."""

    identity: Identity
    lane: int
    sequence: int


def read_ledger(
    engine: Engine, store_url: str, manifests: Sequence[AcceptedManifest]
) -> list[LedgerRow]:
    """Reads the ledger's newest state where these batches would stand in it.

    Returns:
        Rows of their agents in their hours: the batches that are there, and neighbours of theirs.

    Raises:
        LakeRefused: The ledger cannot be read rightly.
    """
    hours = {accepted_hour(one.accepted_at_unix_ns) for one in manifests}
    files = select_hours(store_url, BATCHES, lambda hour: hour in hours) if hours else ()
    if not files:
        return []
    engine.show_files(_LEDGER, files, lake_location(store_url, BATCHES.name))
    agents = sorted({one.agent_id for one in manifests})
    columns = "agent_id, boot_id, seq_start, seq_end, lane, queue_sequence"
    text = f"SELECT {columns} FROM {_LEDGER} WHERE list_contains(?, agent_id)"  # noqa: S608 - ours
    return [
        LedgerRow(
            identity=Identity(agent_id=agent, boot_id=boot, seq_start=start, seq_end=end),
            lane=lane,
            sequence=sequence,
        )
        for agent, boot, start, end, lane, sequence in engine.rows(Statement(text, [agents]))
    ]
