"""The files of `deploy/`, each checked by its own tool where that tool is installed.

`make test-deploy` installs the tools. Without a tool its test is skipped, and states the reason.
"""

import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.deploy_tools import run, tool
from support.documented_blocks import check_command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXPOSURE_MAX = 2.0
OURS = ("gateway-a", "gateway-b", "reconciler", "query", "console", "maintain")
SECRETS = {
    "S3_ACCESS_KEY": "one",
    "S3_SECRET_KEY": "two",
    "QUERY_TOKEN": "three",
    "RECONCILER_TOKEN": "four",
    "CONSOLE_VIEWERS": "a=b",
}


# -- systemd -----------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS, ids=lambda one: one.stem)
def test_systemd_accepts_each_unit(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/sluice/bin/sluice", "/bin/true"))
    assert run(tool("systemd-analyze"), "verify", "--man=no", copy) == ""


@pytest.mark.parametrize("unit", UNITS, ids=lambda one: one.stem)
def test_each_unit_is_hardened(unit: Path) -> None:
    shown = run(tool("systemd-analyze"), "security", "--offline=true", "--no-pager", unit)
    found = re.search(r"exposure level for \S+: ([\d.]+)", shown)
    assert found is not None
    assert float(found[1]) <= EXPOSURE_MAX


@pytest.mark.parametrize("unit", UNITS, ids=lambda one: one.stem)
def test_each_unit_starts_a_command_that_exists(unit: Path) -> None:
    (line,) = (one for one in unit.read_text().splitlines() if one.startswith("ExecStart="))
    check_command(line.split()[1:])


# -- commands in all files ---------------------------------------------------------------


def composed() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    return loaded["services"]


@pytest.mark.parametrize("service", OURS)
def test_each_service_of_compose_starts_a_command_that_exists(service: str) -> None:
    check_command(composed()[service]["command"])


@pytest.mark.parametrize("service", ["reconciler", "query", "console"])
def test_a_service_allows_the_names_under_which_it_is_reached(service: str) -> None:
    """Its own name for other services, and the addresses of the published port (ADR 14)."""
    (hosts,) = (one for one in composed()[service]["command"] if one.startswith("--allowed-hosts="))
    assert {service, "localhost", "127.0.0.1"} <= set(hosts.partition("=")[2].split(","))


def option_of(service: str, name: str) -> str:
    """Return the value of an option of a service of compose."""
    (found,) = (one for one in composed()[service]["command"] if one.startswith(f"--{name}="))
    return str(found.partition("=")[2])


@pytest.mark.parametrize(
    ("service", "setting", "other", "token"),
    [
        ("console", "reconciler", "reconciler", "SLUICE_RECONCILER_API_TOKEN"),
        ("console", "query", "query", "SLUICE_QUERY_SERVE_API_TOKEN"),
        ("query", "reconciler", "reconciler", "SLUICE_RECONCILER_API_TOKEN"),
    ],
)
def test_a_service_of_compose_reaches_another_one_with_its_token(
    service: str, setting: str, other: str, token: str
) -> None:
    host, port = option_of(service, setting).removeprefix("http://").split(":")
    assert (host, option_of(other, "listen")) == (other, f"0.0.0.0:{port}")
    prefix = {"console": "SLUICE_CONSOLE", "query": "SLUICE_QUERY_SERVE"}[service]
    sent = composed()[service]["environment"][f"{prefix}_{setting.upper()}_TOKEN"]
    assert sent == composed()[other]["environment"][token]


# -- compose -----------------------------------------------------------------------------


def test_compose_accepts_the_file(tmp_path: Path) -> None:
    (tmp_path / "principals.toml").touch()
    for name in ("compose.yaml", "haproxy.cfg"):
        shutil.copy(DEPLOY / "compose" / name, tmp_path / name)
    command = (tool("docker-compose"), "-f", "compose.yaml", "config", "--format", "json")
    shown = json.loads(run(*command, cwd=tmp_path, **SECRETS))
    ours = {name: one for name, one in shown["services"].items() if "sluice" in one["image"]}
    assert set(ours) == set(OURS) | {"prepare"}
    for name, one in ours.items():
        assert one["read_only"], name
        assert one["cap_drop"] == ["ALL"], name


def test_compose_refuses_to_start_without_secrets(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "compose" / "compose.yaml", tmp_path / "compose.yaml")
    done = subprocess.run(
        [tool("docker-compose"), "-f", "compose.yaml", "config"],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if name not in SECRETS},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # The wheel's wrapper exits with 0 also after an error.
    assert done.stdout == ""
    assert "in .env" in done.stderr


def test_each_gateway_is_behind_the_balancer() -> None:
    config = (DEPLOY / "compose" / "haproxy.cfg").read_text()
    for name in composed():
        if name.startswith("gateway"):
            assert f"{name}:8080 check" in config


# -- alerts ------------------------------------------------------------------------------


def alerts() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((DEPLOY / "monitoring" / "alerts.yaml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def test_promtool_accepts_the_rules_and_their_tests() -> None:
    folder = DEPLOY / "monitoring"
    run(tool("promtool"), "check", "rules", folder / "alerts.yaml")
    run(tool("promtool"), "test", "rules", "alerts.test.yaml", cwd=folder)
    run(tool("promtool"), "check", "config", "--syntax-only", folder / "prometheus.yml")


def test_each_alert_has_a_complete_entry_in_the_runbook() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text()
    sections = {
        part.splitlines()[0]: part for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    }
    entries = {name: text for name, text in sections.items() if name.startswith("Sluice")}
    assert set(entries) == {one["alert"] for one in alerts()}
    for name, text in entries.items():
        for part in ("Meaning", "Confirm", "Do", "At risk"):
            assert f"- **{part}:**" in text, f"{name}: {part}"


def defined_metrics() -> set[str]:
    """Return the names of metrics in the code: literals, also those with the prefix of maintain."""
    names = set()
    for path in ROOT.glob("*/sluice_*/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"sluice_[a-z_]+", node.value):
                    names.add(node.value)
                elif path.match("sluice_maintain/metrics.py"):
                    names.add(f"sluice_maintain_{node.value}")
    return names


def dashboard_expressions() -> list[str]:
    panels = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text())["panels"]
    return [
        target["expr"]
        for panel in panels
        if panel["datasource"]["type"] == "prometheus"
        for target in panel["targets"]
    ]


def test_promtool_accepts_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": one.replace("$__rate_interval", "5m")}
        for number, one in enumerate(dashboard_expressions())
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    run(tool("promtool"), "check", "rules", file)


@pytest.mark.parametrize("source", ["alerts", "dashboard"])
def test_each_metric_exists(source: str) -> None:
    known = defined_metrics()
    alerting = [one["expr"] for one in alerts()]
    texts = alerting if source == "alerts" else dashboard_expressions()
    used = {name for one in texts for name in re.findall(r"\bsluice_[a-z_]+", one)}
    assert len(used) > 10
    for name in used:
        assert name in known or re.sub(r"_(total|bucket|sum|count)$", "", name) in known, name


# -- container ---------------------------------------------------------------------------


def test_the_image_is_not_root_and_has_a_health_check() -> None:
    text = (DEPLOY / "container" / "Dockerfile").read_text()
    stage = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER 10001:10001$", stage, re.MULTILINE)
    assert "HEALTHCHECK" in stage


def test_the_health_check_reports_an_unreachable_service() -> None:
    done = subprocess.run(
        ["python3", DEPLOY / "container" / "health.py"],
        env={**os.environ, "HEALTH_URL": "http://127.0.0.1:1/readyz"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "not ready" in done.stderr
