"""A versioned store in memory with delete markers and pages of any size, for version expiry."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from sluice_protocol.errors import StoreDenied
from sluice_protocol.outcomes import (
    Deleted,
    DeleteOutcome,
    HeadOutcome,
    NotFound,
    ObjectInfo,
    Unknown,
    UnknownReason,
)
from sluice_protocol.units import ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.port import IncarnationPage, ListedIncarnation, Versioning


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
