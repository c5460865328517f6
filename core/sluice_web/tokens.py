"""Bearer tokens: who may use the API of a service for operators.

A service with a token accepts requests that contain it. A service without one accepts every
request, and may therefore listen on a loopback address only.
"""

import hmac
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from sluice_protocol.errors import BadUsage, Unauthenticated
from sluice_web.addresses import LOOPBACK_NAMES
from sluice_web.problems import Handler

CHALLENGE: Final = "Bearer"
"""The `WWW-Authenticate` field of a 401."""
GUARDED_PREFIX: Final = "/v1/"
"""Paths that need the token; health checks and metrics do not."""


def check_token_or_loopback(host: str, token: str) -> None:
    """Check that a service without a token listens on this machine only.

    Raises:
        BadUsage: The host is no loopback address and the token is empty.
    """
    if not token and host not in LOOPBACK_NAMES:
        raise BadUsage(f"set an api_token to listen beyond this machine, host=`{host}`")


def has_token(authorization: str, token: str) -> bool:
    """Return whether an `Authorization` field is `Bearer` with the token, in constant time.

    An empty token accepts every field. aiohttp decodes bytes that are not UTF-8 to surrogates.
    """
    sent = authorization.encode(errors="surrogateescape")
    return not token or hmac.compare_digest(sent, f"Bearer {token}".encode())


def token_middleware(token: str) -> Middleware:
    """Return the middleware that refuses requests below `/v1/` without the token."""

    @web.middleware
    async def require_token(request: web.Request, handler: Handler) -> web.StreamResponse:
        authorization = request.headers.get("Authorization", "")
        if request.path.startswith(GUARDED_PREFIX) and not has_token(authorization, token):
            raise Unauthenticated("the request does not contain the token")
        return await handler(request)

    return require_token
