"""Addresses of a bucket, and requests signed by botocore over a sha256 that is known (ADR 0012).

`tests/unit/store/test_botocore_internals.py` checks each name of botocore that is overridden here.
"""

import hmac
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth

from sluice_store.s3.exchange import S3Request
from sluice_store.s3.settings import Addressing

_PAYLOAD: Final = "payload_sha256"
_HOST: Final = "host"
_ORIGIN: Final = "origin"
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9/=_.~-]*")


class FrozenCredentials(Protocol):
    """Credentials at one point in time."""

    access_key: str
    secret_key: str
    token: str | None


class Credentials(Protocol):
    """Credentials that renew themselves before they expire."""

    async def get_frozen_credentials(self) -> FrozenCredentials:
        """Return credentials that are valid now."""
        ...


@dataclass(slots=True)
class _Unsigned:
    """The fields of botocore's request that its signer reads, without the cost of the others."""

    method: str
    url: str
    headers: dict[str, str]
    context: dict[str, str]
    params: None = None


class _KnownHashAuth(S3SigV4Auth):  # type: ignore[misc]
    """botocore's signer, given the digest and the host that it would compute again.

    Each override returns what the original returns (`tests/property/store/test_signing.py`), in a
    third of the time: plain dictionaries, and one derived key a day.
    """

    def payload(self, request: _Unsigned) -> str:
        """Return the digest of the body, which botocore would compute again."""
        return request.context[_PAYLOAD]

    def canonical_request(self, request: _Unsigned) -> str:
        """Return the canonical request; path and query of the URL are in canonical form already."""
        path, _, query = request.url[len(request.context[_ORIGIN]) :].partition("?")
        headers = self.headers_to_sign(request)
        return "\n".join(
            (
                *(request.method.upper(), path, query, self.canonical_headers(headers), ""),
                *(self.signed_headers(headers), self.payload(request)),
            )
        )

    def headers_to_sign(self, request: _Unsigned) -> dict[str, str]:
        """Return every header that is sent, and the host."""
        named = {name.lower(): text for name, text in request.headers.items()}
        named.setdefault("host", request.context[_HOST])
        return named

    def canonical_headers(self, headers_to_sign: dict[str, str]) -> str:
        """Return the signed headers, sorted, with repeated blanks collapsed."""
        pairs = sorted(headers_to_sign.items())
        return "\n".join(f"{name}:{' '.join(text.split())}" for name, text in pairs)

    def signed_headers(self, headers_to_sign: dict[str, str]) -> str:
        """Return the names of the signed headers."""
        return ";".join(sorted(headers_to_sign))

    def signature(self, string_to_sign: str, request: _Unsigned) -> str:
        """Return the signature under the key of the day."""
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


def _quote_path(key: str) -> str:
    if _PLAIN_KEY.fullmatch(key) is not None:
        return key.replace("=", "%3D")  # `quote` encodes such a key byte by byte
    return quote(key, safe="/-_.~")


@dataclass(frozen=True, kw_only=True)
class BucketAddress:
    """The URL of a bucket.

    Attributes:
        endpoint: Scheme, host and port.
        region: The region that signatures name.
        bucket: The bucket.
        addressing: Where its name is in a URL.
    """

    endpoint: str
    region: str
    bucket: str
    addressing: Addressing

    @cached_property
    def host(self) -> str:
        """The value of the `Host` header: without the port that the scheme implies."""
        parts = urlsplit(self.endpoint)
        default = {"http": 80, "https": 443}[parts.scheme] == parts.port
        place = (parts.hostname or "") if default else parts.netloc
        return f"{self.bucket}.{place}" if self.addressing is Addressing.VIRTUAL else place

    @cached_property
    def origin(self) -> str:
        """Scheme, host and port to connect to."""
        parts = urlsplit(self.endpoint)
        bucket = f"{self.bucket}." if self.addressing is Addressing.VIRTUAL else ""
        return f"{parts.scheme}://{bucket}{parts.netloc}"

    def target_of(self, key: str, query: tuple[tuple[str, str], ...] = ()) -> str:
        """Return the path and query of a key, percent-encoded as signatures require."""
        path = _quote_path(key)
        if self.addressing is Addressing.PATH:
            path = f"{self.bucket}/{path}" if path else self.bucket
        if not query:
            return f"/{path}"
        pairs = sorted((quote(name, safe="-_.~"), quote(text, safe="-_.~")) for name, text in query)
        return f"/{path}?{'&'.join(f'{name}={text}' for name, text in pairs)}"


async def sign(
    request: S3Request, url: str, address: BucketAddress, credentials: Credentials
) -> dict[str, str]:
    """Return every header of a request to `url`, including its signature."""
    frozen = await credentials.get_frozen_credentials()
    unsigned = _Unsigned(
        method=request.method,
        url=url,
        headers=dict(request.headers),
        context={_PAYLOAD: request.sha256, _HOST: address.host, _ORIGIN: address.origin},
    )
    _KnownHashAuth(frozen, "s3", address.region).add_auth(unsigned)
    return unsigned.headers
