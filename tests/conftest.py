"""What every test shares."""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

# A slow machine fails no test: speed is measured in benchmarks.
settings.register_profile("sluice", deadline=None)
settings.load_profile("sluice")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that start Spark first: parallel workers then end at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command run in this process sets logs up; the next test must not write to its file."""
    yield
    structlog.reset_defaults()
