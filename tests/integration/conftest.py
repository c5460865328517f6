"""One Spark session for all tests of the process; neither ingest nor maintenance needs jars."""

import os
from collections.abc import Iterator
from typing import Any, Final

import pytest
from support.store_versitygw import CREDENTIALS

from sluice_spark.rollups import job as rollup
from sluice_spark.session import SessionSettings, open_session

DAILY: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings for tables of a few rows: Spark interprets a plan instead of compiling it.

The compiler of plans and the planning of each stage cost more than half of the time of such a job.
Two partitions show what must stay together. The long tests, single files, and the jobs that tests
start as processes run with the settings of the product.
"""
DAILY_ROLLUP_TASKS: Final = 2


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[Any]:
    # Workers inherit the environment with which the JVM was started.
    for name, value in {**CREDENTIALS, "AWS_REGION": "us-east-1"}.items():
        os.environ.setdefault(name, value)
    daily = "not long" in request.config.option.markexpr
    with pytest.MonkeyPatch.context() as patch:
        if daily:
            patch.setattr(rollup, "TASKS", DAILY_ROLLUP_TASKS)
        conf = DAILY if daily else {}
        session = open_session(SessionSettings(conf=conf), delta=False)
        yield session
        session.stop()
