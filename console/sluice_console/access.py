"""Access to the console: tokens, cookies, and the users of a reverse proxy.

A request is authenticated, in this order, by a bearer token (programs), by the cookie of a login
(browsers), or by the user that a listed reverse proxy names. Without any of these settings every
visitor of a loopback address is a viewer. Roles are checked here, on the server. A write that a
browser authenticates automatically must also contain the CSRF token of the session.
"""

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from sluice_console.sessions import LoginLimit, SessionBook, Visitor, VisitorRole
from sluice_console.settings import ConsoleSettings, split_list
from sluice_protocol.errors import BadUsage, ErrorCode, Unauthenticated
from sluice_web.addresses import LOOPBACK_NAMES, parse_allowed_hosts, parse_listen, plain_address
from sluice_web.conflicts import ConflictAccess
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import check_json_type, decode_json_body, json_response
from sluice_web.problems import HttpRefusal
from sluice_web.tokens import CHALLENGE, Operator, name_of_token, needs_token, parse_operators

COOKIE: Final = "sluice_console"
CSRF_FIELD: Final = "X-CSRF-Token"
LOCAL_VIEWER: Final = Visitor(name="local", role=VisitorRole.VIEWER)
VISITOR: Final = web.RequestKey("visitor", Visitor)
BEGIN_PATH: Final = "/v1/oidc/login"
CALLBACK_PATH: Final = "/v1/oidc/callback"
_TOKEN_CHARS_MAX: Final = 4096

log = structlog.get_logger()


class LoginRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bearer token, to exchange for a cookie."""

    token: str


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """Who the visitor is.

    Attributes:
        name: The name; empty while no login exists.
        role: `viewer` or `operator`; empty while no login exists.
        csrf: The value of `X-CSRF-Token` in writes.
        needs_login: Whether the visitor must log in.
        login_exists: Whether the console has tokens to log in with.
        oidc: Whether it has an identity provider to log in at.
    """

    name: str
    role: str
    csrf: str
    needs_login: bool
    login_exists: bool
    oidc: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownVisitors:
    """Who is known, from the settings.

    Attributes:
        oidc: Users log in at an identity provider.
    """

    viewers: tuple[Operator, ...]
    operators: tuple[Operator, ...]
    proxies: frozenset[str]
    proxy_field: str
    proxy_operators: frozenset[str]
    oidc: bool = False

    @property
    def is_open(self) -> bool:
        """Whether every visitor is a viewer, because no one is configured."""
        return not (self.viewers or self.operators or self.proxies or self.oidc)

    def find_token(self, token: str) -> tuple[str, VisitorRole] | None:
        """Return whose token it is, or None."""
        operator = name_of_token(token, self.operators)
        if operator is not None:
            return operator, VisitorRole.OPERATOR
        viewer = name_of_token(token, self.viewers)
        return None if viewer is None else (viewer, VisitorRole.VIEWER)


def read_visitors(settings: ConsoleSettings) -> KnownVisitors:
    """Return who is known.

    Refuse a console that would be open beyond this machine.
    """
    known = KnownVisitors(
        viewers=parse_operators(settings.viewers),
        operators=parse_operators(settings.operators),
        proxies=parse_allowed_hosts(settings.proxy_addresses),
        proxy_field=settings.proxy_user_field,
        proxy_operators=frozenset(split_list(settings.proxy_operators)),
        oidc=bool(settings.oidc.issuer),
    )
    host, _ = parse_listen(settings.listen)
    if known.is_open and host not in LOOPBACK_NAMES:
        raise BadUsage(
            "cannot serve the console beyond this machine: set viewers, operators, oidc or"
            f" proxy_addresses, host=`{host}`"
        )
    return known


class ConsoleAccess:
    """Authenticates requests, and opens and closes sessions."""

    def __init__(self, known: KnownVisitors, sessions: SessionBook, limit: LoginLimit) -> None:
        self._known = known
        self._sessions = sessions
        self._limit = limit

    def middleware(self) -> Middleware:
        """Return the middleware that refuses requests of unknown visitors if they need a token."""

        @web.middleware
        async def authenticate(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            visitor = self._visitor_of(request)
            if visitor is not None:
                request[VISITOR] = visitor
            elif needs_token(request):
                raise Unauthenticated("the request contains no token and no session")
            return await handler(request)

        return authenticate

    def _visitor_of(self, request: web.Request) -> Visitor | None:
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme == CHALLENGE:
            found = self._known.find_token(token)
            return None if found is None else Visitor(name=found[0], role=found[1])
        visitor = self._sessions.find(request.cookies.get(COOKIE, ""))
        if visitor is not None:
            return visitor
        user = self._proxy_user(request)
        if user:
            role = (
                VisitorRole.OPERATOR if user in self._known.proxy_operators else VisitorRole.VIEWER
            )
            return Visitor(name=user, role=role, csrf=self._sessions.csrf_of(f"proxy:{user}"))
        return LOCAL_VIEWER if self._known.is_open else None

    def _proxy_user(self, request: web.Request) -> str:
        if plain_address(request.remote or "") not in self._known.proxies:
            return ""
        users = request.headers.getall(self._known.proxy_field, [])
        return users[0].strip() if len(users) == 1 else ""

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints of logins."""
        return (
            Endpoint(
                method="GET",
                path="/v1/session",
                handler=self._show,
                summary="Return who the visitor is",
                needs_token=False,
                result=SessionView,
            ),
            Endpoint(
                method="POST",
                path="/v1/login",
                handler=self._login,
                summary="Exchange a token for a cookie",
                needs_token=False,
                body=LoginRequest,
                result=SessionView,
            ),
            Endpoint(
                method="POST",
                path="/v1/logout",
                handler=self._logout,
                summary="End the session",
                result=SessionView,
            ),
        )

    def _view(self, visitor: Visitor | None) -> SessionView:
        return SessionView(
            name="" if visitor is None else visitor.name,
            role="" if visitor is None else visitor.role.value,
            csrf="" if visitor is None else visitor.csrf,
            needs_login=visitor is None,
            login_exists=bool(self._known.viewers or self._known.operators),
            oidc=self._known.oidc,
        )

    async def _show(self, request: web.Request) -> web.Response:
        return json_response(self._view(request.get(VISITOR)))

    async def _login(self, request: web.Request) -> web.Response:
        check_json_type(request)
        peer = request.remote or ""
        wait_s = self._limit.wait_s(peer)
        if wait_s > 0:
            log.info("console_login_limited", peer=peer)
            raise web.HTTPTooManyRequests(
                reason=f"too many failed logins: try again in {wait_s:.0f} s"
            )
        token = decode_json_body(await request.read(), LoginRequest).token
        found = self._known.find_token(token) if len(token) <= _TOKEN_CHARS_MAX else None
        if found is None:
            self._limit.count_failure(peer)
            raise Unauthenticated("a login with an unknown token")
        name, role = found
        session_id = self._sessions.open(name, role)
        log.info("console_login", by=name, role=role.value, peer=peer)
        response = json_response(self._view(self._sessions.find(session_id)))
        secure = request.headers.get(hdrs.ORIGIN, "").startswith("https://")
        set_session_cookie(response, session_id, secure=secure)
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        check_csrf(request)
        self._sessions.close(request.cookies.get(COOKIE, ""))
        response = json_response(self._view(LOCAL_VIEWER if self._known.is_open else None))
        response.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict")
        return response


def set_session_cookie(response: web.Response, session_id: str, *, secure: bool) -> None:
    """Add the cookie of a session to a response."""
    response.set_cookie(
        COOKIE, session_id, httponly=True, samesite="Strict", path="/", secure=secure
    )


def check_csrf(request: web.Request) -> Visitor:
    """Return the visitor of a write; refuse with 403 if the CSRF token is missing or wrong."""
    visitor = request[VISITOR]
    sent = request.headers.get(CSRF_FIELD, "")
    if visitor.csrf and not hmac.compare_digest(
        sent.encode(errors="replace"), visitor.csrf.encode()
    ):
        raise HttpRefusal(ErrorCode.FORBIDDEN, "the CSRF token is missing or wrong")
    return visitor


def check_operator(request: web.Request) -> Visitor:
    """Return the operator of a write; refuse with 403 as `check_csrf`, and other visitors."""
    visitor = check_csrf(request)
    if visitor.role is not VisitorRole.OPERATOR:
        raise HttpRefusal(ErrorCode.FORBIDDEN, "only operators may write")
    return visitor


def conflict_access(request: web.Request) -> ConflictAccess:
    """Return what a visitor may see and decide of conflicts."""
    visitor = request[VISITOR]
    if request.method == "POST":
        check_csrf(request)
    return ConflictAccess(
        principal=f"operator:{visitor.name}",
        agents=None,
        may_resolve=visitor.role is VisitorRole.OPERATOR,
    )
