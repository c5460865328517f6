"""Coroutines that run together have all ended when one fails or their caller is cancelled."""

import asyncio

import pytest

from sluice_store.port import run_together


class Broken(Exception):
    """The failure of one of them."""


class Sibling:
    """Work that ends slowly after it was cancelled."""

    def __init__(self) -> None:
        self.ended = False

    async def run(self) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(10):
                await asyncio.sleep(0.001)
            self.ended = True


async def fail() -> int:
    await asyncio.sleep(0)
    raise Broken from KeyError("cause")


async def number(value: int) -> int:
    await asyncio.sleep(0.001 * (3 - value))
    return value


async def test_results_are_in_the_order_of_the_arguments() -> None:
    assert await run_together(*(number(value) for value in range(3))) == (0, 1, 2)
    assert await run_together() == ()


async def test_the_first_failure_is_raised_after_the_others_ended() -> None:
    """It keeps its cause."""
    others = [Sibling(), Sibling()]
    with pytest.raises(Broken) as caught:
        await run_together(others[0].run(), fail(), others[1].run())
    assert all(other.ended for other in others)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("after_failure", [False, True])
async def test_a_cancelled_caller_waits_for_them_too(after_failure: bool) -> None:
    """Also if it is cancelled while it waits after a failure, and more than once."""
    other = Sibling()
    works = [other.run(), fail()] if after_failure else [other.run()]
    caller = asyncio.create_task(run_together(*works))
    for _ in range(4):
        await asyncio.sleep(0.001)
        caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert other.ended
