"""The conformance suite over the fake in memory."""

import asyncio

import pytest
from support.gc_world import MovedClock
from support.memory_bucket import open_memory_store
from support.memory_bucket.faults import Fault, Scripted
from support.store_conformance import CHECKS, assert_conforms

from sluice_protocol.outcomes import ObjectInfo, Unknown
from sluice_protocol.units import ObjectKey
from sluice_store.conformance import Check


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_memory_conforms(check: Check) -> None:
    """The fake keeps every promise of the port, under a prefix of a deployment."""
    store, _ = open_memory_store(prefix="some/prefix/")
    asyncio.run(assert_conforms("memory", check, store, "place/"))


async def test_memory_dates_an_object_by_its_application() -> None:
    """A PUT that the bucket applies an hour later has the later time."""
    clock, key = MovedClock(), ObjectKey("late")
    store, _ = open_memory_store(plan=Scripted({0: Fault.APPLIED_LATE}), clock=clock)
    assert isinstance(await store.create(key, b"late"), Unknown)
    clock.pass_s(3600)
    now_ns = clock.now_ns()
    found = await store.head(key)
    for _ in range(5):
        found = await store.head(key)
    assert isinstance(found, ObjectInfo)
    assert found.last_modified_ns == now_ns
