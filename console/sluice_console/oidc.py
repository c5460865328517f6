"""Logins by OpenID Connect: decisions, endpoints, and requests to the provider.

The authorization code flow with PKCE is used. joserfc verifies signatures and claims.
"""

import base64
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec
import structlog
from aiohttp import hdrs, web
from yarl import URL

from sluice_console.access import BEGIN_PATH, CALLBACK_PATH, COOKIE, set_session_cookie
from sluice_console.sessions import LoginLimit, SessionBook, VisitorRole
from sluice_console.settings import OidcSettings, split_list
from sluice_protocol.clock import Clock
from sluice_protocol.errors import UNREADABLE_JSON
from sluice_protocol.units import NS_PER_S
from sluice_web.addresses import LOOPBACK_NAMES
from sluice_web.endpoints import Endpoint
from sluice_web.response_bodies import read_up_to

LOGIN_S: Final = 600.0
"""Time in which a login must be finished at the provider."""
LOGINS_MAX: Final = 1_000
"""Logins that are open concurrently; the oldest is dropped first."""
LEEWAY_S: Final = 60
"""Accepted difference between the clocks of the provider and of the console."""
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384")
"""Signatures with public keys only: `none` and the HMACs are refused."""
NAME_CHARS_MAX: Final = 200


class OidcRefusal(StrEnum):
    """Why a login was refused; the page explains each."""

    STATE = "state"
    """No open login of this browser: it was finished, has expired, or began elsewhere."""
    PROVIDER = "provider"
    """The provider refused the login, or is unreachable."""
    TOKEN = "token"  # noqa: S105 - the name of a reason
    """The identity token is invalid."""
    ROLE = "role"
    """The user has no role in this console."""


class ProviderMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a provider's configuration document that a login needs."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingLogin:
    """A login that was begun, with the secrets of state, nonce and PKCE.

    `browser` is the value of the cookie of the browser that began it; `ends_ns` is monotonic.
    """

    state: str
    nonce: str
    verifier: str
    browser: str
    ends_ns: int


class PendingLogins:
    """The open logins of this process, in bounded memory."""

    def __init__(self, clock: Clock, new_secret: Callable[[], str]) -> None:
        self._clock = clock
        self._new_secret = new_secret
        self._open: OrderedDict[str, PendingLogin] = OrderedDict()

    def begin(self) -> PendingLogin:
        """Open a login."""
        state, nonce, verifier, browser = (self._new_secret() for _ in range(4))
        ends_ns = self._clock.monotonic_ns() + int(LOGIN_S * NS_PER_S)
        login = PendingLogin(
            state=state, nonce=nonce, verifier=verifier, browser=browser, ends_ns=ends_ns
        )
        self._open[state] = login
        if len(self._open) > LOGINS_MAX:
            self._open.popitem(last=False)
        return login

    def finish(self, state: str, browser: str) -> PendingLogin | None:
        """Return the login of a state and remove it; None if this browser did not begin it."""
        login = self._open.get(state)
        if login is None or not hmac.compare_digest(
            login.browser.encode(), browser.encode(errors="replace")
        ):
            return None
        del self._open[state]
        return login if login.ends_ns > self._clock.monotonic_ns() else None


def authorization_url(
    metadata: ProviderMetadata, settings: OidcSettings, login: PendingLogin
) -> str:
    """Return the URL of the provider at which a browser logs in."""
    challenge = hashlib.sha256(login.verifier.encode()).digest()
    query = urlencode(
        {
            "response_type": "code",
            "client_id": settings.client_id,
            "redirect_uri": settings.redirect_url,
            "scope": settings.scope,
            "state": login.state,
            "nonce": login.nonce,
            "code_challenge": base64.urlsafe_b64encode(challenge).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
    )
    joined = "&" if "?" in metadata.authorization_endpoint else "?"
    return f"{metadata.authorization_endpoint}{joined}{query}"


def verify_id_token(
    token: str,
    keys: Mapping[str, Any],
    settings: OidcSettings,
    *,
    nonce: str,
    now_s: int,
) -> dict[str, Any]:
    """Return the claims of an identity token (OpenID Connect Core, section 3.1.3.7).

    `ValueError` names what is wrong.
    """
    from joserfc import jwt  # noqa: PLC0415 - an optional dependency
    from joserfc.errors import JoseError  # noqa: PLC0415 - as above
    from joserfc.jwk import KeySet  # noqa: PLC0415 - as above

    registry = jwt.JWTClaimsRegistry(
        now=now_s,
        leeway=LEEWAY_S,
        iss={"essential": True, "value": settings.issuer},
        aud={"essential": True, "value": settings.client_id},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
        nonce={"essential": True, "value": nonce},
    )
    try:
        claims = jwt.decode(
            token, KeySet.import_key_set({"keys": list(keys["keys"])}), list(ALGORITHMS)
        ).claims
        registry.validate(claims)
    except (JoseError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    audience = claims["aud"]
    several = isinstance(audience, list) and len(audience) > 1
    if (several or "azp" in claims) and claims.get("azp") != settings.client_id:
        raise ValueError("azp: the token was issued to another client")
    return dict(claims)


def role_of(claims: Mapping[str, Any], settings: OidcSettings) -> VisitorRole | None:
    """Return the role of a user from a claim; None if the claim gives none."""
    found: Any = claims
    for name in settings.roles_claim.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    values = {found} if isinstance(found, str) else set()
    if isinstance(found, list):
        values = {one for one in found if isinstance(one, str)}
    if values & set(split_list(settings.operator_roles)):
        return VisitorRole.OPERATOR
    viewers = set(split_list(settings.viewer_roles))
    return VisitorRole.VIEWER if not viewers or values & viewers else None


def name_of(claims: Mapping[str, Any], settings: OidcSettings) -> str:
    """Return the name by which records and the log name a user; the subject if it has no other."""
    name = claims.get(settings.name_claim)
    text = name if isinstance(name, str) and name.strip() else str(claims["sub"])
    return "".join(one for one in text.strip() if one.isprintable())[:NAME_CHARS_MAX]


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
                needs_token=False,
            ),
            Endpoint(
                method="GET",
                path=CALLBACK_PATH,
                handler=self._finish,
                summary="Finish a login at the identity provider",
                result_type="text/plain",
                linked=True,
                needs_token=False,
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

    async def _authenticate(self, request: web.Request) -> tuple[str, VisitorRole]:
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
