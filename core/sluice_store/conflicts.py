"""Conflicts of one store: reading them, and writing operators' decisions about them.

Gateway, reconciler, console and command line share this module. `sluice_protocol.conflicts` defines
what a decision means.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sluice_protocol.clock import Clock, IdSource, ulid_time_prefix
from sluice_protocol.conflicts import (
    ConflictName,
    ConflictPage,
    ConflictView,
    Decision,
    DecisionAction,
    Decisions,
    Difference,
    RecordPair,
    ResolveRequest,
    check_note,
    conflict_item,
    conflict_prefix,
    decision_key,
    difference_of,
    differing_pairs,
    fold_decisions,
)
from sluice_protocol.errors import InvalidFrame, InvalidRecord, UnsupportedVersion
from sluice_protocol.frame import Frame, decode_frame
from sluice_protocol.keys import DECISIONS, QUARANTINE_CONFLICTS, digest_of, parse_quarantine_key
from sluice_protocol.manifests import (
    AcceptedManifest,
    ConflictManifest,
    decode_accepted,
    decode_conflict,
    decode_record,
    encode_record,
)
from sluice_protocol.outcomes import Found, GetOutcome, NotFound
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_store.port import ListPage, ObjectStore, run_together
from sluice_store.retry import Backoff, create_known

CONFLICTS_PAGE_MAX: Final = 500
READS_AT_ONCE: Final = 16
RECENT_S: Final = 86_400
"""Age of the ids that every refresh lists: more than the clocks of writers differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedConflict:
    """One conflict, described by its key and the creation time of its quarantine manifest."""

    name: ConflictName
    first_seen_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictDetail:
    """Everything that the store contains about one conflict.

    `accepted` owns the identity. `difference` is None if a blob cannot be read.
    """

    name: ConflictName
    manifest: ConflictManifest
    first_seen_ns: UnixNs
    accepted: AcceptedManifest | None
    difference: Difference | None


async def list_conflicts(
    store: ObjectStore, *, agents: Sequence[str] | None, after: ObjectKey | None, limit: int
) -> tuple[ListedConflict, ...]:
    """List conflicts in key order; skip malformed keys.

    `agents=None` means all. `after` is the last key of the previous page, and `limit` is at most
    `CONFLICTS_PAGE_MAX`.
    """
    prefixes = [QUARANTINE_CONFLICTS]
    if agents is not None:
        prefixes = sorted(conflict_prefix(agent) for agent in agents)
    found: list[ListedConflict] = []
    for prefix in prefixes:
        async for listed in _under(store, prefix, after or ""):
            found.append(listed)
            if len(found) == min(limit, CONFLICTS_PAGE_MAX):
                return tuple(found)
    return tuple(found)


async def _under(store: ObjectStore, prefix: str, after: str) -> AsyncIterator[ListedConflict]:
    start_after = after if after.startswith(prefix) else ""
    if after > prefix and not start_after:
        return  # the whole prefix sorts before the start
    async for page in store.list(prefix, start_after=start_after):
        for item in page.objects:
            try:
                identity, submitted = parse_quarantine_key(item.key)
            except InvalidRecord:
                continue  # the reconciler reports it; it must not hide the others
            name = ConflictName(identity=identity, submitted=submitted)
            yield ListedConflict(name=name, first_seen_ns=item.last_modified_ns)


async def read_conflict(store: ObjectStore, name: ConflictName) -> ConflictDetail | None:
    """Read one conflict with both frames; return None if there is no such conflict."""
    found = await store.get(name.key)
    if isinstance(found, NotFound):
        return None
    manifest = decode_conflict(name.key, found.body)
    accepted_key = ObjectKey(manifest.accepted_manifest_key)
    owner = await store.get(accepted_key)
    return ConflictDetail(
        name=name,
        manifest=manifest,
        first_seen_ns=found.info.last_modified_ns,
        accepted=decode_accepted(accepted_key, owner.body) if isinstance(owner, Found) else None,
        difference=await _difference(store, manifest),
    )


