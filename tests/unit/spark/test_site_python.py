"""Spark's Python processes import pyspark from site-packages, not from Spark's archive."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice_spark import session as module
from sluice_spark.session import site_python

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
