"""Delta's own reader in the JVM reads tables that delta-rs and pyarrow wrote."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import sluice
from support.spark_lake import T0_NS, Deployment, make_batch
from support.spark_local import ingest_locally

pytestmark = [pytest.mark.spark, pytest.mark.long]

SCRIPT = """
import sys
from sluice_spark.session import SessionSettings, open_session
spark = open_session(SessionSettings(), delta=True)
logs = spark.read.format("delta").load(sys.argv[1])
one = logs.where(f"ts = timestamp_micros({sys.argv[2]})").count()
print("RESULT", logs.count(), one, logs.where("accepted_date = '2026-09-21'").count())
print("PROMOTED", logs.where("attr_path = '/p/2'").count(), logs.where("attr_path is null").count())
spark.stop()
"""


def test_spark_reads_the_lake_with_delta(tmp_path: Path) -> None:
    """Every row is read, and the statistics never skip a file that contains a matching row.

    It needs Delta's jars, which Spark downloads once, and therefore a session in a separate
    process. The last file has a promoted column, which its rows have for odd numbers.
    """
    deployment = Deployment(tmp_path, lanes=1).init()
    for n in range(3):
        if n == 2:
            added = sluice(
                "columns", "add", "logs", "attributes.path", "text", "--store", deployment.url
            )
            assert added.returncode == 0, added.stderr
        deployment.deliver([make_batch(n * 10)])
        ingest_locally(deployment.url)
    stamp_us = (T0_NS + 15 * 1_000_000_007) // 1000
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "lake/v1/logs"), str(stamp_us)],
        capture_output=True,
        text=True,
        timeout=590,
        check=True,
    )
    assert "RESULT 30 1 30" in done.stdout
    assert "PROMOTED 2 25" in done.stdout
