"""The simulations' versioned store keeps the promises of the port."""

import asyncio

import pytest
from support.gc_store import VersionedStore

from sluice_protocol.system_clock import SystemClock
from sluice_store.conformance import CHECKS, Check


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_versioned_store_conforms(check: Check) -> None:
    """A fake counts only once it passes the suite."""
    asyncio.run(check(VersionedStore(clock=SystemClock()), "place/"))
