"""Reading the settings file: an error names the line of the key that is wrong.

`tomllib` drops line numbers. Settings files are plain tables and keys, each key at the start of its
line, so a scan of the lines finds them; a key in an inline table has the line of the table.
"""

import re
import tomllib
from pathlib import Path
from typing import Final

import msgspec

from sluice_policies.errors import BadSettings
from sluice_policies.settings import Settings
from sluice_policies.settings_rules import complaints

_PATH: Final = re.compile(r"`\$((?:\.[a-z_]+|\[[^\]]*\])*)`")
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


def _decode(text: str, source: str) -> Settings:
    try:
        return msgspec.convert(tomllib.loads(text), Settings)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        raise BadSettings(source, int(at[1]) if at else 1, f"not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise _invalid(text, source, str(error)) from error


def _invalid(text: str, source: str, message: str) -> BadSettings:
    at = _PATH.search(message)
    path = tuple(re.findall(r"[a-z_]+", at[1])) if at else ()
    unknown = re.search(r"unknown field `([^`]+)`", message)
    if unknown is not None:
        path = (*path, unknown[1])
    return BadSettings(source, line_of(text, path), message)


def parse_settings(text: str, source: str = "settings") -> Settings:
    """Reads settings from TOML.

    Args:
        text: The file's text.
        source: The name that errors carry.

    Raises:
        BadSettings: The text is not TOML, has an unknown key, or a value that cannot be used.
    """
    settings = _decode(text, source)
    for path, reason in complaints(settings):
        raise BadSettings(source, line_of(text, path), reason)
    return settings


def read_settings(path: Path) -> Settings:
    """Reads the settings file.

    Raises:
        BadSettings: The file cannot be read or cannot be used.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(str(path), 1, f"cannot be read: {error}") from error
    return parse_settings(text, str(path))
