"""Rows of the ledger, and open dead letters: batches that could not be ingested until now."""

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from sluice_lake.delta import find_table
from sluice_lake.errors import data_errors_translated
from sluice_lake.tables import ACCEPTED_HOUR, BATCHES, DEAD_LETTERS, accepted_hour
from sluice_protocol.identity import Identity

LETTERS_MAX: Final = 20_000
"""Dead letters that are read, those accepted last; about 200 bytes each."""
_IDENTITY: Final = ["agent_id", "boot_id", "seq_start", "seq_end"]


def read_open_dead_letters(store_url: str) -> dict[Identity, int]:
    """Return the open dead letters and their times of acceptance, those accepted last first.

    The dead letters are read before the ledger, so a batch that is ingested in between is closed.
    """
    table = find_table(store_url, DEAD_LETTERS)
    if table is None:
        return {}
    with data_errors_translated(table.table_uri):
        rows = table.to_pyarrow_dataset().to_table(columns=[*_IDENTITY, "accepted_at_ns"])
    rows = rows.sort_by([("accepted_at_ns", "descending")]).slice(0, LETTERS_MAX)
    found = dict(zip(identities_of(rows), rows.column("accepted_at_ns").to_pylist(), strict=True))
    ledger = find_table(store_url, BATCHES) if found else None
    if ledger is None:
        return found
    hours = sorted({accepted_hour(at_ns) for at_ns in found.values()})
    entered = read_ledger(ledger, hours, {who.agent_id for who in found})
    closed = set(identities_of(entered))
    return {who: at_ns for who, at_ns in found.items() if who not in closed}


def read_ledger(
    ledger: DeltaTable, hours: Sequence[str], agents: Iterable[str], columns: Sequence[str] = ()
) -> pa.Table:
    """Return the identities, and further columns, of the rows of agents in hours of acceptance."""
    wanted = pc.field("agent_id").isin(pa.array(sorted(agents)))
    with data_errors_translated(ledger.table_uri):
        dataset = ledger.to_pyarrow_dataset(file_pruning_predicate=[(ACCEPTED_HOUR, "in", hours)])
        return dataset.to_table(columns=[*_IDENTITY, *columns], filter=wanted)


def identities_of(rows: pa.Table) -> list[Identity]:
    """Return the identity of each row of the ledger or of dead letters."""
    columns = [rows.column(name).to_pylist() for name in _IDENTITY]
    return [
        Identity(agent_id=agent, boot_id=boot, seq_start=start, seq_end=end)
        for agent, boot, start, end in zip(*columns, strict=True)
    ]
