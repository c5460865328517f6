"""How complete an answer is: accepted batches that the queue and the lake cannot show yet.

The order of reading matters: discovery record, hold records, listing of `accepted/`, and only then
the queue. A batch that is enqueued, ingested or released in between is found by a later read. So
it is in the answer, or a reason counts it.

`accepted/` is listed only while it is small, or while the named agents have few batches. Otherwise
the discovery record of the reconciler decides. Source: ADR 0084.
"""

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sluice_protocol.discovery import DISCOVERY, UNHEALTHY, DiscoveryRecord, HoldRecord
from sluice_protocol.errors import InvalidRecord, SluiceError
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED,
    INGEST_QUEUE,
    RECONCILER,
    accepted_key,
    agent_prefix,
    parse_accepted_key,
)
from sluice_protocol.manifests import AcceptedManifest, decode_accepted, decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_query.pending import may_match
from sluice_query.request import Query
from sluice_query.settings import QuerySettings
from sluice_store.authority import read_authority
from sluice_store.port import ListedObject, ObjectStore

_LANE: Final = re.compile(r"[0-9]{3}", re.ASCII)
HELD_MAX: Final = 1_000
"""Hold records that a query reads; further ones make every answer partial."""
NEW_MAX: Final = 256
"""Manifests created since the last discovery that a query reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """An accepted batch that the discovery record does not cover.

    Attributes:
        manifest: Its manifest.
        created_ns: When the manifest was created, by the store's clock.
    """

    manifest: AcceptedManifest
    created_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBatch:
    """An accepted batch that the reconciler does not enqueue, and why."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was known about accepted batches before the queue was read.

    Attributes:
        now_ns: The store's clock before anything else was read; None if it could not be read.
        discovered_ns: Every batch whose manifest existed at this time was enqueued or held.
        landed_elsewhere: Whether batches are accepted in a spool that this query does not search.
        held: Held batches that may match.
        new: Batches created since `discovered_ns`; None if they are too many to read.
        problems: What could not be read, one sentence each.
        lanes: The lanes of the ingest queue that the reconciler gave batches to, three digits each.
    """

    now_ns: UnixNs | None = None
    discovered_ns: UnixNs | None = None
    landed_elsewhere: bool = False
    held: tuple[HeldBatch, ...] = ()
    new: tuple[NewBatch, ...] | None = None
    problems: tuple[str, ...] = ()
    lanes: frozenset[str] = frozenset()

    def lost_lanes(self, lanes: Collection[int]) -> tuple[str, ...]:
        """Return a sentence for each lane that was given batches and is not among `lanes`."""
        lost = sorted(self.lanes - {f"{lane:03d}" for lane in lanes})
        return tuple(
            f"the register of lane {lane} is missing: run `sluice rebuild`" for lane in lost
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """How complete an answer is.

    Attributes:
        accepted_until_ns: Every batch that was acknowledged before this time, by the store's clock,
            is in the answer if it matches; None if no such time is known.
        reasons: Why the answer is partial, one sentence each.
    """

    accepted_until_ns: UnixNs | None = None
    reasons: tuple[str, ...] = ()


async def read_coverage(
    store: ObjectStore, query: Query, settings: QuerySettings, *, with_spool: bool
) -> Coverage:
    """Read what is known about accepted batches; call it before the queue is read.

    What cannot be read makes the result partial; it does not stop the query.
    """
    try:
        discovery = await _read_discovery(store)
        authority, (held, problems), new, lanes = await asyncio.gather(
            read_authority(store),
            _read_held(store, query, settings),
            _read_new(store, query, settings, discovery),
            _list_given_lanes(store),
        )
    except SluiceError as error:
        return Coverage(problems=(str(error),))
    discovered_ns = discovery.through_ns
    if with_spool and (discovered_ns or 0) < discovery.now_ns - int(settings.landed_s * NS_PER_S):
        # Batches transferred in between are in neither: the spool shows only recent transfers.
        discovered_ns = None
    return Coverage(
        now_ns=discovery.now_ns,
        discovered_ns=discovered_ns,
        landed_elsewhere=authority.acceptance == "local_spool" and not with_spool,
        held=held,
        new=new,
        problems=problems,
        lanes=lanes,
    )


async def _list_given_lanes(store: ObjectStore) -> frozenset[str]:
    prefix = f"{RECONCILER}lanes/{INGEST_QUEUE}."
    keys = [one.key async for page in store.list(prefix) for one in page.objects]
    return frozenset(
        key.removeprefix(prefix) for key in keys if _LANE.fullmatch(key.removeprefix(prefix))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Discovery:
    """The discovery record, and the store's clock when it was read."""

    now_ns: UnixNs
    through_ns: UnixNs | None = None
    listed: int = 0


