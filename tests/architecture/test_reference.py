"""The generated pages of the reference are those that the code renders now."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deploy.page_sections import split_section
from deploy.reference import FOLDER, PAGES, QUEUE_PAGE, REGISTER_MARKS, ROOT, render_register

OTHER_MACHINE = """
import json, os, socket
socket.gethostname = lambda: "another-host"
os.cpu_count = lambda: 61
from deploy.reference import PAGES
print(json.dumps({name: render() for name, render in PAGES.items()}))
"""


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_current(name: str) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    assert page == PAGES[name](), "run `make docs`"


def test_the_pages_are_the_same_on_each_machine(tmp_path: Path) -> None:
    """Defaults that depend on the machine are described, not evaluated."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": "/srv/state",
        "XDG_CACHE_HOME": "/srv/cache",
        "COLUMNS": "40",
        "LC_ALL": "C",
        "PYTHONHASHSEED": "7",
        "PYTHONUTF8": "1",
    }
    shown = subprocess.run(
        [sys.executable, "-c", OTHER_MACHINE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=True,
        timeout=120,
    ).stdout
    rendered = json.loads(shown)
    assert list(rendered) == list(PAGES)
    for name, page in rendered.items():
        assert page == (FOLDER / name).read_text(encoding="utf-8"), name


def test_the_table_of_the_register_is_current() -> None:
    _, shown, _ = split_section(QUEUE_PAGE.read_text(encoding="utf-8"), *REGISTER_MARKS)
    assert shown == render_register(), "run `make docs`"


def test_there_is_no_other_page() -> None:
    assert {one.name for one in FOLDER.iterdir()} == {name for name in PAGES if "/" not in name}


def test_the_pages_describe_what_they_list() -> None:
    commands = (FOLDER / "commands.md").read_text(encoding="utf-8")
    assert "| `--gc.execute-only` | `SLUICE_MAINTAIN_GC_EXECUTE_ONLY` | `False` |" in commands
    assert "`GET /v1/fields/values`" in (FOLDER / "http.md").read_text(encoding="utf-8")
    metrics = (FOLDER / "metrics.md").read_text(encoding="utf-8")
    assert "| `sluice_accepts` | counter | `outcome` |" in metrics
    assert "| `sluice_agent_answers` | counter | `reaction`, `reason` |" in metrics
