"""The private names of pyspark that opening a session uses still exist."""

import inspect

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from support.private_api import expect_call, expect_limited, expect_name

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
