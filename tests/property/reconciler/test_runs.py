"""Runs against a plain set of ranges."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice_reconciler.sequence_ranges import BootRanges, EnqueueStatus, ListedBatch, compare_range

RANGES = st.tuples(st.integers(0, 60), st.integers(0, 8)).map(lambda one: (one[0], sum(one)))


def built(ranges: list[tuple[int, int]]) -> BootRanges:
    boot = BootRanges()
    for one in dict.fromkeys(ranges):
        if boot.standing(*one) is not EnqueueStatus.DONE:
            boot.add(*one)
    return boot


def listed(ranges: set[tuple[int, int]], at: dict[tuple[int, int], int]) -> list[ListedBatch]:
    return [
        ListedBatch(start=s, end=e, last_modified_ns=at.get((s, e), 0)) for s, e in sorted(ranges)
    ]


@settings(max_examples=300)
@given(st.lists(RANGES, max_size=25), RANGES)
def test_standing_never_lies(ranges: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    """What is done is never called new, and what is new is never called done."""
    boot = built(ranges)
    standing = boot.standing(*asked)
    if asked in ranges:
        assert standing is not EnqueueStatus.NEW
    else:
        assert standing is not EnqueueStatus.DONE
    assert boot.batches == len(set(ranges))


@settings(max_examples=300)
@given(st.lists(RANGES, max_size=25))
def test_gaps_are_exactly_what_no_range_covers(ranges: list[tuple[int, int]]) -> None:
    """Gaps and ranges together cover 0 to the highest number, and do not overlap."""
    boot = built(ranges)
    covered = {number for start, end in ranges for number in range(start, end + 1)}
    missing = {number for gap in boot.gaps() for number in range(gap.start, gap.end + 1)}
    assert missing == set(range(boot.end + 1)) - covered


@settings(max_examples=300)
@given(st.lists(RANGES, min_size=1, max_size=25), st.lists(RANGES, max_size=3))
def test_sort_out_finds_exactly_the_new_ones(
    ranges: list[tuple[int, int]], later: list[tuple[int, int]]
) -> None:
    """Of what is listed inside a run, those that came after the run was sealed are found."""
    boot = built(ranges)
    everything = {*ranges, *later}
    new = everything - set(ranges)
    for run in boot.runs:
        inside = {one for one in everything if run.start <= one[0] and one[1] <= run.end}
        found = compare_range(run, boot.extras, listed(inside, dict.fromkeys(new, 1)))
        assert found.sure
        assert {(one.start, one.end) for one in found.new} == new & inside
        ties = compare_range(run, boot.extras, listed(inside, {}))
        names = {(one.start, one.end) for one in ties.new}
        assert names >= new & inside
        assert ties.sure == (names == new & inside)


@given(st.lists(RANGES, min_size=2, max_size=10, unique=True), st.data())
def test_vanished_manifests_are_told_and_nothing_is_repeated(
    ranges: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A run that lists fewer than it sealed is an error, not a reason to enqueue again."""
    boot = built(ranges)
    run = data.draw(st.sampled_from(boot.runs))
    inside = {
        one
        for one in ranges
        if run.start <= one[0] and one[1] <= run.end and one not in boot.extras
    }
    lost = data.draw(st.sampled_from(sorted(inside)))
    found = compare_range(run, boot.extras, listed(inside - {lost}, {}))
    assert (found.new, found.sure, found.lost) == ((), False, 1)
