"""The types of the acceptance state machine: the offer, actions, observations and state.

The transitions are in `acceptance`. The types are structs, because an upload makes some twenty of
them (ADR 15).
"""

from typing import Final

import msgspec

from sluice_protocol.identity import Identity
from sluice_protocol.outcomes import Applied, Exists, NotFound, ObjectInfo, Unknown
from sluice_protocol.units import Digest, UnixNs

TRIES_MAX: Final = 12
"""Most unknown outcomes and restarts of one upload together; after them the response is 503."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The request of one upload.

    Attributes:
        identity: The identity that the frame claims.
        digest: The sha256 of the frame.
        size_bytes: Length of the frame.
        attempt_id: ULID of this upload's handling, the same in all its tries.
        window_ns: `retry_horizon - margin` of the authority.
        sent_before: Whether the agent reports that it has sent these bytes before.
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
    """The result of a full read of the blob.

    Attributes:
        info: The metadata in the same response.
        digest: The sha256 of the bytes read.
    """

    info: ObjectInfo
    digest: Digest


class ManifestRead(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest that was read and agrees with its key.

    Attributes:
        digest: The sha256 that it names.
        attempt_id: The upload that wrote it.
        accepted_at_ns: The acceptance time that it contains.
        last_modified_ns: The store's Last-Modified of it.
        date_ns: The store's clock in this response.
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

    Attributes:
        digest: The sha256 that owns the identity.
        own: Whether this upload wrote it.
        accepted_at_ns: The acceptance time that it contains.
        appeared_at_ns: `m`: the Date of our create, or its Last-Modified.
    """

    digest: Digest
    own: bool
    accepted_at_ns: UnixNs
    appeared_at_ns: UnixNs


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a gateway knows about one upload.

    Attributes:
        offer: What the upload offers; it never changes.
        action: The action to perform, or the verdict.
        proved_at_ns: When a correct blob was last known to exist, or None.
        aged_ns: Last-Modified of a correct blob that is too old as a proof, while its manifest is
            read.
        date_ns: The store's clock in the last response about the blob.
        accepted_at_ns: Set before the first try of the manifest and never changed.
        manifest: The manifest, once known.
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
