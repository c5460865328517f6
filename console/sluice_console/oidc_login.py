"""The endpoints of a login by OpenID Connect, and the requests to the provider."""

from typing import Any, Final, TypeVar

import aiohttp
import msgspec
import structlog
from aiohttp import hdrs, web
from yarl import URL

from sluice_console.access import COOKIE, set_session_cookie
from sluice_console.oidc import (
    BEGIN_PATH,
    CALLBACK_PATH,
    LOGIN_S,
    OidcRefusal,
    PendingLogin,
    PendingLogins,
    ProviderMetadata,
    authorization_url,
    name_of,
    role_of,
    verify_id_token,
)
from sluice_console.sessions import LoginLimit, Role, SessionBook
from sluice_console.settings import OidcSettings
from sluice_protocol.clock import Clock
from sluice_protocol.errors import UNREADABLE_JSON
from sluice_protocol.units import NS_PER_S
from sluice_web.addresses import LOOPBACK_NAMES
from sluice_web.endpoints import Endpoint
from sluice_web.response_bodies import read_up_to

LOGIN_COOKIE: Final = "sluice_console_login"
TIMEOUT_S: Final = 10.0
BODY_BYTES_MAX: Final = 256 * 1024
KEPT_S: Final = 3600.0
"""Time for which the provider's configuration and keys are remembered."""
REFRESH_S: Final = 60.0
"""Shortest time between two readings of the keys because a token was not verified."""

_Body = TypeVar("_Body")

log = structlog.get_logger()


class _LoginRefused(Exception):
    """A login is refused; `reason` is for the log only."""

    def __init__(self, why: OidcRefusal, reason: str) -> None:
        super().__init__(why, reason)
        self.why = why
        self.reason = reason


def _failed(reason: str) -> _LoginRefused:
    """Return the refusal because the provider did not send a usable response."""
    return _LoginRefused(OidcRefusal.PROVIDER, reason)


class _TokenResponse(msgspec.Struct, frozen=True):
    id_token: str


