"""Ranges, gaps and overlaps of one boot, computed in key order."""

from hypothesis import given
from hypothesis import strategies as st

from sluice_protocol.identity import Identity
from sluice_protocol.units import ETag, UnixNs
from sluice_reconciler.completeness import LISTED_MAX, BootTally, ReportedHighWater, StoreTally

SECOND_NS = 1_000_000_000


def who(start: int, end: int) -> Identity:
    return Identity(agent_id="a", boot_id="b", seq_start=start, seq_end=end)


def union_of(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), min_size=1, max_size=30))
def test_ranges_are_the_union_and_gaps_its_complement(found: list[tuple[int, int]]) -> None:
    """Batches may overlap or be adjacent; a boot starts at 0."""
    batches = sorted((start, start + size) for start, size in found)
    tally = BootTally("a", "b")
    for number, (start, end) in enumerate(batches):
        tally.add(who(start, end), number)
    report = tally.report(100, {})
    union = union_of(batches)
    assert list(report.ranges) == union
    starts = [0, *(end + 1 for _, end in union)]
    wanted = [(low, start - 1) for low, (start, _) in zip(starts, union, strict=False)]
    assert [(gap.seq_start, gap.seq_end) for gap in report.gaps] == [
        (low, high) for low, high in wanted if low <= high
    ]
    assert report.high_water == max(end for _, end in batches)
    assert report.oldest_gap_s == max((gap.age_s for gap in report.gaps), default=0)


def test_boot_with_many_gaps_needs_bounded_memory() -> None:
    """The first gaps are listed and the others counted; the oldest gap and the last one are
    reported.
    """
    tally, holes = BootTally("a", "b"), LISTED_MAX + 500
    for number in range(holes):
        # The last gap is the oldest.
        tally.add(who(number * 10 + 5, number * 10 + 9), (2 * holes - number) * SECOND_NS)
    tally.add(who(holes * 10, holes * 10 + 9), 2 * holes * SECOND_NS)
    reported = {
        ("a", "b"): ReportedHighWater(
            etag=ETag('"1"'), seq_end=holes * 10 + 19, reported_at_ns=UnixNs(3 * holes * SECOND_NS)
        )
    }
    report = tally.report(3 * holes * SECOND_NS, reported)
    assert len(report.ranges) == LISTED_MAX
    assert report.ranges[-1] == (LISTED_MAX * 10 - 5, LISTED_MAX * 10 - 1)
    assert (len(report.gaps), report.gaps_more) == (LISTED_MAX + 1, 500)
    assert report.oldest_gap_s == 2 * holes - 1
    assert (report.gaps[-1].tail, report.tail_missing) == (True, 10)
    assert report.batches == holes + 1


def listed(boot: str, at_s: int, *, first: int = 0) -> BootTally:
    tally = BootTally("a", boot)
    who = Identity(agent_id="a", boot_id=boot, seq_start=first, seq_end=first + 9)
    tally.add(who, at_s * SECOND_NS)
    return tally


def test_report_of_many_boots_keeps_the_faulty_and_the_youngest() -> None:
    """A store has more boots with each year, so what a pass remembers of them is bounded."""
    store = StoreTally({}, 0, weight_max=4)
    for number in range(100):
        boot = listed(f"b{number:03d}", number, first=5 if number == 7 else 0)
        store.add(boot, UnixNs(200 * SECOND_NS))
    report = store.report()
    assert [one.boot_id for one in report.boots] == ["b007", "b098", "b099"], "a gap counts too"
    assert report.more == 97
    assert report.oldest_gap_s == 193
