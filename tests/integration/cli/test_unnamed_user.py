"""A container may run with a number that has no name; records of decisions then name the number."""

import getpass
import json
import os
from pathlib import Path

import pytest
from support.commands import sluice

from sluice_cli.shell.operator import user_name


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_decision_names_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def unknown() -> str:
        raise error("uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert sluice("init", folder=tmp_path).returncode == 0
    done = sluice("gc", "stop", "01M7X2Z6Q0000000000000000A", "--reason", "x", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    done = sluice("delete", "--to", "9d", "--json", folder=tmp_path)
    record = json.loads(done.stdout)
    assert record["principal"] == f"cli:{os.getuid()}"
    age_ns = record["accepted_until_unix_ns"] - record["to_unix_ns"]
    assert age_ns == 9 * 86_400 * 10**9


def test_a_user_with_a_name_is_named() -> None:
    assert user_name() == getpass.getuser()
