"""The languages inside of quoted texts of LogQL: templates, paths of JSON, and line patterns."""

import re
from typing import Final

from sluice_query.logql.expressions import Literal, Placeholder, Template
from sluice_query.logql.lexer import LABEL, shortened

TEMPLATE_FUNCTIONS: Final = ("lower", "trim", "upper")
_OTHER_NAMES: Final = {"ToLower": "lower", "ToUpper": "upper", "TrimSpace": "trim"}
_ACTION: Final = re.compile(
    r"\{\{\s*(?:\.([A-Za-z_][A-Za-z0-9_]*)|(__line__|__timestamp__))\s*((?:\|\s*[A-Za-z]+\s*)*)\}\}"
)
_CALLED: Final = re.compile(r"([A-Za-z]+)\s+(\.[A-Za-z_][A-Za-z0-9_]*|__line__)")
_CAPTURE: Final = re.compile(r"<([A-Za-z_][A-Za-z0-9_]*)>")
_PATH_PART: Final = re.compile(
    r"(\.?)([A-Za-z_][A-Za-z0-9_-]*)|\[([0-9]{1,9})\]|\[\"((?:[^\"\\]|\\.)+)\"\]", re.DOTALL
)


def parse_template(text: str) -> Template:
    """Return the parts of a template such as `{{.method | lower}} {{__line__}}`.

    Raises:
        ValueError: With the action that has no place in the tree, and what to write instead.
    """
    parts: list[Literal | Placeholder] = []
    at = 0
    while at < len(text):
        start = text.find("{{", at)
        literal = text[at:start] if start >= 0 else text[at:]
        if literal:
            parts.append(Literal(literal))
        if start < 0:
            break
        action = _ACTION.match(text, start)
        if action is None:
            raise _unknown_action(text[start:])
        parts.append(_placeholder(action))
        at = action.end()
    return tuple(parts)


def _placeholder(action: re.Match[str]) -> Placeholder:
    label, variable, piped = action.groups()
    if label in {"__line__", "__timestamp__"}:
        raise ValueError(action.group(), f"write `{{{{{label}}}}}`")
    names = [one.strip() for one in piped.split("|")[1:]]
    functions = tuple(_OTHER_NAMES.get(name, name) for name in names)
    for name, function in zip(names, functions, strict=True):
        if function not in TEMPLATE_FUNCTIONS:
            raise ValueError(name, f"use one of {', '.join(TEMPLATE_FUNCTIONS)}")
    return Placeholder(label or variable, functions)


def _unknown_action(text: str) -> ValueError:
    end = text.find("}}")
    if end < 0:
        return ValueError(text, "write `}}` after it")
    action = text[: end + 2]
    inner = action[2:-2].strip("- \t\n")
    called = _CALLED.fullmatch(inner)
    name = _OTHER_NAMES.get(called[1], called[1]) if called else ""
    if called and name in TEMPLATE_FUNCTIONS:
        return ValueError(action, f"write `{{{{{shortened(called[2])} | {name}}}}}`")
    if LABEL.fullmatch(inner):
        return ValueError(action, f"write `{{{{.{shortened(inner)}}}}}`")
    return ValueError(action, "write `{{.label}}`, `{{__line__}}` or `{{.label | lower}}`")


def parse_path(text: str) -> tuple[str | int, ...]:
    """Return the members and positions of a path such as `a.b[0]["c d"]`.

    Raises:
        ValueError: It is not a path.
    """
    parts: list[str | int] = []
    at = 0
    while at < len(text) or not parts:
        part = _PATH_PART.match(text, at)
        # A name has a dot before it, except the first one.
        if part is None or (part[2] and (part[1] == ".") != bool(parts)):
            raise ValueError(text[at:])
        _, name, position, quoted = part.groups()
        parts.append(int(position) if position else name or re.sub(r"\\(.)", r"\1", quoted))
        at = part.end()
    return tuple(parts)


def parse_line_pattern(text: str) -> tuple[str | Placeholder, ...]:
    """Return the texts and the captures of a pattern such as `<ip> - <_> <path>`.

    `_` is the name of a part that becomes no label.

    Raises:
        ValueError: Two captures have no text between them.
    """
    parts: list[str | Placeholder] = []
    at = 0
    for capture in _CAPTURE.finditer(text):
        if capture.start() > at:
            parts.append(text[at : capture.start()])
        elif parts:
            raise ValueError(capture.group())
        parts.append(Placeholder(capture[1]))
        at = capture.end()
    if at < len(text):
        parts.append(text[at:])
    return tuple(parts)
