"""Spark without Java, or with one that is too old: one line with the remedy."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.commands import CommandResult, make_java_home, sluice

from sluice_spark import jvm

REMEDY = "install Java 17 or later (Debian: apt-get install openjdk-17-jre-headless)"


@pytest.fixture(autouse=True)
def without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the session of tests that ran in this process before: a job that has one needs no Java.

    Which tests share a process depends on the load of the machine.
    """
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: None))


def run(folder: Path, java: str, *words: str) -> CommandResult:
    return sluice(*words, folder=folder, JAVA_HOME=java)


def files_of(folder: Path) -> set[Path]:
    return {path for path in (folder / ".sluice").rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert run(tmp_path, "", "init").returncode == 0
    return tmp_path


@pytest.mark.parametrize("job", ["ingest --once", "compact", "rollup", "index"])
def test_a_job_without_java_is_one_line(folder: Path, job: str) -> None:
    """It changes nothing in the store: an ingest job that cannot start fences no other."""
    before = files_of(folder)
    done = run(folder, make_java_home(folder, None), "spark", *job.split())
    assert done.stderr == f"sluice: no Java: {REMEDY} or set JAVA_HOME\n"
    assert done.returncode == 2
    assert files_of(folder) == before


def test_a_job_with_an_old_java_is_one_line(folder: Path) -> None:
    done = run(folder, make_java_home(folder, "11.0.2"), "spark", "compact")
    assert done.stderr == f"sluice: Java is too old: {REMEDY} or set JAVA_HOME, found=11\n"
    assert done.returncode == 2


def test_a_java_that_cannot_be_run_is_missing(folder: Path) -> None:
    java = Path(make_java_home(folder, "17"))
    (java / "bin" / "java").chmod(0o600)
    assert "no Java" in run(folder, str(java), "spark", "compact").stderr


def test_a_java_that_does_not_start_in_time_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with much load even `java -version` can take long."""
    monkeypatch.setattr(jvm, "STARTED_S_MAX", 0.05)
    java = Path(make_java_home(folder, "17"))
    (java / "bin" / "java").write_text("#!/bin/sh\nexec sleep 60\n")
    done = run(folder, str(java), "spark", "compact")
    assert done.stderr.startswith("sluice: Java does not start: ")
    assert f"java=`{java}/bin/java`" in done.stderr
    assert done.returncode == 2


def test_maintenance_states_it_as_the_reason_of_the_run(folder: Path) -> None:
    """The other tasks run; the one with Spark is repeated after a pause."""
    java = make_java_home(folder, None)
    done = run(
        folder,
        java,
        "maintain",
        "--once",
        "--json",
        "--tasks",
        "rollup",
        "--tasks",
        "compact",
        "--tasks",
        "index",
        "--tasks",
        "queue",
    )
    tasks = {one["task"]: one for one in json.loads(done.stdout)["tasks"]}
    assert tasks["rollup"]["last_reason"].startswith(f"no Java: {REMEDY}")
    assert tasks["queue"]["last_outcome"] == "done"
    assert "Traceback" not in done.stderr
