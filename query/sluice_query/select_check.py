"""Which SQL statements are run: one SELECT over the tables of sluice, without other files.

The engine parses the text. A statement is refused by its type, and by the tables and functions that
its tree names. The engine is closed too: it reads the chosen data files only, and its settings are
locked.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from sluice_protocol.errors import UNREADABLE_JSON, BadUsage

TABLES: Final = {
    "logs": "log records, one a row",
    "metrics": "samples of metrics, one a row",
    "spans": "spans of traces, one a row",
    "entries": "opaque entries, one a row",
    "batches": "accepted batches, one a row",
}
TABLE_FUNCTIONS: Final = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree"})
"""Functions after FROM; every other one reads files, settings or the engine itself."""
_REFUSED: Final = {
    **dict.fromkeys(
        ("range", "generate_series"), "write it after FROM, where its rows need no memory"
    ),
    **dict.fromkeys(
        ("list_resize", "array_resize", "bitstring", "printf", "format"),
        "its result may need unbounded memory",
    ),
    **dict.fromkeys(
        (
            *("current_setting", "getvariable", "getenv", "sleep_ms", "pg_sleep", "write_log"),
            *("json_execute_serialized_sql", "nextval", "currval"),
        ),
        "it reads or changes more than the tables",
    ),
}
_SYSTEM: Final = frozenset({"system", "temp", "memory", "main", "pg_catalog", "information_schema"})
_EXPLAIN: Final = re.compile(r"\s*EXPLAIN\s+(?:ANALYZE\s+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSelect:
    """A statement that may be run, and the tables that it reads."""

    text: str
    tables: tuple[str, ...]


def check_kinds(kinds: list[str], text: str) -> str:
    """Return the SELECT of a text with statements of these kinds, without `EXPLAIN`."""
    if not kinds:
        raise BadUsage("SQL is empty: write a SELECT, for example `SELECT count(*) FROM logs`")
    if len(kinds) > 1:
        raise BadUsage(f"one statement at a time: run the {len(kinds)} statements one by one")
    if kinds[0] == "MULTI":
        raise BadUsage(
            "PIVOT needs its values: write them, as in `PIVOT logs ON level IN ('error')`"
        )
    if kinds[0] == "EXPLAIN" and (found := _EXPLAIN.match(text)):
        return text[found.end() :]
    if kinds[0] != "SELECT":
        raise BadUsage(
            "only SELECT, DESCRIBE, SHOW TABLES and EXPLAIN of a SELECT are run, because SQL never"
            f" writes, statement=`{kinds[0]}`"
        )
    return text


def check_tree(tree: str, text: str) -> CheckedSelect:
    """Check the tree of a SELECT, as `json_serialize_sql` returns it."""
    found = json.loads(tree)
    if found["error"]:
        raise BadUsage(f"only a SELECT is run: {found['error_message']}")
    nodes = list(_nodes(found["statements"]))
    named = {str(one["key"]).lower() for one in nodes if "key" in one and "value" in one}
    tables: set[str] = set()
    for node in nodes:
        match node.get("type"):
            case "BASE_TABLE":
                tables |= _check_table(node, named)
            case "TABLE_FUNCTION":
                _check_table_function(node["function"])
            case "SHOW_REF" if node.get("query") is None:
                tables |= set() if _is_show_tables(node) else _check_table(node, named)
    functions = [one for one in nodes if one.get("class") == "FUNCTION" and "is_table" not in one]
    for node in functions:
        _check_function(node)
    return CheckedSelect(text=text, tables=tuple(one for one in TABLES if one in tables))


def _check_table_function(function: dict[str, Any]) -> None:
    name = str(function.get("function_name")).lower()
    if name not in TABLE_FUNCTIONS or function.get("schema"):
        raise BadUsage(
            "this function is not for FROM, because SQL reads the tables only: use"
            f" {', '.join(sorted(TABLE_FUNCTIONS))}, function=`{name}`"
        )
    function["is_table"] = True


def _is_show_tables(node: dict[str, Any]) -> bool:
    return str(node.get("table_name")) == '"tables"'


def _nodes(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from _nodes(one)
    elif isinstance(value, list):
        for one in value:
            yield from _nodes(one)


def _check_table(node: dict[str, Any], named: set[str]) -> set[str]:
    name = str(node.get("table_name"))
    if not node.get("schema_name") and not node.get("catalog_name"):
        if name.lower() in TABLES:
            return {name.lower()}
        if name.lower() in named:
            return set()
    near = get_close_matches(name.lower(), TABLES, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise BadUsage(
        f"no such table: {hint}there are {', '.join(TABLES)}; SQL reads no files,"
        f" table=`{name[:80]}`"
    )


def _check_function(node: dict[str, Any]) -> None:
    name = str(node.get("function_name")).lower()
    schema = {str(node.get("schema")).lower(), str(node.get("catalog")).lower()}
    if schema & _SYSTEM:
        raise BadUsage(f"write the function without a schema, function=`{name}`")
    if name in _REFUSED:
        raise BadUsage(f"this function is refused: {_REFUSED[name]}, function=`{name}`")


_PLACE: Final = re.compile(r"LINE (\d+): (.*)\n( *)\^", re.ASCII)


def describe_sql_error(message: str, text: str) -> str:
    """Return an error of the engine on one line, with the line and column in the text.

    The engine states the place as an offset in JSON, or as a caret under a line of the text.
    """
    start = max(message.find("{"), 0)
    place = ""
    try:
        found = msgspec.json.decode(message[start:], type=dict[str, Any])
        reason = str(found.get("exception_message"))
        if str(found.get("position", "")).isdigit():
            before = text.encode()[: int(found["position"])].decode(errors="replace")
            column = len(before) - before.rfind("\n")
            place = f", line=`{before.count(chr(10)) + 1}`, column=`{column}`"
    except UNREADABLE_JSON:
        reason, _, rest = message.partition("\n\nLINE ")
        reason = reason.split("Error: ", 1)[-1]
        caret = _PLACE.search(f"LINE {rest}")
        if caret is not None and not caret[2].startswith("..."):
            column = len(caret[3]) - len(f"LINE {caret[1]}: ") + 1
            place = f", line=`{caret[1]}`, column=`{column}`"
    lines = [f"{one[:1].lower()}{one[1:200]}".rstrip("!") for one in reason.splitlines() if one]
    candidates = [one for one in lines[1:2] if one.startswith(("did you", "candidate"))]
    return f"SQL: {'; '.join([*lines[:1], *candidates])}".replace('"', "`") + place
