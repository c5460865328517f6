"""Which line of a TOML file holds which key, so that an error can name it.

`tomllib` forgets lines once it has parsed. Settings files are plain tables and keys, each key at
the start of its line; inside an inline table a key has the line of the table.
"""

import re
from typing import Final

_TABLE: Final = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(r"^\s*([A-Za-z0-9_\-.\"' ]+?)\s*=")


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Gives the line, counted from 1, of every table header and key."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = _TABLE.match(line), _KEY.match(line)
        if header is not None:
            table = _split(header[1])
            found.setdefault(table, number)
        elif key is not None:
            found.setdefault(table + _split(key[1]), number)
    return found


def line_of(text: str, path: tuple[str, ...]) -> int:
    """Gives the line of a key, or of the nearest table around it, or 1."""
    found = key_lines(text)
    while path and path not in found:
        path = path[:-1]
    return found.get(path, 1)