async def _difference(store: ObjectStore, manifest: ConflictManifest) -> Difference | None:
    accepted = await store.get(ObjectKey(manifest.accepted_raw_blob_key))
    submitted = await store.get(ObjectKey(manifest.submitted_raw_blob_key))
    if isinstance(accepted, NotFound) or isinstance(submitted, NotFound):
        return None
    return await asyncio.to_thread(_compare, accepted.body, submitted.body)


def _compare(accepted: bytes, submitted: bytes) -> Difference | None:
    ours, theirs = _decode(accepted), _decode(submitted)
    if isinstance(ours, str) or isinstance(theirs, str):
        return None
    return difference_of(ours, theirs)


def _decode(blob: bytes) -> Frame | str:
    try:
        return decode_frame(blob)
    except (InvalidFrame, UnsupportedVersion) as error:
        return f"the blob cannot be read: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictRecords:
    """The first records at which both sides of a conflict differ, and why a side is unreadable."""

    pairs: tuple[RecordPair, ...]
    more: bool
    accepted_problem: str = ""
    submitted_problem: str = ""


async def read_conflict_records(
    store: ObjectStore, name: ConflictName, limit: int
) -> ConflictRecords | None:
    """Return the records at which both sides differ; None if there is no such conflict."""
    found = await store.get(name.key)
    if isinstance(found, NotFound):
        return None
    manifest = decode_conflict(name.key, found.body)
    accepted = await store.get(ObjectKey(manifest.accepted_raw_blob_key))
    submitted = await store.get(ObjectKey(manifest.submitted_raw_blob_key))
    return await asyncio.to_thread(
        _compare_records,
        _open_side(accepted, manifest.accepted_raw_blob_key, manifest.accepted_frame_sha256),
        _open_side(submitted, manifest.submitted_raw_blob_key, manifest.submitted_frame_sha256),
        limit,
    )


def _open_side(read: GetOutcome, key: str, sha256: str) -> bytes | str:
    """Return the bytes of a blob, or why they cannot be compared."""
    if isinstance(read, NotFound):
        return f"the blob is missing: see `sluice explain {sha256}`, key=`{key}`"
    if digest_of(read.body) != sha256:
        return f"the blob is damaged, its sha256 differs: restore it, key=`{key}`"
    return read.body


