"""The lake of the model checker, and who changes it: ingestion, expiry, operators and accidents.

The product's expiry clauses decide whether a tombstone is created. One unit of the model is seven
days, the least time between the end of the retry horizon and an expiry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from sluice_protocol import expiry as e
from sluice_protocol.blob_deletion import ExpiryLookup
from sluice_protocol.units import NS_PER_S, Digest, UnixNs

if TYPE_CHECKING:
    from support.model_store import Manifest, Store

HORIZON = 3
UNIT_NS = e.WAIT_AFTER_HORIZON_S * NS_PER_S
KEEP = HORIZON + 1
"""The shortest raw retention that a deployment may have."""

EXPIRED_EARLY = "expired early"
PROVED_HELD = "proved although it is held"
PROVED_LOST = "proved although its records are missing"

Rows = frozenset[str]


class Lake(Struct, frozen=True, cache_hash=True, gc=False):
    """The tables, the holds and the tombstone of the one identity.

    `rows` are the digests whose records the table has, and `ledger` those that the loader reported.
    `older` is an older copy of the table's rows that an operator may restore.
    """

    rows: Rows = frozenset()
    ledger: Rows = frozenset()
    commits: tuple[int, ...] = (1,)
    """The log of the table: its commits, of which no two are equal."""
    newest: int = 1
    older: Rows | None = None
    read: "tuple[tuple[int, ...], Rows, int] | None" = None
    """What the expiry run read back: log and rows; and when its audit began."""
    tombstone: tuple[str, int, int] | None = None
    """Digest, version of the table, and commit of that version."""
    held: bool = False
    slow_reader: bool = False
    """Whether another consumer has not read the batch."""
    named_elsewhere: Rows = frozenset()
    """Digests that the manifest of another identity names, which does not expire."""
    erased: Rows = frozenset()
    """Digests of batches in which an erasure selects a record."""
    accidents: int = 0
    """Restores, rebuilds, compactions, lossy ingestions and holds that may still happen."""
    behind: int = 0
    """How far the clock was behind that stated the time of acceptance."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpiryRules:
    """The system under test: the product's clauses, or a mutant of them."""

    clauses: tuple[e.BatchCheck, ...] = e.EXPIRY_CLAUSES
    erasure: tuple[e.BatchCheck, ...] = e.ERASURE_CLAUSES
    """Those of an erasure, which is under way if a batch is `erased` or if it `erases_all`."""
    erases_all: bool = False
    by_manifest: bool = True
    """Whether a tombstone takes the name of its manifest away, not every name of the hash."""
    rebuild_refuses: bool = True
    """Whether a rebuild of the tables refuses when batches have expired."""
    manifest_stays: bool = True
    run_reads_holds: bool = True
    run_reads_commit: bool = True
    """Whether a run compares the commit of the version, not the version alone."""


PRODUCT_EXPIRY = ExpiryRules()


def without(
    clause: e.BatchCheck,
    instead: e.BatchCheck | None = None,
    clauses: tuple[e.BatchCheck, ...] = e.EXPIRY_CLAUSES,
) -> tuple[e.BatchCheck, ...]:
    """Return the product's clauses without one, or with another in its place."""
    parts = ((instead,) if one is clause else (one,) for one in clauses)
    return tuple(one for part in parts for one in part if one is not None)


def is_expired(lake: Lake | None, digest: str) -> bool:
    return lake is not None and lake.tombstone is not None and lake.tombstone[0] == digest


def expiry_lookup(lake: Lake | None, rules: ExpiryRules) -> ExpiryLookup | None:
    """Return what a run of garbage collection reads about the expired batch."""
    if lake is None or lake.tombstone is None:
        return None
    _, version, commit = lake.tombstone
    there = len(lake.commits) >= version
    if rules.run_reads_commit:
        there = there and lake.commits[version - 1] == commit
    return ExpiryLookup(held=lake.held and rules.run_reads_holds, table_stays=there)


def committed(lake: Lake, rows: Rows, log: tuple[int, ...]) -> Lake:
    """Return the lake after a commit on top of a log."""
    newest = lake.newest + 1
    return replace(lake, rows=rows, commits=(*log, newest), newest=newest)


def faults_of_proof(lake: Lake | None, digest: str) -> Iterator[str]:
    """Yield what is wrong with a proof for the blob of an expired batch at this moment."""
    if lake is None or not is_expired(lake, digest):
        return
    if lake.held:
        yield PROVED_HELD
    if digest not in lake.rows:
        yield PROVED_LOST


def may_be_gone(lake: Lake | None, digest: str) -> bool:
    """Return True if a blob may be unreadable: its records are where its tombstone states."""
    if lake is None or not is_expired(lake, digest):
        return False
    return digest in lake.rows and not lake.slow_reader


