"""The private name of pyspark that opening a session uses still exists."""

from pyspark import SparkContext
from support.private_api import expect_call, expect_limited, expect_name

USED_IN = "spark/sluice_spark/session.py"


def test_pyproject_limits_pyspark_to_the_tested_version() -> None:
    expect_limited("pyspark", used_in=USED_IN)


def test_the_gateway_to_the_jvm_can_be_started_before_the_session() -> None:
    expect_name("pyspark", SparkContext, "_ensure_initialized", used_in=USED_IN)
    expect_call("pyspark", SparkContext._ensure_initialized, used_in=USED_IN)