def _compare_records(accepted: bytes | str, submitted: bytes | str, limit: int) -> ConflictRecords:
    ours = _decode(accepted) if isinstance(accepted, bytes) else accepted
    theirs = _decode(submitted) if isinstance(submitted, bytes) else submitted
    first: tuple[RecordPair, ...] = ()
    if isinstance(ours, Frame) and isinstance(theirs, Frame):
        first = tuple(islice(differing_pairs(ours, theirs), limit + 1))
    return ConflictRecords(
        pairs=first[:limit],
        more=len(first) > limit,
        accepted_problem=ours if isinstance(ours, str) else "",
        submitted_problem=theirs if isinstance(theirs, str) else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolver:
    """Writes decisions of one operator."""

    store: ObjectStore
    clock: Clock
    ids: IdSource
    decided_by: str

    async def resolve(self, name: ConflictName, action: DecisionAction, note: str) -> Decision:
        """Write a decision; it is durable on return."""
        decision = Decision(
            decision_id=self.ids.ulid(),
            action=action,
            conflict_id=name.id,
            agent_id=name.identity.agent_id,
            boot_id=name.identity.boot_id,
            decided_by=self.decided_by,
            decided_at_unix_ns=self.clock.now_ns(),
            note=check_note(note),
        )
        key, body = decision_key(decision.decision_id), encode_record(decision)
        await create_known(self.store, key, body, Backoff.seeded_by(self.clock))
        return decision  # the id is new: an object under its key can only be this decision


class DecisionsReader:
    """Keeps all decisions in memory and reads new ones.

    Decisions are permanent. The first refresh lists all of them. Each later one lists those whose
    ids are of the last day, and one page of all, which continues where the refresh before ended:
    an id contains its writer's clock, and a spool transfers decisions that are older.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: set[ObjectKey] = set()
        self._listed_ns: UnixNs | None = None
        self._after = ""
        self.current = Decisions()

    async def refresh(self) -> Decisions:
        """Read new decisions and return all; those that are known stay after an error."""
        if self._listed_ns is None:
            self._listed_ns = await self._read_from("")
            return self.current
        page = await anext(aiter(self._store.list(DECISIONS, start_after=self._after)))
        if not page.last:
            recent = ulid_time_prefix(self._listed_ns - RECENT_S * NS_PER_S)
            await self._read_from(f"{DECISIONS}{recent}")
        await self._read_new(page)
        self._after = "" if page.last or not page.objects else page.objects[-1].key
        self._listed_ns = page.date_ns
        return self.current

    async def _read_from(self, after: str) -> UnixNs:
        """Read the unknown decisions with later keys; return the store's clock before that."""
        began_ns: UnixNs | None = None
        async for page in self._store.list(DECISIONS, start_after=after):
            began_ns = page.date_ns if began_ns is None else began_ns
            await self._read_new(page)
        return began_ns or UnixNs(0)

    async def _read_new(self, page: ListPage) -> None:
        fresh = [item.key for item in page.objects if item.key not in self._known]
        for first in range(0, len(fresh), READS_AT_ONCE):
            keys = fresh[first : first + READS_AT_ONCE]
            read = await run_together(*(self._read(key) for key in keys))
            self.current = fold_decisions(self.current, read)
            self._known.update(keys)

    async def _read(self, key: ObjectKey) -> Decision:
        found = await self._store.get(key)
        body = found.body if isinstance(found, Found) else b""
        return decode_record(key, body, Decision)


class StoredConflicts:
    """Lists, shows and resolves the conflicts of one store."""

    def __init__(
        self,
        store: ObjectStore,
        decisions: DecisionsReader,
        *,
        clock: Clock,
        ids: IdSource,
        refreshes: bool = True,
    ) -> None:
        """Bind a store; with `refreshes=False` another task reads new decisions."""
        self._store = store
        self._decisions = decisions
        self._clock = clock
        self._ids = ids
        self._refreshes = refreshes
        self._comparing = asyncio.Lock()

    async def list_page(
        self, *, agents: Sequence[str] | None, after: ConflictName | None, limit: int
    ) -> ConflictPage:
        """Return at most `limit` conflicts in key order, each with its latest decision."""
        found = await list_conflicts(
            self._store, agents=agents, after=None if after is None else after.key, limit=limit
        )
        decisions = await self._current()
        items = tuple(
            conflict_item(listed.name, listed.first_seen_ns, decisions) for listed in found
        )
        full = len(items) >= min(limit, CONFLICTS_PAGE_MAX)
        return ConflictPage(conflicts=items, next_after=items[-1].id if items and full else None)

    async def show(self, name: ConflictName) -> ConflictView | None:
        """Return one conflict with the difference of its records; None if there is none."""
        async with self._comparing:  # two whole frames in memory: one comparison at a time
            detail = await read_conflict(self._store, name)
        if detail is None:
            return None
        decisions = await self._current()
        return ConflictView(
            conflict=conflict_item(detail.name, detail.first_seen_ns, decisions),
            quarantine=detail.manifest,
            accepted=detail.accepted,
            difference=detail.difference,
            decision=decisions.by_conflict.get(detail.name.id),
        )

    async def resolve(
        self, name: ConflictName, wanted: ResolveRequest, *, decided_by: str
    ) -> Decision | None:
        """Write a decision, or return None where the conflict does not exist."""
        if isinstance(await self._store.head(name.key), NotFound):
            return None
        resolver = Resolver(
            store=self._store, clock=self._clock, ids=self._ids, decided_by=decided_by
        )
        decision = await resolver.resolve(name, wanted.action, wanted.note)
        if not self._refreshes:
            await self._decisions.refresh()  # in this process it takes effect immediately
        return decision

    async def _current(self) -> Decisions:
        return await self._decisions.refresh() if self._refreshes else self._decisions.current
