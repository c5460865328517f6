"""Identity conflicts, the decisions of operators about them, and the form that services send.

A conflict is a quarantine manifest: bytes that were refused because other bytes own the identity.
Its id is its key in a form that fits one path segment. A decision is an append-only record:
`accept_existing` closes a conflict, `quarantine_identity` also blocks that agent and boot.
Decisions are folded in the order of their ids. A later decision never lifts a quarantine; the agent
returns under a new boot. Source: ADR 7.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final, Literal

import msgspec

from sluice_protocol.errors import BadUsage, InvalidFrame
from sluice_protocol.frame import Frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    DECISIONS,
    QUARANTINE_CONFLICTS,
    parse_digest,
    quarantine_key,
)
from sluice_protocol.manifests import AcceptedManifest, ConflictManifest
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.units import Digest, ObjectKey, UnixNs

DecisionAction = Literal["accept_existing", "quarantine_identity"]
ACCEPT_EXISTING: Final = "accept_existing"
"""The decision after which an agent removes its copy of the refused bytes."""
AgentBoot = tuple[str, str]

NOTE_CHARS_MAX: Final = 2000
RECORD_CHARS_MAX: Final = 1000
_ID: Final = re.compile(
    r"(?P<agent>(?:[0-9a-f]{2})+)\.(?P<boot>(?:[0-9a-f]{2})+)"
    r"\.(?P<start>[0-9]{20})-(?P<end>[0-9]{20})\.(?P<digest>[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictName:
    """The name of a conflict: the identity, and the digest of the bytes that were refused."""

    identity: Identity
    submitted: Digest

    @property
    def key(self) -> ObjectKey:
        """The key of the quarantine manifest."""
        return quarantine_key(self.identity, self.submitted)

    @property
    def id(self) -> str:
        """The conflict's id: one path segment that is derived from the key."""
        who = self.identity
        agent, boot = who.agent_id.encode().hex(), who.boot_id.encode().hex()
        return f"{agent}.{boot}.{who.seq_start:020d}-{who.seq_end:020d}.{self.submitted}"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's decision about one conflict.

    `decision_id` is a ULID: the key of the record and its position in the order. The time is that
    of the writer's clock.
    """

    schema: Literal["sluice.decision.v1"] = "sluice.decision.v1"
    decision_id: str
    action: DecisionAction
    conflict_id: str
    agent_id: str
    boot_id: str
    decided_by: str
    decided_at_unix_ns: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """All decisions, folded.

    `by_conflict` has the latest decision about each conflict. `quarantined` agents and boots are
    blocked.
    """

    by_conflict: Mapping[str, Decision] = field(default_factory=dict)
    quarantined: frozenset[AgentBoot] = frozenset()

    def state_of(self, conflict_id: str) -> str:
        """Return `open`, or the action that was decided."""
        decision = self.by_conflict.get(conflict_id)
        return "open" if decision is None else decision.action


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference between the records of two frames of one identity.

    `differing_count` are the positions at which the records differ or only one frame has a record.
    `first_seq` is the first of them; None when only the encoding or the resource differs. A record
    is a line of JSON, cut short; None when that frame has none there.
    """

    accepted_count: int
    submitted_count: int
    differing_count: int
    first_seq: int | None
    accepted_record: str | None
    submitted_record: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPair:
    """The JSON lines, cut short, of two frames at a sequence number; None if one has none."""

    seq: int
    accepted: str | None
    submitted: str | None


def parse_conflict_id(text: str) -> ConflictName:
    """Parse a conflict id."""
    found = _ID.fullmatch(text)
    if found is None:
        raise BadUsage(f"not a conflict id: use an id from the list of conflicts, id=`{text[:64]}`")
    try:
        identity = Identity(
            agent_id=bytes.fromhex(found["agent"]).decode(),
            boot_id=bytes.fromhex(found["boot"]).decode(),
            seq_start=int(found["start"]),
            seq_end=int(found["end"]),
        )
    except (UnicodeDecodeError, InvalidFrame) as error:
        raise BadUsage(f"not a conflict id: {error}") from error
    return ConflictName(identity=identity, submitted=parse_digest(found["digest"]))


def conflict_prefix(agent_id: str) -> str:
    """Return the prefix of every conflict of one agent."""
    return f"{QUARANTINE_CONFLICTS}agent={agent_id.encode().hex()}/"


def decision_key(decision_id: str) -> ObjectKey:
    """Return the key of a decision."""
    return ObjectKey(f"{DECISIONS}{decision_id}.json")


def check_note(note: str) -> str:
    """Return an operator's note if it is short enough."""
    if len(note) > NOTE_CHARS_MAX:
        raise BadUsage(f"note is at most {NOTE_CHARS_MAX} characters")
    return note


def fold_decisions(known: Decisions, more: Iterable[Decision]) -> Decisions:
    """Add decisions, in any order and any number of times, with the same result."""
    latest = dict(known.by_conflict)
    shut = set(known.quarantined)
    for decision in more:
        before = latest.get(decision.conflict_id)
        if before is None or before.decision_id < decision.decision_id:
            latest[decision.conflict_id] = decision
        if decision.action == "quarantine_identity":
            shut.add((decision.agent_id, decision.boot_id))
    return replace(known, by_conflict=latest, quarantined=frozenset(shut))


def difference_of(accepted: Frame, submitted: Frame) -> Difference:
    """Compare two frames record by record, in time linear in the number of records."""
    first, differing = None, 0
    for pair in differing_pairs(accepted, submitted):
        first, differing = first or pair, differing + 1
    return Difference(
        accepted_count=accepted.envelope.count,
        submitted_count=submitted.envelope.count,
        differing_count=differing,
        first_seq=None if first is None else first.seq,
        accepted_record=None if first is None else first.accepted,
        submitted_record=None if first is None else first.submitted,
    )


def differing_pairs(accepted: Frame, submitted: Frame) -> Iterator[RecordPair]:
    """Yield the records of two frames at each sequence number at which they differ."""
    pairs = zip_longest(
        ndjson_from_columns(accepted.columns), ndjson_from_columns(submitted.columns)
    )
    for place, (ours, theirs) in enumerate(pairs):
        if ours != theirs:
            yield RecordPair(
                seq=accepted.identity.seq_start + place,
                accepted=_cut(ours),
                submitted=_cut(theirs),
            )


def _cut(line: str | None) -> str | None:
    return None if line is None else line[:RECORD_CHARS_MAX]


class ConflictItem(msgspec.Struct, frozen=True, kw_only=True):
    """One conflict in a list.

    `id` is what the other calls accept. `quarantine_key` is the record of the refusal, created at
    `first_seen_unix_ns` by the store's clock. `state` is `open`, or the action of the latest
    decision.
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

    `quarantine` has both digests and keys, and `accepted` owns the identity. `difference` is null
    where a blob cannot be read. `decision` is the latest.
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
