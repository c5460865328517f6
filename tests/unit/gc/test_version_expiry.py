"""Expired noncurrent versions are deleted, and no read of any key ever changes.

A versioned store in memory with delete markers and pages of any size, for version expiry.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.constants import changed

from sluice_gc.settings import ExpirySettings
from sluice_gc.version_expiry import ExpiryReport, expire_versions
from sluice_protocol import keys
from sluice_protocol.blob_deletion import (
    EXPIRING,
    PERMANENT,
    SWEPT,
    StoredVersion,
    VersionRuling,
    decide_version,
)
from sluice_protocol.errors import StoreDenied, StoreMisconfigured, StoreUnavailable
from sluice_protocol.outcomes import (
    Deleted,
    DeleteOutcome,
    HeadOutcome,
    NotFound,
    ObjectInfo,
    Unknown,
    UnknownReason,
)
from sluice_protocol.units import NS_PER_S, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.port import IncarnationPage, ListedIncarnation, ObjectStore, Versioning


@dataclass(frozen=True)
class Row:
    """One version or marker."""

    incarnation: ObjectVersion
    at_ns: int
    marker: bool = False


@dataclass
class MarkedStore:
    """Rows by key, newest first; after the delete of the newest row the next one is current.

    Attributes:
        page: Rows of one listing page; a page may end between two rows of a key.
        lost: Versions whose delete has an unknown outcome and no effect.
        denied: Versions whose delete a policy denies.
        die_after: Deletes after which the process dies; None for never.
        before_head: Runs before each `head`.
    """

    rows: dict[str, list[Row]] = field(default_factory=dict)
    now_ns: int = 0
    page: int = 1000
    versioning: Versioning = Versioning.ENABLED
    lost: set[str] = field(default_factory=set)
    denied: set[str] = field(default_factory=set)
    die_after: int | None = None
    before_head: Callable[[str], None] = lambda _key: None
    deleted: list[tuple[str, str]] = field(default_factory=list)
    readable: dict[str, str | None] = field(default_factory=dict)

    def put(self, key: str, incarnation: str, at_ns: int, *, marker: bool = False) -> None:
        """Write a version, or a marker, over the key."""
        row = Row(ObjectVersion(incarnation), at_ns, marker)
        self.rows.setdefault(key, []).insert(0, row)

    def read(self, key: str) -> str | None:
        """Return the version that a read of the key returns."""
        rows = self.rows.get(key) or [Row(ObjectVersion(""), 0, marker=True)]
        return None if rows[0].marker else rows[0].incarnation

    async def head(self, key: ObjectKey) -> HeadOutcome:
        self.before_head(key)
        if self.read(key) is None:
            return NotFound(date_ns=UnixNs(self.now_ns))
        row = self.rows[key][0]
        return ObjectInfo(
            key=key,
            size_bytes=1,
            etag=ETag(row.incarnation),
            incarnation=row.incarnation,
            last_modified_ns=UnixNs(row.at_ns),
            sha256=None,
            date_ns=UnixNs(self.now_ns),
        )

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        if self.die_after is not None and len(self.deleted) >= self.die_after:
            raise ProcessDied
        if incarnation in self.denied:
            raise StoreDenied("delete", key, "a policy denies it")
        if incarnation in self.lost:
            return Unknown(reason=UnknownReason.TIMEOUT)
        self.deleted.append((key, incarnation))
        self.rows[key] = [row for row in self.rows[key] if row.incarnation != incarnation]
        return Deleted(date_ns=UnixNs(self.now_ns))

    async def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        found = [
            ListedIncarnation(
                key=ObjectKey(key),
                incarnation=row.incarnation,
                current=number == 0,
                marker=row.marker,
                size_bytes=0 if row.marker else 1,
                etag=ETag(row.incarnation),
                last_modified_ns=UnixNs(row.at_ns),
            )
            for key, rows in sorted(self.rows.items())
            if key.startswith(prefix) and key > start_after and (end_at is None or key <= end_at)
            for number, row in enumerate(rows)
        ]
        for at in range(0, len(found) or 1, self.page):
            yield IncarnationPage(
                incarnations=tuple(found[at : at + self.page]),
                date_ns=UnixNs(self.now_ns),
                last=at + self.page >= len(found),
            )

    async def read_versioning(self) -> Versioning:
        return self.versioning


class ProcessDied(BaseException):
    """The process ended at this request."""


DAY = 86_400 * NS_PER_S
KEEP = ExpirySettings(retention_s=3 * 86_400)
LANE = "queue/v1/spark.00/manifest"
FILE = "lake/v1/records/part-1.parquet"


def run(store: MarkedStore, settings: ExpirySettings = KEEP, after: str = "") -> ExpiryReport:
    port = cast(ObjectStore, store)
    return asyncio.run(expire_versions(port, settings, start_after=after))


def test_the_prefixes_are_disjoint_and_in_order() -> None:
    assert list(EXPIRING) == sorted(EXPIRING)
    assert set(EXPIRING) - set(SWEPT) == {keys.GATEWAYS}
    for one in EXPIRING:
        assert not any(one.startswith(other) or other.startswith(one) for other in PERMANENT)


def test_a_version_counts_from_when_it_was_superseded() -> None:
    """A register that was current for a year is superseded today: it stays for the retention."""
    store = MarkedStore(now_ns=400 * DAY)
    store.put(LANE, "old", 1 * DAY)
    store.put(LANE, "now", 399 * DAY)
    assert run(store).deleted == {}
    store.now_ns = 402 * DAY
    report = run(store)
    assert report.deleted == {"queue/v1/": 1}
    assert store.deleted == [(LANE, "old")]
    assert report.resume_after is None


def test_a_marker_goes_only_after_everything_below_it() -> None:
    store = MarkedStore(now_ns=10 * DAY)
    store.put(FILE, "bytes", 1 * DAY)
    store.put(FILE, "marker", 2 * DAY, marker=True)
    assert run(store).deleted == {"lake/v1/": 2}
    assert store.deleted == [(FILE, "bytes"), (FILE, "marker")]


def test_a_marker_stays_while_a_deletion_below_it_is_unknown() -> None:
    store = MarkedStore(now_ns=10 * DAY, lost={"bytes"})
    store.put(FILE, "bytes", 1 * DAY)
    store.put(FILE, "marker", 2 * DAY, marker=True)
    report = run(store)
    assert (report.unknown, store.read(FILE)) == (1, None)
    store.lost.clear()
    assert run(store).deleted == {"lake/v1/": 2}
    assert store.rows[FILE] == []


def test_nothing_under_a_permanent_prefix_is_deleted() -> None:
    store = MarkedStore(now_ns=1000 * DAY)
    for prefix in PERMANENT:
        store.put(f"{prefix}x", f"old {prefix}", 1)
        store.put(f"{prefix}x", f"new {prefix}", 2)
        store.put(f"{prefix}y", f"marker {prefix}", 2, marker=True)
    assert run(store).deleted == {}
    for prefix in PERMANENT:
        version = StoredVersion(
            key=ObjectKey(f"{prefix}x"),
            incarnation=ObjectVersion("v"),
            current=False,
            marker=False,
            hides=False,
            last_modified_ns=UnixNs(1),
            superseded_at_ns=UnixNs(2),
        )
        ruling = decide_version(version, now_ns=1000 * DAY, retention_ns=DAY)
        assert ruling is VersionRuling.PERMANENT


def test_the_null_version_stays() -> None:
    store = MarkedStore(now_ns=10 * DAY)
    store.put(LANE, "null", 1 * DAY)
    store.put(LANE, "v1", 2 * DAY)
    assert run(store).kept == {"null": 1}


def test_a_version_that_became_current_after_the_listing_stays() -> None:
    """The newest version is deleted by its id after the listing: the one below is current now."""
    store = MarkedStore(now_ns=10 * DAY)
    store.put(LANE, "v1", 1 * DAY)
    store.put(LANE, "v2", 2 * DAY)
    store.before_head = lambda key: store.rows.update({key: store.rows[key][1:]})
    assert run(store).kept == {"changed": 1}
    assert store.read(LANE) == "v1"


def test_a_version_below_a_new_write_may_go() -> None:
    store = MarkedStore(now_ns=10 * DAY)
    store.put(LANE, "v1", 1 * DAY)
    store.put(LANE, "v2", 2 * DAY)
    store.before_head = lambda key: store.put(key, "v3", 10 * DAY)
    run(store)
    assert store.deleted == [(LANE, "v1")]


def test_a_dry_run_counts_the_same_and_deletes_nothing() -> None:
    store = MarkedStore(now_ns=10 * DAY)
    store.put(FILE, "bytes", 1 * DAY)
    store.put(FILE, "marker", 2 * DAY, marker=True)
    dry = run(store, ExpirySettings(retention_s=KEEP.retention_s, dry_run=True))
    assert store.deleted == []
    assert dry == run(store)


def test_a_denied_deletion_is_counted_and_the_run_continues() -> None:
    store = MarkedStore(now_ns=10 * DAY, denied={"chunk"})
    for key, name in ((f"{keys.INDEX}x", "chunk"), (LANE, "old")):
        store.put(key, name, 1 * DAY)
        store.put(key, f"{name} now", 2 * DAY)
    report = run(store)
    assert (report.kept, report.deleted) == ({"denied": 1}, {keys.QUEUE: 1})


def test_an_unreachable_store_ends_the_run_with_its_error() -> None:
    """The schedule of maintenance retries a store error; anything else would end it."""

    def unreachable(key: str) -> None:
        raise StoreUnavailable("head", key, "no response")

    store = MarkedStore(now_ns=10 * DAY, before_head=unreachable)
    for number in range(3):
        store.put(f"{keys.QUEUE}{number}", "old", 1 * DAY)
        store.put(f"{keys.QUEUE}{number}", "now", 2 * DAY)
    with pytest.raises(StoreUnavailable):
        run(store)
    assert store.deleted == []


def test_suspended_versioning_is_refused() -> None:
    with pytest.raises(StoreMisconfigured, match="suspended: enable it"):
        run(MarkedStore(versioning=Versioning.SUSPENDED))


def test_bounded_runs_reach_the_end() -> None:
    store = MarkedStore(now_ns=10 * DAY, page=2)
    for number in range(40):
        for version in range(3):
            store.put(f"{keys.QUEUE}{number:02d}", f"{number}-{version}", version * DAY)
    store.put(f"{keys.ROLLUP}x", "v1", 1 * DAY)
    store.put(f"{keys.ROLLUP}x", "v2", 2 * DAY)
    after: str | None = ""
    runs = 0
    while after is not None:
        bounds = changed(KEEP, deletes_max=3, listed_max=10)
        report = run(store, bounds, after)
        assert sum(report.deleted.values()) <= 4
        after, runs = report.resume_after, runs + 1
    assert runs > 10
    assert len(store.deleted) == 81
    assert all(len(rows) == 1 for rows in store.rows.values())


PLACES = st.sampled_from(
    [f"{keys.GATEWAYS}a", f"{SWEPT[0]}a", LANE, FILE, "accepted/v1/x", f"{keys.RAW_BLOBS}b"]
)
WRITES = st.lists(st.tuples(PLACES, st.integers(0, 9), st.booleans()), max_size=24)


@given(writes=WRITES, page=st.integers(1, 4), crashes=st.lists(st.integers(0, 3), max_size=3))
def test_no_read_ever_changes_and_what_expired_goes(
    writes: list[tuple[str, int, bool]], page: int, crashes: list[int]
) -> None:
    """Any history, any page size, killed at any deletion: reads are equal, the rest is S3's."""
    store = MarkedStore(now_ns=10 * DAY, page=page)
    for number, (key, day, marker) in enumerate(sorted(writes, key=lambda one: one[1])):
        store.put(key, f"v{number}", day * DAY, marker=marker)
    reads = {key: store.read(key) for key in store.rows}
    before = {key: list(rows) for key, rows in store.rows.items()}
    for deletes in [*crashes, None]:
        store.die_after = None if deletes is None else len(store.deleted) + deletes
        with suppress(ProcessDied):
            run(store)
        assert {key: store.read(key) for key in reads} == reads
    for key, rows in before.items():
        at = [row.at_ns for row in rows]
        kept = [row for n, row in enumerate(rows) if n == 0 or at[n - 1] + 3 * DAY > store.now_ns]
        if len(kept) == 1 and kept[0].marker and kept[0].at_ns + 3 * DAY <= store.now_ns:
            kept = []
        expected = kept if key.startswith(SWEPT) else rows
        assert store.rows[key] == expected
