"""The HTTP surface of a gateway: parse a request, call a service, render the response."""

from collections.abc import Collection, Sequence
from typing import Final

import structlog
from aiohttp import web

from sluice_gateway.metrics import ObservedStore, UploadPhases
from sluice_gateway.process.readiness import Readiness
from sluice_gateway.uploads.acceptor import AcceptedResponse, ConflictProblem
from sluice_gateway.uploads.lists import FrameResults, ListedUploads
from sluice_gateway.uploads.service import UploadService
from sluice_protocol.errors import ErrorCode
from sluice_protocol.upload_http import (
    FRAME_LIST_MEDIA_TYPE,
    FRAME_MEDIA_TYPE,
    SHED_HEADER,
    UPLOAD_LIST_PATH,
    UPLOAD_PATH,
)
from sluice_store.conflicts import StoredConflicts
from sluice_web.application import make_application
from sluice_web.conflicts import ConflictAccess, ConflictsApi
from sluice_web.connection_guard import watch_connection
from sluice_web.endpoints import Endpoint
from sluice_web.health import (
    live_endpoint,
    metrics_endpoint,
    ready_endpoint,
    refused_endpoint,
)
from sluice_web.json_bodies import check_length, json_response
from sluice_web.problems import Problem, problem_middleware, problem_response
from sluice_web.refused_clients import client_refusal_of

RESOLVE_BYTES_MAX: Final = 64 * 1024
_PHASES: Final = web.RequestKey("phases", UploadPhases)
_UPLOAD_PROBLEMS: Final = {
    "400": "The frame is not valid, of an unknown version, or does not match Content-Digest",
    "401": "The sender is not known",
    "403": "The sender may not send for this agent, or agent and boot are quarantined",
    "409": "Other bytes own this identity",
    "411": "Content-Length is missing",
    "413": "The frame is too large",
    "415": "The media type is wrong, or there is a Content-Encoding",
    "500": "A stored object is damaged; the same bytes may be sent again",
    "503": "The same bytes may be sent to any gateway",
}
_LIST_PROBLEMS: Final = {
    "400": "The list is not valid, of an unknown version, or does not match Content-Digest",
    "401": "The sender is not known",
    "411": "Content-Length is missing",
    "413": "The list has too many frames or bytes",
    "415": "The media type is wrong, or there is a Content-Encoding",
    "503": "No frame was begun; the same bytes may be sent to any gateway",
}

log = structlog.get_logger()


