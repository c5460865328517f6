"""The Spark session; only its configuration differs between a local run and a cluster.

The module also converts the schemas of the lake's tables to those of Spark, and selects the
interpreter of Spark's Python processes. Spark puts `pyspark.zip` first in their `PYTHONPATH`. The
archive contains no compiled modules, so each process would compile them again. A streaming query
starts such a process, whose import of the data source took twice as long.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

from sluice_lake.locations import TableLocation, lake_location
from sluice_lake.schemas import schema_json
from sluice_lake.tables import Table
from sluice_protocol.errors import BadUsage, StoreDenied
from sluice_spark.jvm import check_java, jvm_process, quiet_py4j, watch_jvm
from sluice_store.s3.credentials import credential_source
from sluice_store.s3.settings import Addressing, choose_addressing, parse_s3_url

_LAUNCHER: Final = Path(__file__).parent / "site_python.sh"
_INTERPRETER: Final = "SPARK_SITE_PYTHON"
"""The variable that contains the interpreter for the launcher."""
_VARIABLES: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@contextmanager
def site_python(master: str) -> Iterator[None]:
    """Set the interpreter of Spark's Python processes while a session is started.

    Another configured interpreter stays, and so does that of a cluster, whose executors may not
    have the launcher.
    """
    configured = [os.environ.get(name) for name in _VARIABLES]
    if not (
        master.startswith("local") and all(map(_is_this, configured)) and _runs_installed_spark()
    ):
        yield
        return
    before = dict(zip(_VARIABLES, configured, strict=True))
    os.environ |= dict.fromkeys(_VARIABLES, str(_LAUNCHER)) | {_INTERPRETER: sys.executable}
    try:
        yield
    finally:
        for name, value in {**before, _INTERPRETER: None}.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_this(configured: str | None) -> bool:
    """Return True if a configured interpreter is this one, under any name of its folder."""
    if configured is None:
        return True
    other, this = Path(configured).absolute(), Path(sys.executable).absolute()
    return other.parent == this.parent and other.exists() and other.samefile(this)


def _runs_installed_spark() -> bool:
    """Return True if the JVM is that of the installed pyspark, and the launcher can be run."""
    found = find_spec("pyspark")
    if found is None or found.origin is None or not os.access(_LAUNCHER, os.X_OK):
        return False
    home = os.environ.get("SPARK_HOME")
    return home is None or Path(home).resolve() == Path(found.origin).parent.resolve()


Session: TypeAlias = Any
"""pyspark's `SparkSession`, which has no types here."""

DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The jars of Delta for Spark 4.2; there are none for Spark 4.3 yet (ADR 31)."""
S3A_PACKAGE: Final = "org.apache.hadoop:hadoop-aws"
"""Required only if the JVM reads or writes `s3a://`, as for a checkpoint in a bucket: 700 MB of
jars.

Its version must be Spark's version of Hadoop.
"""
_HADOOP_JAR: Final = re.compile(r"hadoop-client-api-([0-9.]+)\.jar")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Settings of the Spark session.

    Spark reads the heap size of the JVM, 1 GiB by default, from `SPARK_DRIVER_MEMORY`. Records do
    not pass through the JVM.

    Attributes:
        master: Spark master URL, unless `spark-submit` sets one: that of Spark's variable `MASTER`.
            `local[n,m]` runs n tasks concurrently on this machine, with m attempts each.
        conf: Further Spark settings; they take precedence over those of sluice.
    """

    master: str = field(default_factory=lambda: os.environ.get("MASTER") or "local[2,4]")
    conf: Mapping[str, str] = field(default_factory=dict)


WORKER_ALLOCATOR: Final[Mapping[str, str]] = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024),
    "MALLOC_ARENA_MAX": "1",
}
"""The environment of Python workers.

With it, glibc keeps freed memory for the next frame instead of returning it to the kernel, which
would clear every page again: a fifth of the time of a task (ADR 31). Other C libraries ignore it.
"""

RESULT_CONF: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
"""Settings that decide which rows a job reads and selects, and where it writes them.

The defaults of a cluster often set them. With another time zone, compaction would move records to
the partition of another date, where deletes do not search for them. With the other rule for string
literals, a delete whose text contains a backslash or a quote would select other rows. If Spark
ignored files that it cannot read, compaction would replace them by files without their rows.
"""

