"""The words of acceptance: what is offered, done, observed and known. `acceptance` moves them."""

from dataclasses import dataclass
from typing import Final

from sluice_protocol.identity import Identity
from sluice_protocol.outcomes import Applied, Exists, NotFound, ObjectInfo, Unknown
from sluice_protocol.units import Digest, UnixNs

TRIES_MAX: Final = 12
"""Unknown outcomes and restarts of one upload, together; past it the answer is 503."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one upload asks for.

    Attributes:
        identity: The identity that the frame claims.
        digest: The sha256 of the frame.
        size_bytes: Length of the frame.
        attempt_id: ULID of this handling, the same in all its tries.
        window_ns: `retry_horizon - margin` of the authority.
        sent_before: Whether the agent says that it has sent these bytes before.
    """

    identity: Identity
    digest: Digest
    size_bytes: int
    attempt_id: str
    window_ns: int
    sent_before: bool = False


# --- actions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateBlob:
    """Create the blob with `If-None-Match: *`."""


@dataclass(frozen=True, slots=True)
class HeadBlob:
    """Read what the store knows of the blob."""


@dataclass(frozen=True, slots=True)
class HashBlob:
    """Read the whole blob and hash it: the store holds no checksum of it."""


@dataclass(frozen=True, slots=True)
class OverwriteBlob:
    """Write the blob without a condition: same bytes, new incarnation."""


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """Read the identity's manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateManifest:
    """Create the identity manifest with `If-None-Match: *`; the same bytes in every try."""

    accepted_at_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateQuarantine:
    """Create the quarantine manifest with `If-None-Match: *`; the same bytes in every try."""

    accepted_digest: Digest
    observed_at_ns: UnixNs


@dataclass(frozen=True, slots=True)
class HeadQuarantine:
    """Read when the quarantine manifest appeared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Verdict: 200. The manifest stands and its blob was proved in time."""

    duplicate: bool
    accepted_at_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Verdict: 409. Another sha256 owns the identity and the quarantine manifest stands.

    The shell writes the `quarantine-by-blob` reference, best effort, before it answers.
    """

    accepted_digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrupt:
    """Verdict: 500 and an alert. A stored object is wrong and could not be healed."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetriesExhausted:
    """Verdict: 503 `outcome_unknown`. The tries are spent; the same bytes may be sent again."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobHashed:
    """What a full read of the blob gave.

    Attributes:
        info: What the store said of it in the same answer.
        digest: The sha256 of the bytes read.
    """

    info: ObjectInfo
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRead:
    """A manifest that was read and agrees with its key.

    Attributes:
        digest: The sha256 that it names.
        attempt_id: Who wrote it.
        accepted_at_ns: What it says of its own time.
        last_modified_ns: When it appeared, by the store's stamp.
        date_ns: The store's clock in this answer.
    """

    digest: Digest
    attempt_id: str
    accepted_at_ns: UnixNs
    last_modified_ns: UnixNs
    date_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestUnreadable:
    """An object stands under the identity's key that is no manifest of it."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverwriteRefused:
    """The store refused to overwrite the blob: no permission, a policy, or a lock."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownManifest:
    """The manifest that owns the identity, as far as this gateway has seen it.

    Attributes:
        digest: The sha256 that owns the identity.
        own: Whether this very upload wrote it.
        accepted_at_ns: What the manifest says of its own time.
        appeared_at_ns: `m`: the Date of our create, or its Last-Modified.
    """

    digest: Digest
    own: bool
    accepted_at_ns: UnixNs
    appeared_at_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """All that a gateway knows of one upload.

    Attributes:
        offer: What is asked for; it never changes.
        doing: The action that is waited for, or the verdict.
        proved_at_ns: When a right blob was last known to be there, or None.
        aged_ns: Last-Modified of a right blob too old to go on with, while its manifest is read.
        date_ns: The store's clock in the last answer about the blob.
        accepted_at_ns: Fixed before the first try of the manifest, then never changed.
        standing: The manifest, once seen.
        quarantined_at_ns: When the quarantine manifest appeared, or None.
        gone: How often the blob was reported to exist and then found missing.
        tries: Unknown outcomes and restarts so far.
        healed: Whether a wrong blob was met; the shell raises the alert.
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
