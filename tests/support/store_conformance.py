"""Runs one conformance check and asserts the server's known deviation, if it has one."""

import pytest

from sluice_store.conformance import Check
from sluice_store.deviations import deviation_of
from sluice_store.expectations import Nonconforming
from sluice_store.port import ObjectStore


async def assert_conforms(server: str, check: Check, store: ObjectStore, place: str) -> None:
    """Runs the check; where the table names a deviation, exactly that one must show."""
    known = deviation_of(server, check.__name__)
    if known is None:
        await check(store, place)
        return
    with pytest.raises(Nonconforming) as failure:
        await check(store, place)
    assert failure.value.promise == known.promise
    assert known.seen in failure.value.seen
