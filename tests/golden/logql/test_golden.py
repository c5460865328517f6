"""LogQL texts, and their trees or the messages that refuse them.

`SLUICE_UPDATE_GOLDEN=1` writes the trees and messages again; the texts are the keys of the files.
"""

import dataclasses
import json
import os
from enum import Enum
from functools import cache

import pytest
from support.golden import GOLDEN, golden

from sluice_protocol.errors import BadUsage
from sluice_query.logql.formatting import format_logql
from sluice_query.logql.grammar import parse_logql

ACCEPTED, REFUSED = "logql/accepted.json", "logql/refused.json"


@cache
def cases(place: str) -> dict[str, str]:
    return json.loads((GOLDEN / place).read_text(encoding="utf-8"))


def shown(value: object) -> str:
    """Return a tree as text, without the fields that have their defaults."""
    if isinstance(value, tuple):
        return f"[{', '.join(shown(one) for one in value)}]"
    if isinstance(value, Enum):
        return value.name
    if not dataclasses.is_dataclass(value):
        return str(value) if not isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    defaults = {one.name: one.default for one in dataclasses.fields(value)}
    given = [f"{name}={shown(own)}" for name, own in fields.items() if own != defaults[name]]
    return f"{type(value).__name__}({', '.join(given)})"


def message_of(text: str) -> str:
    with pytest.raises(BadUsage) as refused:
        parse_logql(text)
    return str(refused.value)


def updated(place: str, found: dict[str, str]) -> None:
    data = json.dumps(found, ensure_ascii=False, indent=1) + "\n"
    assert golden(place, data.encode()) == data.encode()


@pytest.mark.skipif("SLUICE_UPDATE_GOLDEN" not in os.environ, reason="updates the golden files")
def test_update() -> None:
    updated(ACCEPTED, {text: shown(parse_logql(text)) for text in cases(ACCEPTED)})
    updated(REFUSED, {text: message_of(text) for text in cases(REFUSED)})


@pytest.mark.parametrize("text", cases(ACCEPTED))
def test_accepted(text: str) -> None:
    expression = parse_logql(text)
    assert shown(expression) == cases(ACCEPTED)[text]
    assert parse_logql(format_logql(expression)) == expression


@pytest.mark.parametrize("text", cases(REFUSED))
def test_refused(text: str) -> None:
    assert message_of(text) == cases(REFUSED)[text]


def test_there_are_many_cases() -> None:
    assert len(cases(ACCEPTED)) >= 150
    assert len(cases(REFUSED)) >= 100
