"""Verification of blobs: a blob is decoded only when it is exactly what its manifest names."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sluice_protocol.errors import InvalidFrame, TooLarge, UnsupportedVersion
from sluice_protocol.frame import Envelope, Frame, decode_frame
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore

_THREAD_BYTES: Final = 256 << 10
"""Blobs larger than this are verified and decoded in a thread."""


class BlobFault(StrEnum):
    """Why a blob cannot be used; the values are those of `dead_letters.reason`."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    INVALID_FRAME = "invalid_frame"
    DISAGREES = "disagrees"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedBlob:
    """A blob that cannot be used; `unsupported` is set for a frame of another version."""

    fault: BlobFault
    detail: str
    unsupported: UnsupportedVersion | None = None


def decode_blob(manifest: AcceptedManifest, body: bytes | None) -> Frame | RejectedBlob:
    """Verify a blob against its manifest and decode it; `body` is None if it is missing."""
    if body is None:
        return _rejected(manifest, BlobFault.MISSING, "the blob is missing from the store")
    digest = hashlib.sha256(body).hexdigest()
    if digest != manifest.frame_sha256:
        return _rejected(
            manifest,
            BlobFault.CORRUPT,
            f"the blob has other bytes than its manifest names, sha256=`{digest}`",
        )
    try:
        frame = decode_frame(body)
    except UnsupportedVersion as error:
        rejected = _rejected(manifest, BlobFault.INVALID_FRAME, str(error))
        key = manifest.raw_blob_key
        named = UnsupportedVersion(error.what, error.found, error.known, key)
        return replace(rejected, unsupported=named)
    except (InvalidFrame, TooLarge) as error:
        return _rejected(manifest, BlobFault.INVALID_FRAME, str(error))
    if (frame.identity, frame.envelope.kind) != (manifest.identity, manifest.kind):
        return _rejected(
            manifest, BlobFault.DISAGREES, "blob and manifest name two different batches"
        )
    return frame


def states_times_of(manifest: AcceptedManifest, envelope: Envelope) -> bool:
    """Return whether a manifest states the times of the records of its batch.

    Ingestion does not depend on them. A query chooses by them which pending batches it reads.
    """
    stated = (manifest.min_ts_unix_ns, manifest.max_ts_unix_ns)
    return stated == (envelope.min_ts_ns, envelope.max_ts_ns)


async def fetch_frame(
    stores: Sequence[ObjectStore], manifest: AcceptedManifest
) -> Frame | RejectedBlob:
    """Read a batch's blob from the first store that contains it; verify and decode it."""
    body = await _read(stores, ObjectKey(manifest.raw_blob_key))
    if body is not None and len(body) > _THREAD_BYTES:
        return await asyncio.to_thread(decode_blob, manifest, body)
    return decode_blob(manifest, body)


async def _read(stores: Sequence[ObjectStore], key: ObjectKey) -> bytes | None:
    for store in stores:
        found = await store.get(key)
        if isinstance(found, Found):
            return found.body
    return None


def _rejected(manifest: AcceptedManifest, fault: BlobFault, detail: str) -> RejectedBlob:
    return RejectedBlob(fault=fault, detail=f"{detail}, key=`{manifest.raw_blob_key}`")
