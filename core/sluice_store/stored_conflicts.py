"""Conflicts of one store, as services and the command line show and decide them."""

import asyncio
from collections.abc import Sequence

from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.conflicts import (
    ConflictName,
    ConflictPage,
    ConflictView,
    Decision,
    Decisions,
    ResolveRequest,
    conflict_item,
)
from sluice_protocol.outcomes import NotFound
from sluice_store.conflicts import (
    CONFLICTS_PAGE_MAX,
    DecisionsReader,
    Resolver,
    list_conflicts,
    read_conflict,
)
from sluice_store.port import ObjectStore


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
        """Bind a store.

        Args:
            store: The authority.
            decisions: The decisions that were read from it.
            clock: The clock of new decisions.
            ids: The ids of new decisions.
            refreshes: Whether each call reads new decisions; False where another task does.
        """
        self._store = store
        self._decisions = decisions
        self._clock = clock
        self._ids = ids
        self._refreshes = refreshes
        self._comparing = asyncio.Lock()

    async def list_page(
        self, *, agents: Sequence[str] | None, after: ConflictName | None, limit: int
    ) -> ConflictPage:
        """Return at most `limit` conflicts in key order, each with its latest decision.

        Args:
            agents: The agents whose conflicts are listed, or None for all.
            after: The last conflict of the page before.
            limit: The size of the page, at most `CONFLICTS_PAGE_MAX`.

        Raises:
            StoreError: The store is unreachable or refused the call.
        """
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
        """Return one conflict with the difference of its records, or None where it does not exist.

        Raises:
            StoreError: The store is unreachable or refused the call.
            InvalidRecord: A manifest is damaged.
        """
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
        """Write a decision, or return None where the conflict does not exist.

        Raises:
            BadUsage: The note is too long.
            OutcomeUnknown: The write may or may not have succeeded; it can be repeated.
            StoreError: The store is unreachable or refused the call.
        """
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
