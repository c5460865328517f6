"""Each error code, rule of garbage collection and reason to hold a batch has one entry."""

import re
import tomllib

import pytest
from deploy.errors_page import REGISTRY, read_errors, render_errors
from deploy.reference import FOLDER

from sluice_protocol.errors import BadUsage, ErrorCode

TEXT = REGISTRY.read_text(encoding="utf-8")
ENTRY = re.compile(r"^\[(code|rule|hold)\.(\w+)\]\n(?:.+\n)+", re.MULTILINE)


def test_the_registry_has_an_entry_for_each_code_and_no_other() -> None:
    found = read_errors(TEXT)
    assert set(found.code) == set(ErrorCode)


@pytest.mark.parametrize("kind", ["code", "rule", "hold"])
def test_a_code_without_an_entry_is_found(kind: str) -> None:
    first = next(one for one in ENTRY.finditer(TEXT) if one[1] == kind)
    with pytest.raises(BadUsage, match=first[2]):
        read_errors(TEXT.replace(first[0], ""))


@pytest.mark.parametrize("kind", ["code", "rule", "hold"])
def test_an_entry_without_a_code_is_found(kind: str) -> None:
    first = next(one for one in ENTRY.finditer(TEXT) if one[1] == kind)
    with pytest.raises(BadUsage, match="no_such_code"):
        read_errors(f"{TEXT}\n{first[0].replace(first[2], 'no_such_code', 1)}")


@pytest.mark.parametrize("field", ["meaning", "who", "remedy"])
def test_an_entry_is_complete(field: str) -> None:
    emptied = re.sub(rf'^{field} = ".*"$', f'{field} = ""', TEXT, count=1, flags=re.MULTILINE)
    assert emptied != TEXT
    with pytest.raises(BadUsage, match="invalid registry"):
        read_errors(emptied)


def test_the_anchor_of_an_entry_is_its_code() -> None:
    """The generator of the site numbers equal headings, and their anchors."""
    headings = re.findall(r"^### (\S+)$", render_errors(), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert set(ErrorCode) <= set(headings)


def test_the_commands_in_the_entries_exist() -> None:
    commands = (FOLDER / "commands.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^## `sluice (.+)`$", commands, re.MULTILINE))
    entries = [
        text
        for table in tomllib.loads(TEXT).values()
        for entry in table.values()
        for text in entry.values()
    ]
    named = {
        " ".join(word for word in found.split() if word.islower() and word[0] != "-")
        for text in entries
        for found in re.findall(r"`sluice ([^`]+)`", text)
    }
    groups = {" ".join(one.split()[:-1]) for one in known}
    assert named - known - groups == set()
    assert len(named) > 10