_ARROW_ROWS_MAX: Final = 500
"""Rows of a batch that the JVM sends to a Python worker.

After each row, Spark adds up the sizes of all columns of the batch so far, to keep it within
`spark.sql.execution.arrow.maxBytesPerBatch`, and that costs more the more rows it has: 400,000 log
records take 22 to 28 CPU s in batches of 10,000 rows, Spark's default, and 6 to 8 in these. Without
a limit in bytes they take 3, but large bodies would fill the memory of both processes.
"""
_BASE: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_ARROW_ROWS_MAX),
    **{f"spark.executorEnv.{name}": value for name, value in WORKER_ALLOCATOR.items()},
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.sql.streaming.stopTimeout": "60s",
}
_JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-Xms64m",
    "-XX:MetaspaceSize=128m",
    "-XX:MinHeapFreeRatio=15",
    "-XX:MaxHeapFreeRatio=30",
    f"-Dlog4j2.configurationFile={Path(__file__).parent / 'log4j2.properties'}",
)
"""Options of the JVM on one machine.

Without an initial size, the heap starts with 1/64 of the machine's memory and fills it before it
collects: 365 MiB on a machine with 24 GiB, of which 45 are in use. With the default shares of the
heap that are free after a collection, 40 % to 70 %, the JVM grows to 840 MiB while it compares
200,000 batches; with these to 680 MiB, in the same time. The metaspace reaches 85 MiB in every job;
with its default, the JVM makes three full collections on the way.
"""
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": " ".join(_JVM_OPTIONS),
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
    """Return the Spark settings; those of the caller take precedence.

    Only some jobs need `delta`: neither ingestion nor maintenance does. `s3a` is the `s3://` URL of
    the store if the JVM reads or writes `s3a://`; raise `BadUsage` if the JVM has no setting for a
    part of it.
    """
    conf = dict(_BASE)
    if settings.master.startswith("local"):
        conf |= _LOCAL
    packages = [DELTA_PACKAGE] if delta else []
    if delta:
        conf |= _DELTA
    if s3a is not None:
        packages.append(f"{S3A_PACKAGE}:{read_hadoop_version()}")
        if (ca_bundle := parse_s3_url(s3a).ca_bundle) is not None:
            raise BadUsage(
                "a checkpoint in a bucket cannot use a file of certificate authorities: use a local"
                f" checkpoint, or add it to the trust store of Java, ca_bundle=`{ca_bundle}`"
            )
        conf |= _s3a_conf(lake_location(s3a, "checkpoint"))
    if packages:
        conf["spark.jars.packages"] = ",".join(packages)
    return conf | dict(settings.conf)


def _s3a_conf(place: TableLocation) -> dict[str, str]:
    """Return the settings of S3A for a store's URL.

    Keys that do not expire are those of the store. The JVM finds and renews all others.
    """
    bucket = place.bucket
    if bucket is None:
        return {}
    conf = {}
    if bucket.endpoint is not None:
        is_path = choose_addressing(bucket) is Addressing.PATH
        conf = {
            "endpoint": bucket.endpoint,
            "path.style.access": str(is_path).lower(),
            "connection.ssl.enabled": str(bucket.endpoint.startswith("https:")).lower(),
        }
    if bucket.region is not None:
        conf["endpoint.region"] = bucket.region
    try:
        keys = credential_source(bucket.profile).read_current()
    except StoreDenied:  # the JVM has its own sources
        keys = None
    if keys is not None and keys.token is None:
        conf |= {"access.key": keys.access_key, "secret.key": keys.secret_key}
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in conf.items()}


def read_hadoop_version() -> str:
    """Return the version of Hadoop that this Spark contains."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        import pyspark  # noqa: PLC0415 - most commands do not need it

        home = str(Path(pyspark.__file__).parent)
    for jar in sorted(Path(home, "jars").glob("hadoop-client-api-*.jar")):
        if found := _HADOOP_JAR.fullmatch(jar.name):
            return found[1]
    raise BadUsage(
        f"cannot find Hadoop's client in this Spark; set SPARK_HOME to a Spark with "
        f"Hadoop, home=`{home}`"
    )


def open_session(settings: SessionSettings, *, delta: bool, s3a: str | None = None) -> Session:
    """Return the running session, or start one.

    The settings of `spark-submit` take precedence, except over `RESULT_CONF`.

    Workers run the same Python executable. Without `PYSPARK_PYTHON` they would run the first
    `python3` of the path and fail if its version differs.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    check_startable()
    # Imported here because it takes most of a second and most commands do not need it.
    from pyspark.sql import SparkSession  # noqa: PLC0415

    given = _submitted_conf() if _submitted() else {"spark.master": settings.master}
    settings = replace(settings, master=given.get("spark.master", settings.master))
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("sluice").master(settings.master)
    for name, value in session_conf(settings, delta=delta, s3a=s3a).items():
        if name not in given:
            builder = builder.config(name, value)
    with site_python(settings.master):
        session = builder.getOrCreate()
    for name, value in RESULT_CONF.items():
        session.conf.set(name, value)
    watch_jvm(jvm_process(session))
    quiet_py4j()
    session.sparkContext.setLogLevel("ERROR")
    # pyspark prints each error with the stack of the JVM; the error is raised anyway.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return session


def check_startable() -> None:
    """Raise `BadUsage` if `open_session` has no session, and no Java to start one."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as in `open_session`

    if not _submitted() and SparkSession.getActiveSession() is None:
        check_java()


def _submitted() -> bool:
    """Return True if `spark-submit` started this process and configured Spark."""
    return "SPARK_ENV_LOADED" in os.environ and "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted_conf() -> dict[str, str]:
    """Return the settings of `spark-submit`: its flags and its files."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - takes most of a second to import

    # The JVM runs already and has these settings; a builder's settings would override them.
    SparkContext._ensure_initialized()  # noqa: SLF001 - as pyspark's own builder does
    return dict(SparkConf().getAll())


def checkpoint_folder(configured: str | None) -> str:
    """Return the folder in which streaming queries keep their checkpoints.

    By default it is in the user's cache and never in a directory store: Spark would create the
    directory again while the store is moved away.
    """
    if configured is not None:
        return configured
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return f"file://{cache}/sluice/spark"


def spark_schema(table: Table) -> Any:  # noqa: ANN401 - pyspark is untyped here
    """Return a table's schema as Spark's `StructType`."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - executors write without pyspark

    return StructType.fromJson(json.loads(schema_json(table)))
