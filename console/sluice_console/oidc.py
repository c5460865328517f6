"""Logins by OpenID Connect: decisions about identity tokens, roles and pending logins.

The authorization code flow with PKCE is used. joserfc verifies signatures and claims. Nothing here
performs a request.
"""

import base64
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from sluice_console.sessions import Role
from sluice_console.settings import OidcSettings, split_list
from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S

BEGIN_PATH: Final = "/v1/oidc/login"
CALLBACK_PATH: Final = "/v1/oidc/callback"
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
    """A login that was begun.

    Attributes:
        state: The value that the provider returns.
        nonce: The value that the identity token must contain.
        verifier: The secret of PKCE.
        browser: The value of the cookie of the browser that began it.
        ends_ns: When it ends, by the monotonic clock.
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

    Raises:
        ValueError: The signature or a claim is wrong, or the token is none; the message names it.
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


def role_of(claims: Mapping[str, Any], settings: OidcSettings) -> Role | None:
    """Return the role of a user from a claim; None if the claim gives none."""
    found: Any = claims
    for name in settings.roles_claim.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    values = {found} if isinstance(found, str) else set()
    if isinstance(found, list):
        values = {one for one in found if isinstance(one, str)}
    if values & set(split_list(settings.operator_roles)):
        return Role.OPERATOR
    viewers = set(split_list(settings.viewer_roles))
    return Role.VIEWER if not viewers or values & viewers else None


def name_of(claims: Mapping[str, Any], settings: OidcSettings) -> str:
    """Return the name by which records and the log name a user; the subject if it has no other."""
    name = claims.get(settings.name_claim)
    text = name if isinstance(name, str) and name.strip() else str(claims["sub"])
    return "".join(one for one in text.strip() if one.isprintable())[:NAME_CHARS_MAX]
