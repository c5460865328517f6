"""A scanner of web applications (Wapiti) finds nothing in the console, with and without logins.

It reads the paths from `/openapi.json`, so it attacks every parameter of the API.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.console_world import OPERATOR, ConsoleWorld, served_console
from support.constants import settings_with

from sluice_console.settings import ConsoleSettings

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
WAPITI = CACHE / "sluice" / "scanner" / "bin" / "wapiti"
MODULES = (
    *("cookieflags", "crlf", "csp", "csrf", "exec", "file", "http_headers", "methods"),
    *("information_disclosure", "inconsistent_redirection", "permanentxss", "redirect"),
    *("shellshock", "sql", "upload", "xss", "xxe"),
)
"""The modules that need no other host."""
ENDLESS = ("/v1/overview/stream", "/v1/tail*", "/v1/logout")
"""Paths that are not attacked: streams without an end, and the end of the session."""
PAGES_MIN = 25
OPEN = settings_with(ConsoleSettings, listen="127.0.0.1:0", sample_s=1.0)

pytestmark = [
    pytest.mark.console,
    pytest.mark.timeout(1_200),
    pytest.mark.skipif(
        not WAPITI.exists(), reason="the scanner is missing: run `deploy/scanner.sh`"
    ),
]


@pytest.fixture(scope="module", params=["with a login", "without logins"])
def scanned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ConsoleWorld, list[str]]]:
    """Return the console, and the options with which the scanner is an operator."""
    folder = tmp_path_factory.mktemp("scanned")
    if request.param == "without logins":
        with served_console(folder, OPEN) as world:
            yield world, []
    else:
        with served_console(folder) as world:
            yield world, ["--header", f"Authorization: Bearer {OPERATOR}"]


def scan(world: ConsoleWorld, folder: Path, options: list[str]) -> dict[str, Any]:
    report = folder / "report.json"
    excluded = [word for path in ENDLESS for word in ("--exclude", f"{world.url}{path}")]
    command = [
        *(WAPITI, "--url", f"{world.url}/", "--swagger", f"{world.url}/openapi.json"),
        *("--scope", "domain", "--module", ",".join(MODULES), "--max-attack-time", "60"),
        *("--no-bugreport", "--flush-session", "--store-session", folder / "session"),
        *("--store-config", folder / "config", "--format", "json", "--output", report),
        *excluded,
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1_000, check=False)
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def test_the_scanner_finds_nothing(scanned: tuple[ConsoleWorld, list[str]], tmp_path: Path) -> None:
    world, options = scanned
    found = scan(world, tmp_path, options)
    assert found["infos"]["crawled_pages_nbr"] >= PAGES_MIN
    problems = [
        f"{name}: {one['method']} {one['path']} {one['info']}"
        for kind in ("vulnerabilities", "anomalies")
        for name, several in found[kind].items()
        for one in several
    ]
    assert problems == []
