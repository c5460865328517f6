"""The object-store port: few verbs over whole objects, every outcome of a write by name.

A verb returns what the store decided. It raises `StoreError` only for a definite failure: the
request did nothing (it was refused, or never sent). A write whose fate is not known is never an
exception, it is the value `Unknown`. Reads have no such value: a read that failed raises
`StoreUnavailable` and may be made again.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sluice_protocol.outcomes import (
    CreateOutcome,
    DeleteOutcome,
    GetOutcome,
    HeadOutcome,
    ObjectInfo,
    OverwriteOutcome,
    ReplaceOutcome,
)
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion, UnixNs


class Versioning(StrEnum):
    """Whether a delete of an incarnation can spare a newer one. GC runs on `ENABLED` alone."""

    ENABLED = "Enabled"
    SUSPENDED = "Suspended"
    OFF = "Off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedObject:
    """One current object in a listing; a listing carries no checksum."""

    key: ObjectKey
    size_bytes: int
    etag: ETag
    last_modified_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """One answer of a listing, in key order (UTF-8 bytes).

    Attributes:
        objects: At most 1 000 objects after the previous page.
        date_ns: The store's clock in this answer.
        last: Whether the store said that nothing follows.
    """

    objects: tuple[ListedObject, ...]
    date_ns: UnixNs
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedIncarnation:
    """One stored version of a key, or a delete marker over it.

    Attributes:
        key: The key.
        incarnation: The version id, `null` when it was written without versioning.
        current: Whether it is what a read of the key sees.
        marker: Whether it is a delete marker; a marker has size 0.
        size_bytes: Length of the body.
        etag: The tag of this state.
        last_modified_ns: The store's stamp of this version.
    """

    key: ObjectKey
    incarnation: ObjectVersion
    current: bool
    marker: bool
    size_bytes: int
    etag: ETag
    last_modified_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationPage:
    """One answer of a listing of incarnations, in key order, newest first within a key."""

    incarnations: tuple[ListedIncarnation, ...]
    date_ns: UnixNs
    last: bool


class ObjectStore(Protocol):
    """What sluice asks of an object store. Keys are relative to the deployment's prefix.

    All adapters pass `sluice_store.conformance`.
    """

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        """Writes `body` where nothing stands (`If-None-Match: *`); durable when `Applied`.

        Args:
            key: The key.
            body: The whole object.
            sha256: The digest of `body` when the caller knows it; computed otherwise, once.

        Raises:
            StoreError: The store refused, or the request was never sent. Nothing was written.
        """
        ...

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        """Writes `body` over the state tagged `if_match` and no other.

        An ETag of S3 has ABA: a body written so must never repeat (revision and nonce inside).

        Raises:
            StoreError: The store refused, or the request was never sent. Nothing was written.
        """
        ...

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        """Writes `body` whatever stands there; with versioning the old one stays noncurrent.

        Raises:
            StoreError: The store refused, or the request was never sent. Nothing was written.
        """
        ...

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        """Reads an object, or its bytes `first` to `last`, both inclusive, cut at its end.

        Raises:
            StoreError: No answer, or a refusal.
        """
        ...

    async def head(self, key: ObjectKey) -> HeadOutcome:
        """Reads what the store knows of an object, checksum included where it has one.

        Raises:
            StoreError: No answer, or a refusal.
        """
        ...

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        """Reads what the store knows of one exact version, current or not.

        Raises:
            StoreError: No answer, or a refusal.
        """
        ...

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        """Removes exactly this incarnation; any other of the key stays.

        Raises:
            StoreError: The store refused, or the request was never sent. Nothing was deleted.
        """
        ...

    def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        """Lists current objects under `prefix` with `start_after < key <= end_at`, page by page.

        At least one page comes, so the caller always learns the store's clock.

        Raises:
            StoreError: No answer, or a refusal; the pages before it are good.
        """
        ...

    def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        """Lists every incarnation and marker under `prefix`, as `list` does.

        Raises:
            StoreError: No answer, or a refusal; the pages before it are good.
        """
        ...

    async def read_versioning(self) -> Versioning:
        """Reads whether the store keeps versions now; it is never cached.

        Raises:
            StoreError: No answer, or a refusal.
        """
        ...


__all__ = [
    "IncarnationPage",
    "ListPage",
    "ListedIncarnation",
    "ListedObject",
    "ObjectInfo",
    "ObjectStore",
    "Versioning",
]
