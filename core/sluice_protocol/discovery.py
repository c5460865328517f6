"""What the reconciler stores about discovery: how far it is complete, and which batches it holds.

- `reconciler/v1/discovery.json`: every batch that a gateway acknowledged before an instant of the
  store's clock is enqueued in every queue, or has a hold record. Swapped as a whole.
- `reconciler/v1/unhealthy/<sha256 of the held key, hex>.json`: a hold record. It never stops a
  batch and is never a reason to skip one.

Queries read both to report what an answer may be missing. Source: ADR 22.
"""

import hashlib
from enum import StrEnum
from typing import Final, Literal

import msgspec

from sluice_protocol.keys import RECONCILER
from sluice_protocol.units import ObjectKey

DISCOVERY: Final = ObjectKey(f"{RECONCILER}discovery.json")
UNHEALTHY: Final = f"{RECONCILER}unhealthy/"


class DiscoveryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far discovery is complete.

    Attributes:
        complete_through_unix_ns: Every batch that a gateway acknowledged before this time of the
            store's clock is enqueued in every queue, or has a hold record.
        listed: Number of keys under `accepted/` in the last complete full pass.
        held_by: The gateway and the process whose journal holds the time back, as text; None if
            none does, or if full passes decide the time.
        journals: The last journal object of each registered process through which every entry is
            enqueued or held. A process that is missing has no processed object.
        lanes: The lanes whose time is later than `complete_through_unix_ns`, three digits each.
        pass_began_unix_ns: When the last complete full pass began. Every batch whose manifest
            existed then is enqueued or held, acknowledged or not.
        pass_queues: The queues that this pass compared.
        journaled_since_unix_ns: Since when every gateway is known to write a journal. None while
            only full passes decide the time.
        revision: Number of the write.
        writer: Identifies the write; with `revision` it makes the bytes of each write unique.
    """

    schema: Literal["sluice.reconciler_discovery.v2"] = "sluice.reconciler_discovery.v2"
    complete_through_unix_ns: int
    listed: int
    held_by: str | None = None
    journals: dict[str, int] = {}
    lanes: dict[str, int] = {}
    pass_began_unix_ns: int | None = None
    pass_queues: tuple[str, ...] = ()
    journaled_since_unix_ns: int | None = None
    revision: int = 0
    writer: str = ""


class HoldReason(StrEnum):
    """Why a batch is held."""

    BLOB_MISSING = "blob_missing"
    BLOB_CORRUPT = "blob_corrupt"
    INVALID_MANIFEST = "invalid_manifest"
    FOREIGN_KEY = "foreign_key"
    MANIFEST_MISSING = "manifest_missing"
    """A journal names it, so it was acknowledged, and it has no manifest."""


class HoldRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One object that could not be enqueued.

    Attributes:
        key: The accepted or quarantine key.
        reason: Why it is held.
        detail: What was found.
        seen_at_unix_ns: When it was first found so, by the store's clock.
    """

    schema: Literal["sluice.reconciler_mark.v1"] = "sluice.reconciler_mark.v1"
    key: str
    reason: HoldReason
    detail: str
    seen_at_unix_ns: int


def hold_record_key(key: str) -> ObjectKey:
    """Return the key of the hold record of an object."""
    return ObjectKey(f"{UNHEALTHY}{hashlib.sha256(key.encode()).hexdigest()}.json")
