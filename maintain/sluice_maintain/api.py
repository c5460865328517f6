"""The HTTP interface: the status page, the same as JSON, metrics and health checks."""

from typing import Final

from aiohttp import web

from sluice_maintain.metrics import MaintenanceMetrics
from sluice_maintain.service import MaintenanceService
from sluice_maintain.settings import MaintainSettings
from sluice_maintain.status import MaintenanceStatus
from sluice_maintain.status_page import render_page, render_text
from sluice_protocol.errors import ErrorCode, Unauthenticated
from sluice_web.addresses import parse_allowed_hosts
from sluice_web.application import guarded_middlewares, make_application
from sluice_web.endpoints import Endpoint
from sluice_web.health import live_endpoint, metrics_endpoint, ready_endpoint
from sluice_web.json_bodies import json_response
from sluice_web.problems import HttpRefusal, Problem, problem_of
from sluice_web.tokens import has_token

_STUCK_S: Final = 300.0
"""Time without a decision after which the supervisor should restart the process."""


class StatusApi:
    """The endpoints of one process."""

    def __init__(
        self, service: MaintenanceService, settings: MaintainSettings, metrics: MaintenanceMetrics
    ) -> None:
        self._service = service
        self._settings = settings
        self._metrics = metrics

    def application(self) -> web.Application:
        """Return the application."""
        return make_application(
            self.endpoints(),
            middlewares=guarded_middlewares(self._settings.api_token),
            title="sluice maintain",
            allowed_hosts=parse_allowed_hosts(self._settings.allowed_hosts),
        )

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        return [
            Endpoint(
                method="GET",
                path="/",
                handler=self._send_page,
                summary="Return the state of every task as a page, or as text or JSON on request",
                result_type="text/html",
            ),
            Endpoint(
                method="GET",
                path="/v1/status",
                handler=self._send_status,
                summary="Return the state of every task",
                result=MaintenanceStatus,
            ),
            live_endpoint(self._liveness),
            ready_endpoint(self._readiness),
            metrics_endpoint(self._metrics.registry),
        ]

    async def _send_page(self, request: web.Request) -> web.Response:
        # The token middleware guards `/v1/` only; this path has the same content.
        if not has_token(request.headers.get("Authorization", ""), self._settings.api_token):
            raise Unauthenticated("the request does not contain the token")
        if "application/json" in request.headers.get("Accept", ""):
            return json_response(self._status())
        if request.headers.get("Accept", "").startswith("text/plain"):
            return web.Response(text=render_text(self._status(), self._service.problem))
        text = render_page(self._status(), self._service.problem)
        return web.Response(text=text, content_type="text/html")

    async def _send_status(self, request: web.Request) -> web.Response:
        del request
        return json_response(self._status())

    def _status(self) -> MaintenanceStatus:
        if self._service.status is None:
            raise HttpRefusal(ErrorCode.STORE_UNAVAILABLE, self._service.problem)
        return self._service.status

    def _liveness(self) -> Problem | None:
        if self._service.is_stuck(_STUCK_S):
            return problem_of(ErrorCode.INTERNAL, f"no decision for {_STUCK_S:.0f} s")
        return None

    def _readiness(self) -> Problem | None:
        if self._service.problem:
            return problem_of(ErrorCode.STORE_UNAVAILABLE, self._service.problem)
        return None
