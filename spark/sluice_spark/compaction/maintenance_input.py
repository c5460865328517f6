"""What the jobs of maintenance read from the store: its time, the retry horizon, the deletes."""

from dataclasses import dataclass

from sluice_protocol.keys import ACTIVE_DELETES
from sluice_protocol.record_deletes import DeleteRecord
from sluice_store import read_authority
from sluice_store.port import ObjectStore
from sluice_store.stored_deletes import read_known_deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceInput:
    """The store's time, the retry horizon and every delete."""

    now_ns: int
    retry_horizon_s: int
    deletes: tuple[DeleteRecord, ...]


async def read_maintenance_input(store: ObjectStore) -> MaintenanceInput:
    """Read the authority and every delete.

    Raises:
        InvalidRecord: Skipping a delete that cannot be decoded would keep deleted rows.
    """
    authority = await read_authority(store)
    date_ns = (await store.head(ACTIVE_DELETES)).date_ns
    return MaintenanceInput(
        now_ns=date_ns,
        retry_horizon_s=authority.retry_horizon_s,
        deletes=tuple(await read_known_deletes(store)),
    )
