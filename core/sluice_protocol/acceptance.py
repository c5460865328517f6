"""The acceptance of one upload, as a state machine without I/O, clock or randomness.

`Progress` is the state of one upload. `Progress.action` is the one action that it waits for.
`begin` returns the first state. The caller performs the action, translates the store's response
into an observation and calls `step`, until the action is a `Verdict`.

    prove the blob   CreateBlob ─ Applied ──────────────────────────────► proved_at = its Date
                        │ Exists                                               ▲
                        ▼                                                      │
                     HeadBlob ─ young and correct ─ proved_at = Last-Modified ─┤
                        │ not found: CreateBlob, the second time OverwriteBlob │
                        │ no checksum: HashBlob, then as HeadBlob              │
                        │ wrong: OverwriteBlob, and the corruption is reported │
                        └ old: ReadManifest ── appeared in time ─► duplicate   │
                                         └─ else OverwriteBlob ────────────────┘
    own the identity CreateManifest ─ Applied ─► m = its Date
                        │ Exists: ReadManifest ─► m = its Last-Modified
    record a conflict CreateQuarantine ─ Applied / Exists: HeadQuarantine ─► m

What a verdict proves. A verdict of acceptance or conflict needs `m - proved_at < window`, where
`window = retry_horizon - margin`. `m` is the time at which the manifest appeared. `proved_at` is
the last time at which a blob with these bytes is known to have existed. The blob was therefore
younger than the retry horizon when the manifest named it. A garbage collection certificate is later
than the blob by more than the horizon, so its audit must have read the manifest. If the proof is
too old, the blob is proved again. The manifest exists by then, so a blob written after it is a
sufficient proof immediately.

An unknown outcome proves nothing and uses one of a bounded number of tries. An observation that
does not belong to the action raises `InvariantViolated` and changes nothing.
Source: `docs/protocol.md`, Acceptance.
"""

from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from sluice_protocol.errors import InvariantViolated
from sluice_protocol.identity import Identity
from sluice_protocol.outcomes import Applied, Exists, NotFound, ObjectInfo, Unknown
from sluice_protocol.units import Digest, UnixNs

TRIES_MAX: Final = 12
"""Most unknown outcomes and restarts of one upload together; after them the response is 503."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The request of one upload.

    `attempt_id` is the ULID of this upload's handling, the same in all its tries. `window_ns` is
    `retry_horizon - margin` of the authority.
    """

    identity: Identity
    digest: Digest
    size_bytes: int
    attempt_id: str
    window_ns: int
    sent_before: bool = False


# --- actions -----------------------------------------------------------------------------------


class CreateBlob(msgspec.Struct, frozen=True):
    """Create the blob with `If-None-Match: *`."""


class HeadBlob(msgspec.Struct, frozen=True):
    """Read the metadata of the blob."""


class HashBlob(msgspec.Struct, frozen=True):
    """Read the whole blob and hash it: the store has no checksum of it."""


class OverwriteBlob(msgspec.Struct, frozen=True):
    """Write the blob without a condition: same bytes, new object version."""


class ReadManifest(msgspec.Struct, frozen=True):
    """Read the identity's manifest."""


class CreateManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Create the identity manifest with `If-None-Match: *`; the same bytes in every try."""

    accepted_at_ns: UnixNs


class CreateQuarantine(msgspec.Struct, frozen=True, kw_only=True):
    """Create the quarantine manifest with `If-None-Match: *`; the same bytes in every try."""

    accepted_digest: Digest
    observed_at_ns: UnixNs


class HeadQuarantine(msgspec.Struct, frozen=True):
    """Read when the quarantine manifest appeared."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict 200: the manifest exists and its blob was proved in time."""

    duplicate: bool
    accepted_at_ns: UnixNs


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict 409: another sha256 owns the identity, and the quarantine manifest exists.

    The caller writes the `quarantine-by-blob` reference, best effort, before it responds.
    """

    accepted_digest: Digest


class Corrupt(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict 500 with an alert: a stored object is wrong and could not be repaired."""

    reason: str


class RetriesExhausted(msgspec.Struct, frozen=True):
    """Verdict 503 `outcome_unknown`: no tries are left; the same bytes may be sent again."""


Verdict = Accepted | Conflict | Corrupt | RetriesExhausted
StoreRequest = (
    CreateBlob
    | HeadBlob
    | HashBlob
    | OverwriteBlob
    | ReadManifest
    | CreateManifest
    | CreateQuarantine
    | HeadQuarantine
)
Action = StoreRequest | Verdict


