"""Bearer tokens: who may use the API of a service for operators.

A service with a token accepts requests that contain it. A service without one accepts every
request, and may therefore listen on a loopback address only.

A service may also know operators. Each has a separate token, of which the service has only the
sha256. The name of the operator is recorded with what the request changes.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from sluice_protocol.errors import BadUsage, Unauthenticated
from sluice_web.addresses import LOOPBACK_NAMES
from sluice_web.problems import Handler

CHALLENGE: Final = "Bearer"
"""The `WWW-Authenticate` field of a 401."""
OPEN_PATHS: Final = web.AppKey("open_paths", frozenset[str])
"""The paths of an application that need no token: a new endpoint needs one until it is declared."""
_OPERATOR: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._@-]{0,63})=([0-9a-f]{64})", re.ASCII)
_SHOWN_CHARS_MAX: Final = 40


def check_token_or_loopback(host: str, token: str) -> None:
    """Check that a service without a token listens on this machine only."""
    if not token and host not in LOOPBACK_NAMES:
        raise BadUsage(f"set an api_token to listen beyond this machine, host=`{host}`")


def has_token(authorization: str, token: str) -> bool:
    """Return whether an `Authorization` field is `Bearer` with the token, in constant time.

    An empty token accepts every field. aiohttp decodes bytes that are not UTF-8 to surrogates.
    """
    sent = authorization.encode(errors="surrogateescape")
    return not token or hmac.compare_digest(sent, f"Bearer {token}".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A person or program with a separate token, stored as its sha256 in lower-case hex."""

    name: str
    token_sha256: str


def parse_operators(text: str) -> tuple[Operator, ...]:
    """Parse `name=<sha256 of the token>`, several separated by commas."""
    operators = tuple(_parse_operator(item.strip()) for item in text.split(",") if item.strip())
    names = {one.name for one in operators}
    digests = {one.token_sha256 for one in operators}
    if len(names) < len(operators) or len(digests) < len(operators):
        raise BadUsage("a name or a token occurs twice in operators: use one item for each")
    return operators


def _parse_operator(item: str) -> Operator:
    found = _OPERATOR.fullmatch(item)
    if found is None:
        raise BadUsage(
            "invalid item in operators: use name=<sha256 of the token, 64 hexadecimal digits>,"
            f" name=`{item.partition('=')[0][:_SHOWN_CHARS_MAX]}`"
        )
    return Operator(name=found[1], token_sha256=found[2])


def token_sha256(token: str) -> str:
    """Return the sha256 of a token as settings contain it, lower-case hexadecimal.

    aiohttp decodes bytes that are not UTF-8 to surrogates.
    """
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def operator_of(authorization: str, operators: Sequence[Operator]) -> str | None:
    """Return the name of the operator whose token an `Authorization` field contains, or None."""
    scheme, _, token = authorization.partition(" ")
    name = name_of_token(token, operators)
    return name if scheme == CHALLENGE else None


def name_of_token(token: str, known: Sequence[Operator]) -> str | None:
    """Return the owner of a token, or None. All digests are compared, in constant time."""
    sent = token_sha256(token)
    names = [one.name for one in known if hmac.compare_digest(one.token_sha256, sent)]
    return names[0] if names else None


def needs_token(request: web.Request) -> bool:
    """Return whether the endpoint of a request needs a token; an unknown path does not."""
    resource = request.match_info.route.resource
    return resource is None or resource.canonical not in request.app[OPEN_PATHS]


def token_middleware(token: str, operators: Sequence[Operator] = ()) -> Middleware:
    """Return the middleware that refuses requests without a known token if they need one."""

    @web.middleware
    async def require_token(request: web.Request, handler: Handler) -> web.StreamResponse:
        authorization = request.headers.get("Authorization", "")
        known = has_token(authorization, token) or operator_of(authorization, operators)
        if not known and needs_token(request):
            raise Unauthenticated("the request does not contain the token")
        return await handler(request)

    return require_token
