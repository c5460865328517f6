from pathlib import Path

import pytest

from sluice_protocol.errors import BadUsage
from sluice_spark.session import (
    WORKER_ALLOCATOR,
    SessionSettings,
    read_hadoop_version,
    session_conf,
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
