"""A validated upload, the records that it creates in the store, and the responses to it."""

from typing import Literal

import msgspec

from sluice_protocol.acceptance import Accepted
from sluice_protocol.conflicts import ConflictName, DecisionAction, Decisions
from sluice_protocol.errors import ErrorCode
from sluice_protocol.frame import FRAME_VERSION, WIRE_VERSION, Envelope
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, blob_key
from sluice_protocol.manifests import AcceptedManifest, ConflictManifest
from sluice_protocol.units import Digest, UnixNs
from sluice_web.problems import Problem, problem_of


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A frame that was read, validated and found to belong to its sender.

    Attributes:
        attempt_id: ULID of this upload, the same in all its tries.
        sent_before: Whether the agent reports that it sent these bytes before.
        parts: The requests of a combined batch, as the manifest lists them; empty for others.
        manifest: The bytes of the manifest of a batch that a spool accepted, written unchanged;
            None where this gateway creates the manifest.
    """

    frame: bytes
    digest: Digest
    identity: Identity
    envelope: Envelope
    principal: str
    attempt_id: str
    sent_before: bool = False
    parts: str = ""
    manifest: bytes | None = None


def accepted_manifest(
    upload: Upload, accepted_at_ns: UnixNs, collector_id: str
) -> AcceptedManifest:
    """Return the manifest that claims the identity for these bytes; the same in every try."""
    envelope, identity = upload.envelope, upload.identity
    return AcceptedManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=upload.digest,
        frame_bytes=len(upload.frame),
        raw_blob_key=blob_key(upload.digest),
        accepted_at_unix_ns=accepted_at_ns,
        collector_id=collector_id,
        wire_version=WIRE_VERSION,
        frame_version=FRAME_VERSION,
        attempt_id=upload.attempt_id,
        kind=envelope.kind,
        record_count=envelope.count,
        min_ts_unix_ns=envelope.min_ts_ns,
        max_ts_unix_ns=envelope.max_ts_ns,
        principal=upload.principal,
        parts=upload.parts or msgspec.UNSET,
    )


def conflict_manifest(
    upload: Upload, owner: Digest, observed_at_ns: UnixNs, collector_id: str
) -> ConflictManifest:
    """Return the record of a refusal: the owner of the identity and the refused bytes."""
    identity = upload.identity
    return ConflictManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        accepted_manifest_key=accepted_key(identity),
        accepted_raw_blob_key=blob_key(owner),
        accepted_frame_sha256=owner,
        submitted_raw_blob_key=blob_key(upload.digest),
        submitted_frame_sha256=upload.digest,
        observed_at_unix_ns=observed_at_ns,
        collector_id=collector_id,
    )


class AcceptedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a 200: the batch is accepted, and the agent may delete it.

    `frame_sha256` is the digest that owns the identity, as the manifest at `manifest_key` decides.
    `duplicate` is true if it was accepted before this upload. The time is that of the store's
    clock.
    """

    status: Literal["accepted"] = "accepted"
    duplicate: bool
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    frame_sha256: str
    manifest_key: str
    accepted_at_unix_ns: int
    collector_id: str

    @property
    def outcome(self) -> str:
        """The label of `sluice_accepts_total`."""
        return "duplicate" if self.duplicate else "new"


def accepted_response(
    identity: Identity, digest: Digest, verdict: Accepted, collector_id: str
) -> AcceptedResponse:
    """Return the body of a 200."""
    return AcceptedResponse(
        duplicate=verdict.duplicate,
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=digest,
        manifest_key=accepted_key(identity),
        accepted_at_unix_ns=verdict.accepted_at_ns,
        collector_id=collector_id,
    )


class ConflictProblem(Problem, frozen=True, kw_only=True):
    """The body of a 409: the refused upload and the bytes that own its identity.

    The accepted values are those of the bytes that own the identity, the submitted ones those of
    the refused bytes. `quarantine_key` is the record of the refusal. `resolution` is the decision
    of an operator about this conflict, or null while it is open.
    """

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    accepted_frame_sha256: str
    submitted_frame_sha256: str
    accepted_raw_blob_key: str
    submitted_raw_blob_key: str
    accepted_manifest_key: str
    quarantine_key: str
    resolution: DecisionAction | None = None


def conflict_problem(
    conflict: ConflictManifest, name: ConflictName, decisions: Decisions
) -> ConflictProblem:
    """Return the problem document of a 409 from the quarantine manifest and the known decisions."""
    decision = decisions.by_conflict.get(name.id)
    problem = problem_of(
        ErrorCode.IDENTITY_CONFLICT,
        "other bytes own this identity: park the batch and inform an operator",
    )
    return ConflictProblem(
        **msgspec.structs.asdict(problem),
        agent_id=conflict.agent_id,
        boot_id=conflict.boot_id,
        seq_start=conflict.seq_start,
        seq_end=conflict.seq_end,
        accepted_frame_sha256=conflict.accepted_frame_sha256,
        submitted_frame_sha256=conflict.submitted_frame_sha256,
        accepted_raw_blob_key=conflict.accepted_raw_blob_key,
        submitted_raw_blob_key=conflict.submitted_raw_blob_key,
        accepted_manifest_key=conflict.accepted_manifest_key,
        quarantine_key=name.key,
        resolution=None if decision is None else decision.action,
    )
