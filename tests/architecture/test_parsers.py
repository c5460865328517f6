"""Input that is damaged, is not UTF-8, or is nested too deeply ends no process."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
NARROW = {"tomllib.TOMLDecodeError", "json.JSONDecodeError"}
"""A number that is too long is a plain ValueError, and deep nesting is a RecursionError."""
PARSERS = {"msgspec.json.decode", "json.loads", "json.load", "tomllib.loads", "tomllib.load"}
COMPLETE = {"RecursionError", "UNREADABLE_JSON", "*UNREADABLE_JSON"}


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
        calls = {
            ast.unparse(call.func)
            for statement in node.body
            for call in ast.walk(statement)
            if isinstance(call, ast.Call)
        }
        parses_json = "msgspec.DecodeError" in found or "msgspec.MsgspecError" in found
        incomplete = bool(found) and bool(PARSERS & calls) and not COMPLETE & found
        if parses_json or NARROW & found or incomplete:
            yield node.lineno


def test_every_parser_of_input_handles_whatever_it_cannot_read() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert sum("UNREADABLE_JSON" in text for text in texts.values()) > len(PACKAGES)
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, text in texts.items()
        for line in breaches(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("call", "caught", "right"),
    [
        ("decoder.decode(a)", "msgspec.DecodeError", False),
        ("decoder.decode(a)", "(KeyError, msgspec.MsgspecError)", False),
        ("decoder.decode(a)", "(msgspec.DecodeError, UnicodeDecodeError, RecursionError)", False),
        ("tomllib.loads(a)", "(tomllib.TOMLDecodeError, RecursionError)", False),
        ("msgspec.json.decode(a)", "ValueError", False),
        ("f(json.loads(a))", "(KeyError, ValueError)", False),
        ("msgspec.json.decode(a)", "UNREADABLE_JSON", True),
        ("msgspec.json.decode(a)", "(OSError, *UNREADABLE_JSON)", True),
        ("tomllib.loads(a)", "(ValueError, RecursionError)", True),
    ],
)
def test_a_handler_that_leaves_something_out_is_found(call: str, caught: str, right: bool) -> None:
    assert bool(list(breaches(f"try:\n  {call}\nexcept {caught}:\n  b()\n"))) != right
