"""The session: its settings, versions of Java, imports, and the private names that it uses."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from support.private_api import expect_call, expect_limited, expect_name

from sluice_protocol.errors import BadUsage
from sluice_spark import session as module
from sluice_spark.jvm import parse_java_version
from sluice_spark.session import (
    WORKER_ALLOCATOR,
    SessionSettings,
    read_hadoop_version,
    session_conf,
    site_python,
)


def test_session_conf_sets_the_allocator_of_workers_and_can_be_overridden() -> None:
    """The settings reach the Python workers of executors; the caller's take precedence."""
    name = "spark.executorEnv.MALLOC_ARENA_MAX"
    conf = session_conf(SessionSettings(), delta=False)
    assert {
        f"spark.executorEnv.{key}": value for key, value in WORKER_ALLOCATOR.items()
    }.items() <= (conf.items())
    assert session_conf(SessionSettings(conf={name: "2"}), delta=False)[name] == "2"


def test_session_conf_limits_the_initial_heap_of_one_machine() -> None:
    """Otherwise it grows with the memory of the machine."""
    options = session_conf(SessionSettings(), delta=False)["spark.driver.extraJavaOptions"].split()
    assert "-Xms64m" in options


def test_session_conf_sends_small_batches_to_python_within_the_limit_in_bytes() -> None:
    """Spark adds up a batch after each row, so large batches cost more; bytes stay limited."""
    conf = session_conf(SessionSettings(), delta=False)
    assert int(conf["spark.sql.execution.arrow.maxRecordsPerBatch"]) <= 1_000
    assert "spark.sql.execution.arrow.maxBytesPerBatch" not in conf


def test_session_conf_requires_jars_only_if_the_jvm_needs_them() -> None:
    """Neither ingestion nor maintenance does; S3A is only for `s3a://`, in Spark's version."""
    assert "spark.jars.packages" not in session_conf(SessionSettings(), delta=False)
    delta = session_conf(SessionSettings(), delta=True)["spark.jars.packages"]
    assert "hadoop-aws" not in delta
    url = "s3://bucket/prefix?endpoint=http://127.0.0.1:7070&region=us-east-1"
    conf = session_conf(SessionSettings(), delta=False, s3a=url)
    assert conf["spark.jars.packages"] == f"org.apache.hadoop:hadoop-aws:{read_hadoop_version()}"
    assert conf["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:7070"
    assert conf["spark.hadoop.fs.s3a.endpoint.region"] == "us-east-1"


def test_the_master_is_that_of_sparks_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER", raising=False)
    assert SessionSettings().master == "local[2,4]"
    monkeypatch.setenv("MASTER", "local[8]")
    assert SessionSettings().master == "local[8]"


def test_the_heap_is_left_to_spark() -> None:
    """`SPARK_DRIVER_MEMORY` sets it, which a setting of sluice would override."""
    assert "spark.driver.memory" not in session_conf(SessionSettings(), delta=False)


def test_session_conf_of_a_cluster_does_not_set_the_driver_address() -> None:
    """Executors could not reach a driver at 127.0.0.1."""
    conf = session_conf(SessionSettings(master="spark://head:7077"), delta=False)
    assert not [name for name in conf if name.startswith("spark.driver.")]


def test_read_hadoop_version_refuses_a_folder_without_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(BadUsage, match="SPARK_HOME"):
        read_hadoop_version()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_412"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_parse_java_version_feature_release(text: str, expected: int | None) -> None:
    """Old and new version schemes give the feature release."""
    assert parse_java_version(text) == expected


NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_SITE_PYTHON")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


def values() -> list[str | None]:
    return [os.environ.get(name) for name in NAMES]


def test_the_launcher_is_set_only_while_a_session_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    before = values()
    with site_python("local[2,4]"):
        launcher, driver, interpreter = values()
    assert launcher == driver == str(module._LAUNCHER)
    assert interpreter == sys.executable
    assert values() == before


@pytest.mark.parametrize(
    ("name", "value", "master"),
    [
        ("PYSPARK_PYTHON", "python3", "local[1]"),
        ("PYSPARK_DRIVER_PYTHON", "/other/python", "local[1]"),
        ("PYSPARK_PYTHON", sys.executable, "spark://head:7077"),
        ("SPARK_HOME", "/opt/spark", "local[1]"),
    ],
)
def test_another_interpreter_or_spark_or_a_cluster_is_left_as_it_is(
    name: str, value: str, master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    before = values()
    with site_python(master):
        assert values() == before


def test_the_launcher_drops_what_is_in_the_folder_of_spark(tmp_path: Path) -> None:
    """Other folders of PYTHONPATH remain, in their order."""
    home, other, last = tmp_path / "spark", tmp_path / "other *", tmp_path / "last"
    path = f"{home}/python/lib/pyspark.zip:{other}:{home}/jars/core.jar:{last}"
    done = subprocess.run(
        [
            module._LAUNCHER,
            "-c",
            "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1])",
            "a b",
        ],
        env={"SPARK_HOME": str(home), "PYTHONPATH": path, "SPARK_SITE_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{other}:{last} a b\n"


def test_the_launcher_keeps_everything_without_a_folder_of_spark() -> None:
    done = subprocess.run(
        [module._LAUNCHER, "-c", "import os; print(os.environ['PYTHONPATH'])"],
        env={"PYTHONPATH": "/a:/b", "SPARK_SITE_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "/a:/b\n"


EXPENSIVE = ("aiohttp", "botocore", "cryptography", "deltalake", "duckdb", "rich", "structlog")


def test_the_data_source_imports_no_expensive_package() -> None:
    """Each would delay the first micro-batch of every query."""
    code = f"import sys, pyspark_sluice; print([n for n in {EXPENSIVE} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


USED_IN = "spark/sluice_spark/session.py"


def test_pyproject_limits_pyspark_to_the_tested_version() -> None:
    expect_limited("pyspark", used_in=USED_IN)


def test_the_gateway_to_the_jvm_can_be_started_before_the_session() -> None:
    expect_name("pyspark", SparkContext, "_ensure_initialized", used_in=USED_IN)
    expect_call("pyspark", SparkContext._ensure_initialized, used_in=USED_IN)


def test_the_context_has_the_gateway_with_the_process_of_the_jvm() -> None:
    used_in = "spark/sluice_spark/jvm.py"
    assert "_gateway" in SparkContext.__annotations__, used_in
    assert "gateway.proc = proc" in inspect.getsource(launch_gateway), used_in
