"""Conflicts over HTTP: list, show, resolve. An agent sees its own, an operator all."""

from typing import Final

import msgspec
import structlog
from aiohttp import web

from sluice_gateway.admit import check_length
from sluice_gateway.gateway import Gateway
from sluice_gateway.principals import Sender
from sluice_gateway.problems import Refusal
from sluice_gateway.receive import Pace, receive
from sluice_protocol.conflicts import Decision, parse_conflict_id
from sluice_protocol.errors import BadUsage, ErrorCode
from sluice_protocol.outcomes import NotFound
from sluice_store.conflict_pages import (
    PAGE_DEFAULT,
    ConflictPage,
    ConflictView,
    ResolveRequest,
    page_of,
    view_of,
)
from sluice_store.conflicts import Resolver, list_conflicts, read_conflict

RESOLVE_BYTES_MAX: Final = 64 * 1024

log = structlog.get_logger()


async def list_page(gateway: Gateway, request: web.Request) -> ConflictPage:
    """Gives one page: `?after=<id>&limit=<n>&agent=<id>`.

    Raises:
        SluiceError: The sender is unknown, asks for a foreign agent, or a parameter is wrong.
    """
    sender = gateway.sender_of(request)
    limit = _limit(request.query.get("limit", str(PAGE_DEFAULT)))
    after = request.query.get("after")
    found = await list_conflicts(
        gateway.store,
        agents=_agents(sender, request.query.get("agent")),
        after=None if after is None else parse_conflict_id(after).key,
        limit=limit,
    )
    return page_of(found, gateway.decisions.current, limit)


async def show(gateway: Gateway, request: web.Request) -> ConflictView:
    """Gives one conflict.

    Raises:
        SluiceError: The sender is unknown, it is not his, or there is no such conflict.
    """
    sender = gateway.sender_of(request)
    name = parse_conflict_id(request.match_info["id"])
    _agents(sender, name.identity.agent_id)
    async with gateway.comparing:  # two whole frames in memory, one pair at a time
        detail = await read_conflict(gateway.store, name)
    if detail is None:
        raise Refusal(ErrorCode.NOT_FOUND, "there is no such conflict")
    return view_of(detail, gateway.decisions.current)


async def resolve(gateway: Gateway, request: web.Request) -> Decision:
    """Writes an operator's decision and puts it in force on this gateway at once.

    Raises:
        SluiceError: The sender is no operator, the body is wrong, or there is no such conflict.
    """
    sender = gateway.sender_of(request)
    if not sender.operator:
        raise Refusal(ErrorCode.FORBIDDEN, "")
    name = parse_conflict_id(request.match_info["id"])
    wanted = await _resolve_request(gateway, request)
    if isinstance(await gateway.store.head(name.key), NotFound):
        raise Refusal(ErrorCode.NOT_FOUND, "there is no such conflict")
    resolver = Resolver(
        store=gateway.store, clock=gateway.clock, ids=gateway.ids, decided_by=sender.principal
    )
    decision = await resolver.resolve(name, wanted.action, wanted.note)
    log.info("conflict resolved", conflict=name.id, action=wanted.action, by=sender.principal)
    await gateway.decisions.refresh()
    return decision


async def _resolve_request(gateway: Gateway, request: web.Request) -> ResolveRequest:
    if request.content_type != "application/json" or "Content-Encoding" in request.headers:
        raise Refusal(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send Content-Type: application/json")
    length_bytes = check_length(request, RESOLVE_BYTES_MAX)
    settings = gateway.settings
    pace = Pace(grace_s=settings.body_grace_s, rate_min=settings.body_rate_min_bytes_per_s)
    with gateway.budget.take(length_bytes):
        received = await receive(request, length_bytes, pace)
    try:
        return msgspec.json.decode(received.body, type=ResolveRequest)
    except msgspec.DecodeError as error:
        raise BadUsage(f"body is not a decision: {error}") from error


def _agents(sender: Sender, agent: str | None) -> list[str] | None:
    """Gives whose conflicts are asked for: one agent's, the sender's own, or everybody's."""
    if agent is not None:
        if not sender.operator and agent not in sender.agents:
            raise Refusal(ErrorCode.FORBIDDEN_AGENT, "")
        return [agent]
    return None if sender.operator else sorted(sender.agents)


def _limit(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= PAGE_DEFAULT:
        raise BadUsage(f"limit must be 1 to {PAGE_DEFAULT}")
    return int(text)
