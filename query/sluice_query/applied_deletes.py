"""The deletes that may hide records of a query."""

from collections.abc import Sequence

from sluice_protocol.record_deletes import DeleteRecord
from sluice_query.request import Query
from sluice_store.port import ObjectStore
from sluice_store.stored_deletes import DeletesCache, read_active_deletes


async def read_deletes(
    store: ObjectStore, cache: DeletesCache | None = None
) -> tuple[DeleteRecord, ...]:
    """Return the deletes that readers apply.

    Raises:
        InvalidRecord: A delete cannot be decoded. Continuing would return deleted records.
        StoreError: The store is unreachable.
    """
    return await read_active_deletes(store, cache)


def applying_deletes(deletes: Sequence[DeleteRecord], query: Query) -> tuple[DeleteRecord, ...]:
    """Return the deletes that may hide records of a query."""
    return tuple(record for record in deletes if delete_applies(record, query))


def delete_applies(record: DeleteRecord, query: Query) -> bool:
    """Return False if kind, agent and times show that a delete hides no record of the query."""
    if record.kind != query.kind:
        return False
    if query.agents and record.agent_id is not None and record.agent_id not in query.agents:
        return False
    starts_late = record.from_unix_ns is not None and record.from_unix_ns >= query.to_ns
    ends_early = record.to_unix_ns is not None and record.to_unix_ns <= query.from_ns
    return not starts_late and not ends_early
