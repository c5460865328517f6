"""A Python worker starts more slowly than Spark waits, as on a busy machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.constants import command_with_constants
from support.spark_lake import Deployment, assert_lake_holds, make_batch

pytestmark = [pytest.mark.spark, pytest.mark.long]

SLOW = """#!/bin/sh
case "$*" in *python_streaming_source_runner*)
    if mkdir {folder}/slow 2>/dev/null; then sleep 12; fi;;
esac
exec {python} "$@"
"""


@pytest.mark.parametrize(("restarts_max", "code"), [(8, 0), (0, 1)])
@pytest.mark.timeout(600)
def test_ingest_restarts_its_query_if_a_worker_starts_slowly(
    restarts_max: int, code: int, tmp_path: Path
) -> None:
    """Without restarts the job fails with one line that contains the cause."""
    deployment = Deployment(tmp_path / "store", lanes=1).init()
    deployment.deliver([make_batch(0)])
    slow = tmp_path / "python"
    slow.write_text(SLOW.format(folder=tmp_path, python=sys.executable))
    slow.chmod(0o755)
    constant = f"sluice_spark.settings:IngestSettings.restarts_max={restarts_max}"
    job = [*command_with_constants(constant), "spark", "ingest", "--once"]
    done = subprocess.run(
        [*job, "--store", deployment.url],
        env=os.environ
        | {"MASTER": "local[1]", "PYSPARK_PYTHON": str(slow), "PYSPARK_DRIVER_PYTHON": str(slow)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == code, done.stderr
    if code:
        assert "sluice: ingest stopped: Python worker failed to connect back" in done.stderr
    else:
        assert '"reason": "worker_not_started"' in done.stderr
        assert_lake_holds(deployment, deployment.sent)
