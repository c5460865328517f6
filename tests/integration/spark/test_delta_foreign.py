"""Spark's own Delta changes the tables while ingestion commits with delta-rs."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.spark_lake import Deployment, make_batch
from support.spark_local import ingest_locally

from sluice_lake.errors import TableRefused

pytestmark = [pytest.mark.spark, pytest.mark.long]

FOREIGN = """
import sys
from sluice_spark.session import SessionSettings, open_session
spark = open_session(SessionSettings(master="local[1]"), delta=True)
print("READY", flush=True)
for statement in sys.argv[2:]:
    for tries in range(20):
        try:
            spark.sql(statement.format(table=f"delta.`{sys.argv[1]}`")).collect()
        except Exception as error:
            print("LOST", type(error).__name__, flush=True)
        else:
            print("DONE", flush=True)
            break
spark.stop()
"""


def start_foreign(deployment: Deployment, *statements: str) -> subprocess.Popen[str]:
    table = str(deployment.root / "lake/v1/logs")
    started = subprocess.Popen(
        [sys.executable, "-c", FOREIGN, table, *statements], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    while not started.stdout.readline().startswith("READY"):
        assert started.poll() is None
    return started


def sequences(deployment: Deployment) -> list[int]:
    return sorted(row["seq"] for row in deployment.rows("logs"))


@pytest.mark.timeout(1800)
def test_foreign_maintenance_during_ingestion_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Files of the ingestion are merged and old ones removed; deleted rows stay deleted.

    A table whose features were changed is refused from then on.
    """
    deployment = Deployment(tmp_path, lanes=1).init()
    for start in (0, 10, 20):
        deployment.deliver([make_batch(start)])
        ingest_locally(deployment.url)
    foreign = start_foreign(
        deployment, "OPTIMIZE {table}", "DELETE FROM {table} WHERE seq < 5", "VACUUM {table}"
    )
    start = 30
    while foreign.poll() is None:
        deployment.deliver([make_batch(start)])
        ingest_locally(deployment.url)
        start += 10
        time.sleep(start / 8)  # longer and longer, so that a slow foreign commit succeeds
    output, _ = foreign.communicate()
    assert output.count("DONE") == 3
    assert sequences(deployment) == list(range(5, start))
    assert len(deployment.rows("batches")) == start // 10

    properties = "SET TBLPROPERTIES (delta.enableRowTracking=true)"
    changed = start_foreign(deployment, f"ALTER TABLE {{table}} {properties}")
    output, _ = changed.communicate()
    assert output.count("DONE") == 1
    deployment.deliver([make_batch(start)])
    with pytest.raises(TableRefused, match="its features domainMetadata, rowTracking must be off"):
        ingest_locally(deployment.url)
    assert sequences(deployment) == list(range(5, start))
