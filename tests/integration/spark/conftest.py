"""One Spark session, Delta included, for every test of the process."""

from collections.abc import Iterator
from typing import Any

import pytest

from sluice_spark.session import SessionSettings, open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = open_session(SessionSettings(master="local[2]", driver_memory="1g"), delta=True)
    yield session
    session.stop()