def lake_moves(
    lake: Lake, store: "Store", now: int, rules: ExpiryRules, *, deleting: bool
) -> Iterator[tuple[str, Lake, str | None]]:
    """Yield every next state of the lake, with a verdict to record, if any.

    While a deletion is under way, and after it, no operator restores an older table: it is the only
    copy of the records.
    """
    owner = store.manifest
    readable = owner is not None and (blob := store.current(owner.digest)) and not blob.wrong
    if owner is not None and readable and owner.digest not in lake.ledger:
        new = lake.ledger | {owner.digest}
        rows = lake.rows | {owner.digest}
        after = committed(replace(lake, ledger=new), rows, lake.commits)
        yield "the batch is ingested", after, None
        if lake.accidents:
            lossy = replace(after, rows=lake.rows, accidents=lake.accidents - 1)
            yield "the batch is ingested, and its rows are lost", lossy, None
    if lake.slow_reader and readable:
        yield "the slow reader reads the batch", replace(lake, slow_reader=False), None
    if owner is not None and lake.tombstone is None:
        yield from _expiry_moves(lake, store, owner, now, rules)
    if lake.accidents:
        yield from _accidents(
            replace(lake, accidents=lake.accidents - 1), store, rules, deleting=deleting
        )
    if lake.held:
        yield "the last hold is lifted", replace(lake, held=False), None


def _expiry_moves(
    lake: Lake, store: "Store", owner: "Manifest", now: int, rules: ExpiryRules
) -> Iterator[tuple[str, Lake, str | None]]:
    if lake.read is None:
        read = (lake.commits, lake.rows, now)
        yield "the expiry run reads the table back", replace(lake, read=read), None
        return
    log, rows, began = lake.read
    evidence = _evidence(lake, store, owner, now, rows, began)
    by_rule = isinstance(e.decide_expiry(evidence, rules.clauses), e.MayExpire)
    by_erasure = (lake.erased or rules.erases_all) and isinstance(
        e.decide_expiry(evidence, rules.erasure), e.MayExpire
    )
    if by_rule or by_erasure:
        tombstone = (owner.digest, len(log), log[-1])
        least = HORIZON if owner.digest in lake.erased else KEEP
        early = EXPIRED_EARLY if now - owner.born <= least else None
        yield "the tombstone is created", replace(lake, tombstone=tombstone, read=None), early
    else:
        yield "the expiry run keeps the batch", replace(lake, read=None), None


def _evidence(
    lake: Lake, store: "Store", owner: "Manifest", now: int, rows: Rows, began: int
) -> e.BatchEvidence:
    blob = store.current(owner.digest)
    named = Digest(owner.digest)
    content = e.RowTally(rows=1, content=owner.digest)
    return e.BatchEvidence(
        named=named,
        accepted_at_ns=UnixNs((owner.born - lake.behind) * UNIT_NS),
        appeared_at_ns=UnixNs(owner.born * UNIT_NS),
        retry_horizon_ns=HORIZON * UNIT_NS,
        keep_ns=KEEP * UNIT_NS,
        vacuum_ns=0,
        now_ns=UnixNs(now * UNIT_NS),
        audit_started_at_ns=UnixNs(began * UNIT_NS),
        audit_found_wrong=False,
        blob=None if blob is None else Digest("wrong") if blob.wrong else named,
        ledger=named if owner.digest in lake.ledger else None,
        blob_rows=content,
        table_rows=content if owner.digest in rows else e.RowTally(rows=0, content=""),
        enqueued=True,
        unacknowledged=lake.slow_reader,
        dead_letter=False,
        quarantined=bool(store.quarantine),
        held=lake.held,
        matches=int(owner.digest in lake.erased),
    )


def _accidents(
    lake: Lake, store: "Store", rules: ExpiryRules, *, deleting: bool
) -> Iterator[tuple[str, Lake, str | None]]:
    """Yield what operators and compaction may do."""
    yield "the table is compacted", committed(lake, lake.rows, lake.commits), None
    if not lake.held:
        yield "a hold is placed", replace(lake, held=True), None
    owner = store.manifest
    blob = None if owner is None else store.current(owner.digest)
    if lake.older is not None and blob is not None and not deleting:
        older = replace(lake, rows=lake.older, ledger=lake.older, commits=(), older=None)
        yield "an older copy of the table is restored", older, None
    if lake.tombstone is None or not rules.rebuild_refuses:
        there = frozenset() if blob is None or blob.wrong else frozenset({blob.digest})
        rebuilt = committed(replace(lake, ledger=there), there, ())
        yield "the tables are rebuilt from the blobs", rebuilt, None
