"""Makes the Spark session: the same jobs run on a cluster by configuration alone."""

import hashlib
import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from sluice_lake.locations import TableLocation, lake_location
from sluice_protocol.errors import BadUsage

Session: TypeAlias = Any
"""pyspark's `SparkSession`; mypy skips pyspark, so this says what is meant."""

DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The jars of Delta for Spark 4.2; Spark 4.3 has none (ADR 0051)."""
S3A_PACKAGE: Final = "org.apache.hadoop:hadoop-aws"
"""Only where the JVM itself reads or writes `s3a://`, as for a checkpoint there: 700 MB of jars.
Its version must be that of the Hadoop that Spark comes with."""
_HADOOP_JAR: Final = re.compile(r"hadoop-client-api-([0-9.]+)\.jar")


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


def session_conf(
    settings: SessionSettings, *, delta: bool, s3a: str | None = None
) -> dict[str, str]:
    """Gives Spark's settings, the caller's own last.

    Args:
        settings: How Spark runs.
        delta: Whether the JVM needs Delta. Neither ingestion nor maintenance does.
        s3a: The `s3://` URL of the store, when the JVM itself reads or writes `s3a://`.
    """
    conf = dict(_BASE)
    if settings.master.startswith("local"):
        conf |= _LOCAL | {"spark.driver.memory": settings.driver_memory}
    packages = [DELTA_PACKAGE] if delta else []
    if delta:
        conf |= _DELTA
    if s3a is not None:
        packages.append(f"{S3A_PACKAGE}:{read_hadoop_version()}")
        conf |= _s3a_conf(lake_location(s3a, "checkpoint"))
    if packages:
        conf["spark.jars.packages"] = ",".join(packages)
    return conf | dict(settings.conf)


def _s3a_conf(place: TableLocation) -> dict[str, str]:
    """Gives S3A what the store's URL says; credentials come from the AWS environment."""
    conf = {}
    if place.endpoint is not None:
        conf = {
            "endpoint": place.endpoint,
            "path.style.access": "true",
            "connection.ssl.enabled": str(place.endpoint.startswith("https:")).lower(),
        }
    if place.region is not None:
        conf["endpoint.region"] = place.region
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in conf.items()}


def read_hadoop_version() -> str:
    """Gives the version of the Hadoop that this Spark comes with.

    Raises:
        BadUsage: There is no Spark here that has one.
    """
    home = os.environ.get("SPARK_HOME")
    if home is None:
        import pyspark  # noqa: PLC0415 - most commands do without

        home = str(Path(pyspark.__file__).parent)
    for jar in sorted(Path(home, "jars").glob("hadoop-client-api-*.jar")):
        if found := _HADOOP_JAR.fullmatch(jar.name):
            return found[1]
    raise BadUsage(f"this Spark has no Hadoop client: set SPARK_HOME, home=`{home}`")


def open_session(settings: SessionSettings, *, delta: bool, s3a: str | None = None) -> Session:
    """Gives the running session, or starts one; what `spark-submit` was told wins.

    Workers run this very Python: without `PYSPARK_PYTHON` they would take the first `python3` of
    the path, and die when its version differs.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Imported late, because it takes most of a second and most commands do without.
    from pyspark.sql import SparkSession  # noqa: PLC0415

    given = _submitted_conf() if _submitted() else {"spark.master": settings.master}
    settings = replace(settings, master=given.get("spark.master", settings.master))
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("sluice").master(settings.master)
    for name, value in session_conf(settings, delta=delta, s3a=s3a).items():
        if name not in given:
            builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # pyspark prints each error here once more, with all of the JVM's stack; it is raised anyhow.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return session


def _submitted() -> bool:
    """Whether `spark-submit` started this process and has said where it runs."""
    return "SPARK_ENV_LOADED" in os.environ and "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted_conf() -> dict[str, str]:
    """Gives what `spark-submit` was told, by flags and by its files."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - takes most of a second

    # The JVM runs already and knows; a builder's setting would silently win over it.
    SparkContext._ensure_initialized()  # noqa: SLF001 - as pyspark's own builder does
    return dict(SparkConf().getAll())


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
