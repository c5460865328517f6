"""The documented `spark-submit` commands on a real cluster.

A master and a worker run as separate processes; lake and checkpoint are in a bucket of a real S3
server.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from support.spark_lake import assert_lake_holds, make_batch
from support.store_buckets import versitygw_deployment
from support.store_versitygw import CREDENTIALS, free_port, wait_for_port

from sluice_protocol.fields import KINDS
from sluice_spark.session import S3A_PACKAGE, read_hadoop_version

pytestmark = [pytest.mark.long, pytest.mark.s3, pytest.mark.spark, pytest.mark.timeout(1800)]

SPARK = Path(pyspark.__file__).parent


@contextmanager
def daemon(folder: Path, port: int, *arguments: str) -> Iterator[None]:
    """Run one of Spark's daemons in the foreground until the end of the block."""
    with (folder / f"{arguments[0].rpartition('.')[2]}.log").open("wb") as log:
        command = [str(SPARK / "bin" / "spark-class"), *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
        try:
            wait_for_port(port, process)
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


def environment() -> dict[str, str]:
    """Return an environment with the credentials, as documented for every node."""
    return {
        **os.environ,
        **CREDENTIALS,
        "AWS_REGION": "us-east-1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    port, ui, worker, worker_ui = (free_port() for _ in range(4))
    url = f"spark://127.0.0.1:{port}"
    here = ("--host", "127.0.0.1")
    places = ("--work-dir", str(tmp_path / "work"), "--cores", "2", "--memory", "1g")
    with ExitStack() as stack:
        name = "org.apache.spark.deploy.master.Master"
        ports = ("--port", str(port), "--webui-port", str(ui))
        stack.enter_context(daemon(tmp_path, port, name, *here, *ports))
        name = "org.apache.spark.deploy.worker.Worker"
        ports = ("--port", str(worker), "--webui-port", str(worker_ui))
        stack.enter_context(daemon(tmp_path, worker, name, *here, *ports, *places, url))
        yield url


def submit(master: str, *arguments: str, jars: bool = False) -> str:
    sluice = str(Path(sys.executable).parent / "sluice")
    script = subprocess.check_output([sluice, "spark", "script"], text=True).strip()
    packages = ["--packages", f"{S3A_PACKAGE}:{read_hadoop_version()}"] if jars else []
    done = subprocess.run(
        [
            *(str(SPARK / "bin" / "spark-submit"), "--master", master, *packages),
            *("--conf", "spark.executor.cores=1", "--conf", "spark.executor.memory=512m"),
            *(script, "spark", *arguments),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_jobs_run_on_a_cluster(master: str, tmp_path: Path) -> None:
    """Ingest with its checkpoint on S3A, then compaction, run on a master and executors."""
    with versitygw_deployment(tmp_path) as place:
        url = place.url
        checkpoint = "s3a://lake/checkpoint"
        for n in range(2):
            place.deliver([make_batch(n * 10, agent=f"{kind}-1", kind=kind) for kind in KINDS])
            arguments = ("ingest", "--store", url, "--once", "--checkpoint", checkpoint)
            assert f"{len(KINDS)} batches" in submit(master, *arguments, jars=True)
        assert_lake_holds(place, place.sent)
        told = submit(master, "compact", "--store", url, "--open-partitions")
        assert f"{2 * len(KINDS)} files before, {len(KINDS)} after" in told
        assert_lake_holds(place, place.sent)
        applications = [path.name for path in (tmp_path / "work").iterdir()]
        assert len([name for name in applications if name.startswith("app-")]) == 3
