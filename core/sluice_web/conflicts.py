"""The conflicts API, equal in every service: list, show and resolve.

Where conflicts are stored is behind `ConflictsPort`; who may see them is the service's decision.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import structlog
from aiohttp import web

from sluice_protocol.conflicts import (
    ConflictName,
    ConflictPage,
    ConflictView,
    Decision,
    ResolveRequest,
    parse_conflict_id,
)
from sluice_protocol.errors import ErrorCode
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import check_json_type, decode_json_body, json_response
from sluice_web.parameters import AFTER, AgentParameter, IntegerParameter
from sluice_web.problems import HttpRefusal

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 500

_AGENT: Final = AgentParameter()
_LIMIT: Final = IntegerParameter(name="limit", default=PAGE_DEFAULT, maximum=PAGE_MAX)

_Value = TypeVar("_Value")

log = structlog.get_logger()


class ConflictsPort(Protocol):
    """Where conflicts are read and decisions are written."""

    async def list_page(
        self, *, agents: Sequence[str] | None, after: ConflictName | None, limit: int
    ) -> ConflictPage:
        """Return a page in key order, of some agents or of all."""

    async def show(self, name: ConflictName) -> ConflictView | None:
        """Return one conflict, or None where it does not exist."""

    async def resolve(
        self, name: ConflictName, wanted: ResolveRequest, *, decided_by: str
    ) -> Decision | None:
        """Write a decision, or return None where the conflict does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictAccess:
    """What a sender may see (`agents`, None for all) and do; decisions record `principal`."""

    principal: str
    agents: frozenset[str] | None
    may_resolve: bool

    def check_agent(self, agent_id: str) -> None:
        """Check that the sender may see conflicts of an agent."""
        if self.agents is not None and agent_id not in self.agents:
            raise HttpRefusal(ErrorCode.FORBIDDEN_AGENT, "")


class ConflictsApi:
    """The three endpoints of the conflicts API."""

    def __init__(
        self,
        conflicts: ConflictsPort,
        *,
        access: Callable[[web.Request], ConflictAccess],
        read_body: Callable[[web.Request], Awaitable[bytes]],
    ) -> None:
        """Bind the API to a service; `access` raises where the sender is unknown."""
        self._conflicts = conflicts
        self._access = access
        self._read_body = read_body

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/v1/conflicts",
                handler=self._list,
                summary="List conflicts in key order; an agent sees its own conflicts only",
                parameters=(AFTER, _LIMIT, _AGENT),
                result=ConflictPage,
            ),
            Endpoint(
                method="GET",
                path="/v1/conflicts/{id}",
                handler=self._show,
                summary="Return one conflict and how its records differ",
                result=ConflictView,
            ),
            Endpoint(
                method="POST",
                path="/v1/conflicts/{id}/resolve",
                handler=self._resolve,
                summary="Write an operator's decision",
                body=ResolveRequest,
                result=Decision,
                result_summary="The decision as it is stored",
                sends_continue=True,
            ),
        )

    async def _list(self, request: web.Request) -> web.Response:
        access, agent = self._access(request), _AGENT.read(request.query)
        agents = None if access.agents is None else sorted(access.agents)
        if agent is not None:
            access.check_agent(agent)
            agents = [agent]
        after = AFTER.read(request.query)
        page = await self._conflicts.list_page(
            agents=agents,
            after=None if after is None else parse_conflict_id(after),
            limit=_LIMIT.read(request.query),
        )
        return json_response(page)

    async def _show(self, request: web.Request) -> web.Response:
        access = self._access(request)
        name = parse_conflict_id(request.match_info["id"])
        access.check_agent(name.identity.agent_id)
        return json_response(_found(await self._conflicts.show(name), name))

    async def _resolve(self, request: web.Request) -> web.Response:
        access = self._access(request)
        if not access.may_resolve:
            raise HttpRefusal(ErrorCode.FORBIDDEN, "the sender may not resolve conflicts")
        name = parse_conflict_id(request.match_info["id"])
        check_json_type(request)
        wanted = decode_json_body(await self._read_body(request), ResolveRequest)
        decided = await self._conflicts.resolve(name, wanted, decided_by=access.principal)
        decision = _found(decided, name)
        log.info("conflict_resolved", conflict=name.id, action=wanted.action, by=access.principal)
        return json_response(decision)


def _found(value: _Value | None, name: ConflictName) -> _Value:
    if value is None:
        raise HttpRefusal(ErrorCode.NOT_FOUND, f"no such conflict: list them, id=`{name.id}`")
    return value
