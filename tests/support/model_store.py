"""The store of the model checker: its versions, responses and timestamps."""

from functools import cache
from typing import TypeVar

from msgspec.structs import replace
from support.model_types import Blob, Manifest, Rules, Store, Upload

from sluice_protocol import acceptance as a
from sluice_protocol.outcomes import Applied, Exists, NotFound, ObjectInfo
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.local.layout import is_late

# --- the store's responses ---------------------------------------------------------------------


def info_of(blob: Blob, now: int) -> ObjectInfo:
    return ObjectInfo(
        key=ObjectKey(blob.digest),
        size_bytes=1,
        etag=ETag("e"),
        incarnation=ObjectVersion(str(blob.number)),
        last_modified_ns=UnixNs(blob.born),
        sha256=Digest("wrong" if blob.wrong else blob.digest),
        date_ns=UnixNs(now),
    )


def applied(now: int) -> Applied:
    return Applied(etag=ETag("e"), incarnation=None, date_ns=UnixNs(now))


def _add_blob(store: Store, blob: Blob, *, versioned: bool) -> Store:
    kept = store.blobs
    if not versioned:
        kept = tuple(one for one in kept if one.digest != blob.digest)
    return replace(store, blobs=(*kept, blob), next_number=store.next_number + 1)


@cache
def perform(  # noqa: PLR0911 - one line per request
    store: Store, upload: Upload, now: int, rules: Rules, dated: int | None = None
) -> tuple[Store, a.Observation]:
    """Perform one request of an upload immediately and return the store's true response.

    It is a pure function, whose results are kept: states differ mostly in what it does not read.
    With `dated`, the object has this older timestamp, which is not checked yet.
    """
    digest, name = upload.progress.offer.digest, upload.name
    born, late = (now, False) if dated is None else (dated, _marks(rules))
    current = store.current(digest)
    match upload.progress.action:
        case a.CreateBlob() if current is not None:
            return store, Exists(date_ns=UnixNs(now))
        case a.CreateBlob() | a.OverwriteBlob():
            number = store.next_number if rules.versioned else 0
            blob = Blob(digest, number, born, marked=late)
            return _add_blob(store, blob, versioned=rules.versioned), applied(born)
        case a.HeadBlob():
            return _head_blob(store, digest, now, rules)
        case a.CreateManifest() if store.manifest is not None:
            return store, Exists(date_ns=UnixNs(now))
        case a.CreateManifest():
            return replace(store, manifest=Manifest(digest, name, born, late)), applied(born)
        case a.ReadManifest():
            store = read_settled(store, now, rules, "manifest")
            return store, _read(store.manifest, now)
        case a.CreateQuarantine():
            if any(kept.digest == digest for kept in store.quarantine):
                return store, Exists(date_ns=UnixNs(now))
            kept = (*store.quarantine, Manifest(digest, name, born, late))
            return replace(store, quarantine=kept), applied(born)
        case a.HeadQuarantine():
            store = read_settled(store, now, rules, "quarantine")
            [kept_one] = [kept for kept in store.quarantine if kept.digest == digest]
            return store, info_of(Blob(digest, 0, kept_one.born), now)
        case other:
            raise AssertionError(other)


def _head_blob(
    store: Store, digest: str, now: int, rules: Rules
) -> tuple[Store, ObjectInfo | NotFound]:
    store = read_settled(store, now, rules, "blobs")
    current = store.current(digest)
    return store, NotFound(date_ns=UnixNs(now)) if current is None else info_of(current, now)


def _read(manifest: Manifest | None, now: int) -> a.Observation:
    if manifest is None:
        return NotFound(date_ns=UnixNs(now))
    return a.ManifestRead(
        digest=Digest(manifest.digest),
        attempt_id=manifest.attempt,
        accepted_at_ns=UnixNs(0),
        last_modified_ns=UnixNs(manifest.born),
        date_ns=UnixNs(now),
    )


# --- timestamps of objects that became visible late ---------------------------------------------

M = TypeVar("M", Blob, Manifest)


def _marks(rules: Rules) -> bool:
    return rules.writer_settles or rules.readers_settle


def _settled(one: M, now: int, rules: Rules) -> M:
    """Check the timestamp of one object, as the directory store does."""
    if not one.marked:
        return one
    late = is_late(one.born, now, rules.visibility_bound)
    return replace(one, born=now if late else one.born, marked=False)


def read_settled(store: Store, now: int, rules: Rules, what: str) -> Store:
    """Return the store after a reader checked the timestamps of what it reads."""
    if not rules.readers_settle:
        return store
    return settled(store, now, rules, what)


def settled(store: Store, now: int, rules: Rules, what: str) -> Store:
    match what:
        case "blobs" if any(blob.marked for blob in store.blobs):
            return replace(store, blobs=tuple(_settled(one, now, rules) for one in store.blobs))
        case "manifest" if store.manifest is not None and store.manifest.marked:
            return replace(store, manifest=_settled(store.manifest, now, rules))
        case "quarantine" if any(kept.marked for kept in store.quarantine):
            kept = tuple(_settled(one, now, rules) for one in store.quarantine)
            return replace(store, quarantine=kept)
        case _:
            return store


KINDS = {
    "CreateBlob": "blobs",
    "OverwriteBlob": "blobs",
    "CreateManifest": "manifest",
    "CreateQuarantine": "quarantine",
}


def checked_by_writer(
    store: Store, upload: Upload, now: int, rules: Rules, dated: int
) -> tuple[Store, int]:
    """Return the store after the writer's check, and the timestamp that its response contains."""
    if not rules.writer_settles:
        return store, dated
    kind = KINDS[type(upload.progress.action).__name__]
    store = settled(store, now, rules, kind)
    if kind == "blobs":
        return store, store.blobs[-1].born
    named = (store.manifest,) if kind == "manifest" else store.quarantine
    return store, next(one.born for one in named if one and one.attempt == upload.name)
