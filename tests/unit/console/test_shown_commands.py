"""Each command that a page or an item of the overview shows exists, with these options."""

import re
import shlex
from pathlib import Path

import pytest
from support.documented_blocks import check_command

CONSOLE = Path(__file__).parents[3] / "console" / "sluice_console"
SOURCES = sorted(
    (*CONSOLE.glob("*.py"), *CONSOLE.glob("static/*.js"), *CONSOLE.glob("static/pages/*.js"))
)
COMMAND = re.compile(r"""(?<=["`>])sluice ([a-z][^"`<>$\n]*)(?=["`<$])""")


def commands() -> list[tuple[str, str]]:
    return [
        (path.name, found.strip())
        for path in SOURCES
        for found in COMMAND.findall(path.read_text())
        if not found.startswith("console")
    ]


def test_pages_show_commands() -> None:
    assert len({text for _, text in commands()}) > 20


@pytest.mark.parametrize(("page", "text"), commands())
def test_each_shown_command_exists(page: str, text: str) -> None:
    check_command(shlex.split(text))
