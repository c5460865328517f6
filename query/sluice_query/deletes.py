"""Reads the deletes that apply to a question."""

from sluice_protocol.keys import DELETES
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.record_deletes import DeleteRecord, decode_delete
from sluice_query.request import Query
from sluice_store.port import ObjectStore


async def read_deletes(store: ObjectStore, query: Query) -> tuple[DeleteRecord, ...]:
    """Gives the deletes that may hide records of this question.

    Raises:
        InvalidRecord: A delete cannot be understood: to go on would show what was deleted.
        StoreError: The store did not answer.
    """
    found: list[DeleteRecord] = []
    async for page in store.list(DELETES):
        for listed in page.objects:
            match await store.get(listed.key):
                case Found(body=body):
                    found.append(decode_delete(listed.key, body))
                case NotFound():
                    continue
    return tuple(record for record in found if _applies(record, query))


def _applies(record: DeleteRecord, query: Query) -> bool:
    if record.kind != query.kind:
        return False
    if query.agents and record.agent_id is not None and record.agent_id not in query.agents:
        return False
    starts_late = record.from_unix_ns is not None and record.from_unix_ns >= query.to_ns
    ends_early = record.to_unix_ns is not None and record.to_unix_ns <= query.from_ns
    return not starts_late and not ends_early
