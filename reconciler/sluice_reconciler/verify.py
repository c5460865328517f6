"""Looks at one accepted manifest and its blob: enqueueable, or held back and why."""

from dataclasses import dataclass

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import AcceptedManifest, decode_accepted
from sluice_protocol.outcomes import Found, NotFound, ObjectInfo
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_reconciler.marks import Mark, Reason
from sluice_store.port import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A manifest whose blob is there with the right bytes.

    Attributes:
        key: The accepted key.
        manifest: The manifest.
        body: Its exact bytes.
        date_ns: The store's clock.
    """

    key: ObjectKey
    manifest: AcceptedManifest
    body: bytes
    date_ns: UnixNs


async def look(store: ObjectStore, key: ObjectKey, *, full: bool = False) -> Sound | Mark | None:
    """Reads a manifest and proves its blob; None when the manifest itself is not there.

    The store's own checksum is proof; where it holds none, or `full` asks for it, the blob is read
    and hashed.

    Raises:
        StoreError: The store did not answer.
    """
    match await store.get(key):
        case NotFound():
            return None
        case Found(info=info, body=body):
            pass
    try:
        manifest = decode_accepted(key, body)
    except InvalidRecord as error:
        return _mark(key, Reason.INVALID_MANIFEST, error.reason, info.date_ns)
    wrong = await _blob_wrong(store, manifest, full=full)
    if wrong is not None:
        return _mark(key, *wrong, info.date_ns)
    return Sound(key=key, manifest=manifest, body=body, date_ns=info.date_ns)


def _mark(key: str, reason: Reason, detail: str, at_ns: UnixNs) -> Mark:
    return Mark(key=key, reason=reason, detail=detail[:500], seen_at_unix_ns=at_ns)


async def _blob_wrong(
    store: ObjectStore, manifest: AcceptedManifest, *, full: bool
) -> tuple[Reason, str] | None:
    """Tells what is wrong with the blob, or None."""
    blob = ObjectKey(manifest.raw_blob_key)
    match await store.head(blob):
        case NotFound():
            return Reason.BLOB_MISSING, f"no blob at {blob}"
        case ObjectInfo(size_bytes=size) if size != manifest.frame_bytes:
            return Reason.BLOB_CORRUPT, f"blob is {size} bytes, not {manifest.frame_bytes}"
        case ObjectInfo(sha256=sha256) if sha256 is not None and not full:
            right = sha256 == manifest.frame_sha256
            return None if right else (Reason.BLOB_CORRUPT, f"checksum of the store is {sha256}")
        case ObjectInfo():
            return await _read_wrong(store, blob, manifest)


async def _read_wrong(
    store: ObjectStore, blob: ObjectKey, manifest: AcceptedManifest
) -> tuple[Reason, str] | None:
    match await store.get(blob):
        case NotFound():
            return Reason.BLOB_MISSING, f"no blob at {blob}"
        case Found(body=body):
            found = digest_of(body)
            right = found == manifest.frame_sha256
            return None if right else (Reason.BLOB_CORRUPT, f"bytes hash to {found}")
