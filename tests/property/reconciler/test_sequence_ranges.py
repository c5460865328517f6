"""Sequence ranges compared with a plain set of batches."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from support.repetitions import examples

from sluice_reconciler.lanes.sequence_ranges import (
    BootRanges,
    EnqueueStatus,
    ListedBatch,
    compare_range,
)

BATCHES = st.tuples(st.integers(0, 60), st.integers(0, 8)).map(lambda one: (one[0], sum(one)))


def built(batches: list[tuple[int, int]]) -> BootRanges:
    boot = BootRanges()
    for one in dict.fromkeys(batches):
        if boot.status(*one) is not EnqueueStatus.DONE:
            boot.add(*one)
    return boot


def listed(batches: set[tuple[int, int]], at: dict[tuple[int, int], int]) -> list[ListedBatch]:
    return [
        ListedBatch(start=s, end=e, last_modified_ns=at.get((s, e), 0)) for s, e in sorted(batches)
    ]


@settings(max_examples=examples(300))
@given(st.lists(BATCHES, max_size=25), BATCHES)
def test_status_is_never_wrong(batches: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    """An enqueued batch is never NEW, and a new batch is never DONE."""
    boot = built(batches)
    status = boot.status(*asked)
    if asked in batches:
        assert status is not EnqueueStatus.NEW
    else:
        assert status is not EnqueueStatus.DONE
    stored = sum(one.batches for one in boot.ranges) + len(boot.extras)
    assert stored == len(set(batches))


@settings(max_examples=examples(300))
@given(st.lists(BATCHES, max_size=25))
def test_ranges_and_extras_cover_exactly_the_batches(batches: list[tuple[int, int]]) -> None:
    """Ranges neither touch nor overlap, and no number between two of them is covered."""
    boot = built(batches)
    covered = {number for start, end in batches for number in range(start, end + 1)}
    stored = [(one.start, one.end) for one in boot.ranges]
    found = {number for start, end in (*stored, *boot.extras) for number in range(start, end + 1)}
    assert found == covered
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(stored))


@settings(max_examples=examples(300))
@given(st.lists(BATCHES, min_size=1, max_size=25), st.lists(BATCHES, max_size=3))
def test_comparison_finds_exactly_the_new_batches(
    batches: list[tuple[int, int]], later: list[tuple[int, int]]
) -> None:
    """Of the batches listed inside a range, those accepted after it was sealed are found."""
    boot = built(batches)
    everything = {*batches, *later}
    new = everything - set(batches)
    for sealed in boot.ranges:
        inside = {one for one in everything if sealed.start <= one[0] and one[1] <= sealed.end}
        found = compare_range(sealed, boot.extras, listed(inside, dict.fromkeys(new, 1)))
        assert found.sure
        assert {(one.start, one.end) for one in found.new} == new & inside
        ties = compare_range(sealed, boot.extras, listed(inside, {}))
        names = {(one.start, one.end) for one in ties.new}
        assert names >= new & inside
        assert ties.sure == (names == new & inside)


@given(st.lists(BATCHES, min_size=2, max_size=10, unique=True), st.data())
def test_missing_manifests_are_reported_and_nothing_is_enqueued_again(
    batches: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A range that lists fewer batches than it contains is an error, not a reason to enqueue."""
    boot = built(batches)
    sealed = data.draw(st.sampled_from(boot.ranges))
    inside = {
        one
        for one in batches
        if sealed.start <= one[0] and one[1] <= sealed.end and one not in boot.extras
    }
    lost = data.draw(st.sampled_from(sorted(inside)))
    found = compare_range(sealed, boot.extras, listed(inside - {lost}, {}))
    assert (found.new, found.sure, found.lost) == ((), False, 1)
