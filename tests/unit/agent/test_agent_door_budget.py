"""The memory of requests to an agent's doors, and how many may wait."""

from contextlib import ExitStack

import pytest

from sluice_agent.doors.service import BODIES_BYTES_MAX, REQUESTS_MAX, DoorBudget
from sluice_protocol.errors import ErrorCode
from sluice_web.problems import HttpRefusal


def test_memory_is_reserved_and_released() -> None:
    budget = DoorBudget(1000, lambda: False)
    with budget.take(BODIES_BYTES_MAX):
        with pytest.raises(HttpRefusal, match="send it again later") as found, budget.take(1):
            raise AssertionError("there is no room")
        assert found.value.code is ErrorCode.OVERLOADED
    with pytest.raises(ValueError, match="inside"), budget.take(1):
        raise ValueError("inside")
    assert budget.held_bytes == 0


def test_a_body_of_the_largest_size_fits_alone() -> None:
    budget = DoorBudget(2 * BODIES_BYTES_MAX, lambda: False)
    with budget.request(2 * BODIES_BYTES_MAX):
        assert budget.held_bytes == 2 * BODIES_BYTES_MAX


def test_requests_are_counted_and_incomplete_messages_are_not() -> None:
    budget = DoorBudget(1000, lambda: False)
    with ExitStack() as stack:
        for _ in range(REQUESTS_MAX):
            stack.enter_context(budget.request(1))
        with pytest.raises(HttpRefusal), budget.request(1):
            raise AssertionError("too many requests")
        with budget.take(1):
            assert budget.held_bytes == REQUESTS_MAX + 1
    with budget.request(1):
        assert budget.held_bytes == 1


def test_no_request_is_accepted_while_the_spool_is_full() -> None:
    budget = DoorBudget(1000, lambda: True)
    with pytest.raises(HttpRefusal, match="the spool is full"), budget.request(1):
        raise AssertionError("the spool is full")
    assert budget.held_bytes == 0
