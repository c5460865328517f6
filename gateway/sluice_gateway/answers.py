"""The bodies of responses to an upload: 200 and 409."""

from typing import Literal

import msgspec

from sluice_protocol.acceptance import Accepted
from sluice_protocol.errors import ErrorCode
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import ConflictManifest
from sluice_protocol.units import Digest
from sluice_web.problems import Problem, problem_of


class AcceptedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted, now or before: the agent may forget the batch.

    Attributes:
        status: Always `accepted`.
        duplicate: Whether it was accepted before this upload.
        agent_id: The identity, as the four fields say.
        boot_id: See `agent_id`.
        seq_start: See `agent_id`.
        seq_end: See `agent_id`.
        frame_sha256: The digest that owns the identity.
        manifest_key: The manifest that says so.
        accepted_at_unix_ns: When it was accepted, by the store's clock.
        collector_id: The gateway that answered.
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


def accepted_answer(
    identity: Identity, digest: Digest, verdict: Accepted, collector_id: str
) -> AcceptedAnswer:
    """Gives the answer to an accepted upload."""
    return AcceptedAnswer(
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

    Attributes:
        agent_id: Part of the identity.
        boot_id: Part of the identity.
        seq_start: Part of the identity.
        seq_end: Part of the identity.
        accepted_frame_sha256: The digest that owns the identity.
        submitted_frame_sha256: The digest that is refused.
        accepted_raw_blob_key: The blob of the owner.
        submitted_raw_blob_key: The blob of the refused bytes.
        accepted_manifest_key: The manifest that decides.
        quarantine_key: The record of the refusal.
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


def conflict_problem(conflict: ConflictManifest, quarantine_key: str) -> ConflictProblem:
    """Return the problem document of a 409 from the quarantine manifest that is stored."""
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
        quarantine_key=quarantine_key,
    )
