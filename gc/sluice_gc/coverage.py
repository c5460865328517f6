"""Which keys an audit listed: contiguous ranges from the first key of a prefix to its last.

Coverage is shown and not assumed: each range carries its bounds, its pages and a digest over what
it listed, and a prefix counts only when its ranges meet without a gap or an overlap.
"""

from collections.abc import Iterable

import msgspec

from sluice_gc.errors import AuditIncomplete
from sluice_gc.merkle import root_of_roots
from sluice_protocol.units import Digest


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """Keys with `start_after < key <= end_at` under one prefix, listed to the end.

    Attributes:
        start_after: Empty for the first range of the prefix.
        end_at: None for the last range of the prefix.
        pages: Answers of the listing, at least one.
        objects: Objects, or incarnations where those were listed.
        root: Merkle root over what was listed, in the order of the listing.
        first_date_unix_ns: The store's clock in the first answer.
        last_date_unix_ns: The store's clock in the last answer.
    """

    start_after: str
    end_at: str | None
    pages: int
    objects: int
    root: Digest
    first_date_unix_ns: int
    last_date_unix_ns: int


class PrefixCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix listed from its first key to its last."""

    prefix: str
    ranges: tuple[KeyRange, ...]
    objects: int
    root: Digest


def cover_prefix(prefix: str, ranges: Iterable[KeyRange]) -> PrefixCoverage:
    """Joins ranges to the coverage of their prefix.

    Raises:
        AuditIncomplete: A range is missing, overlaps, or was not listed to its end.
    """
    ordered = tuple(sorted(ranges, key=lambda one: one.start_after.encode()))
    check_contiguous(prefix, ordered)
    return PrefixCoverage(
        prefix=prefix,
        ranges=ordered,
        objects=sum(one.objects for one in ordered),
        root=root_of_roots(one.root for one in ordered),
    )


def check_contiguous(prefix: str, ranges: tuple[KeyRange, ...]) -> None:
    """Refuses ranges that do not cover the prefix exactly once.

    Raises:
        AuditIncomplete: There is a gap, an overlap, or a range without a page.
    """
    expected: str | None = ""
    for one in ranges:
        if expected is None or one.start_after != expected:
            raise AuditIncomplete(prefix, f"no range starts after `{expected}`")
        if one.pages < 1:
            raise AuditIncomplete(prefix, f"the range after `{one.start_after}` has no page")
        expected = one.end_at
    if not ranges or expected is not None:
        raise AuditIncomplete(prefix, f"no range follows `{expected or ''}`")


def check_coverage(covered: PrefixCoverage) -> None:
    """Checks that a stored coverage agrees with itself.

    Raises:
        AuditIncomplete: Its ranges do not meet, or its sums are not those of its ranges.
    """
    again = cover_prefix(covered.prefix, covered.ranges)
    if again != covered:
        raise AuditIncomplete(covered.prefix, "the sums are not those of its ranges")
