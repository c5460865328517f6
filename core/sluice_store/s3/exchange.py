"""One request on S3 and what came of it, whatever carries it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from sluice_protocol.resolution import ExchangeResult
from sluice_protocol.units import Digest, UnixNs
from sluice_store.port import IncarnationPage, ListPage, Versioning
from sluice_store.s3.answers import parse_date_ns

EMPTY_SHA256: Final = Digest("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request on an object, before it is signed.

    Attributes:
        method: `PUT`, `GET`, `HEAD` or `DELETE`.
        key: The key with the deployment's prefix; empty for the bucket itself.
        headers: Headers beside those of the signature; every one is signed.
        query: The query, in any order.
        sha256: The digest of the body.
    """

    method: str
    key: str
    headers: Mapping[str, str]
    query: tuple[tuple[str, str], ...] = ()
    sha256: Digest = EMPTY_SHA256


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and what came of it.

    Attributes:
        seen: How it ended, for the resolver.
        headers: Headers of the answer, empty without one.
        body: Body of a success.
        detail: What the store or the network said of a failure.
    """

    seen: ExchangeResult
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    detail: str = ""

    @property
    def date_ns(self) -> UnixNs:
        """The store's clock in the answer."""
        return parse_date_ns(self.headers)


class Transport(Protocol):
    """Carries one request to a bucket, once."""

    async def send(self, request: Request, body: bytes = b"") -> Exchange:
        """Sends it and reports what was seen; it raises nothing of the network."""
        ...


class Bucket(Protocol):
    """What is asked of a bucket beside its objects; prefixes and keys are the deployment's."""

    @property
    def name(self) -> str:
        """The bucket's name."""
        ...

    def objects(self, prefix: str, start_after: str, end_at: str | None) -> AsyncIterator[ListPage]:
        """Gives pages of current objects.

        Raises:
            StoreError: No answer, or a refusal.
        """
        ...

    def incarnations(
        self, prefix: str, start_after: str, end_at: str | None
    ) -> AsyncIterator[IncarnationPage]:
        """Gives pages of versions and delete markers.

        Raises:
            StoreError: No answer, or a refusal.
        """
        ...

    async def read_versioning(self) -> Versioning:
        """Reads whether the bucket keeps versions.

        Raises:
            StoreError: No answer, or a refusal.
        """
        ...
