import pytest

from sluice_spark.failpoints import FAILPOINT_VARIABLE, FailPoint, read_failpoint


@pytest.mark.parametrize(
    ("value", "step", "visit"), [("", None, 1), ("after_write", "after_write", 1), ("x:3", "x", 3)]
)
def test_failpoint_is_read_from_the_environment(value: str, step: str | None, visit: int) -> None:
    read = read_failpoint({FAILPOINT_VARIABLE: value})
    assert (read.step, read.visit) == (step, visit)


def test_failpoint_acts_from_its_visit_of_its_step_on() -> None:
    acted: list[int] = []
    point = FailPoint(step="before_ledger", visit=2, action=lambda: acted.append(point.visits))
    for step in ("before_ledger", "after_ledger", "before_ledger", "before_ledger"):
        point.reach(step)
    assert acted == [2, 3]


def test_failpoint_without_a_step_never_acts() -> None:
    point = FailPoint(action=lambda: pytest.fail("acted"))
    point.reach("before_ledger")
