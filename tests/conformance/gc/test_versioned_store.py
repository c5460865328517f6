"""The versioned store of the simulations passes the conformance suite of the port."""

import asyncio

import pytest
from support.gc_store import VersionedStore
from support.store_conformance import CHECKS

from sluice_protocol.system_clock import SystemClock
from sluice_store.conformance import Check


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_versioned_store_conforms(check: Check) -> None:
    """The versioned store in memory passes every check of the suite."""
    asyncio.run(check(VersionedStore(clock=SystemClock()), "place/"))
