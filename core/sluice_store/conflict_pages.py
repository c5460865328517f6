"""Conflicts as gateways, the reconciler and the command line show them."""

from collections.abc import Sequence
from typing import Final

import msgspec

from sluice_protocol.conflicts import Decision, DecisionAction, Decisions, Difference
from sluice_protocol.manifests import AcceptedManifest, ConflictManifest
from sluice_store.conflicts import CONFLICTS_PAGE_MAX, ConflictDetail, ListedConflict

PAGE_DEFAULT: Final = 100


class ConflictItem(msgspec.Struct, frozen=True, kw_only=True):
    """One conflict in a list.

    Attributes:
        id: What the other calls take.
        agent_id: The identity, as the four fields say.
        boot_id: See `agent_id`.
        seq_start: See `agent_id`.
        seq_end: See `agent_id`.
        submitted_frame_sha256: The bytes that were refused.
        quarantine_key: The record of the refusal.
        first_seen_unix_ns: When it appeared, by the store's stamp.
        state: `open`, or what was decided.
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
    """One conflict with everything that is known of it.

    Attributes:
        conflict: As in the list.
        quarantine: The quarantine manifest: both digests and keys.
        accepted: The manifest that owns the identity.
        difference: How the records differ, or null when a blob cannot be read.
        decision: The latest decision, or null.
    """

    conflict: ConflictItem
    quarantine: ConflictManifest
    accepted: AcceptedManifest | None
    difference: Difference | None
    decision: Decision | None


class ResolveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator decides."""

    action: DecisionAction
    note: str = ""


def page_of(found: Sequence[ListedConflict], decisions: Decisions, limit: int) -> ConflictPage:
    """Gives a page of at most `limit` conflicts, with what was decided of each."""
    items = tuple(item_of(listed, decisions) for listed in found)
    full = len(items) >= min(limit, CONFLICTS_PAGE_MAX)
    return ConflictPage(conflicts=items, next_after=items[-1].id if items and full else None)


def item_of(listed: ListedConflict, decisions: Decisions) -> ConflictItem:
    """Gives the list entry of a conflict."""
    identity, conflict_id = listed.name.identity, listed.name.id
    return ConflictItem(
        id=conflict_id,
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        submitted_frame_sha256=listed.name.submitted,
        quarantine_key=listed.name.key,
        first_seen_unix_ns=listed.first_seen_ns,
        state=decisions.state_of(conflict_id),
    )


def view_of(detail: ConflictDetail, decisions: Decisions) -> ConflictView:
    """Gives the full view of a conflict."""
    listed = ListedConflict(name=detail.name, first_seen_ns=detail.first_seen_ns)
    return ConflictView(
        conflict=item_of(listed, decisions),
        quarantine=detail.manifest,
        accepted=detail.accepted,
        difference=detail.difference,
        decision=decisions.by_conflict.get(detail.name.id),
    )
