"""Errors of the jobs on a terminal: one line each."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.spark_lake import Deployment

from sluice_cli import spark as spark_command
from sluice_cli.main import run
from sluice_lake.delta import open_or_create_table
from sluice_lake.tables import LOGS
from sluice_spark.ingest import job as ingest_job


def refused(url: str, *arguments: str, code: int = 2) -> list[str]:
    command = [sys.executable, "-m", "sluice_cli", "spark", *arguments, "--store", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code
    assert done.stdout == ""
    return [line for line in done.stderr.splitlines() if "incubator modules" not in line]


Refuse = Callable[..., list[str]]


@pytest.fixture
def refused_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run a command in this process, in which no session can start; return its error."""

    def no_session(*_: object, **__: object) -> None:
        raise AssertionError("the JVM was started")

    for module in (spark_command, ingest_job):
        monkeypatch.setattr(module, "open_session", no_session)

    def refuse(*tokens: str, code: int = 2) -> list[str]:
        assert run([*tokens]) == code
        printed = capsys.readouterr()
        assert printed.out == ""
        return printed.err.splitlines()

    return refuse


@pytest.mark.parametrize("job", [("ingest", "--once"), ("compact",), ("rollup",), ("index",)])
def test_jobs_refuse_tables_of_another_schema(
    job: tuple[str, ...], tmp_path: Path, refused_here: Refuse
) -> None:
    """Another schema, or a file instead of a table, is refused in one line before a JVM starts."""
    command = ("spark", *job, "--store", f"file://{tmp_path}")
    Deployment(tmp_path, lanes=1).init()
    logs = tmp_path / "lake" / "v1" / "logs"
    logs.parent.mkdir(parents=True)
    logs.write_text("not a table")
    (line,) = refused_here(*command)
    assert "this path is not a Delta table: move it away" in line
    logs.unlink()
    write_deltalake(str(logs), pa.table({"x": [1]}))
    (line,) = refused_here(*command)
    assert "its schema is not that of this version" in line


@pytest.mark.parametrize(
    "command",
    [
        ("spark", "ingest", "--once"),
        ("spark", "compact"),
        ("spark", "rollup"),
        ("spark", "index"),
        ("query",),
    ],
)
def test_unsupported_features_are_refused_alike(
    command: tuple[str, ...], tmp_path: Path, refused_here: Refuse
) -> None:
    """Row tracking, as Spark's Delta turns it on, is named by every reader and writer."""
    deployment = Deployment(tmp_path, lanes=1).init()
    table = open_or_create_table(deployment.url, LOGS)
    commit = tmp_path / "lake/v1/logs/_delta_log" / f"{table.version() + 1:020d}.json"
    features = ["appendOnly", "domainMetadata", "invariants", "rowTracking"]
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    commit.write_text(json.dumps({"protocol": protocol}))
    code = 1 if command == ("query",) else 2
    (line,) = refused_here(*command, "--store", deployment.url, code=code)
    assert "its features domainMetadata, rowTracking must be off" in line
