import os
import threading
from pathlib import Path

import pytest

from sluice_spark.failpoints import (
    FAILPOINT_FOLDER_VARIABLE,
    FAILPOINT_VARIABLE,
    FailPoint,
    read_failpoint,
)


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


def test_failpoint_holds_one_process_at_an_armed_step(tmp_path: Path) -> None:
    """It waits until the test removes the announcement; later visits pass."""
    point = read_failpoint({FAILPOINT_FOLDER_VARIABLE: str(tmp_path)})
    point.reach("in_write")
    (tmp_path / "in_write.armed").touch()
    point.reach("before_write")
    held = threading.Thread(target=point.reach, args=("in_write",))
    held.start()
    announced = tmp_path / f"in_write.{os.getpid()}"
    while not announced.exists():
        assert held.is_alive()
    point.reach("in_write")
    assert held.is_alive()
    announced.unlink()
    held.join(5)
    assert not held.is_alive()
