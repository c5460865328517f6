"""The candidates of one deletion plan: pages of them, a search, and one blob."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from aiohttp import web

from sluice_gc.errors import GcRefused
from sluice_gc.plan.candidate_views import CandidateDetail, CandidatePage
from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import BadUsage, ErrorCode
from sluice_protocol.keys import parse_digest
from sluice_store.port import ObjectStore
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.parameters import IntegerParameter, TextParameter
from sluice_web.problems import HttpRefusal

if TYPE_CHECKING:
    from sluice_gc.signing_keys import TrustedKeys

READS_MAX: Final = 2
"""Requests that read plans concurrently: each has row groups of a plan in memory."""
_AFTER: Final = IntegerParameter(name="after", default=0, minimum=0, maximum=10**15)
_LIMIT: Final = IntegerParameter(name="limit", default=100, maximum=500)
_PREFIX: Final = TextParameter(name="prefix", chars_max=64)

_Found = TypeVar("_Found", CandidatePage, CandidateDetail)


class CandidatePages:
    """The endpoints about the candidates of a plan."""

    def __init__(self, store: ObjectStore, trusted_keys: tuple[str, ...]) -> None:
        self._store = store
        self._trusted_keys = trusted_keys
        self._reads = asyncio.Semaphore(READS_MAX)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/v1/gc/plans/{id}/candidates",
                handler=self._list,
                summary="List candidates of a deletion plan, each with the clauses of the plan",
                parameters=(_PREFIX, _AFTER, _LIMIT),
                result=CandidatePage,
            ),
            Endpoint(
                method="GET",
                path="/v1/gc/plans/{id}/candidates/{sha256}",
                handler=self._show,
                summary="Return why a plan names a blob, what its runs proved, or why it is kept",
                result=CandidateDetail,
            ),
        )

    async def _list(self, request: web.Request) -> web.Response:
        plan_id = request.match_info["id"]
        async with self._reading() as trusted:
            # The package of garbage collection imports pyarrow: only these requests need it.
            from sluice_gc.plan.plan_candidates import read_candidates  # noqa: PLC0415

            page = await read_candidates(
                self._store,
                plan_id,
                after=_AFTER.read(request.query),
                limit=_LIMIT.read(request.query),
                prefix=_PREFIX.read(request.query) or "",
                trusted=trusted,
            )
        return json_response(_existing(page, plan_id))

    async def _show(self, request: web.Request) -> web.Response:
        plan_id, text = request.match_info["id"], request.match_info["sha256"]
        try:
            digest = parse_digest(text)
        except ValueError as error:
            raise BadUsage(
                f"a SHA-256 has 64 lower-case hex digits, sha256=`{text[:80]}`"
            ) from error
        async with self._reading() as trusted:
            from sluice_gc.plan.plan_candidates import read_candidate  # noqa: PLC0415 - as above

            detail = await read_candidate(self._store, plan_id, digest, trusted=trusted)
        return json_response(_existing(detail, plan_id))

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator["TrustedKeys | None"]:
        """Yield the trusted keys, or None; a plan or evidence that was altered is a corrupt object.

        Raises:
            HttpRefusal: The plan is not signed by a trusted key, evidence was altered, or a package
                is missing.
        """
        from sluice_gc.signing_keys import key_id_of, parse_public_key  # noqa: PLC0415 - as above

        keys = [parse_public_key(text) for text in self._trusted_keys]
        async with self._reads:
            try:
                yield {key_id_of(one): one for one in keys} or None
            except GcRefused as error:
                raise HttpRefusal(ErrorCode.CORRUPT_OBJECT, error.reason) from error
            except ModuleNotFoundError as error:
                detail = describe_missing_package("query", error.name)
                raise HttpRefusal(ErrorCode.NOT_FOUND, detail) from error


def _existing(found: _Found | None, plan_id: str) -> _Found:
    if found is None:
        raise HttpRefusal(
            ErrorCode.NOT_FOUND, f"no such plan: it was removed or never made, id=`{plan_id[:40]}`"
        )
    return found
