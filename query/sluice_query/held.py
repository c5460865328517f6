"""Accepted batches that the reconciler holds instead of enqueueing them."""

import asyncio
from dataclasses import dataclass
from typing import Final

from sluice_protocol.discovery import UNHEALTHY, HoldRecord
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import ACCEPTED, parse_accepted_key
from sluice_protocol.manifests import AcceptedManifest, decode_accepted, decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_query.pending import may_match
from sluice_query.request import Query
from sluice_query.settings import QuerySettings
from sluice_store.port import ObjectStore

HELD_MAX: Final = 1_000
"""Hold records that a query reads; further ones make every answer partial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBatch:
    """An accepted batch that the reconciler does not enqueue, and why."""

    key: str
    reason: str


async def read_held(
    store: ObjectStore, query: Query, settings: QuerySettings
) -> tuple[tuple[HeldBatch, ...], tuple[str, ...]]:
    """Return the held batches that may match, and what could not be read."""
    places: list[ObjectKey] = []
    async for page in store.list(UNHEALTHY):
        places += [one.key for one in page.objects]
        if len(places) > HELD_MAX:
            return (), (
                f"more than {HELD_MAX} batches are held back: see `sluice reconciler status`",
            )
    limit = asyncio.Semaphore(settings.fetches)
    found = await asyncio.gather(*(_read_hold(store, place, query, limit) for place in places))
    return tuple(one for one in found if one is not None), ()


async def _read_hold(
    store: ObjectStore, place: ObjectKey, query: Query, limit: asyncio.Semaphore
) -> HeldBatch | None:
    """Return a held batch, or None if no record of the query is in it."""
    async with limit:
        read = await store.get(place)
        if not isinstance(read, Found):
            return None  # released: it was enqueued before
        try:
            record = decode_record(place, read.body, HoldRecord)
        except InvalidRecord as error:
            return HeldBatch(key=place, reason=error.reason)
        if not record.key.startswith(ACCEPTED):
            return None  # a conflict, which was never accepted
        held = HeldBatch(key=record.key, reason=record.reason)
        try:
            who = parse_accepted_key(record.key)
        except InvalidRecord:
            return held
        if query.agents and who.agent_id not in query.agents:
            return None
        manifest = await read_manifest(store, ObjectKey(record.key))
    return held if manifest is None or may_match(manifest, query) else None


async def read_manifest(store: ObjectStore, key: ObjectKey) -> AcceptedManifest | None:
    """Read an accepted manifest; None if it does not exist or is not a manifest."""
    read = await store.get(key)
    try:
        return decode_accepted(key, read.body) if isinstance(read, Found) else None
    except InvalidRecord:
        return None
