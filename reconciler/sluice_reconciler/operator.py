"""The operator's pages: conflicts with what is decided of them, audits, deletion plans."""

from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from sluice_protocol.conflicts import Decision, parse_conflict_id
from sluice_protocol.errors import BadUsage, ErrorCode, SluiceError
from sluice_protocol.keys import AUDIT, GC_PLANS
from sluice_protocol.outcomes import NotFound
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_reconciler.audit_summaries import (
    PAGE_DEFAULT,
    PAGE_MAX,
    AuditOverview,
    PlanOverview,
    SummaryPage,
    list_audits,
    list_plans,
)
from sluice_store.conflict_pages import PAGE_DEFAULT as CONFLICTS_DEFAULT
from sluice_store.conflict_pages import (
    ConflictPage,
    ConflictView,
    ResolveRequest,
    page_of,
    view_of,
)
from sluice_store.conflicts import (
    CONFLICTS_PAGE_MAX,
    DecisionsReader,
    Resolver,
    list_conflicts,
    read_conflict,
)

if TYPE_CHECKING:
    from sluice_store.port import ObjectStore

DECIDED_BY: Final = "operator:reconciler-api"
"""Who decided, where all that is known of the caller is that it holds the token."""


class NoSuchConflict(SluiceError):
    """There is no such conflict."""

    code = ErrorCode.NOT_FOUND

    def __init__(self, conflict_id: str) -> None:
        """Carries the id that was asked for."""
        super().__init__(conflict_id)
        self.conflict_id = conflict_id

    def __str__(self) -> str:
        """Says which."""
        return f"there is no such conflict: list them, id=`{self.conflict_id}`"


def number_of(request: web.Request, name: str, default: int, most: int) -> int:
    """Gives a number of the query, 1 to `most`.

    Raises:
        BadUsage: It is none.
    """
    text = request.query.get(name, str(default))
    if not text.isdecimal() or not text.isascii() or not 1 <= int(text[:9]) <= most:
        raise BadUsage(f"{name} must be a number from 1 to {most}, {name}=`{text}`")
    return int(text)


class Operator:
    """Answers for conflicts, audits and plans; it keeps the decisions that it has read."""

    def __init__(self, store: "ObjectStore") -> None:
        """Binds it to the authority."""
        self._store = store
        self._decisions = DecisionsReader(store)

    async def conflicts(self, request: web.Request) -> ConflictPage:
        """Gives a page: `?agent=&after=<id>&limit=`.

        Raises:
            BadUsage: A parameter is wrong.
            StoreError: The store did not answer.
        """
        agent, after = request.query.get("agent"), request.query.get("after")
        limit = number_of(request, "limit", CONFLICTS_DEFAULT, CONFLICTS_PAGE_MAX)
        found = await list_conflicts(
            self._store,
            agents=None if agent is None else [agent],
            after=None if after is None else parse_conflict_id(after).key,
            limit=limit,
        )
        return page_of(found, await self._decisions.refresh(), limit)

    async def conflict(self, request: web.Request) -> ConflictView:
        """Gives both sides of one conflict and how their records differ.

        Raises:
            NoSuchConflict: There is none under this id.
            BadUsage: It is no id.
            StoreError: The store did not answer.
        """
        name = parse_conflict_id(request.match_info["id"])
        detail = await read_conflict(self._store, name)
        if detail is None:
            raise NoSuchConflict(name.id)
        return view_of(detail, await self._decisions.refresh())

    async def resolve(self, request: web.Request) -> Decision:
        """Writes a decision; gateways take it when they next read decisions.

        Raises:
            NoSuchConflict: There is none under this id.
            BadUsage: The body is no decision, or it is no id.
            StoreError: The store refused.
            OutcomeUnknown: Nobody knows whether it landed; decide again.
        """
        name = parse_conflict_id(request.match_info["id"])
        if request.content_type != "application/json":
            raise BadUsage("send Content-Type: application/json")
        try:
            wanted = msgspec.json.decode(await request.read(), type=ResolveRequest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadUsage(f"body is not a decision: {error}") from error
        if isinstance(await self._store.head(name.key), NotFound):
            raise NoSuchConflict(name.id)
        resolver = Resolver(
            store=self._store, clock=SystemClock(), ids=SystemIds(), decided_by=DECIDED_BY
        )
        return await resolver.resolve(name, wanted.action, wanted.note)

    async def audits(self, request: web.Request) -> SummaryPage[AuditOverview]:
        """Gives a page of complete audits: `?after=<key>&limit=`.

        Raises:
            BadUsage: A parameter is wrong.
            StoreError: The store did not answer.
        """
        return await list_audits(self._store, *_page(request, AUDIT))

    async def plans(self, request: web.Request) -> SummaryPage[PlanOverview]:
        """Gives a page of deletion plans: `?after=<key>&limit=`.

        Raises:
            BadUsage: A parameter is wrong.
            StoreError: The store did not answer.
        """
        return await list_plans(self._store, *_page(request, GC_PLANS))


def _page(request: web.Request, prefix: str) -> tuple[str, int]:
    after = request.query.get("after", "")
    if after and not after.startswith(prefix):
        raise BadUsage(f"after must be the `next` of an earlier page, after=`{after}`")
    return after, number_of(request, "limit", PAGE_DEFAULT, PAGE_MAX)
