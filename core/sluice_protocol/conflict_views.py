"""Conflicts as services send them and the command line prints them: lists, details, decisions."""

import msgspec

from sluice_protocol.conflicts import ConflictName, Decision, DecisionAction, Decisions, Difference
from sluice_protocol.manifests import AcceptedManifest, ConflictManifest
from sluice_protocol.units import UnixNs


class ConflictItem(msgspec.Struct, frozen=True, kw_only=True):
    """One conflict in a list.

    Attributes:
        id: The id that the other calls accept.
        agent_id: Part of the identity.
        boot_id: Part of the identity.
        seq_start: Part of the identity.
        seq_end: Part of the identity.
        submitted_frame_sha256: The digest of the refused bytes.
        quarantine_key: The record of the refusal.
        first_seen_unix_ns: When that record was created, by the store's clock.
        state: `open`, or the action of the latest decision.
    """

    id: str
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    submitted_frame_sha256: str
    quarantine_key: str
    first_seen_unix_ns: int
    state: str


class ConflictPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of conflicts in key order; `next_after` is null on the last page."""

    conflicts: tuple[ConflictItem, ...]
    next_after: str | None


class ConflictView(msgspec.Struct, frozen=True, kw_only=True):
    """One conflict with everything that is known about it.

    Attributes:
        conflict: The conflict as it is listed.
        quarantine: The quarantine manifest: both digests and keys.
        accepted: The manifest that owns the identity.
        difference: How the records differ, or null where a blob cannot be read.
        decision: The latest decision, or null.
    """

    conflict: ConflictItem
    quarantine: ConflictManifest
    accepted: AcceptedManifest | None
    difference: Difference | None
    decision: Decision | None


class ResolveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The decision of an operator about one conflict."""

    action: DecisionAction
    note: str = ""


def conflict_item(name: ConflictName, first_seen_ns: UnixNs, decisions: Decisions) -> ConflictItem:
    """Return the list entry of a conflict."""
    identity, conflict_id = name.identity, name.id
    return ConflictItem(
        id=conflict_id,
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        submitted_frame_sha256=name.submitted,
        quarantine_key=name.key,
        first_seen_unix_ns=first_seen_ns,
        state=decisions.state_of(conflict_id),
    )