class GatewayApi:
    """The endpoints of one worker."""

    def __init__(
        self,
        uploads: UploadService,
        lists: ListedUploads,
        readiness: Readiness,
        store: ObservedStore,
        *,
        allowed_hosts: Collection[str] = (),
        doors: Sequence[Endpoint] = (),
    ) -> None:
        self._uploads = uploads
        self._lists = lists
        self._doors = doors
        self._allowed_hosts = allowed_hosts
        self._readiness = readiness
        self._store = store
        self._middleware = problem_middleware(finish=self._finish_refused)

    def application(self) -> web.Application:
        """Return the application of the gateway's port."""
        return make_application(
            [
                self._upload_endpoint(),
                self._list_endpoint(),
                *self._doors,
                *self._conflicts_api().endpoints(),
                *self._health(),
            ],
            middlewares=[watch_connection, self._middleware],
            title="sluice gateway",
            allowed_hosts=self._allowed_hosts,
            body_bytes_max=self._uploads.frame_bytes_max,
        )

    def health_application(self) -> web.Application:
        """Return the application of a worker's separate port: health checks and metrics."""
        return make_application(
            self._health(), middlewares=[self._middleware], allowed_hosts=self._allowed_hosts
        )

    def _health(self) -> tuple[Endpoint, ...]:
        return (
            live_endpoint(),
            ready_endpoint(self._readiness.problem),
            metrics_endpoint(self._uploads.metrics.registry),
            refused_endpoint(self._uploads.refused),
        )

    def _upload_endpoint(self) -> Endpoint:
        return Endpoint(
            method="POST",
            path=UPLOAD_PATH,
            handler=self._accept_upload,
            summary="Upload one batch",
            body=bytes,
            body_type=FRAME_MEDIA_TYPE,
            result=AcceptedResponse,
            result_summary="The batch is accepted, by this upload or an earlier one",
            problems=_UPLOAD_PROBLEMS,
            problem_types={"409": ConflictProblem},
            sends_continue=True,
            open_host=True,  # a signature or client certificate covers Host: ADR 14
        )

    def _list_endpoint(self) -> Endpoint:
        return Endpoint(
            method="POST",
            path=UPLOAD_LIST_PATH,
            handler=self._accept_list,
            summary="Upload up to 256 batches",
            body=bytes,
            body_type=FRAME_LIST_MEDIA_TYPE,
            result=FrameResults,
            result_summary="Every frame has a result, in the order of the list",
            problems=_LIST_PROBLEMS,
            sends_continue=True,
            open_host=True,  # as for a single upload
        )

    async def _accept_upload(self, request: web.Request) -> web.StreamResponse:
        phases = request[_PHASES] = UploadPhases(self._uploads.clock)
        result = await self._uploads.accept(request, phases)
        if isinstance(result, Problem):
            response, outcome = problem_response(result), result.code.value
        else:
            response, outcome = json_response(result), result.outcome
            response.headers["X-Sluice-Frame-Sha256"] = result.frame_sha256
        self._finish_upload(phases, response, outcome)
        return response

    async def _accept_list(self, request: web.Request) -> web.StreamResponse:
        """Accept a list; each of its frames is counted, and the list itself only if refused."""
        phases = request[_PHASES] = UploadPhases(self._uploads.clock)
        response = json_response(await self._lists.accept(request, phases))
        self._uploads.metrics.observe_phases(phases)
        self._finish_response(phases, response)
        return response

    def _finish_refused(
        self, request: web.Request, response: web.Response, problem: Problem
    ) -> None:
        if _PHASES in request:
            if problem.code is ErrorCode.UNAUTHENTICATED:
                self._uploads.refused.add("uploads", client_refusal_of(request), request.remote)
            self._finish_upload(request[_PHASES], response, problem.code.value)

    def _finish_upload(self, phases: UploadPhases, response: web.Response, outcome: str) -> None:
        self._uploads.metrics.finish_upload(phases, outcome)
        timing = self._finish_response(phases, response)
        log.debug("upload_finished", outcome=outcome, timing=timing)

    def _finish_response(self, phases: UploadPhases, response: web.Response) -> str:
        """Report the phases of a request, and close a share of connections under load."""
        uploads = self._uploads
        timing = response.headers["Server-Timing"] = phases.server_timing()
        if uploads.running.draining or uploads.budget.sheds():
            response.force_close()
            response.headers[SHED_HEADER] = "1"  # a proxy may remove `Connection: close`
        return timing

    def _conflicts_api(self) -> ConflictsApi:
        uploads = self._uploads
        conflicts = StoredConflicts(
            self._store, uploads.decisions, clock=uploads.clock, ids=uploads.ids, refreshes=False
        )
        return ConflictsApi(conflicts, access=self._conflict_access, read_body=self._read_body)

    def _conflict_access(self, request: web.Request) -> ConflictAccess:
        sender = self._uploads.sender_of(request)
        return ConflictAccess(
            principal=sender.principal,
            agents=None if sender.operator else sender.agents,
            may_resolve=sender.operator,
        )

    async def _read_body(self, request: web.Request) -> bytes:
        length_bytes = check_length(request, RESOLVE_BYTES_MAX)
        with self._uploads.budget.take(length_bytes):
            received = await self._uploads.frames.read_body(request, length_bytes)
        return received.body
