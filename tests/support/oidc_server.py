"""A small identity provider with OpenID Connect, as a process that prints its URL.

It checks what a provider must check: the redirect URL, PKCE, the secret, and that a code is used
once. `POST /faults` sets what is wrong with the next identity tokens.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import sys
import time
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "sluice-console", "secret-of-the-console"


class Provider:
    """The provider, with one user whose claims `faults` can change."""

    def __init__(self) -> None:
        self.url = ""
        self.key = RSAKey.generate_key(2048, {"kid": "one"}, auto_kid=False)
        self.other = RSAKey.generate_key(2048, {"kid": "one"}, auto_kid=False)
        self.faults: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}

    async def configuration(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.faults.get("configured_issuer", self.url),
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/jwks",
            }
        )

    async def jwks(self, _: web.Request) -> web.Response:
        return web.json_response({"keys": [self.key.as_dict(private=False)]})

    async def authorize(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        assert query["client_id"] == CLIENT
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        answer = {"state": query["state"], "iss": self.faults.get("response_issuer", self.url)}
        if "denied" in self.faults:
            answer["error"] = "access_denied"
        else:
            answer["code"] = secrets.token_urlsafe(16)
            self.codes[answer["code"]] = query
        return web.Response(
            status=302, headers={"Location": f"{query['redirect_uri']}?{urlencode(answer)}"}
        )

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        asked = self.codes.pop(str(form["code"]), None)
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        if (
            asked is None
            or asked["code_challenge"] != _encoded(digest)
            or asked["redirect_uri"] != form["redirect_uri"]
            or (form["client_id"], form["client_secret"]) != (CLIENT, SECRET)
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response({"id_token": self._id_token(asked), "token_type": "Bearer"})

    def _id_token(self, asked: dict[str, str]) -> str:
        now_s = int(time.time())
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "248289761001",
            "preferred_username": "olga",
            "groups": ["ops"],
            "nonce": asked["nonce"],
            "iat": now_s,
            "exp": now_s + 300,
        } | self.faults.get("claims", {})
        claims = {name: value for name, value in claims.items() if value is not None}
        match self.faults.get("signed"):
            case "none":
                return f"{_unsigned('none', claims)}."
            case "hmac":  # with the public key as the secret
                head = _unsigned("HS256", claims)
                secret = self.key.as_pem(private=False)
                return f"{head}.{_encoded(hmac.digest(secret, head.encode(), 'sha256'))}"
            case "other key":
                return jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.other)
        return jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)

    async def set_faults(self, request: web.Request) -> web.Response:
        self.faults = await request.json()
        return web.json_response({})


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unsigned(algorithm: str, claims: dict[str, Any]) -> str:
    """Return the part of a token that its signature covers."""
    parts = [{"alg": algorithm, "kid": "one"}, claims]
    return ".".join(_encoded(json.dumps(one).encode()) for one in parts)


async def serve() -> None:
    """Serve until the process is killed."""
    provider = Provider()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", provider.configuration)
    app.router.add_get("/jwks", provider.jwks)
    app.router.add_get("/authorize", provider.authorize)
    app.router.add_post("/token", provider.token)
    app.router.add_post("/faults", provider.set_faults)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    sys.stdout.write(f"{provider.url}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
