"""Input that is nested too deeply ends no process: parsers raise RecursionError for it."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
NARROW = {"tomllib.TOMLDecodeError", "json.JSONDecodeError"}
"""A number that is too long is a plain ValueError."""


def handled(expression: ast.expr) -> set[str]:
    """Return the names of the exceptions that a handler catches."""
    parts = expression.elts if isinstance(expression, ast.Tuple) else [expression]
    return {ast.unparse(part) for part in parts}


def breaches(source: str) -> Iterator[int]:
    """Yield the lines of `try` statements that leave out what a parser may raise."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Try):
            continue
        types = [handler.type for handler in node.handlers if handler.type is not None]
        found = set().union(*map(handled, types))
        parses = {"msgspec.DecodeError", "msgspec.MsgspecError"} & found
        if NARROW & found or (parses and "RecursionError" not in found):
            yield node.lineno


def test_every_parser_of_input_handles_deep_nesting() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert sum("RecursionError" in text for text in texts.values()) > len(PACKAGES)
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, text in texts.items()
        if "DecodeError" in text or "MsgspecError" in text
        for line in breaches(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("caught", "right"),
    [
        ("msgspec.DecodeError", False),
        ("(KeyError, msgspec.MsgspecError)", False),
        ("(tomllib.TOMLDecodeError, RecursionError)", False),
        ("(msgspec.DecodeError, RecursionError)", True),
        ("(ValueError, RecursionError)", True),
    ],
)
def test_a_handler_that_leaves_something_out_is_found(caught: str, right: bool) -> None:
    assert bool(list(breaches(f"try:\n  a()\nexcept {caught}:\n  b()\n"))) != right
