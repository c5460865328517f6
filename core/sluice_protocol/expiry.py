"""Expiry of raw batches: the rule, holds, tombstones, and the proof that a batch may expire.

By default no batch expires. A rule of an operator makes batches of an age candidates. A batch
expires when a tombstone names it. A tombstone deletes nothing: it takes the name of its manifest
away, so that the clauses of `blob_deletion` may allow the deletion of the blob.

A batch may expire only if every clause is satisfied by the evidence. Evidence that was not read,
could not be read or does not match is a reason to keep: `None` never supports an expiry. The
central clause is `rows_equal`: at one version the table has exactly the records that the blob
decodes to, without those that recorded deletes hide on both sides. It compares with the source and
not with the ledger, which is the report of the loader.

A hold keeps every batch that it covers, whatever else is proved, and also between the tombstone and
the deletion. A hold that cannot be decoded covers everything. Source: ADR 48.
"""

import base64
import re
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from sluice_protocol.authority import Authority
from sluice_protocol.blob_deletion import Clause, MustKeep
from sluice_protocol.errors import BadUsage, InvalidFrame, InvalidRecord
from sluice_protocol.fields import Kind
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    HOLDS,
    RETENTION_DECISIONS,
    accepted_key,
    quarantine_key,
    tombstone_key,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    ConflictManifest,
    decode_record,
    encode_record,
)
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs

WAIT_AFTER_HORIZON_S: Final = 7 * 86_400
"""The least time between the end of the retry horizon and an expiry."""
TOMBSTONE_BATCHES_MAX: Final = 10_000
"""Batches of one tombstone, about 36 bytes each when compressed; 32 of them are the sha256."""
TOMBSTONE_HOURS_MAX: Final = 7 * 24
"""Hours of acceptance of the batches of one tombstone. Few batches then share its signature, and a
reader lists the tombstones of a week."""
TOMBSTONE_BYTES_MAX: Final = 64 << 20
"""The size of a decompressed tombstone, at most."""
TEXT_CHARS_MAX: Final = 1_000
"""The length of a case, a reason and a name, at most."""
_DAYS: Final = re.compile(r"([1-9][0-9]{0,4})d", re.ASCII)


class RetentionDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of an operator how long raw batches and records are kept; the last is in effect.

    Attributes:
        number: 1 for the first decision, without gaps.
        raw_keep_s: The age at which a batch may expire, seconds; None: never.
        tables_keep_s: The age at which `sluice maintain` deletes records of every kind from the
            tables, seconds; None: never. Its setting `retention_days` has priority.
        decided_at_unix_ns: By the store's clock.
    """

    schema: Literal["sluice.retention.v1"] = "sluice.retention.v1"
    number: int
    raw_keep_s: int | None
    tables_keep_s: int | None = None
    decided_by: str
    decided_at_unix_ns: int
    note: str = ""


def retention_key(number: int) -> ObjectKey:
    """Return the key of a decision about retention."""
    return ObjectKey(f"{RETENTION_DECISIONS}{number:06d}.json")


def decode_retention(number: int, body: bytes) -> RetentionDecision:
    """Decode a decision about retention."""
    key = retention_key(number)
    found = decode_record(key, body, RetentionDecision)
    if found.number != number:
        raise InvalidRecord(key, "decision has another number than its key")
    return found


def keep_s_least(authority: Authority) -> int:
    """Return the shortest raw retention that a deployment may have, seconds."""
    return authority.retry_horizon_s + WAIT_AFTER_HORIZON_S


def parse_keep(option: str, text: str) -> int | None:
    """Return a number of days, as `30d`, in seconds; None for `never`."""
    if text == "never":
        return None
    found = _DAYS.fullmatch(text)
    if found is None:
        raise BadUsage(f"retention is a number of days, as `30d`, or never: {option}=`{text[:40]}`")
    return int(found[1]) * 86_400


def describe_keep(keep_s: int | None) -> str:
    """Return a retention as `parse_keep` reads it."""
    return "never" if keep_s is None else f"{keep_s / 86_400:g}d"


def check_keep_s(authority: Authority, keep_s: int | None) -> None:
    """Refuse a raw retention that is shorter than the retry horizon plus seven days."""
    least = keep_s_least(authority)
    if keep_s is not None and keep_s < least:
        raise BadUsage(
            "raw batches are kept for the retry horizon plus 7 days at least:"
            f" use {-(-least // 86_400)}d or more, raw=`{describe_keep(keep_s)}`"
        )


class LegalHold(msgspec.Struct, frozen=True, kw_only=True):
    """A named case that keeps batches and records: who, why, until when it is reviewed.

    It covers the batches that meet every given condition; without a condition, all.

    Attributes:
        hold_id: ULID, also in the key.
        case: The name of the case; several holds may have the same.
        review_at_unix_ns: When an operator should decide again; the hold does not end then.
        from_unix_ns: Only batches that were accepted at or after it.
        to_unix_ns: Only batches that were accepted before it.
        held_at_unix_ns: By the store's clock.
    """

    schema: Literal["sluice.legal_hold.v1"] = "sluice.legal_hold.v1"
    hold_id: str
    case: str
    reason: str
    held_by: str
    review_at_unix_ns: int
    held_at_unix_ns: int
    agent_id: str | None = None
    principal: str | None = None
    from_unix_ns: int | None = None
    to_unix_ns: int | None = None

    def covers(self, batch: AcceptedManifest | ConflictManifest) -> bool:
        """Return True if the hold keeps a batch, or the refused bytes of a conflict.

        It is not recorded which principal sent refused bytes, so a hold over any principal covers
        them.
        """
        if isinstance(batch, ConflictManifest):
            principals, at_ns = (None, self.principal), batch.observed_at_unix_ns
        else:
            principals, at_ns = (None, batch.principal), batch.accepted_at_unix_ns
        return (
            self.agent_id in (None, batch.agent_id)
            and self.principal in principals
            and (self.from_unix_ns is None or at_ns >= self.from_unix_ns)
            and (self.to_unix_ns is None or at_ns < self.to_unix_ns)
        )

    def touches(self, record: DeleteRecord) -> bool:
        """Return True if a delete of records may remove some of a batch that the hold covers."""
        other_agent = None not in (self.agent_id, record.agent_id) and (
            self.agent_id != record.agent_id
        )
        before = self.from_unix_ns is not None and (
            record.accepted_until_unix_ns < self.from_unix_ns
        )
        return not other_agent and not before


class LegalHoldLifted(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a hold; the time is that of the store's clock."""

    schema: Literal["sluice.legal_hold_lifted.v1"] = "sluice.legal_hold_lifted.v1"
    hold_id: str
    lifted_by: str
    reason: str
    lifted_at_unix_ns: int


def legal_hold_key(hold_id: str) -> ObjectKey:
    """Return the key of a hold."""
    return ObjectKey(f"{HOLDS}{hold_id}.json")


def hold_lifted_key(hold_id: str) -> ObjectKey:
    """Return the key of the record that a hold was lifted."""
    return ObjectKey(f"{HOLDS}{hold_id}-lifted.json")


def check_hold(hold: LegalHold) -> None:
    """Refuse a hold without a case or a reason, or with a range that is empty."""
    for name, text in (("case", hold.case), ("reason", hold.reason)):
        if not text.strip():
            raise BadUsage(f"a hold needs a {name}: add one with `--{name}`")
        if len(text) > TEXT_CHARS_MAX:
            raise BadUsage(f"the {name} of a hold has at most {TEXT_CHARS_MAX} characters")
    span = (hold.from_unix_ns, hold.to_unix_ns)
    if None not in span and span[0] >= span[1]:  # type: ignore[operator]
        raise BadUsage("the time range of a hold ends before it starts")
    if hold.review_at_unix_ns <= hold.held_at_unix_ns:
        raise BadUsage("the review date of a hold is not in the future: choose a later `--review`")


