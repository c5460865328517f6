"""Each command that a page or an item of the overview shows exists, with these options."""

import re
import shlex
from pathlib import Path

import pytest
from support.documented_blocks import check_command

from sluice_console.policies import denials_command
from sluice_console.settings import PolicySettings

CONSOLE = Path(__file__).parents[3] / "console" / "sluice_console"
SOURCES = sorted(
    (*CONSOLE.glob("*.py"), *CONSOLE.glob("static/*.js"), *CONSOLE.glob("static/pages/*.js"))
)
COMMAND = re.compile(r"""(?<=["`>])sluice ([a-z][^"`<>$\n]*)(?=["`<$])""")

COPIED = re.compile(r"""command(?:=|\()f?["`](sluice [a-z][^"`$\n]*)""")
"""A command of an item or a page, to which the page adds the options below."""


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


def options_of(text: str) -> list[str]:
    """Return what `command` of lib.js adds to a command."""
    (rule,) = re.findall(r"const store = /(.+)/\.test", (CONSOLE / "static/lib.js").read_text())
    return ["--store", "s3://logs"] if re.match(rule, text) else []


@pytest.mark.parametrize(
    "text", sorted({one for path in SOURCES for one in COPIED.findall(path.read_text())})
)
def test_each_copied_command_accepts_the_options_that_the_page_adds(text: str) -> None:
    check_command([*shlex.split(text)[1:], *options_of(text)])


@pytest.mark.parametrize(
    ("text", "with_store"),
    [("sluice gaps", True), ("sluice policies denials", False), ("curl http://g/readyz", False)],
)
def test_only_commands_of_the_store_get_its_url(text: str, with_store: bool) -> None:
    assert bool(options_of(text)) == with_store


@pytest.mark.parametrize("live", [True, False])
def test_the_command_of_the_denials_proves_the_documents_of_the_console(live: bool) -> None:
    settings = PolicySettings(file="/etc/my policies.toml", live=live)
    words = shlex.split(denials_command(settings))
    check_command(words[1:])
    assert words[3:5] == ["--settings", "/etc/my policies.toml"]
    assert words[5:] == (["--live"] if live else [])