# --- observations ------------------------------------------------------------------------------


class BlobHashed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a full read of the blob."""

    info: ObjectInfo
    digest: Digest


class ManifestRead(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest that was read and agrees with its key.

    `attempt_id` is the upload that wrote it. `date_ns` is the store's clock in this response.
    """

    digest: Digest
    attempt_id: str
    accepted_at_ns: UnixNs
    last_modified_ns: UnixNs
    date_ns: UnixNs


class ManifestUnreadable(msgspec.Struct, frozen=True, kw_only=True):
    """The object under the identity's key is not a manifest of that identity."""

    reason: str


class OverwriteRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The store rejected the overwrite of the blob: no permission, a policy, or a lock."""

    reason: str


Observation = (
    Applied
    | Exists
    | Unknown
    | ObjectInfo
    | NotFound
    | BlobHashed
    | ManifestRead
    | ManifestUnreadable
    | OverwriteRefused
)


# --- state -------------------------------------------------------------------------------------


class KnownManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest that owns the identity, as this gateway has read or written it.

    `own` is True if this upload wrote it. `appeared_at_ns` is `m`: the Date of our create, or its
    Last-Modified.
    """

    digest: Digest
    own: bool
    accepted_at_ns: UnixNs
    appeared_at_ns: UnixNs


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a gateway knows about one upload.

    Attributes:
        action: The action to perform, or the verdict.
        proved_at_ns: When a correct blob was last known to exist, or None.
        aged_ns: Last-Modified of a correct blob that is too old as a proof, while its manifest is
            read.
        date_ns: The store's clock in the last response about the blob.
        accepted_at_ns: Set before the first try of the manifest and never changed.
        quarantined_at_ns: When the quarantine manifest appeared, or None.
        gone: How often the blob was reported to exist and then not found.
        tries: Unknown outcomes and restarts so far.
        healed: Whether a wrong blob was found; the caller raises the alert.
    """

    offer: Offer
    action: Action
    proved_at_ns: UnixNs | None = None
    aged_ns: UnixNs | None = None
    date_ns: UnixNs | None = None
    accepted_at_ns: UnixNs | None = None
    manifest: KnownManifest | None = None
    quarantined_at_ns: UnixNs | None = None
    gone: int = 0
    tries: int = 0
    healed: bool = False


__all__ = [
    "TRIES_MAX",
    "Accepted",
    "Action",
    "BlobHashed",
    "Conflict",
    "Corrupt",
    "CreateBlob",
    "CreateManifest",
    "CreateQuarantine",
    "HashBlob",
    "HeadBlob",
    "HeadQuarantine",
    "KnownManifest",
    "ManifestRead",
    "ManifestUnreadable",
    "Observation",
    "Offer",
    "OverwriteBlob",
    "OverwriteRefused",
    "Progress",
    "ReadManifest",
    "RetriesExhausted",
    "StoreRequest",
    "Verdict",
    "begin",
    "cacheable_until_ns",
    "step",
]


def begin(offer: Offer) -> Progress:
    """Return the first state of an upload; its `action` is the first action."""
    return Progress(offer=offer, action=ReadManifest() if offer.sent_before else CreateBlob())


def step(now: Progress, seen: Observation) -> Progress:  # noqa: C901, PLR0911 - one line per action
    """Return the state after an observation, which must belong to `now.action`."""
    if isinstance(seen, Unknown):
        return _again(now)
    match now.action:
        case CreateBlob():
            return _after_create_blob(now, seen)
        case HeadBlob():
            return _after_head_blob(now, seen)
        case HashBlob():
            return _after_hash_blob(now, seen)
        case OverwriteBlob():
            return _after_overwrite_blob(now, seen)
        case ReadManifest():
            return _after_read_manifest(now, seen)
        case CreateManifest():
            return _after_create_manifest(now, seen)
        case CreateQuarantine():
            return _after_create_quarantine(now, seen)
        case HeadQuarantine():
            return _after_head_quarantine(now, seen)
        case Accepted() | Conflict() | Corrupt() | RetriesExhausted():
            raise _illegal(now, seen)
        case _ as never:
            assert_never(never)


def cacheable_until_ns(proved_at_ns: UnixNs, window_ns: int) -> UnixNs:
    """Return the time of the store until which an accepted upload may be accepted from memory.

    It is half of the proof's window after the proof. No audit on which a deletion of the proved
    blob may rest has begun by then, so a response from memory does not outlive its proof.
    """
    return UnixNs(proved_at_ns + window_ns // 2)


def _illegal(now: Progress, seen: Observation) -> InvariantViolated:
    return InvariantViolated(f"observation {seen!r} does not belong to {now.action!r}")


def _again(now: Progress, action: StoreRequest | None = None) -> Progress:
    """Repeat the action, or restart at `action`, while tries are left."""
    if now.tries + 1 >= TRIES_MAX:
        return replace(now, action=RetriesExhausted(), tries=now.tries + 1)
    return replace(now, action=action or now.action, tries=now.tries + 1)


def _after_create_blob(now: Progress, seen: Observation) -> Progress:
    match seen:
        case Applied(date_ns=date_ns):
            return _proved(now, proved_at_ns=date_ns, date_ns=date_ns)
        case Exists():
            return replace(now, action=HeadBlob())
        case _:
            raise _illegal(now, seen)


def _after_head_blob(now: Progress, seen: Observation) -> Progress:
    match seen:
        case NotFound():
            # The second time a condition does not help: some servers respond 412 over a delete
            # marker.
            write = CreateBlob() if now.gone == 0 else OverwriteBlob()
            return _again(replace(now, gone=now.gone + 1), write)
        case ObjectInfo(sha256=None) as info if info.size_bytes == now.offer.size_bytes:
            return replace(now, action=HashBlob())
        case ObjectInfo() as info:
            return _decide_with_blob(now, info, info.sha256)
        case _:
            raise _illegal(now, seen)


def _after_hash_blob(now: Progress, seen: Observation) -> Progress:
    match seen:
        case NotFound():
            return _again(now, HeadBlob())
        case BlobHashed(info=info, digest=digest):
            return _decide_with_blob(now, info, digest)
        case _:
            raise _illegal(now, seen)


def _decide_with_blob(now: Progress, info: ObjectInfo, digest: Digest | None) -> Progress:
    """Decide whether a stored blob is a proof."""
    if info.size_bytes != now.offer.size_bytes or digest != now.offer.digest:
        return replace(now, action=OverwriteBlob(), healed=True)
    seen = replace(now, date_ns=info.date_ns)
    if _follows_in_time(seen, info.last_modified_ns):
        return _proved(seen, proved_at_ns=info.last_modified_ns, date_ns=info.date_ns)
    if info.date_ns - info.last_modified_ns < now.offer.window_ns:
        return _proved(seen, proved_at_ns=info.last_modified_ns, date_ns=info.date_ns)
    if now.manifest is None:
        # Too old as a proof, unless a manifest appeared in time after it.
        return replace(seen, action=ReadManifest(), aged_ns=info.last_modified_ns)
    return replace(seen, action=OverwriteBlob())


def _follows_in_time(now: Progress, last_modified_ns: UnixNs) -> bool:
    """Return True if the known manifest names these bytes and appeared in time after the blob."""
    manifest = now.manifest
    return (
        manifest is not None
        and manifest.digest == now.offer.digest
        and manifest.appeared_at_ns - last_modified_ns < now.offer.window_ns
    )


def _after_overwrite_blob(now: Progress, seen: Observation) -> Progress:
    match seen:
        case Applied(date_ns=date_ns):
            return _proved(now, proved_at_ns=date_ns, date_ns=date_ns)
        case OverwriteRefused(reason=reason) if now.healed:
            return replace(
                now, action=Corrupt(reason=(f"the wrong blob cannot be overwritten: {reason}"))
            )
        case OverwriteRefused():
            # A policy forbids every rewrite of a blob: respond 503 until garbage collection deletes
            # it.
            return replace(now, action=RetriesExhausted())
        case _:
            raise _illegal(now, seen)


def _proved(now: Progress, *, proved_at_ns: UnixNs, date_ns: UnixNs) -> Progress:
    """Continue after the blob was proved: with the manifest or with the verdict."""
    proved = replace(now, proved_at_ns=proved_at_ns, date_ns=date_ns)
    if proved.manifest is None:
        return _create_manifest(proved)
    return _decide_with_manifest(proved)


def _create_manifest(now: Progress) -> Progress:
    if now.date_ns is None:
        raise InvariantViolated(
            "a manifest is created only after the store responded about its blob"
        )
    at_ns = now.accepted_at_ns if now.accepted_at_ns is not None else now.date_ns
    return replace(now, accepted_at_ns=at_ns, action=CreateManifest(accepted_at_ns=at_ns))


def _after_create_manifest(now: Progress, seen: Observation) -> Progress:
    match seen:
        case Applied(date_ns=date_ns) if now.accepted_at_ns is not None:
            manifest = KnownManifest(
                digest=now.offer.digest,
                own=True,
                accepted_at_ns=now.accepted_at_ns,
                appeared_at_ns=date_ns,
            )
            return _decide_with_manifest(replace(now, manifest=manifest))
        case Exists():
            return replace(now, action=ReadManifest())
        case _:
            raise _illegal(now, seen)


def _after_read_manifest(now: Progress, seen: Observation) -> Progress:
    match seen:
        case ManifestRead():
            return _manifest_found(now, seen)
        case NotFound():
            return _manifest_not_found(now)
        case ManifestUnreadable(reason=reason):
            return replace(now, action=Corrupt(reason=reason))
        case _:
            raise _illegal(now, seen)


def _manifest_found(now: Progress, seen: ManifestRead) -> Progress:
    manifest = KnownManifest(
        digest=seen.digest,
        own=seen.attempt_id == now.offer.attempt_id,
        accepted_at_ns=seen.accepted_at_ns,
        appeared_at_ns=seen.last_modified_ns,
    )
    known = replace(now, manifest=manifest, aged_ns=None)
    if now.aged_ns is not None:
        in_time = _follows_in_time(known, now.aged_ns)
        proved = replace(known, proved_at_ns=now.aged_ns)
        return _decide_with_manifest(proved) if in_time else replace(known, action=OverwriteBlob())
    if now.proved_at_ns is not None:
        return _decide_with_manifest(known)
    # A retry that read the manifest first: the manifest alone proves nothing about the blob.
    return replace(known, action=HeadBlob() if seen.digest == now.offer.digest else CreateBlob())


def _manifest_not_found(now: Progress) -> Progress:
    """Continue after a read without a manifest, which proves nothing about writes in flight."""
    if now.aged_ns is not None:
        return replace(now, action=OverwriteBlob(), aged_ns=None)
    if now.proved_at_ns is not None:
        return _again(_create_manifest(now))
    return replace(now, action=CreateBlob())


def _decide_with_manifest(now: Progress) -> Progress:
    """Decide the verdict from the known manifest and the proof of the blob."""
    manifest, proved_at_ns = now.manifest, now.proved_at_ns
    if manifest is None or proved_at_ns is None:
        raise InvariantViolated("a verdict needs a manifest and a proof of the blob")
    if manifest.digest != now.offer.digest:
        return _decide_conflict(now, manifest, proved_at_ns)
    if manifest.appeared_at_ns - proved_at_ns < now.offer.window_ns:
        verdict = Accepted(duplicate=not manifest.own, accepted_at_ns=manifest.accepted_at_ns)
        return replace(now, action=verdict)
    return _prove_again(now)


def _decide_conflict(now: Progress, manifest: KnownManifest, proved_at_ns: UnixNs) -> Progress:
    if now.quarantined_at_ns is None:
        if now.date_ns is None:
            raise InvariantViolated(
                "a conflict is recorded only after the store responded about the blob"
            )
        at_ns = now.accepted_at_ns if now.accepted_at_ns is not None else now.date_ns
        action = CreateQuarantine(accepted_digest=manifest.digest, observed_at_ns=at_ns)
        return replace(now, action=action, accepted_at_ns=at_ns)
    if now.quarantined_at_ns - proved_at_ns < now.offer.window_ns:
        return replace(now, action=Conflict(accepted_digest=manifest.digest))
    return _prove_again(now)


def _prove_again(now: Progress) -> Progress:
    """Prove the blob again: the proof is too old for the known manifest."""
    return _again(replace(now, proved_at_ns=None), CreateBlob())


def _after_create_quarantine(now: Progress, seen: Observation) -> Progress:
    match seen:
        case Applied(date_ns=date_ns):
            return _decide_with_manifest(replace(now, quarantined_at_ns=date_ns))
        case Exists():
            return replace(now, action=HeadQuarantine())
        case _:
            raise _illegal(now, seen)


def _after_head_quarantine(now: Progress, seen: Observation) -> Progress:
    match seen, now.manifest:
        case ObjectInfo(last_modified_ns=at_ns), KnownManifest():
            return _decide_with_manifest(replace(now, quarantined_at_ns=at_ns))
        case NotFound(date_ns=date_ns), KnownManifest(digest=digest):
            at_ns = now.accepted_at_ns if now.accepted_at_ns is not None else date_ns
            create = CreateQuarantine(accepted_digest=digest, observed_at_ns=at_ns)
            return _again(replace(now, accepted_at_ns=at_ns), create)
        case _:
            raise _illegal(now, seen)
