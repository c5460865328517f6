"""The history checkers catch what they must."""

import pytest
from support.history import Operation, UploadResult, broken_guarantees, linearizable


def told(
    digest: str, status: int, asked: float, done: float, *, duplicate: bool | None = None
) -> UploadResult:
    return UploadResult(
        identity="i", digest=digest, asked=asked, told=done, status=status, duplicate=duplicate
    )


GOOD = [
    told("A", 200, 0, 5, duplicate=False),
    told("A", 200, 1, 6, duplicate=True),
    told("B", 409, 2, 7),
    told("B", 0, 3, 8),
]


def test_good_history_is_accepted() -> None:
    """One owner, one fresh answer, a duplicate and a conflict break no promise."""
    assert broken_guarantees(GOOD) == []


@pytest.mark.parametrize(
    ("planted", "promise"),
    [
        (told("B", 200, 9, 10, duplicate=False), "I1"),
        (told("A", 409, 9, 10), "I3"),
        (told("A", 200, 9, 10, duplicate=False), "I4"),
    ],
)
def test_planted_contradiction_is_named(planted: UploadResult, promise: str) -> None:
    """An answer that contradicts the others is found, with the promise that it breaks."""
    assert any(line.startswith(promise) for line in broken_guarantees([*GOOD, planted]))


def test_conflict_before_any_rival_is_wrong() -> None:
    """A 409 before any other bytes were sent has no cause."""
    history = [told("A", 409, 0, 1), told("B", 200, 2, 3, duplicate=False)]
    assert broken_guarantees(history) == ["I3 i: 409 before any other bytes were sent"]


def add(name: str, start: float, end: float | None, *, saw: int) -> Operation[int]:
    return Operation(
        name=name, start=start, end=end, apply=lambda state: state + 1 if state == saw else None
    )


def test_concurrent_increments_are_linearizable() -> None:
    """Two increments that overlap may go in either order."""
    assert linearizable(0, [add("a", 0, 5, saw=1), add("b", 1, 4, saw=0)])


def test_lost_update_is_not_linearizable() -> None:
    """Two increments that saw the same state cannot both have happened."""
    assert not linearizable(0, [add("a", 0, 1, saw=0), add("b", 0, 1, saw=0)])


def test_unknown_outcome_may_have_been_applied() -> None:
    """An operation without an answer explains a state that was seen, and need not."""
    assert linearizable(0, [add("lost", 0, None, saw=0), add("b", 2, 3, saw=1)])
    assert linearizable(0, [add("lost", 0, None, saw=0), add("b", 2, 3, saw=0)])


def test_real_time_order_is_kept() -> None:
    """What ended before another began comes first."""
    assert not linearizable(0, [add("late", 5, 6, saw=0), add("early", 0, 1, saw=1)])
