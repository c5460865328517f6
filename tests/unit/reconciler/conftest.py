"""The store of most tests of the reconciler."""

import pytest
from support.queue_store import SimStore


@pytest.fixture
def store() -> SimStore:
    """Return an empty store with a virtual clock."""
    return SimStore()