class OidcProvider:
    """Reads the provider's configuration and keys, and exchanges codes."""

    def __init__(
        self, session: aiohttp.ClientSession, settings: OidcSettings, clock: Clock
    ) -> None:
        self._session = session
        self._settings = settings
        self._clock = clock
        self._metadata: tuple[int, ProviderMetadata] | None = None
        self._keys: tuple[int, dict[str, Any]] | None = None

    async def metadata(self) -> ProviderMetadata:
        """Return the configuration of the provider."""
        now_ns = self._clock.monotonic_ns()
        if self._metadata is None or now_ns - self._metadata[0] > KEPT_S * NS_PER_S:
            url = f"{self._settings.issuer.rstrip('/')}/.well-known/openid-configuration"
            found = _decoded(await self._send("GET", url), ProviderMetadata)
            if found.issuer != self._settings.issuer:
                raise _failed(f"its configuration names another issuer, `{found.issuer}`")
            self._metadata = (now_ns, found)
        return self._metadata[1]

    async def keys(self) -> dict[str, Any]:
        """Return the keys of the provider."""
        now_ns = self._clock.monotonic_ns()
        if self._keys is None or now_ns - self._keys[0] > KEPT_S * NS_PER_S:
            body = await self._send("GET", (await self.metadata()).jwks_uri)
            self._keys = (now_ns, _decoded(body, dict[str, Any]))
        return self._keys[1]

    async def newer_keys(self) -> dict[str, Any] | None:
        """Read the keys again; return None if they were read a moment ago."""
        now_ns = self._clock.monotonic_ns()
        if self._keys is not None and now_ns - self._keys[0] < REFRESH_S * NS_PER_S:
            return None
        self._keys = None
        return await self.keys()

    async def exchange(self, code: str, login: PendingLogin) -> str:
        """Exchange a code for an identity token."""
        settings = self._settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": settings.redirect_url,
            "client_id": settings.client_id,
            "code_verifier": login.verifier,
        }
        if settings.client_secret:
            form["client_secret"] = settings.client_secret
        body = await self._send("POST", (await self.metadata()).token_endpoint, form)
        return _decoded(body, _TokenResponse).id_token

    async def _send(self, method: str, url: str, form: dict[str, str] | None = None) -> bytes:
        target = URL(url)
        if target.scheme != "https" and target.host not in LOOPBACK_NAMES:
            raise _failed(f"an endpoint without TLS, url=`{url}`")
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self._session.request(
                method, target, data=form, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:  # noqa: PLR2004 - RFC 9110 section 15.3.1
                    raise _failed(f"status {response.status}, url=`{url}`")
                return await read_up_to(response, BODY_BYTES_MAX)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _failed(f"unreachable: {error}, url=`{url}`") from error


def _decoded(body: bytes, kind: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE_JSON as error:
        raise _failed(f"an unreadable response: {error}") from error


class OidcLogin:
    """The endpoints of a login by OpenID Connect."""

    def __init__(
        self,
        provider: OidcProvider,
        settings: OidcSettings,
        logins: PendingLogins,
        sessions: SessionBook,
        limit: LoginLimit,
        clock: Clock,
    ) -> None:
        self._provider = provider
        self._settings = settings
        self._logins = logins
        self._sessions = sessions
        self._limit = limit
        self._clock = clock

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path=BEGIN_PATH,
                handler=self._begin,
                summary="Redirect the browser to the identity provider",
                result_type="text/plain",
            ),
            Endpoint(
                method="GET",
                path=CALLBACK_PATH,
                handler=self._finish,
                summary="Finish a login at the identity provider",
                result_type="text/plain",
                linked=True,
            ),
        )

    async def _begin(self, request: web.Request) -> web.Response:
        wait_s = self._limit.wait_s(request.remote or "")
        if wait_s > 0:
            log.info("console_login_limited", peer=request.remote)
            raise web.HTTPTooManyRequests(
                reason=f"too many failed logins: try again in {wait_s:.0f} s"
            )
        try:
            metadata = await self._provider.metadata()
        except _LoginRefused as refused:
            return self._refused(request, refused)
        login = self._logins.begin()
        response = _redirect(authorization_url(metadata, self._settings, login))
        # Lax: the browser returns by a link of the provider.
        response.set_cookie(
            LOGIN_COOKIE,
            login.browser,
            httponly=True,
            samesite="Lax",
            path=CALLBACK_PATH,
            max_age=int(LOGIN_S),
            secure=self._settings.redirect_url.startswith("https://"),
        )
        return response

    async def _finish(self, request: web.Request) -> web.Response:
        try:
            name, role = await self._authenticate(request)
        except _LoginRefused as refused:
            return self._refused(request, refused)
        log.info("console_login", by=name, role=role.value, peer=request.remote, via="oidc")
        self._sessions.close(request.cookies.get(COOKIE, ""))
        response = _redirect("/")
        secure = self._settings.redirect_url.startswith("https://")
        set_session_cookie(response, self._sessions.open(name, role), secure=secure)
        response.del_cookie(LOGIN_COOKIE, path=CALLBACK_PATH)
        return response

    async def _authenticate(self, request: web.Request) -> tuple[str, Role]:
        query = request.query
        login = self._logins.finish(query.get("state", ""), request.cookies.get(LOGIN_COOKIE, ""))
        if login is None:
            raise _LoginRefused(OidcRefusal.STATE, "no open login of this browser")
        if query.get("iss", self._settings.issuer) != self._settings.issuer:  # RFC 9207
            raise _LoginRefused(OidcRefusal.TOKEN, "a response of another issuer")
        if "code" not in query:
            raise _LoginRefused(OidcRefusal.PROVIDER, query.get("error", "no code")[:100])
        claims = await self._claims(query["code"], login)
        name, role = name_of(claims, self._settings), role_of(claims, self._settings)
        if role is None:
            raise _LoginRefused(OidcRefusal.ROLE, f"no role, user=`{name}`")
        return name, role

    async def _claims(self, code: str, login: PendingLogin) -> dict[str, Any]:
        token = await self._provider.exchange(code, login)
        try:
            return self._verified(token, await self._provider.keys(), login)
        except ValueError as error:
            # The provider may have new keys since they were read.
            newer = await self._provider.newer_keys()
            if newer is None:
                raise _LoginRefused(OidcRefusal.TOKEN, str(error)) from error
        try:
            return self._verified(token, newer, login)
        except ValueError as error:
            raise _LoginRefused(OidcRefusal.TOKEN, str(error)) from error

    def _verified(self, token: str, keys: dict[str, Any], login: PendingLogin) -> dict[str, Any]:
        now_s = self._clock.now_ns() // NS_PER_S
        return verify_id_token(token, keys, self._settings, nonce=login.nonce, now_s=now_s)

    def _refused(self, request: web.Request, refused: _LoginRefused) -> web.Response:
        self._limit.count_failure(request.remote or "")
        log.info(
            "console_login_refused",
            why=refused.why.value,
            reason=refused.reason,
            peer=request.remote,
        )
        return _redirect(f"/#overview?login={refused.why.value}")


def _redirect(url: str) -> web.Response:
    return web.Response(status=303, headers={hdrs.LOCATION: url})
