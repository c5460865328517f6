"""Makes the Spark session: the same jobs run on a cluster by configuration alone."""

import hashlib
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

Session: TypeAlias = Any
"""pyspark's `SparkSession`; mypy skips pyspark, so this says what is meant."""

DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The jars of Delta for Spark 4.2; Spark 4.3 has none (ADR 0051)."""
S3A_PACKAGES: Final = ("org.apache.hadoop:hadoop-aws:3.4.2",)
"""Only for an `s3://` lake that Spark itself reads or writes; it matches Spark 4.2's Hadoop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How Spark runs.

    Attributes:
        master: Spark's master when none is given by `spark-submit`; `local[n,m]` runs n tasks at
            once in this machine, and gives a task m tries.
        driver_memory: Heap of the JVM, as Spark writes it. Records do not go through it.
        conf: More of Spark's own settings; they win over the ones made here.
    """

    master: str = "local[2,4]"
    driver_memory: str = "1g"
    conf: Mapping[str, str] = field(default_factory=dict)


WORKER_ALLOCATOR: Final[Mapping[str, str]] = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024),
    "MALLOC_ARENA_MAX": "1",
}
"""The environment of Python workers: glibc keeps the few MiB of a frame for the next frame instead
of giving them back to the kernel, which would clear every page again: a fifth of the time of a task
(ADR 0056). Other C libraries take no notice."""

_BASE: Final = {
    **{f"spark.executorEnv.{name}": value for name, value in WORKER_ALLOCATOR.items()},
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.sql.streaming.stopTimeout": "60s",
}
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": (
        f"-XX:+UseSerialGC -Dlog4j2.configurationFile={Path(__file__).parent / 'log4j2.properties'}"
    ),
    "spark.databricks.delta.snapshotPartitions": "2",
}
_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.retentionDurationCheck.enabled": "true",
}


def session_conf(settings: SessionSettings, *, delta: bool, s3: bool = False) -> dict[str, str]:
    """Gives Spark's settings, the caller's own last.

    Args:
        settings: How Spark runs.
        delta: Whether the JVM needs Delta: maintenance does, ingestion does not.
        s3: Whether the JVM itself reads or writes `s3://`.
    """
    conf = dict(_BASE)
    if settings.master.startswith("local"):
        conf |= _LOCAL | {"spark.driver.memory": settings.driver_memory}
    if delta:
        packages = (DELTA_PACKAGE, *(S3A_PACKAGES if s3 else ()))
        conf |= _DELTA | {"spark.jars.packages": ",".join(packages)}
    return conf | dict(settings.conf)


def open_session(settings: SessionSettings, *, delta: bool, s3: bool = False) -> Session:
    """Gives the running session, or starts one.

    Workers run this very Python: without `PYSPARK_PYTHON` they would take the first `python3` of
    the path, and die when its version differs.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Imported late, because it takes most of a second and most commands do without.
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("sluice")
    if "spark.master" not in settings.conf and not _submitted():
        builder = builder.master(settings.master)
    for name, value in session_conf(settings, delta=delta, s3=s3).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # pyspark prints each error here once more, with all of the JVM's stack; it is raised anyhow.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return session


def _submitted() -> bool:
    """Whether `spark-submit` started this process and has said where it runs."""
    return "SPARK_ENV_LOADED" in os.environ and "PYSPARK_GATEWAY_PORT" in os.environ


def checkpoint_folder(store_url: str, configured: str | None) -> str:
    """Gives where the streaming query keeps its checkpoint.

    Losing it costs nothing but time: everything that counts stands in the tables.
    """
    if configured is not None:
        return configured
    if store_url.startswith("file://"):
        root = Path(store_url.removeprefix("file://")).absolute()
        return f"file://{root}/.sluice/spark/checkpoint"
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    named = hashlib.sha256(store_url.encode()).hexdigest()[:16]  # one machine may serve many stores
    return f"file://{cache}/sluice/spark/{named}/checkpoint"
