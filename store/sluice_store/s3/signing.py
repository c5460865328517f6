"""Requests signed by botocore's own signer over a sha256 that is known already (ADR 0012)."""

from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest

from sluice_store.s3.exchange import Request
from sluice_store.s3.settings import Addressing

_PAYLOAD: Final = "payload_sha256"


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


class _KnownHashAuth(S3SigV4Auth):  # type: ignore[misc]
    """Signs the digest that the request brings along, where botocore would hash the body again."""

    def payload(self, request: AWSRequest) -> str:
        """Gives the digest of the body."""
        digest: str = request.context[_PAYLOAD]
        return digest


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def url_of(self, key: str, query: tuple[tuple[str, str], ...] = ()) -> str:
        """Gives the URL of a key, percent-encoded as signatures want it."""
        path = quote(key, safe="/-_.~")
        if self.addressing is Addressing.VIRTUAL:
            parts = urlsplit(self.endpoint)
            base = f"{parts.scheme}://{self.bucket}.{parts.netloc}/{path}"
        else:
            base = (
                f"{self.endpoint}/{self.bucket}/{path}"
                if path
                else f"{self.endpoint}/{self.bucket}"
            )
        pairs = sorted((quote(name, safe="-_.~"), quote(text, safe="-_.~")) for name, text in query)
        return f"{base}?{'&'.join(f'{name}={text}' for name, text in pairs)}" if pairs else base


async def sign(request: Request, address: Address, credentials: Credentials) -> dict[str, str]:
    """Gives every header that the request is sent with, its signature among them."""
    frozen = await credentials.get_frozen_credentials()
    unsigned = AWSRequest(
        method=request.method,
        url=address.url_of(request.key, request.query),
        headers=dict(request.headers),
    )
    unsigned.context[_PAYLOAD] = request.sha256
    _KnownHashAuth(frozen, "s3", address.region).add_auth(unsigned)
    return dict(unsigned.headers.items())
