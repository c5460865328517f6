"""The endpoint of the policies: each request that must be denied, with its statement and proof."""

from typing import Final

import msgspec
from aiohttp import web

from sluice_console.policy_proofs import PolicyProofs, denials_command
from sluice_console.settings import PolicySettings
from sluice_policies.denials import OTHER_CALLERS, DenialReport, check_role
from sluice_policies.settings import RoleName
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.parameters import TextParameter

_ROLE: Final = TextParameter(name="role", chars_max=40)
_ACTION: Final = TextParameter(name="action", chars_max=100)


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """What the policies of the bucket deny.

    Attributes:
        file: The settings file of the policies; empty if the console has none.
        target: The dialect of the documents.
        live: Whether the documents of the bucket were proved, or those that sluice renders.
        command: The command that proves the same documents.
        proved_at_unix_ns: When the proof ended; None before the first one.
        problem: Why nothing is proved, and what to do; empty if it is.
        roles: The names that `role` may have.
        actions: The actions of all denials.
        total: Number of denials before `role` and `action` select some.
        report: The denials; None before the first proof and after a problem.
    """

    file: str
    target: str
    live: bool
    command: str
    proved_at_unix_ns: int | None
    problem: str
    roles: tuple[str, ...]
    actions: tuple[str, ...]
    total: int
    report: DenialReport | None


class PolicyPages:
    """The endpoint of the policies."""

    def __init__(self, settings: PolicySettings, proofs: PolicyProofs) -> None:
        self._settings = settings
        self._proofs = proofs

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/v1/policies",
                handler=self._view,
                summary="Return each request that the policies must deny, with the proof",
                parameters=(_ROLE, _ACTION),
                result=PolicyView,
            ),
        )

    async def _view(self, request: web.Request) -> web.Response:
        role = check_role(_ROLE.read(request.query) or "")
        action = (_ACTION.read(request.query) or "").strip()
        self._proofs.refresh()
        newest = self._proofs.newest
        report = None if newest is None else newest.report
        denials = () if report is None else report.denials
        view = PolicyView(
            file=self._settings.file,
            target=self._settings.target,
            live=self._settings.live,
            command=denials_command(self._settings),
            proved_at_unix_ns=None if newest is None else newest.at_ns,
            problem="" if newest is None else newest.problem,
            roles=(*RoleName, OTHER_CALLERS),
            actions=tuple(sorted({name for one in denials for name in one.actions})),
            total=len(denials),
            report=None if report is None else report.matching(role, action),
        )
        return json_response(view)