def decode_hold(key: str, body: bytes) -> LegalHold:
    """Decode a hold and check that it agrees with its key."""
    found = decode_record(key, body, LegalHold)
    if legal_hold_key(found.hold_id) != key:
        raise InvalidRecord(key, "hold belongs under another key")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """The holds in effect.

    Attributes:
        unreadable: Records that cannot be decoded, with the reason; each covers everything.
        lifted: Holds that were lifted, with the record of that.
    """

    active: tuple[LegalHold, ...] = ()
    unreadable: tuple[InvalidRecord, ...] = ()
    lifted: tuple[tuple[LegalHold, LegalHoldLifted], ...] = ()

    def covers(self, batch: AcceptedManifest | ConflictManifest) -> bool:
        """Return True if a hold keeps a batch, or the refused bytes of a conflict."""
        return bool(self.unreadable) or any(hold.covers(batch) for hold in self.active)

    def touching(self, record: DeleteRecord) -> str | None:
        """Return the case whose batches a delete may affect, or None."""
        if self.unreadable:
            return f"unreadable: {self.unreadable[0].key}"
        return next((hold.case for hold in self.active if hold.touches(record)), None)

    def permitted_until_ns(self, until_ns: int) -> int | None:
        """Return the acceptance up to which batches of every agent may lose records.

        It is `until_ns` or just before the first hold begins; None if a hold has no beginning.
        """
        if self.unreadable:
            return None
        starts = [hold.from_unix_ns for hold in self.active]
        if None in starts:
            return None
        return min((until_ns, *(start - 1 for start in starts if start is not None)))


NamedBatch = tuple[ObjectKey, Digest]
"""The key of an accepted or quarantine manifest, and the sha256 of its blob."""


class ExpiredBoot(msgspec.Struct, frozen=True, array_like=True):
    """The batches of one boot that expired, in the order of their sequence numbers.

    Attributes:
        steps: For each batch the distance of its first sequence number from the end of the batch
            before it, and the number of its sequence numbers. Both compress well.
        sha256: The hashes of their blobs, 32 bytes each, in base64.
    """

    agent_id: str
    boot_id: str
    steps: tuple[int, ...]
    sha256: str

    def named(self) -> Iterator[tuple[Identity, Digest]]:
        """Yield each batch.

        Raises:
            ValueError: The hashes are not base64, or of another number of batches.
            InvalidFrame: A batch has no valid identity.
        """
        hashes, end = base64.b64decode(self.sha256, validate=True), 0
        steps = zip(self.steps[::2], self.steps[1::2], strict=True)
        for at, (gap, count) in enumerate(steps):
            start = end + gap
            end = start + count
            who = Identity(
                agent_id=self.agent_id, boot_id=self.boot_id, seq_start=start, seq_end=end - 1
            )
            yield who, Digest(hashes[32 * at : 32 * at + 32].hex())
        if len(hashes) != 16 * len(self.steps):
            raise ValueError("there is not one hash a batch")


class BootIndex:
    """The batches of one boot that expired, to look them up by identity."""

    __slots__ = ("_ends", "_hashes", "_starts")

    def __init__(self, boot: ExpiredBoot) -> None:
        named = list(boot.named())
        self._starts = array("Q", [who.seq_start for who, _ in named])
        self._ends = array("Q", [who.seq_end for who, _ in named])
        self._hashes = b"".join(bytes.fromhex(digest) for _, digest in named)

    def names(self, who: Identity, digest: Digest) -> bool:
        """Return True if a batch with this range and hash expired."""
        first, sha256 = bisect_left(self._starts, who.seq_start), bytes.fromhex(digest)
        return any(
            self._ends[at] == who.seq_end and self._hashes[32 * at : 32 * at + 32] == sha256
            for at in range(first, bisect_right(self._starts, who.seq_start, lo=first))
        )


def group_by_boot(batches: Iterable[tuple[Identity, Digest]]) -> tuple[ExpiredBoot, ...]:
    """Return batches as a tombstone names them."""
    boots: dict[tuple[str, str], list[tuple[Identity, Digest]]] = {}
    for who, digest in sorted(batches):
        boots.setdefault((who.agent_id, who.boot_id), []).append((who, digest))
    found = []
    for (agent_id, boot_id), named in boots.items():
        steps, end = [], 0
        for who, _ in named:
            steps += [who.seq_start - end, who.seq_end + 1 - who.seq_start]
            end = who.seq_end + 1
        hashes = b"".join(bytes.fromhex(digest) for _, digest in named)
        sha256 = base64.b64encode(hashes).decode()
        found.append(ExpiredBoot(agent_id, boot_id, tuple(steps), sha256))
    return tuple(found)


class TableVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One state of a table: a version, and the sha256 of the log entry that committed it.

    A table of a restored copy reaches the same version again, by another commit.
    """

    version: int
    commit_sha256: Digest


class RowTally(msgspec.Struct, frozen=True, kw_only=True):
    """The records of batches on one side: their number, and the order-free hash of contents.

    The hash is two sums in hexadecimal with a hyphen between, so those of batches can be added.
    """

    rows: int
    content: str

    def plus(self, other: "RowTally") -> "RowTally":
        """Return the tally of both."""
        sums = zip(self.content.split("-"), other.content.split("-"), strict=True)
        content = "-".join(f"{int(one, 16) + int(two, 16):x}" for one, two in sums)
        return RowTally(rows=self.rows + other.rows, content=content)


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """The record that batches of a few hours of acceptance expired; permanent.

    The manifests have the sizes and times of the batches. With `refused`, the batches are refused
    bytes of conflicts, and the hours are those in which they were refused.

    Attributes:
        run_id: ULID of the run that proved the batches.
        part: 0 for the first tombstone of the run.
        first_hour: The hour since 1970 in which the oldest of its batches was accepted.
        last_hour: The same of the youngest.
        rule: The number of the decision about retention; 0 for an erasure.
        erasure: The id of the erasure whose records the batches contain; empty for a rule.
        refused: Absent unless the batches were refused: then no table was compared.
        tables: The states that were read, by the name of the table.
        deletes: The number of recorded deletes that were applied to both sides.
        made_at_unix_ns: By the store's clock.
        compared: The records that blobs and table had in common, by kind.
        boots: The batches.
    """

    schema: Literal["sluice.tombstone.v1"] = "sluice.tombstone.v1"
    run_id: str
    part: int
    first_hour: int
    last_hour: int
    authority_id: str
    rule: int
    keep_s: int
    erasure: str = ""
    refused: bool | msgspec.UnsetType = msgspec.UNSET
    audit_id: str
    certificate_sha256: Digest
    tables: dict[str, TableVersion]
    deletes: int
    made_at_unix_ns: int
    compared: dict[Kind, RowTally]
    boots: tuple[ExpiredBoot, ...]

    @property
    def key(self) -> ObjectKey:
        """The key under which it is created."""
        return tombstone_key(self.first_hour, self.last_hour, self.run_id, self.part)

    def named(self) -> Iterator[NamedBatch]:
        """Yield each batch."""
        for boot in self.boots:
            for who, digest in boot.named():
                yield (
                    quarantine_key(who, digest) if self.refused is True else accepted_key(who),
                    digest,
                )


class SignedTombstone(msgspec.Struct, frozen=True, kw_only=True):
    """A tombstone with the signature of the auditor over its canonical bytes."""

    tombstone: Tombstone
    key_id: str
    signature: str


def encode_tombstone(signed: SignedTombstone) -> bytes:
    """Return the stored bytes of a tombstone."""
    return zlib.compress(encode_record(signed), 9)


def decode_tombstone(key: str, body: bytes) -> SignedTombstone:
    """Decode a tombstone and check that it agrees with its key; its signature is not checked."""
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(body, TOMBSTONE_BYTES_MAX)
    except zlib.error as error:
        raise InvalidRecord(key, f"tombstone is not compressed: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidRecord(key, "tombstone is cut off, too large or followed by other bytes")
    found = decode_record(key, plain, SignedTombstone)
    if found.tombstone.key != key:
        raise InvalidRecord(key, "tombstone belongs under another key")
    try:
        for boot in found.tombstone.boots:
            deque(boot.named(), maxlen=0)
    except (ValueError, InvalidFrame) as error:
        raise InvalidRecord(key, f"tombstone does not name batches: {error}") from error
    return found


# --- the proof ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEvidence:
    """Everything that was read about one batch; None is evidence that was not read.

    Attributes:
        named: The sha256 in the manifest, which was read itself and not through an index.
        accepted_at_ns: The time in the manifest: that of a spool may be behind.
        appeared_at_ns: Last-Modified of the manifest, by the store's clock.
        keep_ns: The rule in effect; None if nothing expires.
        vacuum_ns: The age up to which replaced files of the table are kept.
        now_ns: The store's clock.
        audit_started_at_ns: The start of the complete audit on which the run rests.
        audit_found_wrong: Whether it found something on which an operator must act.
        blob: The sha256 of the bytes that were read and decoded.
        ledger: The sha256 in the ledger of ingestion; None if it has no row of the batch.
        blob_rows: What the blob decodes to, without records that deletes hide.
        table_rows: What the table has of the batch at one version, without the same.
        enqueued: Whether the batch is known to be in every queue.
        unacknowledged: Whether an entry that a consumer has not acknowledged names it.
        dead_letter: Whether it is an open dead letter.
        quarantined: Whether bytes are quarantined under its identity.
        held: Whether a hold covers it.
        matches: The records that its blob decodes to and that an erasure selects.
    """

    named: Digest
    accepted_at_ns: UnixNs
    retry_horizon_ns: int
    keep_ns: int | None = None
    vacuum_ns: int | None = None
    now_ns: UnixNs | None = None
    appeared_at_ns: UnixNs | None = None
    audit_started_at_ns: UnixNs | None = None
    audit_found_wrong: bool | None = None
    blob: Digest | None = None
    ledger: Digest | None = None
    blob_rows: RowTally | None = None
    table_rows: RowTally | None = None
    enqueued: bool | None = None
    unacknowledged: bool | None = None
    dead_letter: bool | None = None
    quarantined: bool | None = None
    held: bool | None = None
    matches: int | None = None


@dataclass(frozen=True, slots=True)
class MayExpire:
    """Every clause is satisfied."""


BatchCheck = Callable[[BatchEvidence], MustKeep | None]


def decide_expiry(
    evidence: BatchEvidence, clauses: Iterable[BatchCheck] | None = None
) -> MustKeep | MayExpire:
    """Return the first reason to keep the batch, or `MayExpire`."""
    for check in EXPIRY_CLAUSES if clauses is None else clauses:
        kept = check(evidence)
        if kept is not None:
            return kept
    return MayExpire()


def rule_in_effect(evidence: BatchEvidence) -> MustKeep | None:
    """Keep without a rule, and under one that is shorter than the retry horizon and seven days."""
    if evidence.keep_ns is None:
        return MustKeep(clause=Clause.RULE, reason="no raw retention is set")
    if evidence.keep_ns < evidence.retry_horizon_ns + WAIT_AFTER_HORIZON_S * NS_PER_S:
        return MustKeep(clause=Clause.RULE, reason="the raw retention is too short")
    return None


def contains_matches(evidence: BatchEvidence) -> MustKeep | None:
    """Keep a batch in which no erasure selects a record."""
    if not evidence.matches:
        return MustKeep(clause=Clause.RULE, reason="no erasure selects a record of it")
    return None


def batch_old_enough(evidence: BatchEvidence) -> MustKeep | None:
    """Keep a batch that is younger than the rule or than the replaced files of its table.

    Its age counts from the later of the two times: the clock of a spool may have been behind.
    """
    times = (evidence.now_ns, evidence.appeared_at_ns, evidence.keep_ns, evidence.vacuum_ns)
    now_ns, appeared_at_ns, keep_ns, vacuum_ns = times
    if now_ns is None or appeared_at_ns is None or keep_ns is None or vacuum_ns is None:
        return MustKeep(clause=Clause.AGE, reason="its age or the store's clock was not read")
    age_ns = now_ns - max(evidence.accepted_at_ns, appeared_at_ns)
    if age_ns <= max(keep_ns, vacuum_ns):
        return MustKeep(clause=Clause.AGE, reason="younger than the raw retention")
    return None


def audited_after(evidence: BatchEvidence) -> MustKeep | None:
    """Keep unless a complete audit without findings began a retry horizon after it appeared."""
    started_ns, appeared_ns = evidence.audit_started_at_ns, evidence.appeared_at_ns
    if started_ns is None or appeared_ns is None or evidence.audit_found_wrong is None:
        return MustKeep(clause=Clause.CERTIFICATE, reason="no certificate")
    if started_ns <= max(appeared_ns, evidence.accepted_at_ns) + evidence.retry_horizon_ns:
        return MustKeep(
            clause=Clause.CERTIFICATE, reason="the audit started before the horizon ended"
        )
    if evidence.audit_found_wrong:
        return MustKeep(clause=Clause.CERTIFICATE, reason="the audit has findings")
    return None


def blob_verified(evidence: BatchEvidence) -> MustKeep | None:
    """Keep unless the bytes that were read and decoded hash to the name in the manifest."""
    if evidence.blob is None:
        return MustKeep(clause=Clause.BLOB, reason="its blob was not read")
    if evidence.blob != evidence.named:
        return MustKeep(clause=Clause.BLOB, reason="its blob has other bytes")
    return None


def in_ledger(evidence: BatchEvidence) -> MustKeep | None:
    """Keep unless the ledger of ingestion has these bytes of the batch."""
    if evidence.ledger is None:
        return MustKeep(clause=Clause.LEDGER, reason="not in the ledger")
    if evidence.ledger != evidence.named:
        return MustKeep(clause=Clause.LEDGER, reason="the ledger has other bytes")
    return None


def rows_equal(evidence: BatchEvidence) -> MustKeep | None:
    """Keep unless the table has exactly the records that the blob decodes to."""
    if evidence.blob_rows is None or evidence.table_rows is None:
        return MustKeep(clause=Clause.ROWS, reason="its rows were not compared")
    if evidence.blob_rows != evidence.table_rows:
        there, wanted = evidence.table_rows.rows, evidence.blob_rows.rows
        return MustKeep(
            clause=Clause.ROWS, reason=f"the table differs, rows={there}, expected={wanted}"
        )
    return None


def consumed(evidence: BatchEvidence) -> MustKeep | None:
    """Keep unless every consumer has acknowledged the batch."""
    if evidence.enqueued is None or evidence.unacknowledged is None:
        return MustKeep(clause=Clause.CONSUMERS, reason="the queues were not read")
    if not evidence.enqueued:
        return MustKeep(clause=Clause.CONSUMERS, reason="not in every queue")
    if evidence.unacknowledged:
        return MustKeep(clause=Clause.CONSUMERS, reason="a consumer has not acknowledged it")
    return None


def no_dead_letter(evidence: BatchEvidence) -> MustKeep | None:
    """Keep a batch that could not be ingested."""
    if evidence.dead_letter is None:
        return MustKeep(clause=Clause.DEAD_LETTER, reason="dead letters were not read")
    if evidence.dead_letter:
        return MustKeep(clause=Clause.DEAD_LETTER, reason="it is an open dead letter")
    return None


def no_conflict(evidence: BatchEvidence) -> MustKeep | None:
    """Keep a batch under whose identity other bytes are quarantined."""
    if evidence.quarantined is None:
        return MustKeep(clause=Clause.CONFLICT, reason="the quarantine was not read")
    if evidence.quarantined:
        return MustKeep(
            clause=Clause.CONFLICT, reason="other bytes are quarantined under its identity"
        )
    return None


def not_held(evidence: BatchEvidence) -> MustKeep | None:
    """Keep a batch that a hold covers."""
    if evidence.held is None:
        return MustKeep(clause=Clause.HELD, reason="holds were not read")
    if evidence.held:
        return MustKeep(clause=Clause.HELD, reason="a hold covers it")
    return None


EXPIRY_CLAUSES: Final[tuple[BatchCheck, ...]] = (
    rule_in_effect,
    batch_old_enough,
    audited_after,
    not_held,
    no_conflict,
    consumed,
    no_dead_letter,
    in_ledger,
    blob_verified,
    rows_equal,
)
"""All clauses; those whose evidence costs least are first."""

ERASURE_CLAUSES: Final[tuple[BatchCheck, ...]] = (
    contains_matches,
    *(one for one in EXPIRY_CLAUSES if one not in (rule_in_effect, batch_old_enough, no_conflict)),
)
"""The clauses for a batch with records that are erased.

Its age does not matter beyond the retry horizon, which `audited_after` requires. A conflict does
not keep it: both manifests stay, and prove that other bytes were refused. Everything that proves
its other records is the same: the deletes of the erasure are left out on both sides.
"""

REFUSED_CLAUSES: Final[tuple[BatchCheck, ...]] = (contains_matches, audited_after, not_held)
"""The clauses for refused bytes of a conflict with records that are erased.

They were never accepted, so no table has their other records, and nothing about those is proved:
all of them end. Only an erasure lets refused bytes end.
"""
