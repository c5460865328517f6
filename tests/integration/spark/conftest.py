"""One Spark session for every test of the process; neither ingest nor maintenance needs jars."""

from collections.abc import Iterator
from typing import Any

import pytest

from sluice_spark.session import SessionSettings, open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = open_session(SessionSettings(master="local[2]", driver_memory="1g"), delta=False)
    yield session
    session.stop()
