"""The conformance suite over the fake in memory."""

import asyncio

import pytest
from support.store_conformance import assert_conforms

from sluice_store.conformance import CHECKS, Check
from sluice_store.memory import open_memory_store


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_memory_conforms(check: Check) -> None:
    """The fake keeps every promise of the port, under a prefix of a deployment."""
    store, _ = open_memory_store(prefix="some/prefix/")
    asyncio.run(assert_conforms("memory", check, store, "place/"))
