"""Which services `sluice up` runs on a machine, and what it reports about the others."""

from pathlib import Path

import pytest
from support.commands import make_java_home

from sluice_cli.up.preflight import select_services
from sluice_cli.up.services import SERVICES


@pytest.mark.parametrize(
    ("version", "problem"),
    [(None, "no Java: install Java 17"), ("11.0.2", "Java is too old: install Java 17")],
)
def test_without_java_17_maintenance_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, problem: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", make_java_home(tmp_path, version))
    selected, (note,) = select_services(SERVICES, ())
    assert "records stay searchable but do not reach the Delta tables" in note
    assert problem in note
    assert {one.name for one in SERVICES} - {one.name for one in selected} == {"maintain"}


def test_with_java_17_every_service_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", make_java_home(tmp_path, "17.0.15"))
    assert select_services(SERVICES, ()) == (SERVICES, ())
