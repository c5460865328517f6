"""What could not be enqueued, and why: one record per accepted or quarantine key.

`reconciler/v1/unhealthy/<sha256 of the key, hex>.json`. A mark never stops anything and is never
the reason to skip: every pass looks again, and a batch that has healed is enqueued and its mark
removed.
"""

import hashlib
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Final, Literal

import msgspec

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import RECONCILER
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found, NotFound, ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore

UNHEALTHY: Final = f"{RECONCILER}unhealthy/"


class Reason(StrEnum):
    """Why a batch is held back."""

    BLOB_MISSING = "blob_missing"
    BLOB_CORRUPT = "blob_corrupt"
    INVALID_MANIFEST = "invalid_manifest"
    FOREIGN_KEY = "foreign_key"
    INVALID_BLOB_KEY = "invalid_blob_key"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One object that could not be enqueued.

    Attributes:
        key: The accepted or quarantine key.
        reason: Why.
        detail: What was found.
        seen_at_unix_ns: The store's clock when it was first seen so.
    """

    schema: Literal["sluice.reconciler_mark.v1"] = "sluice.reconciler_mark.v1"
    key: str
    reason: Reason
    detail: str
    seen_at_unix_ns: int


def mark_key(key: str) -> ObjectKey:
    """Gives where the mark of an object stands."""
    return ObjectKey(f"{UNHEALTHY}{hashlib.sha256(key.encode()).hexdigest()}.json")


async def put_mark(store: ObjectStore, mark: Mark) -> None:
    """Writes a mark where none stands; best effort, the next pass writes it again.

    Raises:
        StoreError: The store refused.
    """
    await store.create(mark_key(mark.key), encode_record(mark))


async def clear_mark(store: ObjectStore, key: str) -> None:
    """Removes the mark of an object that has healed.

    Raises:
        StoreError: The store refused.
    """
    place = mark_key(key)
    match await store.head(place):
        case ObjectInfo(incarnation=incarnation) if incarnation is not None:
            await store.delete(place, incarnation)
        case ObjectInfo() | NotFound():
            return


async def list_marks(store: ObjectStore) -> AsyncIterator[Mark]:
    """Reads every mark; one that cannot be read is left out.

    Raises:
        StoreError: The store did not answer.
    """
    async for page in store.list(UNHEALTHY):
        for listed in page.objects:
            match await store.get(listed.key):
                case NotFound():
                    continue
                case Found(body=body):
                    try:
                        yield decode_record(listed.key, body, Mark)
                    except InvalidRecord:
                        continue
