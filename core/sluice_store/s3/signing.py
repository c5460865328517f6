"""Requests signed by botocore's own signer over a sha256 that is known already (ADR 0012)."""

import hmac
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth

from sluice_store.s3.exchange import Request
from sluice_store.s3.settings import Addressing

_PAYLOAD: Final = "payload_sha256"
_HOST: Final = "host"


class FrozenCredentials(Protocol):
    """Credentials of one moment."""

    access_key: str
    secret_key: str
    token: str | None


class Credentials(Protocol):
    """Credentials that renew themselves before they expire."""

    async def get_frozen_credentials(self) -> FrozenCredentials:
        """Gives credentials that are good now."""
        ...


@dataclass(slots=True)
class _Unsigned:
    """The parts of botocore's request that its signer looks at, without the rest of its weight."""

    method: str
    url: str
    headers: dict[str, str]
    context: dict[str, str]
    params: None = None


class _KnownHashAuth(S3SigV4Auth):  # type: ignore[misc]
    """botocore's signer, told the digest and the host that it would work out again.

    Each override gives what the original gives (`tests/property/store/test_signing.py`), for a
    third of its time: plain dictionaries, and one derived key a day.
    """

    def payload(self, request: _Unsigned) -> str:
        """Gives the digest of the body, where botocore would hash the body again."""
        return request.context[_PAYLOAD]

    def headers_to_sign(self, request: _Unsigned) -> dict[str, str]:
        """Gives every header that is sent, and the host."""
        named = {name.lower(): text for name, text in request.headers.items()}
        named.setdefault("host", request.context[_HOST])
        return named

    def canonical_headers(self, headers_to_sign: dict[str, str]) -> str:
        """Gives the signed headers, sorted, blanks squeezed."""
        pairs = sorted(headers_to_sign.items())
        return "\n".join(f"{name}:{' '.join(text.split())}" for name, text in pairs)

    def signed_headers(self, headers_to_sign: dict[str, str]) -> str:
        """Gives the names of the signed headers."""
        return ";".join(sorted(headers_to_sign))

    def signature(self, string_to_sign: str, request: _Unsigned) -> str:
        """Gives the signature under the key of the day."""
        key = _day_key(
            self.credentials.secret_key, request.context["timestamp"][:8], self._region_name
        )
        return hmac.new(key, string_to_sign.encode(), "sha256").hexdigest()


@lru_cache(maxsize=16)
def _day_key(secret: str, day: str, region: str) -> bytes:
    key = hmac.digest(f"AWS4{secret}".encode(), day.encode(), "sha256")
    for part in (region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a bucket is reached.

    Attributes:
        endpoint: Scheme, host and port.
        region: The region that signatures name.
        bucket: The bucket.
        addressing: Where its name stands.
    """

    endpoint: str
    region: str
    bucket: str
    addressing: Addressing

    @cached_property
    def host(self) -> str:
        """The host as the `Host` header names it: without the port that the scheme implies."""
        parts = urlsplit(self.endpoint)
        default = {"http": 80, "https": 443}[parts.scheme] == parts.port
        place = (parts.hostname or "") if default else parts.netloc
        return f"{self.bucket}.{place}" if self.addressing is Addressing.VIRTUAL else place

    @cached_property
    def origin(self) -> str:
        """Scheme, host and port to connect to, the bucket's name in it where it stands there."""
        parts = urlsplit(self.endpoint)
        bucket = f"{self.bucket}." if self.addressing is Addressing.VIRTUAL else ""
        return f"{parts.scheme}://{bucket}{parts.netloc}"

    def target_of(self, key: str, query: tuple[tuple[str, str], ...] = ()) -> str:
        """Gives the path and query of a key, percent-encoded as signatures want it."""
        path = quote(key, safe="/-_.~")
        if self.addressing is Addressing.PATH:
            path = f"{self.bucket}/{path}" if path else self.bucket
        if not query:
            return f"/{path}"
        pairs = sorted((quote(name, safe="-_.~"), quote(text, safe="-_.~")) for name, text in query)
        return f"/{path}?{'&'.join(f'{name}={text}' for name, text in pairs)}"

    def url_of(self, key: str, query: tuple[tuple[str, str], ...] = ()) -> str:
        """Gives the URL of a key."""
        return self.origin + self.target_of(key, query)


async def sign(
    request: Request, url: str, address: Address, credentials: Credentials
) -> dict[str, str]:
    """Gives every header that a request to `url` is sent with, its signature among them."""
    frozen = await credentials.get_frozen_credentials()
    unsigned = _Unsigned(
        method=request.method,
        url=url,
        headers=dict(request.headers),
        context={_PAYLOAD: request.sha256, _HOST: address.host},
    )
    _KnownHashAuth(frozen, "s3", address.region).add_auth(unsigned)
    return unsigned.headers
