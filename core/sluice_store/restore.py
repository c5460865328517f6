"""A restored copy of a store: apply what was decided after the copy, before anything is served.

Every part of the system refuses a copy, by the date of its settings (`authority.is_copy`), until
this has run. Decisions, deletes, holds and tombstones are small objects that are created once, so a
newer copy of them is applied by creating those that are missing. It may be killed and repeated: the
record that ends the refusal is written last.
"""

from collections import Counter
from typing import Final

from sluice_protocol.authority import Restore, decode_authority, restore_key
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import BadUsage, NoStore
from sluice_protocol.keys import (
    AUTHORITY_SETTINGS,
    DECISIONS,
    DELETES,
    EXPIRED,
    PROMOTIONS,
    RETENTION,
)
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Applied, Found
from sluice_protocol.record_deletes import decode_delete
from sluice_protocol.units import ObjectKey
from sluice_store.authority import read_restores, read_store_time
from sluice_store.port import ObjectStore, read_bodies
from sluice_store.retry import Backoff, OtherBytes, create_once
from sluice_store.stored_deletes import write_delete

DECIDED: Final = (RETENTION, DELETES, EXPIRED, DECISIONS, PROMOTIONS)
"""What operators and audits have decided; holds are first."""
_READ_TOGETHER: Final = 16
"""Objects in memory: a tombstone has a megabyte at most."""


async def finish_restore(
    store: ObjectStore,
    newest: ObjectStore | None,
    *,
    by: str,
    note: str,
    clock: Clock,
    ids: IdSource,
) -> Restore:
    """Create what `newest` has and the copy lacks, and record that the copy may be served.

    `newest` is the lost store, or the newest copy of its decisions; None if there is none.

    Raises:
        BadUsage: `newest` belongs to another authority, or an object has other bytes there.
    """
    authority_id = await _read_authority_id(store)
    applied: Counter[str] = Counter()
    backoff = Backoff.seeded_by(clock)
    if newest is not None:
        if await _read_authority_id(newest) != authority_id:
            raise BadUsage("the newest copy belongs to another authority: nothing was applied")
        for prefix in DECIDED:
            applied[prefix] = await _apply(store, newest, prefix, backoff, ids)
    record = Restore(
        number=len(await read_restores(store)) + 1,
        authority_id=authority_id,
        restored_by=by,
        restored_at_unix_ns=await read_store_time(store),
        applied=dict(applied),
        note=note,
    )
    key = restore_key(record.number)
    if isinstance(await create_once(store, key, encode_record(record), backoff), OtherBytes):
        raise BadUsage("another operator has restored this store at the same moment")
    return record


async def _read_authority_id(store: ObjectStore) -> str:
    """Return the id in the settings, also in those of a copy, which `read_history` refuses."""
    read = await store.get(AUTHORITY_SETTINGS)
    if not isinstance(read, Found):
        raise NoStore(AUTHORITY_SETTINGS, "copy its authority/v1/ too")
    return decode_authority(read.body).authority_id


async def _apply(
    store: ObjectStore, newest: ObjectStore, prefix: str, backoff: Backoff, ids: IdSource
) -> int:
    created = 0
    async for page in newest.list(prefix):
        keys = [one.key for one in page.objects]
        for first in range(0, len(keys), _READ_TOGETHER):
            some = keys[first : first + _READ_TOGETHER]
            for key, body in zip(some, await read_bodies(newest, some), strict=True):
                if body is not None:
                    created += await _create(store, key, body, backoff, ids)
    return created


async def _create(
    store: ObjectStore, key: ObjectKey, body: bytes, backoff: Backoff, ids: IdSource
) -> bool:
    """Create one object unless it exists; a delete is also added to the register of deletes."""
    outcome = await create_once(store, key, body, backoff)
    if isinstance(outcome, OtherBytes):
        raise BadUsage(
            "an object has other bytes in the newest copy, so one of both was altered or decided"
            f" elsewhere: compare them, key=`{key}`"
        )
    if key.startswith(DELETES):
        await write_delete(store, decode_delete(key, body), backoff, ids)
    return isinstance(outcome, Applied)
