"""The report at the end of `make demo`: commands that exist, and last the one for the console."""

import shlex
from types import SimpleNamespace
from typing import Any

import pytest
from deploy.demo.__main__ import print_report
from support.documented_blocks import check_command

STORE = "file:///srv/demo/store"


def test_the_demo_ends_with_the_command_that_opens_the_console(
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo: Any = SimpleNamespace(report=("checked",), store=STORE, old="0" * 64)
    print_report(demo)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith(".venv/bin/sluice ")]
    for words in commands:
        check_command(words[1:])
        assert words[words.index("--store") + 1] == STORE
    assert len(commands) > 1
    assert lines[-2].startswith("open the console on the store; it reports")
    assert lines[-1] == f".venv/bin/sluice console --store {STORE}"
