"""Batches that a gateway accepted into its spool and that are not in the lake yet.

The spool is listed before the queue: the listing contains every batch that was accepted before,
because a manifest is never deleted from the spool. A batch that is transferred, enqueued or
ingested later moves to a place that is read later; `unqueued` decides whether the records contain
it.

Blobs are read from the spool first and from the authority second: the spool's copy is deleted only
after the authority's copy exists. With the opposite order both could be missing.

Source: ADR 36.
"""

import asyncio
from dataclasses import dataclass, field

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage, SluiceError, StoreMisconfigured
from sluice_protocol.keys import ACCEPTED, agent_prefix, parse_accepted_key
from sluice_protocol.manifests import (
    TRANSFER_MARKERS,
    AcceptedManifest,
    TransferMarker,
    decode_accepted,
    decode_record,
    transfer_marker_key,
)
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_query.question.request import Query
from sluice_query.settings import QuerySettings
from sluice_query.sources.pending import may_match
from sluice_query.sources.unqueued import UnqueuedBatches
from sluice_store import read_authority
from sluice_store.port import ListedObject, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedSpool:
    """The local store of a spooling gateway, open, and the number of lanes of its authority."""

    store: ObjectStore
    lanes: int


@dataclass(slots=True)
class _SpoolListing:
    manifests: list[ListedObject] = field(default_factory=list)
    transferred: set[ObjectKey] = field(default_factory=set)


async def attach_spool(store: ObjectStore, authority: Authority) -> SearchedSpool:
    """Check that an open store is the spool of an authority's gateway.

    Raises:
        BadUsage: No gateway has used the store as a spool, or it belongs to another authority.
    """
    try:
        agreed = await read_authority(store)
    except StoreMisconfigured as error:
        raise BadUsage("no gateway has spooled there: give the gateway's --spool") from error
    if agreed.authority_id != authority.authority_id:
        raise BadUsage(
            "this spool belongs to another authority: give the spool of the store's gateway"
        )
    return SearchedSpool(store=store, lanes=agreed.lanes)


async def read_spooled(
    spool: SearchedSpool, query: Query, settings: QuerySettings
) -> UnqueuedBatches:
    """List a spool and read the manifests that a query may need, within the settings' bounds.

    What cannot be read makes the result partial; it does not stop the query.
    """
    try:
        listing = await _list_spool(spool.store, query, settings)
    except SluiceError as error:
        return UnqueuedBatches(problems=(str(error),))
    newest = sorted(listing.manifests, key=lambda one: one.last_modified_ns, reverse=True)
    within = newest[: settings.tail_frames_max]
    limit = asyncio.Semaphore(settings.fetches)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_read_manifest(spool.store, one.key, listing, limit))
            for one in within
        ]
    found = [task.result() for task in tasks]
    problems = [result for result in found if isinstance(result, str)]
    if len(newest) > len(within):
        problems.append(
            f"{len(newest) - len(within)} older spooled batches were left out: wait for their"
            f" transfer, name agents, or raise tail_bytes_max=`{settings.tail_bytes_max}`"
        )
    manifests = [result for result in found if isinstance(result, AcceptedManifest)]
    return UnqueuedBatches(
        batches=tuple(manifest for manifest in manifests if may_match(manifest, query)),
        problems=tuple(problems),
    )


async def _list_spool(store: ObjectStore, query: Query, settings: QuerySettings) -> _SpoolListing:
    listing = _SpoolListing()
    for prefix in [agent_prefix(agent) for agent in query.agents] or [ACCEPTED]:
        settled = await _list_transferred(store, prefix, settings, listing)
        async for page in store.list(prefix):
            listing.manifests += [one for one in page.objects if one.key not in settled]
    return listing


async def _list_transferred(
    store: ObjectStore, prefix: str, settings: QuerySettings, listing: _SpoolListing
) -> set[ObjectKey]:
    """Return the batches transferred so long ago that they need no check; record the later ones."""
    settled: set[ObjectKey] = set()
    async for page in store.list(f"{TRANSFER_MARKERS}{prefix}"):
        # Both times are of the spool's clock.
        until_ns = UnixNs(page.date_ns - int(settings.transferred_s * NS_PER_S))
        for one in page.objects:
            key = ObjectKey(one.key.removeprefix(TRANSFER_MARKERS))
            (settled if one.last_modified_ns < until_ns else listing.transferred).add(key)
    return settled


async def _read_manifest(
    store: ObjectStore, key: ObjectKey, listing: _SpoolListing, limit: asyncio.Semaphore
) -> AcceptedManifest | str | None:
    async with limit:
        try:
            if key in listing.transferred and await _is_conflict(store, key):
                return None
            parse_accepted_key(key)
            found = await store.get(key)
            if isinstance(found, Found):
                return decode_accepted(key, found.body)
        except SluiceError as error:
            return str(error)
    return f"manifest is missing from the spool: restore it, key=`{key}`"


async def _is_conflict(store: ObjectStore, key: ObjectKey) -> bool:
    """Return True if the authority has another batch of this identity, which the query returns."""
    marker = transfer_marker_key(key)
    found = await store.get(marker)
    if not isinstance(found, Found):
        return False
    return decode_record(marker, found.body, TransferMarker).result == "conflict"
