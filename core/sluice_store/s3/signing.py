"""Addresses of a bucket, and requests signed over a sha256 that is known (ADR 10).

botocore's signer is the reference: `tests/property/store/test_signing.py` compares every header.
"""

import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final
from urllib.parse import quote, urlsplit

from sluice_store.s3.credentials import FrozenCredentials
from sluice_store.s3.exchange import S3Request
from sluice_store.s3.settings import Addressing

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_SUBRESOURCES: Final = frozenset({"versioning"})
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9/=_.~-]*")


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
    """The URL of a bucket: `endpoint` is scheme, host and port, and signatures name `region`."""

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
        return f"/{path}?{'&'.join(map(_pair, pairs))}"


def _pair(pair: tuple[str, str]) -> str:
    """Return a query parameter as it is sent; moto ignores `versioning=` with an empty value."""
    name, text = pair
    return name if name in _SUBRESOURCES and not text else f"{name}={text}"


def sign(
    request: S3Request, url: str, address: BucketAddress, frozen: FrozenCredentials
) -> dict[str, str]:
    """Return every header of a request to `url`, including its signature.

    The signature is Version 4 over every header that is sent, and over the known sha256. Path and
    query of the URL must be in canonical form, as `BucketAddress.target_of` returns them.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = {**request.headers, "X-Amz-Date": stamp}
    if frozen.token:
        headers["X-Amz-Security-Token"] = frozen.token
    headers["X-Amz-Content-SHA256"] = request.sha256
    signed = [(name.lower(), " ".join(text.split())) for name, text in headers.items()]
    signed.append(("host", address.host))
    signed.sort()
    names = ";".join([name for name, _ in signed])
    lines = "\n".join([f"{name}:{text}" for name, text in signed])
    path, _, query = url[len(address.origin) :].partition("?")
    if query in _SUBRESOURCES:
        query += "="  # a signature covers it with an empty value
    canonical = f"{request.method}\n{path}\n{query}\n{lines}\n\n{names}\n{request.sha256}"
    scope = f"{stamp[:8]}/{address.region}/s3/aws4_request"
    text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = _day_key(frozen.secret_key, stamp[:8], address.region)
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["Authorization"] = (
        f"{_ALGORITHM} Credential={frozen.access_key}/{scope}, SignedHeaders={names},"
        f" Signature={signature}"
    )
    return headers
