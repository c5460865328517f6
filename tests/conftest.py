"""What every test shares."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command run in this process sets logs up; the next test must not write to its file."""
    yield
    structlog.reset_defaults()