async def _read_discovery(store: ObjectStore) -> _Discovery:
    read = await store.get(DISCOVERY)
    if not isinstance(read, Found):
        return _Discovery(now_ns=read.date_ns)
    try:
        record = decode_record(DISCOVERY, read.body, DiscoveryRecord)
    except InvalidRecord:
        return _Discovery(now_ns=read.info.date_ns)
    through_ns = UnixNs(record.complete_through_unix_ns)
    return _Discovery(now_ns=read.info.date_ns, through_ns=through_ns, listed=record.listed)


async def _read_held(
    store: ObjectStore, query: Query, settings: QuerySettings
) -> tuple[tuple[HeldBatch, ...], tuple[str, ...]]:
    """Return the held batches that may match, and what could not be read."""
    places: list[ObjectKey] = []
    async for page in store.list(UNHEALTHY):
        places += [one.key for one in page.objects]
        if len(places) > HELD_MAX:
            return (), (f"more than {HELD_MAX} batches are held back: run `sluice reconciler`",)
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
        manifest = await _read_manifest(store, ObjectKey(record.key))
    return held if manifest is None or may_match(manifest, query) else None


async def _read_manifest(store: ObjectStore, key: ObjectKey) -> AcceptedManifest | None:
    read = await store.get(key)
    try:
        return decode_accepted(key, read.body) if isinstance(read, Found) else None
    except InvalidRecord:
        return None


async def _read_new(
    store: ObjectStore, query: Query, settings: QuerySettings, discovery: _Discovery
) -> tuple[NewBatch, ...] | None:
    """Return the batches created since the last discovery, or None if they are too many."""
    listed = await _list_new(store, query, settings, discovery)
    if listed is None:
        return None
    limit = asyncio.Semaphore(settings.fetches)

    async def read(one: ListedObject) -> NewBatch | None:
        async with limit:
            manifest = await _read_manifest(store, one.key)
        if manifest is None:
            return None  # not a batch; the reconciler holds it
        return NewBatch(manifest=manifest, created_ns=one.last_modified_ns)

    found = await asyncio.gather(*map(read, listed))
    return tuple(one for one in found if one is not None)


async def _list_new(
    store: ObjectStore, query: Query, settings: QuerySettings, discovery: _Discovery
) -> list[ListedObject] | None:
    left = settings.accepted_list_max
    if not left or (discovery.listed > left and not query.agents):
        return None
    new: list[ListedObject] = []
    # The time of a manifest is in whole seconds on S3, so the last second counts as not covered.
    since_ns = 0 if discovery.through_ns is None else discovery.through_ns - NS_PER_S
    for prefix in [agent_prefix(agent) for agent in query.agents] or [ACCEPTED]:
        async for page in store.list(prefix):
            left -= len(page.objects)
            new += [one for one in page.objects if one.last_modified_ns >= since_ns]
            if left < 0 or len(new) > NEW_MAX:
                return None
    return new


def decide_completeness(
    coverage: Coverage, query: Query, settings: QuerySettings, shown: Collection[Identity]
) -> Completeness:
    """Decide up to which time an answer is complete, and why it is partial.

    Args:
        coverage: What was read before the queue.
        query: The query.
        settings: The oldest discovery that is recent enough.
        shown: The batches in the queue, in the lake, or in a searched spool.
    """
    reasons = list(coverage.problems)
    if coverage.held:
        first = coverage.held[0]
        reasons.append(
            f"{len(coverage.held)} batches are held back: see `sluice reconciler`,"
            f" reason=`{first.reason}`, key=`{first.key}`"
        )
    if coverage.now_ns is None:
        return Completeness(reasons=tuple(reasons))
    if coverage.landed_elsewhere:
        reasons.append("batches in the gateway's spool are not searched: pass its --spool")
        return Completeness(reasons=tuple(reasons))
    until_ns, missing = coverage.discovered_ns, 0
    if coverage.new is not None:
        held = {one.key for one in coverage.held}
        absent = [
            one
            for one in coverage.new
            if one.manifest.identity not in shown
            and accepted_key(one.manifest.identity) not in held
            and may_match(one.manifest, query)
        ]
        until_ns = min([coverage.now_ns, *(one.created_ns for one in absent)])
        missing = len(absent)
    if missing:
        reasons.append(
            f"{missing} accepted batches are not enqueued yet: wait for the reconciler, or start it"
        )
    elif reason := _staleness(until_ns, coverage.now_ns, query, settings):
        reasons.append(reason)
    return Completeness(accepted_until_ns=until_ns, reasons=tuple(reasons))


def _staleness(
    until_ns: UnixNs | None, now_ns: UnixNs, query: Query, settings: QuerySettings
) -> str | None:
    """Return why the last discovery is too old for the query, or None."""
    if until_ns is None:
        return "accepted batches may be missing: no recent full pass of a reconciler is known"
    needed_ns = min(query.to_ns, now_ns - int(settings.max_staleness_s * NS_PER_S))
    if until_ns >= needed_ns:
        return None
    return (
        f"batches accepted after {format_rfc3339(until_ns)} may be missing: the last full pass of a"
        " reconciler began then; check that one runs"
    )
