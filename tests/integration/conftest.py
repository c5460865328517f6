"""One Spark session for all tests of the process; neither ingest nor maintenance needs jars."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from support.store_versitygw import CREDENTIALS

from sluice_spark.session import SessionSettings, open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    # Workers inherit the environment with which the JVM was started.
    for name, value in {**CREDENTIALS, "AWS_REGION": "us-east-1"}.items():
        os.environ.setdefault(name, value)
    session = open_session(SessionSettings(driver_memory="1g"), delta=False)
    yield session
    session.stop()
